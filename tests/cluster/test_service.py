"""Turns go on while slots move and nodes die: each message once, in order, on one node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pawl import Client, Context, Outcome, Worker, workflow
from pawl_server.app import Handle, running
from tests.support.invariants import violations_everywhere
from tests.support.redis_cluster import RedisCluster, address_of
from tests.support.server import settings_for
from tests.support.wait import wait_until

BOOKS = [f"book-{at}" for at in range(24)]


@workflow("book", version="v1", initial_state=[])
async def book(ctx: Context, state: list[int], message: int) -> Outcome:
    """Writes the message into the book."""
    page = await ctx.step("think", lambda: message)
    return ctx.done([*state, page], result=page)


@asynccontextmanager
async def serving(cluster: RedisCluster, **fields: Any) -> AsyncIterator[tuple[Handle, Client]]:
    """A server on six partitions, a worker of it and a client."""
    settings = settings_for(cluster.url, partitions=6, log_level="error", **fields)
    async with running(settings) as handle, Client(handle.address) as client:
        worker = Worker(handle.address, workflows=[book], concurrency=16)
        task = asyncio.create_task(worker.run())
        try:
            yield handle, client
        finally:
            await worker.stop(1)
            await task


@asynccontextmanager
async def writing(client: Client, cluster: RedisCluster) -> AsyncIterator[dict[str, int]]:
    """Sends page after page to each book while the block runs; yields how many pages each has.

    Then each book must have each page once, in order, and nothing stored may contradict itself.
    """
    pages = dict.fromkeys(BOOKS, 0)
    enough = asyncio.Event()

    async def write(book_id: str) -> None:
        while not enough.is_set() or not pages[book_id]:
            page = pages[book_id]
            sent = await client.send(book_id, page, create=book, id=f"page-{page}", wait=30)
            assert sent.result() == page
            pages[book_id] += 1

    writers = [asyncio.create_task(write(book_id)) for book_id in BOOKS]
    try:
        yield pages
    finally:
        enough.set()
        await asyncio.gather(*writers)
    for book_id in BOOKS:
        instance = await client.get(book_id)
        assert (instance.state, instance.last_turn) == (list(range(pages[book_id])), pages[book_id])
    assert violations_everywhere(cluster) == []


@pytest.mark.spec("R-CLUSTER-2")
async def test_slots_move_while_turns_run(cluster: RedisCluster) -> None:
    async with serving(cluster) as (handle, client), writing(client, cluster) as pages:
        store = handle.engine.store
        for move in range(8):
            partition = store.partitions[move % 4]
            written = sum(pages.values())
            await wait_until(lambda n=written: sum(pages.values()) > n + len(BOOKS) // 2)
            target = next(node for node in cluster.nodes if node.address != address_of(store, partition))
            if move < 4:
                await asyncio.to_thread(cluster.move, partition.slot, target)
            else:
                await cluster.move_at_once(partition.slot, target)
            await wait_until(lambda p=partition, t=target: address_of(store, p) == t.address)


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_node_is_killed_and_started_again_while_turns_run() -> None:
    """Its data are on disk, so that nothing acknowledged is lost."""
    settings = {"cluster-node-timeout": "500", "cluster-require-full-coverage": "no"}
    with RedisCluster(3, aof="always", settings=settings) as cluster:
        async with serving(cluster) as (handle, client), writing(client, cluster) as pages:
            store = handle.engine.store
            await wait_until(lambda: all(pages.values()))
            await asyncio.to_thread(cluster.nodes[1].restart)
            await wait_until(lambda: store.connected)
            written = dict(pages)
            await wait_until(lambda: all(pages[book_id] > written[book_id] for book_id in BOOKS), 20)
            assert {partition.gen for partition in store.partitions} == {1, 2}
