"""Claim streams: places, receipt, renewals, ends, and what the client is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.admin_service_pb2 import GetWorkflowTypeRequest
from pawl.v1.message_service_pb2 import AwaitTurnRequest
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_pb2 import TURN_STATE_FAILED, TURN_STATE_RUNNING
from pawl.v1.turn_service_pb2 import CancelTurnRequest
from pawl.v1.workflow_type_pb2 import WorkflowType
from pawl_server.app import Handle, running
from tests.support.api import CALL_S, TYPE, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.raw_worker import ByClaim, Calls
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, fail, finish, refusal, release, workflows
from tests.support.wait import wait_until


@asynccontextmanager
async def two_servers(url: str, **fields: Any) -> AsyncIterator[tuple[Handle, Handle, Api, Api]]:
    """Two servers on one store, and a client of each. Neither polls."""
    fields = {"poll_interval_ms": NEVER_MS, **fields}
    async with (
        running(settings_for(url, server_name="one", **fields)) as one,
        running(settings_for(url, server_name="two", **fields)) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        yield one, two, first, second


async def given(api: Api, count: int = 1, **spec: Any) -> None:
    """Instances i0, i1, … with one message each."""
    for number in range(count):
        await api.create(f"i{number}", **spec)
        await api.send(f"i{number}", "m1")


# Places


@pytest.mark.spec("R-CLAIM-1", "R-CLAIM-2")
async def test_a_client_gets_as_many_turns_as_it_may_hold_and_the_next_when_one_ends(
    api: Api, server: Handle
) -> None:
    await given(api, 5)
    async with ByClaim(api, max_turns=2) as client:
        taken = [await client.turn(), await client.turn()]
        for end in (finish(), fail(final=True), fail(delay_ms=60_000)):
            assert client.waiting("turns") == 0
            assert (await client.do(taken.pop(0), end)).ok
            taken.append(await client.turn())
        assert len({turn.instance_id for turn in taken}) == 2
        [session] = server.delivery.sessions.values()
        assert (session.granted, session.reserved) == (0, 0)
        for turn in taken:
            assert (await client.do(turn, finish())).ok
        assert server.delivery.holders == {}
        assert client.waiting("lease_events") == 0, "what the client has ended is no news to it"


@pytest.mark.spec("R-CLAIM-2")
@pytest.mark.parametrize("end", [finish(), fail(final=True), release()], ids=lambda end: next(iter(end)))
async def test_a_command_on_another_server_frees_the_place_at_once(
    redis_server: RedisServer, redis_url: str, end: dict[str, Any]
) -> None:
    async with two_servers(redis_url) as (one, _, first, second):
        await given(first, 2)
        async with ByClaim(first) as client:
            turn = await client.turn()
            one.delivery.rereading.go_on = lambda now: None  # it is the hint that brings the next turn
            assert (await Calls(second).do(turn, end)).ok
            assert (await client.turn()).instance_id != turn.instance_id
            assert client.waiting("lease_events") == 0


@pytest.mark.spec("R-CLAIM-2")
async def test_a_command_on_a_work_stream_frees_the_place_too(api: Api) -> None:
    await given(api, 2)
    async with ByClaim(api) as client, Stream(api) as stream:
        turn = await client.turn()
        assert refusal(await stream.command(turn, finish()))[0] == ""
        assert (await client.turn()).instance_id != turn.instance_id


@pytest.mark.spec("R-CLAIM-3")
async def test_the_place_of_a_lease_whose_end_was_not_told_is_free_within_seconds(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with two_servers(redis_url) as (one, _, first, second):
        await given(first, 3)
        one.delivery.wakeups._lost = lambda *_: None  # whatever the hints say
        async with ByClaim(first) as client, Stream(first, credits=1, session="stream") as stream:
            turn, other = await client.turn(), await stream.turn()
            for each in (turn, other):
                assert (await Calls(second).do(each, finish())).ok
            assert (await client.turn()).instance_id not in (turn.instance_id, other.instance_id)
            event = await stream.event()
            assert (event.lease, refusal(event)) == (other.lease, ("LEASE_ENDED", {"how": "completed"}))
            assert one.delivery.rereading.found > 0


@pytest.mark.spec("R-CLAIM-3")
async def test_leases_that_live_are_read_again_and_left_alone(api: Api, server: Handle) -> None:
    await given(api, 2)
    rereading = server.delivery.rereading
    async with ByClaim(api) as client, Stream(api, credits=1) as stream:
        turns = [await client.turn(), await stream.turn()]
        await stream.command(turns[1], checkpoint("one"))
        await wait_until(lambda: rereading.reread >= 6)
        assert rereading.found == 0
        assert (await client.do(turns[0], finish())).ok
        assert refusal(await stream.command(turns[1], finish()))[0] == ""
        read = rereading.reread
        await wait_until(lambda: not rereading._round and rereading._began > rereading._last - 0.5)
        assert rereading.reread - read <= 2, "what is over is read no more"


async def test_places_are_bounded(api: Api) -> None:
    for number in (0, 10_001, -1):
        problem = await ByClaim(api, max_turns=number).problem()
        assert (problem.code, problem.metadata) == ("INVALID_ARGUMENT", {"field": "max_turns"})
    async with ByClaim(api, max_turns=10_000):
        pass


# Receipt and renewal


@pytest.mark.spec("R-LEASE-2", "R-LEASE-3")
async def test_a_turn_that_the_client_does_not_receive_goes_back(
    quick_api: Api, quick_stored: Stored
) -> None:
    await given(quick_api)
    async with ByClaim(quick_api) as client:
        first = await client.handed()
        event = await client.event()
        assert (event.lease, refusal(event)) == (first.lease, ("LEASE_ENDED", {"how": "returned"}))
        again = await client.turn()
        assert (again.attempt, again.fence > first.fence) == (1, True)
        assert (await client.do(again, finish())).ok
    assert quick_stored.record("i0").failures == 0


@pytest.mark.spec("R-CLAIM-4")
async def test_the_server_receives_and_renews_while_the_stream_is_open(
    quick_api: Api, quick_stored: Stored
) -> None:
    await given(quick_api, lease_timeout={"seconds": 1})
    async with ByClaim(quick_api, renew=True) as client:
        turn = await client.handed()
        await wait_until(lambda: quick_stored.accepted("i0"))
        leased_ms = turn.lease_time.ToMilliseconds()
        await wait_until(lambda: quick_stored.record("i0").deadline_ms > leased_ms + 3_000)
        assert (await client.do(turn, finish())).ok
        assert client.waiting("lease_events") == 0
    assert quick_stored.record("i0").failures == 0


@pytest.mark.spec("R-CLAIM-4", "R-LEASE-4")
async def test_renewals_end_at_the_attempt_timeout(quick_api: Api) -> None:
    settings = WorkflowType(lease_timeout={"seconds": 1}, attempt_timeout={"seconds": 2})  # pyright: ignore[reportArgumentType]
    async with ByClaim(quick_api, renew=True, settings=settings) as client:
        await given(quick_api)
        turn = await client.handed()
        event = await client.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "expired"}))
        assert (await client.handed()).last_failure.reason == "ATTEMPT_TIMEOUT"


@pytest.mark.spec("R-CLAIM-4")
async def test_without_renew_while_open_the_client_renews(quick_api: Api, quick_stored: Stored) -> None:
    await given(quick_api, 2, lease_timeout={"seconds": 1}, max_attempts=1)
    async with ByClaim(quick_api, max_turns=2) as client:
        kept, left = await client.turn(), await client.turn()
        ended = asyncio.ensure_future(client.event())
        while not ended.done():
            await client.received(kept)
            await asyncio.wait([ended], timeout=0.1)
        assert ended.result().lease == left.lease
        assert (await client.do(kept, finish())).ok


# What the client is told


async def test_the_server_introduces_itself_and_beats(quick_api: Api, quick_server: Handle) -> None:
    async with ByClaim(quick_api) as client:
        assert client.server is not None
        assert client.server.server_run == quick_server.engine.server_run
        assert client.server.beat_interval.ToMilliseconds() == 200
        assert "claim-stream" in client.server.capabilities
        for _ in range(3):
            await client.beat()


@pytest.mark.spec("R-WORK-5")
async def test_the_client_hears_that_a_lease_expired(quick_api: Api) -> None:
    await given(quick_api, 2, lease_timeout={"seconds": 1}, max_attempts=1)
    async with ByClaim(quick_api) as client:
        turn = await client.turn()
        event = await client.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "expired"}))
        assert (await client.turn()).instance_id != turn.instance_id


@pytest.mark.spec("R-WORK-5", "R-CLAIM-2")
@pytest.mark.parametrize("where", ["same server", "other server"])
async def test_the_client_hears_that_its_turn_was_cancelled(
    redis_server: RedisServer, redis_url: str, where: str
) -> None:
    async with two_servers(redis_url) as (one, _, first, second):
        await given(first, 2)
        one.delivery.rereading.go_on = lambda now: None  # it is told, and need not look
        async with ByClaim(first) as client:
            turn = await client.turn()
            request = CancelTurnRequest(instance_id=turn.instance_id, turn=1, force=True)
            await (first if where == "same server" else second).turns.CancelTurn(request, timeout=CALL_S)
            event = await client.event()
            assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "cancelled"}))
            assert (await client.turn()).instance_id != turn.instance_id
            assert (await client.do(turn, finish())).metadata == (("how", "cancelled"),)


@pytest.mark.spec("R-WORK-6")
async def test_a_turn_above_the_clients_limit_fails_undeliverable(api: Api) -> None:
    await api.create("large", max_attempts=1, state=Payload(data=b"s" * 50_000))
    await api.create("small")
    async with ByClaim(api, max_frame_bytes=65_536) as client:
        await api.send("large", "m1", b"m" * 30_000)
        request = AwaitTurnRequest(instance_id="large", turn=1)
        ended = (await api.messages.AwaitTurn(request, timeout=CALL_S)).turn
        assert (ended.state, ended.last_failure.reason) == (TURN_STATE_FAILED, "UNDELIVERABLE")
        await api.send("small", "m1")
        assert (await client.turn()).instance_id == "small"


# Opening


@pytest.mark.parametrize(
    ("field", "hello"),
    [
        ("hello.session", {"session": ""}),
        ("hello.session", {"session": "a b"}),
        ("hello.stream_ordinal", {"ordinal": -1}),
        ("hello.max_frame_bytes", {"max_frame_bytes": 65_535}),
        ("hello.leases", {"leases": [b"x"] * 257}),
        ("hello.labels", {"labels": {"k": "v" * 129}}),
    ],
)  # fmt: skip
async def test_a_bad_hello_names_its_field(api: Api, field: str, hello: dict[str, Any]) -> None:
    problem = await ByClaim(api, **hello).problem()
    assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert problem.metadata == {"field": field}


async def test_a_hello_and_types_are_needed(api: Api) -> None:
    client = ByClaim(api)
    client._request.hello.ClearField("workflows")
    assert (await client.problem()).metadata == {"field": "hello.workflows"}
    client = ByClaim(api)
    client._request.ClearField("hello")
    assert (await client.problem()).metadata == {"field": "hello"}
    client = ByClaim(api)
    client._request.hello.workflows[0].version = ""
    assert (await client.problem()).metadata == {"field": "hello.workflows[0].version"}


async def test_settings_of_the_hello_fill_what_does_not_exist(api: Api) -> None:
    async with ByClaim(api, settings=WorkflowType(max_attempts=7)):
        stored = await api.admin.GetWorkflowType(GetWorkflowTypeRequest(name=TYPE), timeout=CALL_S)
        assert stored.workflow_type.max_attempts == 7


# Ends


@pytest.mark.spec("R-LEASE-8", "R-EXPIRE-3")
@pytest.mark.parametrize("renew", [False, True], ids=["client renews", "server renews"])
async def test_the_turn_of_a_client_that_died_runs_elsewhere(api: Api, stored: Stored, renew: bool) -> None:
    await given(api)
    async with ByClaim(api, renew=renew) as dead:
        turn = await dead.turn()
        assert (await dead.do(turn, checkpoint("one"))).ok
    async with ByClaim(api, session="next") as following:
        again = await following.turn()
        assert (again.attempt, [step.key for step in again.steps]) == (2, ["one"])
        assert again.last_failure.reason == "WORKER_LOST"


@pytest.mark.spec("R-LEASE-7", "R-LEASE-8")
async def test_a_client_that_comes_back_takes_its_leases_along(api: Api, stored: Stored) -> None:
    await given(api, 3)
    async with ByClaim(api, max_turns=2) as first:
        taken = [await first.turn(), await first.turn()]
    async with ByClaim(api, max_turns=2, leases=[turn.lease for turn in taken]) as second:
        events = [await second.event(), await second.event()]
        assert {event.lease for event in events} == {turn.lease for turn in taken}
        assert [refusal(event)[0] for event in events] == ["", ""]
        assert second.waiting("turns") == 0, "adopted turns take places"
        assert (await second.do(taken[0], finish())).ok
        third = await second.turn()
        for turn in (taken[1], third):
            assert (await second.do(turn, finish())).ok
    assert [stored.record(f"i{number}").lost for number in range(3)] == [0, 0, 0]


async def test_leases_that_cant_be_adopted_take_no_places(api: Api) -> None:
    await given(api, 1)
    async with ByClaim(api) as first:
        turn = await first.turn()
        assert (await first.do(turn, finish())).ok
    await api.send("i0", "m2")
    async with ByClaim(api, leases=[turn.lease, b"junk"]) as second:
        events = {event.lease: event for event in (await second.event(), await second.event())}
        assert refusal(events[turn.lease]) == ("LEASE_ENDED", {"how": "completed"})
        assert refusal(events[b"junk"])[0] == "INVALID_FIELD"
        assert (await second.turn()).turn == 2


@pytest.mark.spec("R-LEASE-7")
@pytest.mark.parametrize("ordinals", [(0, 0), (5, 9)], ids=["numbered by the server", "by the client"])
async def test_the_newest_stream_of_a_session_has_the_lease(api: Api, ordinals: tuple[int, int]) -> None:
    await given(api, 2)
    async with ByClaim(api, ordinal=ordinals[0]) as old:
        turn = await old.turn()
        async with ByClaim(api, ordinal=ordinals[1], leases=[turn.lease]) as new:
            assert refusal(await new.event())[0] == ""
            assert refusal(await old.event())[0] == "SUPERSEDED"
            assert (await old.turn()).instance_id != turn.instance_id, "its place is free"
            old.cut()
            assert (await new.do(turn, finish())).ok


@pytest.mark.spec("R-LEASE-7", "R-WORK-5")
async def test_the_old_stream_on_another_server_hears_of_it(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with two_servers(redis_url) as (one, _, first, second):
        await given(first)
        one.delivery.rereading.go_on = lambda now: None
        async with ByClaim(first) as old:
            turn = await old.turn()
            async with ByClaim(second, leases=[turn.lease]) as new:
                assert refusal(await new.event())[0] == ""
                event = await old.event()
                assert (event.lease, refusal(event)[0]) == (turn.lease, "SUPERSEDED")
                old.cut()
                await wait_until(lambda: not one.delivery.sessions)
                assert (await new.do(turn, finish())).ok


@pytest.mark.spec("R-WORK-9")
async def test_a_stopping_server_asks_to_move_and_takes_nothing_away(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with two_servers(redis_url, stop_grace_ms=60_000) as (one, _, first, second):
        await given(first, 2)
        async with ByClaim(first, session="mover") as old:
            turn = await old.turn()
            stopping = asyncio.create_task(one.stop())
            assert (await old.drained()).grace.seconds == 60
            async with ByClaim(second, session="mover", leases=[turn.lease]) as new:
                assert refusal(await new.event())[0] == ""
                assert await old.code() == "OK", "a stream without turns ends at once"
                assert old.waiting("turns") == 0
                await asyncio.wait_for(stopping, CALL_S)
                assert (await new.do(turn, finish())).ok
                assert (await new.turn()).attempt == 1
                problem = await ByClaim(first).problem()
                assert problem.code == "UNAVAILABLE"


@pytest.mark.spec("R-WORK-9")
async def test_a_server_that_stops_leaves_the_leases_with_their_clients(
    server: Handle, api: Api, stored: Stored
) -> None:
    await given(api, 2)
    async with ByClaim(api) as client, ByClaim(api, session="renewed", renew=True) as renewed:
        await client.turn()
        await renewed.handed()
        await wait_until(lambda: stored.accepted("i0") and stored.accepted("i1"))
        await server.stop()
        assert [await client.code(), await renewed.code()] == ["OK", "OK"]
        for name in ("i0", "i1"):
            record = stored.record(name)
            assert (record.orphaned, record.state) == (False, TURN_STATE_RUNNING)
            assert record.deadline_ms - record.leased_ms > 50_000


# Pressure


async def test_a_client_whose_connection_is_stuck_gets_no_more_turns(server: Handle, api: Api) -> None:
    count, kept_free = 130, 40
    async with (
        FaultProxy(server.address) as proxy,
        Api(proxy.url) as held_up,
        ByClaim(held_up, max_turns=count, session="held-up") as blocked,
    ):
        proxy.down.hold()
        for number in range(count):
            await api.create(f"i{number}", state=Payload(data=b"s" * 60_000))
            await api.send(f"i{number}", "m1", b"m" * 30_000)
        async with Stream(api, credits=count, session="reads") as reads:
            taken = await reads.turns(kept_free)
            proxy.down.release()
            await blocked.handed()
            assert len({turn.instance_id for turn in taken}) == kept_free


@pytest.mark.spec("R-WORK-11")
async def test_a_client_that_reads_nothing_is_ended(quick_server: Handle, quick_api: Api) -> None:
    await given(quick_api, 100, state=Payload(data=b"s" * 60_000))
    request = pb.ClaimRequest(hello=pb.WorkHello(session="deaf", workflows=workflows()), max_turns=100)
    call: Any = quick_api.workers.Claim(request)
    sessions = quick_server.delivery.sessions
    await wait_until(lambda: any(session.blocked for session in sessions.values()))
    [session] = sessions.values()
    await wait_until(lambda: session.closed)
    why = session.end.result()
    assert why is not None
    assert why.reason == "OVERLOADED"
    call.cancel()


async def test_streams_that_are_cut_leave_nothing_behind(
    server: Handle, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    def tasks() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return [name for name in names if name.startswith(("read ", "write "))]

    await given(api, 20)
    for _ in range(10):
        clients = [ByClaim(api, session=f"s{number}", max_turns=3) for number in range(10)]
        await asyncio.gather(*(client.open() for client in clients))
        for client in clients:
            client.cut()
    await wait_until(lambda: not tasks() and not server.delivery.sessions)
    assert server.delivery.holders == {}
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
