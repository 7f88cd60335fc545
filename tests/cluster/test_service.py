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
PAGES = list(range(12))


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


async def write(client: Client) -> None:
    """Sends every page to every book, in order, and waits until each is written."""

    async def one(book_id: str) -> None:
        for page in PAGES:
            sent = await client.send(book_id, page, create=book, id=f"page-{page}", wait=30)
            assert sent.result() == page

    await asyncio.gather(*map(one, BOOKS))


async def check(client: Client, cluster: RedisCluster) -> None:
    """Each book has each page once, in order, and nothing stored contradicts itself."""
    for book_id in BOOKS:
        instance = await client.get(book_id)
        assert (instance.state, instance.last_turn) == (PAGES, len(PAGES))
    assert violations_everywhere(cluster) == []


@pytest.mark.spec("R-CLUSTER-2")
async def test_slots_move_while_turns_run(cluster: RedisCluster) -> None:
    async with serving(cluster) as (handle, client):
        store = handle.engine.store
        writing = asyncio.create_task(write(client))
        moves = 0
        while not writing.done():
            partition = store.partitions[moves % 6]
            target = next(node for node in cluster.nodes if node.address != address_of(store, partition))
            if moves // 6 % 2:
                await cluster.move_at_once(partition.slot, target)
            else:
                await asyncio.to_thread(cluster.move, partition.slot, target)
            await wait_until(lambda p=partition, t=target: address_of(store, p) == t.address)
            moves += 1
        await writing
        await check(client, cluster)
        assert moves > 6


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_node_is_killed_and_started_again_while_turns_run() -> None:
    """Its data are on disk, so that nothing acknowledged is lost."""
    settings = {"cluster-node-timeout": "500", "cluster-require-full-coverage": "no"}
    with RedisCluster(3, aof="always", settings=settings) as cluster:
        async with serving(cluster) as (handle, client):
            store = handle.engine.store
            writing = asyncio.create_task(write(client))
            await wait_until(lambda: store.metrics[f"hot {cluster.nodes[1].address}"].calls > 100)
            await asyncio.to_thread(cluster.nodes[1].restart)
            await writing
            await check(client, cluster)
            assert {partition.gen for partition in store.partitions} == {1, 2}
