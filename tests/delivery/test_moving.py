"""Streams that move: which servers there are, leases that change streams, streams that grow old."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.admin_service_pb2 import GetServerInfoRequest
from pawl_server import delivery
from pawl_server.app import Handle, running
from pawl_server.store.errors import StoreUnavailable
from tests.support.api import CALL_S, Api
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal, started
from tests.support.wait import wait_until


@pytest.fixture
def stored(server: Handle, redis_server: RedisServer) -> Stored:
    return Stored(server, redis_server)


@pytest.fixture
async def second(server: Handle, redis_url: str) -> AsyncIterator[Handle]:
    """Another server on the same store."""
    async with running(settings_for(redis_url, server_name="second")) as handle:
        yield handle


@pytest.fixture
async def second_api(second: Handle) -> AsyncIterator[Api]:
    """A client of `second`."""
    async with Api(second.address) as api:
        yield api


def places(*servers: Handle) -> dict[str, str]:
    """Addresses of servers by run."""
    return {each.engine.server_run: each.address for each in servers}


# Which servers there are


@pytest.mark.spec("R-SERVER-2")
async def test_streams_are_told_which_servers_there_are(server: Handle, api: Api, redis_url: str) -> None:
    async with Stream(api) as stream:
        await wait_until(lambda: stream.fleet == places(server))
        assert stream.frames[0].fleet.servers, "in the first frame already"
        async with running(settings_for(redis_url, server_name="second")) as second:
            await wait_until(lambda: stream.fleet == places(server, second))
            info = await api.admin.GetServerInfo(GetServerInfoRequest(), timeout=CALL_S)
            assert info.address == server.address
            assert {one.server_run: one.address for one in info.fleet.servers} == stream.fleet
        await wait_until(lambda: stream.fleet == places(server))


@pytest.mark.spec("R-SERVER-2", "R-WORK-9")
async def test_a_server_that_stops_names_the_others(server: Handle, api: Api, second: Handle) -> None:
    async with Stream(api, credits=1) as stream:
        await wait_until(lambda: stream.fleet == places(server, second))
        await started(api, stream)
        await server.stop()
        await stream.drained()
        assert stream.fleet == places(second)


async def test_a_server_without_an_address_of_its_own_names_none(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as server, Api(server.address) as api:
        server.engine.peers.address = ""
        server.engine.peers.refresh()
        async with Stream(api) as stream:
            await wait_until(lambda: stream.frames)
            assert stream.frames[0].HasField("fleet")
            assert stream.fleet == {}


# Leases that change streams


@pytest.mark.spec("R-LEASE-7", "R-WORK-13")
async def test_a_lease_goes_to_the_stream_of_the_latest_decision(
    server: Handle, api: Api, second_api: Api, stored: Stored
) -> None:
    async with Stream(second_api, ordinal=1) as older, Stream(api, ordinal=2, credits=1) as newer:
        turn = await started(api, newer)
        await newer.command(turn, checkpoint("one"))
        await older.adopt(3, turn.lease)
        event = await older.event()
        assert (event.lease, refusal(event)[0]) == (turn.lease, "")
        assert stored.record("a").conn == f"{older.server and older.server.server_run}.3.1".encode()
        newer.cut()
        await wait_until(lambda: not server.delivery.sessions)
        await server.engine.store.ping()
        assert not stored.orphaned("a"), "the stream that lost it has no say any more"
        assert refusal(await older.command(turn, checkpoint("two"), n=2))[0] == ""
        older.cut()
        await wait_until(lambda: stored.orphaned("a"), what="the end of the stream that has it counts")


@pytest.mark.spec("R-LEASE-7", "R-WORK-13")
async def test_an_earlier_decision_moves_nothing(api: Api, second_api: Api, stored: Stored) -> None:
    async with Stream(second_api, ordinal=1) as older, Stream(api, ordinal=5, credits=1) as newer:
        turn = await started(api, newer)
        conn = stored.record("a").conn
        await older.adopt(4, turn.lease)
        assert refusal(await older.event())[0] == "SUPERSEDED"
        assert stored.record("a").conn == conn
        assert refusal(await newer.command(turn, finish()))[0] == ""


@pytest.mark.spec("R-WORK-13")
async def test_commands_beside_an_adoption_find_the_lease_there(
    api: Api, second_api: Api, stored: Stored
) -> None:
    async with Stream(api, ordinal=1, credits=1) as first, Stream(second_api, ordinal=2) as other:
        turn = await started(api, first)
        adoption = pb.Adoption(ordinal=3, leases=[turn.lease])
        command = other.build(turn, checkpoint("one"), n=1)
        await other.say(adoptions=[adoption], commands=[command])
        assert refusal(await other.result())[0] == ""
        assert refusal(await other.event())[0] == ""
        assert refusal(await other.command(turn, finish(), n=2))[0] == ""


@pytest.mark.parametrize(
    ("adoptions", "field"),
    [
        ([pb.Adoption(ordinal=2, leases=[b"x"] * 200)] * 2, "adoptions"),
        ([pb.Adoption(leases=[b"x"])], "adoptions.ordinal"),
        ([pb.Adoption(ordinal=1 << 53, leases=[b"x"])], "adoptions.ordinal"),
    ],
)
@pytest.mark.spec("R-WORK-13")
async def test_bad_adoptions_end_the_stream(api: Api, adoptions: Any, field: str) -> None:
    async with Stream(api) as stream:
        await stream.say(adoptions=adoptions)
        problem = await stream.problem()
        assert (problem.reason, problem.metadata["field"]) == ("INVALID_FIELD", field)


async def test_a_lease_of_no_service_is_over(api: Api) -> None:
    async with Stream(api) as stream:
        await stream.adopt(2, b"nonsense")
        event = await stream.event()
        assert (event.lease, refusal(event)[0]) == (b"nonsense", "INVALID_FIELD")


@pytest.mark.spec("R-WORK-13")
async def test_an_adoption_that_the_store_did_not_answer_is_repeated_as_it_was(
    api: Api, second: Handle, second_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = second.engine.leases
    adopt, failures = leases.adopt, 2

    def broken(lease: Any, conn: str, done: Any, context: Any) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            second.delivery.loop.call_soon(done, context, StoreUnavailable("away"), 0)
        else:
            adopt(lease, conn, done, context)

    monkeypatch.setattr(leases, "adopt", broken)
    async with Stream(second_api, ordinal=1) as older, Stream(api, ordinal=2, credits=1) as newer:
        turn = await started(api, newer)
        await older.adopt(3, turn.lease)
        await older.beat_now()  # names the lease, which by the stream's own ordinal it would not get
        event = await older.event()
        assert (event.lease, refusal(event)[0]) == (turn.lease, "")
        assert older.waiting("lease_events") == 0


# Streams that grow old


@pytest.fixture
async def restless(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Handle]:
    """A server that moves streams after half a second."""
    async with running(settings_for(redis_url, stream_max_age_ms=500, beat_interval_ms=200)) as handle:
        yield handle


@pytest.mark.spec("R-WORK-14")
async def test_an_old_stream_is_asked_to_move_and_keeps_its_turns(
    restless: Handle, redis_server: RedisServer
) -> None:
    async with Api(restless.address) as api, Stream(api, credits=2) as stream:
        turn = await started(api, stream, messages=2)
        drain = await stream.drained()
        assert not drain.HasField("grace")
        await api.create("b")
        await api.send("b", "m1")
        assert refusal(await stream.command(turn, checkpoint("one")))[0] == ""
        async with Stream(api, ordinal=2, credits=2, leases=[turn.lease]) as moved:
            assert refusal(await moved.event())[0] == ""
            assert (await moved.turn()).instance_id == "b", "the old stream gets none although it has credits"
            assert refusal(await moved.command(turn, finish(), n=2))[0] == ""
            assert await stream.done() == "OK"


@pytest.mark.spec("R-WORK-14")
async def test_an_old_stream_without_turns_ends_after_a_while(
    restless: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MOVE_S", 0.3)
    async with Api(restless.address) as api, Stream(api, credits=1) as stream:
        await stream.drained()
        assert await stream.code() == "OK"


@pytest.mark.spec("R-WORK-14")
async def test_an_age_of_zero_moves_no_stream(redis_url: str) -> None:
    async with running(settings_for(redis_url, stream_max_age_ms=0)) as server:
        assert server.delivery.end_of_youth(1.0) == float("inf")
    async with running(settings_for(redis_url, stream_max_age_ms=1_000)) as server:
        ends = [server.delivery.end_of_youth(1.0) for _ in range(200)]
        assert 1.8 <= min(ends) < 1.9 < 2.1 < max(ends) <= 2.2
