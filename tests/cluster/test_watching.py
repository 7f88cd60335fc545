"""Watchers on a Redis Cluster: no event is missed or repeated while slots move and a node is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pawl import Client, EventCursor
from tests.cluster.test_service import BOOKS, serving, writing
from tests.support.redis_cluster import RedisCluster, address_of
from tests.support.wait import wait_until


class Watched:
    """The numbers that the watchers of the books and one of everything have got."""

    def __init__(self) -> None:
        self.each: dict[str, list[int]] = {book_id: [] for book_id in BOOKS}
        self.all: dict[str, list[int]] = {book_id: [] for book_id in BOOKS}

    async def follow(self, client: Client, book_id: str) -> None:
        """Watches a book from its first event on."""
        async for event in client.watch(book_id, after=EventCursor(0)):
            self.each[book_id].append(event.seq)

    async def follow_all(self, client: Client) -> None:
        """Watches everything from now on."""
        async for item in client.watch_namespace():
            self.all[item.event.instance_id].append(item.event.seq)

    def caught_up(self, last: dict[str, int]) -> bool:
        """Whether everything up to the last events has come."""
        return all(
            numbers[book_id][-1:] == [seq]
            for numbers in (self.each, self.all)
            for book_id, seq in last.items()
        )


@asynccontextmanager
async def watching(client: Client) -> AsyncIterator[Watched]:
    """Watches every book, and everything, while the block runs; nothing may be missed or come twice."""
    watched = Watched()
    followers = [asyncio.create_task(watched.follow(client, book_id)) for book_id in BOOKS]
    followers.append(asyncio.create_task(watched.follow_all(client)))
    await wait_until(lambda: all(watched.each.values()))
    yield watched
    last = {book_id: (await client.get(book_id)).last_seq for book_id in BOOKS}
    await wait_until(lambda: watched.caught_up(last), 30)
    assert [task.exception() for task in followers if task.done()] == []
    for task in followers:
        task.cancel()
    await asyncio.wait(followers)
    for numbers in (watched.each, watched.all):
        for book_id in BOOKS:
            first = numbers[book_id][0]
            assert numbers[book_id] == list(range(first, last[book_id] + 1)), book_id


@pytest.mark.spec("R-WATCH-1", "R-WATCH-9", "R-CLUSTER-2")
async def test_slots_move_while_books_are_watched(cluster: RedisCluster) -> None:
    async with serving(cluster) as (handle, client):
        store = handle.engine.store
        for book_id in BOOKS:
            await client.create(book_id, "book", version="v1", state=[])
        async with watching(client), writing(client, cluster) as pages:
            for move in range(6):
                partition = store.partitions[move % 3]
                written = sum(pages.values())
                await wait_until(lambda n=written: sum(pages.values()) > n + len(BOOKS) // 2)
                target = next(node for node in cluster.nodes if node.address != address_of(store, partition))
                if move < 3:
                    await asyncio.to_thread(cluster.move, partition.slot, target)
                else:
                    await cluster.move_at_once(partition.slot, target)
                await wait_until(lambda p=partition, t=target: address_of(store, p) == t.address)


@pytest.mark.spec("R-WATCH-1", "R-WATCH-9", "R-CLUSTER-4")
async def test_a_node_is_killed_while_books_are_watched() -> None:
    settings = {"cluster-node-timeout": "500", "cluster-require-full-coverage": "no"}
    with RedisCluster(3, aof="always", settings=settings) as cluster:
        async with serving(cluster) as (handle, client):
            store = handle.engine.store
            for book_id in BOOKS:
                await client.create(book_id, "book", version="v1", state=[])
            async with watching(client), writing(client, cluster) as pages:
                await wait_until(lambda: all(pages.values()))
                await asyncio.to_thread(cluster.nodes[1].restart)
                await wait_until(lambda: store.connected)
                written = dict(pages)
                await wait_until(lambda: all(pages[book_id] > written[book_id] for book_id in BOOKS), 20)
