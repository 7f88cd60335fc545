"""Processes of one port in one event loop: where clients of one go that stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pawl.v1.admin_service_pb2 import GetServerInfoRequest
from pawl_server.app import Handle, Place, running
from pawl_server.ports import Reservation
from tests.support.api import CALL_S, Api
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stream import Stream, finish, refusal, started
from tests.support.wait import wait_until


@pytest.fixture
async def pair(redis_server: RedisServer, redis_url: str) -> AsyncIterator[list[Handle]]:
    """Two servers on one port."""
    kept = Reservation("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        stack.callback(kept.close)
        settings = [
            settings_for(redis_url, port=kept.port, server_name=f"s-{number}", stop_grace_ms=5_000)
            for number in range(2)
        ]
        yield [
            await stack.enter_async_context(running(each, Place(lambda: False, number)))
            for number, each in enumerate(settings)
        ]


async def run_at(api: Api) -> str:
    """The run of the server at the other end of a connection."""
    return (await api.admin.GetServerInfo(GetServerInfoRequest(), timeout=CALL_S)).server_run


@asynccontextmanager
async def connected_to(server: Handle) -> AsyncIterator[Api]:
    """A connection that the kernel has dealt to one of the two."""
    for _ in range(100):
        async with Api(server.address) as api:
            if await run_at(api) == server.engine.server_run:
                yield api
                return
    raise AssertionError("a hundred connections came to the other server")


@pytest.mark.spec("R-FLEET-1")
async def test_servers_of_one_port_have_addresses_of_their_own(pair: list[Handle]) -> None:
    one, two = pair
    assert one.address == two.address
    for server in pair:
        async with Api(server.engine.peers.address) as api:
            assert await run_at(api) == server.engine.server_run


@pytest.mark.spec("R-WORK-15")
async def test_a_client_of_a_server_that_stops_goes_on_with_another_without_an_error(
    pair: list[Handle],
) -> None:
    one, two = pair
    async with (
        connected_to(one) as api,
        Api(one.engine.peers.address) as own,
        Stream(own, credits=1) as stream,
    ):
        turn = await started(own, stream)
        stopping = asyncio.create_task(one.stop())
        await stream.drained()
        found = {await run_at(api) for _ in range(50)}
        assert found == {two.engine.server_run}
        for _ in range(20):
            async with Api(one.address) as late:
                assert await run_at(late) == two.engine.server_run, "and so does every new one"
        assert not stopping.done(), "what runs there may end"
        assert refusal(await stream.command(turn, finish()))[0] == ""
        await stopping


@pytest.mark.spec("R-SERVER-2")
async def test_a_server_that_stops_is_no_longer_named(pair: list[Handle]) -> None:
    one, two = pair
    async with Api(two.engine.peers.address) as api, Stream(api) as stream:
        await wait_until(lambda: len(stream.fleet) == 2)
        async with Api(one.engine.peers.address) as own, Stream(own, credits=1) as busy:
            await started(own, busy)
            stopping = asyncio.create_task(one.stop())
            await wait_until(lambda: stream.fleet == {two.engine.server_run: two.engine.peers.address}, 1.5)
            assert not stopping.done()
            await busy.done()
        await stopping
