"""Streams of workers that can reach no server's own address are dealt anew as they grow old."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from pawl import Client, Worker
from pawl_server.app import running
from tests.support.fault_proxy import Dealer
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until
from tests.support.workers import Long

NOWHERE = "127.0.0.2"
"""The servers listen on another address."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.spec("R-WORK-14", "R-SDK-21", "R-SDK-22")
async def test_a_turn_goes_on_while_its_stream_moves(
    redis_server: RedisServer, redis_url: str, count: int
) -> None:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                running(
                    settings_for(
                        redis_url,
                        server_name=f"server-{number}",
                        stream_max_age_ms=400,
                        advertise_host=NOWHERE,
                    )
                )
            )
            for number in range(count)
        ]
        dealer = await stack.enter_async_context(Dealer(*(server.address for server in servers)))
        client = await stack.enter_async_context(Client(dealer.url))
        long = Long()
        worker = Worker(dealer.url, workflows=[long.workflow], concurrency=4)
        task = asyncio.get_running_loop().create_task(worker.run())
        await client.send("a", 1, create=long.workflow)
        await wait_until(lambda: long.ran == ["a", "b"])
        holders = set()

        def moved_on() -> bool:
            """Whether the lease was with every server, and on several streams of one."""
            for server in servers:
                for session in server.delivery.sessions.values():
                    if session.held.accepted():
                        holders.add(session.conn)
            return len(holders) >= 4 and len({conn.partition(".")[0] for conn in holders}) == count

        await wait_until(moved_on, 20)
        long.go.set()
        assert (await client.await_turn("a", 1, wait=10)).result() == 1
        assert (long.ran, long.cancelled) == (["a", "b", "c"], 0)
        await worker.stop()
        await task
    assert violations_everywhere(redis_server) == []
