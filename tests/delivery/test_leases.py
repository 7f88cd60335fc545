"""Leases of streams: received, kept, moved, orphaned, lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.admin_service_pb2 import PutWorkflowTypeRequest
from pawl.v1.error_pb2 import REASON_STALE_FENCE
from pawl.v1.turn_pb2 import TURN_STATE_RUNNING, Turn
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl.v1.workflow_type_pb2 import WorkflowType
from pawl_server.app import Handle
from tests.support.api import CALL_S, TYPE, Api, refusal_of
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal, release
from tests.support.wait import wait_until


@pytest.fixture
def stored(server: Handle, redis_server: RedisServer) -> Stored:
    return Stored(server, redis_server)


@pytest.fixture
def quick_stored(quick_server: Handle, redis_server: RedisServer) -> Stored:
    return Stored(quick_server, redis_server)


async def lease_of(api: Api, attempts: int = 0, **times_ms: int) -> None:
    """Sets the times of the usual type, and how many attempts may fail; 0 for the default."""
    settings = WorkflowType(name=TYPE, max_attempts=attempts)
    for name, value in times_ms.items():
        getattr(settings, name).FromMilliseconds(value)
    await api.admin.PutWorkflowType(PutWorkflowTypeRequest(workflow_type=settings), timeout=CALL_S)


async def given(api: Api, stream: Stream, instance_id: str = "a") -> pb.LeasedTurn:
    """Makes an instance with one message and has its turn delivered."""
    await api.create(instance_id)
    await api.send(instance_id, "m1")
    return await stream.turn()


async def last_turn(api: Api, instance_id: str = "a") -> Turn:
    return (await api.turns.GetTurn(GetTurnRequest(instance_id=instance_id, turn=1), timeout=CALL_S)).turn


# Acceptance


@pytest.mark.spec("R-LEASE-3")
async def test_what_a_frame_says_was_received_is_accepted_in_the_store(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1) as stream:
        await given(api, stream)
        assert not stored.accepted("a")
        await wait_until(lambda: stored.accepted("a"), 2.5)  # within 2 s, while the step may still run
        record = stored.record("a")
        assert (record.attempt, record.deadline_ms > record.leased_ms + 50_000) == (1, True)


@pytest.mark.spec("R-LEASE-3")
async def test_frames_that_cross_a_delivery_accept_nothing(quick_api: Api, quick_stored: Stored) -> None:
    async with Stream(quick_api, credits=1, acks=False) as stream:
        await given(quick_api, stream)
        await stream.beat_now(leases=[])  # sent before the turn arrived, as far as the server can know
        event = await stream.event()
        assert refusal(event) == ("LEASE_ENDED", {"how": "returned"})
        record = quick_stored.record("a")
        assert (record.attempt, record.failures, record.lost, record.deliveries) == (0, 0, 0, 1)


@pytest.mark.spec("R-LEASE-2", "R-EXPIRE-2")
async def test_a_delivery_that_is_never_received_comes_again_without_an_attempt(quick_api: Api) -> None:
    async with Stream(quick_api, credits=2, acks=False) as stream:
        first = await given(quick_api, stream)
        assert refusal(await stream.event())[0] == "LEASE_ENDED"
        second = await stream.turn()
        assert (second.turn, second.attempt, second.fence > first.fence) == (1, 1, True)
        assert refusal(await stream.command(second, finish()))[0] == ""


@pytest.mark.spec("R-LEASE-3")
async def test_a_command_accepts(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1, acks=False) as stream:
        turn = await given(api, stream)
        await stream.command(turn, checkpoint("one"))
        assert stored.accepted("a")


# Keeping


@pytest.mark.spec("R-LEASE-4")
async def test_the_server_renews_while_the_stream_lives(api: Api, stored: Stored) -> None:
    await lease_of(api, lease_timeout=2_000)
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        await wait_until(lambda: stored.record("a").deadline_ms > turn.lease_time.ToMilliseconds() + 4_000)
        assert refusal(await stream.command(turn, finish()))[0] == ""


@pytest.mark.spec("R-LEASE-4", "R-WORK-5", "R-EXPIRE-5")
@pytest.mark.parametrize("attempts", [1, 3])
async def test_the_end_of_a_lease_by_time_is_pushed(api: Api, attempts: int) -> None:
    await lease_of(api, attempts, lease_timeout=1_000, attempt_timeout=1_000)
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        await stream.command(turn, checkpoint("one"))
        event = await stream.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "expired"}))
        assert (await last_turn(api)).last_failure.reason == "ATTEMPT_TIMEOUT"
        late = await stream.command(turn, finish())
        assert refusal(late) == ("LEASE_ENDED", {"how": "expired"})


@pytest.mark.spec("R-WORK-5")
async def test_the_end_of_a_lease_on_another_server_is_pushed(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        run = stored.handle.engine.server_run
        conn = stored.record("a").conn
        assert isinstance(conn, bytes)
        hint = f"ended {conn.decode()} {turn.incarnation} 1 {turn.fence} expired a"
        stored.redis.call("SPUBLISH", f"{stored.tag('a')}ch:{run}", hint)
        event = await stream.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "expired"}))


@pytest.mark.spec("R-WORK-5")
async def test_news_that_a_lease_was_taken_is_old_once_it_is_back(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=2) as stream:
        turns = {name: await given(api, stream, name) for name in ("a", "b")}
        conns = {name: stored.record(name).conn for name in turns}
        await stream.say(adoptions=[pb.Adoption(ordinal=7, leases=[turns["a"].lease])])
        assert refusal(await stream.event())[0] == ""
        run = stored.handle.engine.server_run
        for name, turn in turns.items():
            conn = conns[name]
            assert isinstance(conn, bytes)
            hint = f"ended {conn.decode()} {turn.incarnation} 1 {turn.fence} superseded {name}"
            stored.redis.call("SPUBLISH", f"{stored.tag(name)}ch:{run}", hint)
        event = await stream.event()
        assert (event.lease, refusal(event)[0]) == (turns["b"].lease, "SUPERSEDED")
        assert refusal(await stream.command(turns["a"], finish()))[0] == ""
        assert stream.waiting("lease_events") == 0


@pytest.mark.spec("R-LEASE-6")
async def test_each_renewal_is_judged_on_its_own(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        alive = await given(api, stream, "a")
        over = await given(api, stream, "b")
        await stream.command(over, release())
        response = await api.workers.RenewLeases(
            pb.RenewLeasesRequest(leases=[alive.lease, over.lease, alive.lease]), timeout=CALL_S
        )
        first, second, third = response.results
        assert (first.lease, first.remaining.seconds) == (alive.lease, 60)
        assert dict(second.refusal.metadata) == {"how": "released"}
        assert third.remaining.seconds > 0


@pytest.mark.parametrize("leases", [[], [b"\x95\x00\xa1a\x01\x01\x01"] * 257])
async def test_renewals_are_counted(api: Api, leases: list[bytes]) -> None:
    problem = await refusal_of(api.workers.RenewLeases(pb.RenewLeasesRequest(leases=leases), timeout=CALL_S))
    assert (problem.reason, problem.metadata["field"]) == ("INVALID_FIELD", "leases")


@pytest.mark.spec("R-LEASE-6")
async def test_bytes_that_name_no_lease_spoil_no_renewal(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        request = pb.RenewLeasesRequest(leases=[b"junk", turn.lease])
        bad, good = (await api.workers.RenewLeases(request, timeout=CALL_S)).results
        assert dict(bad.refusal.metadata) == {"field": "leases[0]"}
        assert good.remaining.seconds == 60
        adoption = pb.AdoptLeasesRequest(session="worker", stream_ordinal=1, leases=[b"junk", turn.lease])
        bad, good = (await api.workers.AdoptLeases(adoption, timeout=CALL_S)).results
        assert dict(bad.refusal.metadata) == {"field": "leases[0]"}
        assert not good.HasField("refusal")


@pytest.mark.spec("R-LEASE-7", "R-WORK-5")
async def test_an_older_stream_hears_that_a_newer_one_took_its_lease(api: Api) -> None:
    async with Stream(api, credits=1) as old:
        turn = await given(api, old)
        async with Stream(api, ordinal=2, leases=[turn.lease, b"junk"]) as new:
            events = {event.lease: event for event in [await new.event(), await new.event()]}
            assert not events[turn.lease].HasField("ended")
            assert refusal(events[b"junk"])[0] == "INVALID_FIELD"
            assert refusal(await old.event())[0] == "SUPERSEDED"
            assert not (await new.command(turn, finish())).HasField("refusal")


# Streams that close


@pytest.mark.spec("R-LEASE-8", "R-EXPIRE-3")
async def test_the_turn_of_a_worker_that_died_runs_elsewhere_within_seconds(api: Api, stored: Stored) -> None:
    async with Stream(api, session="other") as other, Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        await stream.command(turn, checkpoint("one"))
        stream.cut()
        await other.credit(1)
        again = await other.turn()
        assert (again.attempt, [step.key for step in again.steps]) == (2, ["one"])
        assert again.last_failure.reason == "WORKER_LOST"
        assert stored.record("a").lost == 1


@pytest.mark.spec("R-LEASE-8")
async def test_turns_that_were_never_sent_cost_nothing(api: Api, stored: Stored, server: Handle) -> None:
    async with FaultProxy(server.address) as proxy, Api(proxy.url) as behind:
        stream = Stream(behind, credits=30, acks=False)
        await stream.open()
        proxy.down.hold()
        for number in range(30):
            await api.create(f"i{number}")
            await api.send(f"i{number}", "m1", b"m" * 30_000)
        proxy.cut()
        async with Stream(api, credits=30, session="other") as other:
            turns = await other.turns(30)
            assert {turn.attempt for turn in turns} == {1}
        stream.cut()


@pytest.mark.spec("R-LEASE-7")
async def test_a_lease_moves_to_the_newer_stream_and_the_end_of_the_old_one_means_nothing(
    api: Api, stored: Stored
) -> None:
    async with Stream(api, credits=1) as old, Stream(api, ordinal=2) as new:
        turn = await given(api, old)
        request = pb.AdoptLeasesRequest(session="worker", stream_ordinal=2, leases=[turn.lease])
        response = await api.workers.AdoptLeases(request, timeout=CALL_S)
        assert response.results[0].remaining.seconds == 60
        assert (await new.event()).lease == turn.lease
        assert await old.done() == "OK"
        back = pb.AdoptLeasesRequest(session="worker", stream_ordinal=2, leases=[turn.lease])
        await api.workers.AdoptLeases(back, timeout=CALL_S)
        assert refusal(await new.command(turn, finish()))[0] == ""
        assert stored.record("a").lost == 0


@pytest.mark.spec("R-LEASE-7")
async def test_an_older_stream_cant_take_a_lease_back(api: Api) -> None:
    async with Stream(api, ordinal=7, credits=1) as new, Stream(api, ordinal=3) as old:
        turn = await given(api, new)
        request = pb.AdoptLeasesRequest(session="worker", stream_ordinal=3, leases=[turn.lease])
        response = await api.workers.AdoptLeases(request, timeout=CALL_S)
        assert response.results[0].HasField("refusal")
        assert refusal(await old.event())[0] == "SUPERSEDED"
        assert refusal(await new.command(turn, finish()))[0] == ""


async def test_leases_are_adopted_by_open_streams_only(api: Api) -> None:
    request = pb.AdoptLeasesRequest(session="w", stream_ordinal=1, leases=[b"\x95\x00\xa1a\x01\x01\x01"])
    assert (await refusal_of(api.workers.AdoptLeases(request, timeout=CALL_S))).reason == "WRONG_STATE"


async def test_what_is_over_cant_be_adopted(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await given(api, stream)
        await stream.command(turn, release())
        again = await stream.turn()
        await stream.command(again, release())
        await stream.credit(1)
        await stream.turn()
        async with Stream(api, ordinal=2, leases=[turn.lease, again.lease]) as late:
            events = {event.lease: event for event in (await late.event(), await late.event())}
            assert events[turn.lease].ended.reason == REASON_STALE_FENCE
            assert refusal(events[again.lease]) == ("LEASE_ENDED", {"how": "released"})


@pytest.mark.spec("R-LEASE-6", "R-LEASE-10")
async def test_a_detached_lease_outlives_its_stream(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1) as stream, Stream(api, session="other", credits=1) as other:
        kept = await given(api, stream, "a")
        lost = await given(api, other, "b")
        holders = {kept.lease: stream, lost.lease: other}
        request = pb.RenewLeasesRequest(leases=[kept.lease], detach=True, ordinal=1)
        answer = await api.workers.RenewLeases(request, timeout=CALL_S)
        assert 9 <= answer.results[0].remaining.ToTimedelta().total_seconds() <= 10
        deadline_ms = stored.record("a").deadline_ms
        holders[kept.lease].cut()
        await wait_until(lambda: stream._reader is not None and stream._reader.done())
        holders[lost.lease].cut()
        await wait_until(lambda: stored.orphaned("b") or stored.record("b").lost)
        record = stored.record("a")
        assert (record.deadline_ms, record.conn, record.state) == (deadline_ms, 0, TURN_STATE_RUNNING)


@pytest.mark.spec("R-LEASE-10", "R-API-1")
async def test_a_detach_names_its_place_among_the_decisions(api: Api, stored: Stored) -> None:
    async with Stream(api, ordinal=7, credits=1) as stream:
        turn = await given(api, stream)
        late = pb.RenewLeasesRequest(leases=[turn.lease], detach=True, ordinal=6)
        answer = await api.workers.RenewLeases(late, timeout=CALL_S)
        assert answer.results[0].remaining.seconds >= 59
        assert stored.record("a").conn != 0
        bad = pb.RenewLeasesRequest(leases=[turn.lease], detach=True, ordinal=-1)
        problem = await refusal_of(api.workers.RenewLeases(bad, timeout=CALL_S))
        assert (problem.reason, problem.metadata["field"]) == ("INVALID_FIELD", "ordinal")


@pytest.mark.spec("R-LEASE-8")
async def test_workers_get_more_time_when_many_streams_close_at_once(api: Api, stored: Stored) -> None:
    streams = [Stream(api, session=f"s{number}", credits=1) for number in range(25)]
    await asyncio.gather(*(stream.open() for stream in streams))
    names = [f"i{number}" for number in range(25)]
    for name in names:
        await api.create(name)
        await api.send(name, "m1")
    for stream in streams:
        await stream.command(await stream.turn(), checkpoint("one"))
    now_ms = time.time() * 1000  # the clock of Redis here
    for stream in streams:
        stream.cut()
    await wait_until(lambda: all(stored.orphaned(name) for name in names))
    assert min(stored.record(name).deadline_ms for name in names) > now_ms + 8_000


@pytest.mark.spec("R-WORK-9")
async def test_a_server_that_stops_leaves_the_leases_with_their_workers(
    server: Handle, api: Api, stored: Stored
) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        await stream.command(turn, checkpoint("one"))
        await server.stop()
        assert await stream.code() == "OK"
        record = stored.record("a")
        assert (record.orphaned, record.state) == (False, TURN_STATE_RUNNING)
        assert record.deadline_ms - record.leased_ms > 50_000


# Beats


@pytest.mark.spec("R-WORK-8")
async def test_a_lease_missing_from_three_beats_is_taken_back(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        await stream.command(turn, checkpoint("one"))
        for _ in range(2):
            await stream.beat_now(leases=[])
            await stream.beat()
        await stream.beat_now()  # listed again: the count begins anew
        for _ in range(3):
            await stream.beat()
            assert not stored.orphaned("a")
            await stream.beat_now(leases=[])
        await wait_until(lambda: stored.orphaned("a") or stored.record("a").lost)


@pytest.mark.spec("R-LEASE-7")
async def test_a_beat_that_lists_an_unknown_lease_adopts_it(api: Api, stored: Stored) -> None:
    async with Stream(api, ordinal=2, beats=False) as new:
        old = Stream(api, credits=1)
        await old.open()
        turn = await given(api, old)
        old.cut()
        await new.beat_now(leases=[turn.lease])
        event = await new.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("", {}))
        await new.beat_now(leases=[turn.lease])
        await new.beat()
        assert new.waiting("lease_events") == 0
        assert refusal(await new.command(turn, finish()))[0] == ""


async def test_a_beat_that_crosses_the_end_of_a_lease_means_nothing(api: Api) -> None:
    async with Stream(api, credits=1, beats=False) as stream:
        turn = await given(api, stream)
        assert refusal(await stream.command(turn, finish()))[0] == ""
        await stream.beat_now(leases=[turn.lease])
        await stream.beat()
        assert stream.waiting("lease_events") == 0


async def test_a_beat_that_lists_a_dead_lease_is_told_so(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await given(api, stream)
        await stream.command(turn, release())
    async with Stream(api, ordinal=2, beats=False) as late:
        await late.beat_now(leases=[turn.lease])
        assert refusal(await late.event()) == ("LEASE_ENDED", {"how": "released"})
