"""Workers whose turn is to be cancelled: how they hear of it, what they may still do, and what they lose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from pawl.testing.v1.clock_service_pb2 import AdvanceRequest
from pawl.testing.v1.clock_service_pb2_grpc import ClockServiceStub
from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.turn_pb2 import (
    TURN_STATE_CANCELLED,
    TURN_STATE_CANCELLING,
    TURN_STATE_COMPLETED,
    TURN_STATE_RUNNING,
    Turn,
)
from pawl.v1.turn_service_pb2 import CancelTurnRequest, CancelTurnResponse, GetTurnRequest
from pawl_server.app import Handle, running
from pawl_server.domain.limits import CANCEL_GRACE_MS
from tests.support.api import CALL_S, Api
from tests.support.invariants import violations_everywhere
from tests.support.raw_worker import Answer, ByClaim, ByPolls, ByStream, Calls
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.stream import checkpoint, defer, fail, finish, refusal, release, sleep
from tests.support.wait import wait_until

STREAMS: dict[str, Callable[[Api], Any]] = {
    "stream": ByStream,
    "claim": ByClaim,
    "renewed claim": lambda api: ByClaim(api, renew=True),
}
WAYS: dict[str, Callable[[Api], Any]] = {**STREAMS, "polls": ByPolls}
CANCELLED = Answer.refused("LEASE_ENDED", {"how": "cancelled"})


class Pair(NamedTuple):
    """Two servers of a namespace, and a client of each."""

    one: Handle
    two: Handle
    first: Api
    second: Api


@asynccontextmanager
async def servers(url: str, **fields: Any) -> AsyncIterator[Pair]:
    """Servers that learn of nothing by polling."""
    fields = {"poll_interval_ms": NEVER_MS, **fields}
    async with (
        running(settings_for(url, server_name="one", **fields)) as one,
        running(settings_for(url, server_name="two", **fields)) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        yield Pair(one, two, first, second)


@pytest.fixture
async def pair(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Pair]:
    """Servers that see what they are told, and never look for themselves."""
    async with servers(redis_url) as pair:
        for server in (pair.one, pair.two):
            server.delivery.rereading.go_on = lambda now: None
        yield pair
    assert violations_everywhere(redis_server) == []


async def given(api: Api, messages: int = 2, **spec: Any) -> None:
    """An instance with messages."""
    await api.create("a", **spec)
    for number in range(messages):
        await api.send("a", f"m{number + 1}")


async def cancel(api: Api, turn: int = 1, **fields: Any) -> CancelTurnResponse:
    """Cancels a turn of the instance."""
    return await api.turns.CancelTurn(CancelTurnRequest(instance_id="a", turn=turn, **fields), timeout=CALL_S)


async def shown(api: Api, turn: int = 1) -> Turn:
    """A turn of the instance."""
    return (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=turn), timeout=CALL_S)).turn


async def event_of(worker: ByStream | ByClaim) -> pb.LeaseEvent:
    """The next lease event of a worker with a stream."""
    return await (worker.stream.event() if isinstance(worker, ByStream) else worker.event())


def grace(said: pb.LeaseEvent | pb.RenewResult) -> int:
    """What is left of the grace, in ms; 0 if nothing is said of it."""
    assert not (said.HasField("ended") if isinstance(said, pb.LeaseEvent) else said.HasField("refusal"))
    return said.cancel_grace.ToMilliseconds()


@pytest.mark.spec("R-CANCEL-6", "R-CANCEL-7", "R-WORK-5")
@pytest.mark.parametrize("where", ["same server", "other server"])
@pytest.mark.parametrize("way", STREAMS)
async def test_the_worker_hears_at_once_and_gives_the_turn_up(pair: Pair, way: str, where: str) -> None:
    canceller = pair.first if where == "same server" else pair.second
    await given(pair.first)
    async with STREAMS[way](pair.first) as worker:
        turn = await worker.turn()
        answer = await cancel(canceller)
        assert (answer.state, answer.former_state) == (TURN_STATE_CANCELLING, TURN_STATE_RUNNING)
        event = await event_of(worker)
        assert (event.lease, 0 < grace(event) <= CANCEL_GRACE_MS) == (turn.lease, True)
        assert (await worker.do(turn, checkpoint("one"))).detail == (("position", 1),)
        assert (await shown(pair.second)).cancel_deadline == answer.cancel_deadline
        assert (await worker.do(turn, release())).ok
        following = await worker.turn()
        assert (following.turn, following.attempt) == (2, 1)
        ended = await shown(pair.first)
        assert (ended.state, [step.key for step in ended.steps]) == (TURN_STATE_CANCELLED, ["one"])
        assert (await worker.do(following, finish())).ok


@pytest.mark.spec("R-CANCEL-6", "R-POLL-1")
async def test_a_worker_without_a_stream_hears_by_its_renewals(pair: Pair) -> None:
    await given(pair.first)
    async with ByPolls(pair.first) as worker:
        turn = await worker.turn()
        await cancel(pair.second)
        request = pb.RenewLeasesRequest(leases=[turn.lease])
        for api in (pair.first, pair.second):
            [result] = (await api.workers.RenewLeases(request, timeout=CALL_S)).results
            assert 0 < grace(result) <= CANCEL_GRACE_MS
            assert 0 < result.remaining.ToMilliseconds() <= CANCEL_GRACE_MS
        assert (await worker.do(turn, fail("STOPPED"))).detail == (("state", "TURN_STATE_CANCELLED"),)
        assert (await shown(pair.first)).last_failure.reason == "STOPPED"
        following = await worker.turn()
        [result] = (
            await pair.first.workers.RenewLeases(
                pb.RenewLeasesRequest(leases=[following.lease]), timeout=CALL_S
            )
        ).results
        assert (following.turn, grace(result)) == (2, 0)
        assert (await worker.do(following, finish())).ok


ENDS: dict[str, tuple[dict[str, Any], Answer]] = {
    "finish": (finish(b"1", b"reply", again=b"more"), CANCELLED),
    "sleep": (sleep(), CANCELLED),
    "defer": (defer(), CANCELLED),
    "release": (release(), Answer()),
    "fail": (fail(), Answer(detail=(("state", "TURN_STATE_CANCELLED"),))),
    "fail for good": (fail(final=True), Answer(detail=(("state", "TURN_STATE_CANCELLED"),))),
}


@pytest.mark.spec("R-CANCEL-7", "R-CMD-1", "R-CMD-3")
@pytest.mark.parametrize("where", ["same server", "other server"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ENDS)
async def test_whatever_would_end_the_lease_ends_the_turn(pair: Pair, end: str, way: str, where: str) -> None:
    """By a command of the worker's own way, or by a call to the other server; repeated there and here."""
    command, expected = ENDS[end]
    await given(pair.first)
    async with WAYS[way](pair.first) as worker:
        turn = await worker.turn()
        await cancel(pair.first)
        there = Calls(pair.second)
        ways = (worker, there) if where == "same server" else (there, worker)
        assert [await one.do(turn, command, n=1) for one in ways] == [expected, expected]
        ended = await shown(pair.second)
        assert (ended.state, ended.continuation_turn, ended.HasField("reply")) == (
            TURN_STATE_CANCELLED, 0, False,
        )  # fmt: skip
        following = await worker.turn()
        assert (following.turn, following.state.data) == (2, b"")
        assert (await worker.do(following, finish())).ok


@pytest.mark.spec("R-CANCEL-6")
@pytest.mark.parametrize("way", STREAMS)
async def test_news_that_got_lost_is_found(redis_server: RedisServer, redis_url: str, way: str) -> None:
    async with servers(redis_url) as pair:
        pair.one.delivery.wakeups._cancel = lambda *_: None
        await given(pair.first, 1)
        async with STREAMS[way](pair.first) as worker:
            turn = await worker.turn()
            await cancel(pair.second)
            assert 0 < grace(await event_of(worker)) <= CANCEL_GRACE_MS
            assert (await worker.do(turn, release())).ok
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-CANCEL-9", "R-WORK-5", "R-FENCE-1")
@pytest.mark.parametrize("where", ["same server", "other server"])
@pytest.mark.parametrize("way", STREAMS)
async def test_force_takes_the_lease(pair: Pair, way: str, where: str) -> None:
    canceller = pair.first if where == "same server" else pair.second
    await given(pair.first)
    async with STREAMS[way](pair.first) as worker:
        turn = await worker.turn()
        await cancel(canceller)
        assert grace(await event_of(worker)) > 0
        answer = await cancel(canceller, force=True)
        assert (answer.state, answer.former_state) == (TURN_STATE_CANCELLED, TURN_STATE_CANCELLING)
        event = await event_of(worker)
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "cancelled"}))
        assert await worker.do(turn, checkpoint("late")) == CANCELLED
        following = await worker.turn()
        assert following.turn == 2
        assert (await worker.do(following, finish())).ok


@pytest.mark.spec("R-CANCEL-6", "R-LEASE-7")
@pytest.mark.parametrize("how", ["hello", "frame", "call"])
async def test_the_stream_that_takes_it_over_hears_as_well(pair: Pair, how: str) -> None:
    """A worker that was away when its turn was cancelled comes back, to another server."""
    await given(pair.first, 1)
    async with ByStream(pair.first) as lost:
        turn = await lost.turn()
        await wait_until(lambda: all(s.accepted for s in pair.one.delivery.sessions[1].held.states.values()))
    await cancel(pair.second)
    hello = {"leases": [turn.lease]} if how == "hello" else {}
    async with ByStream(pair.second, ordinal=2, **hello) as worker:
        if how == "frame":
            await worker.stream.say(adoptions=[pb.Adoption(leases=[turn.lease], ordinal=2)])
        elif how == "call":
            request = pb.AdoptLeasesRequest(
                session=worker.stream.hello.session, stream_ordinal=2, leases=[turn.lease]
            )
            [result] = (await pair.second.workers.AdoptLeases(request, timeout=CALL_S)).results
            assert 0 < grace(result) <= CANCEL_GRACE_MS
        event = await worker.stream.event()
        assert (event.lease, 0 < grace(event) <= CANCEL_GRACE_MS) == (turn.lease, True)
        assert (await worker.do(turn, checkpoint("one"))).ok
        assert (await worker.do(turn, release())).ok
    assert (await shown(pair.first)).state == TURN_STATE_CANCELLED


@pytest.mark.spec("R-CANCEL-6", "R-WORK-5")
async def test_a_stream_that_held_it_before_is_not_told(pair: Pair) -> None:
    await given(pair.first, 1)
    async with ByStream(pair.first) as old, ByStream(pair.second, ordinal=2) as new:
        turn = await old.turn()
        await new.stream.say(adoptions=[pb.Adoption(leases=[turn.lease], ordinal=2)])
        assert refusal(await old.stream.event())[0] == "SUPERSEDED"
        assert grace(await new.stream.event()) == 0
        await cancel(pair.first)
        assert grace(await new.stream.event()) > 0
        assert (await new.do(turn, release())).ok
        assert old.stream.waiting("lease_events") == 0


@pytest.mark.spec("R-CANCEL-8", "R-FENCE-1", "R-DELIVER-2")
@pytest.mark.parametrize("way", STREAMS)
async def test_a_worker_that_goes_on_is_fenced_off(
    redis_server: RedisServer, redis_url: str, way: str
) -> None:
    async with (
        running(settings_for(redis_url, virtual_time=True)) as server,
        Api(server.address) as api,
        STREAMS[way](api) as worker,
    ):
        clock = ClockServiceStub(api.channel)

        async def advance(ms: int) -> None:
            request = AdvanceRequest()
            request.duration.FromMilliseconds(ms)
            request.settle_timeout.FromMilliseconds(0)
            await clock.Advance(request, timeout=CALL_S)

        await given(api)
        turn = await worker.turn()
        answer = await cancel(api)
        assert grace(await event_of(worker)) == CANCEL_GRACE_MS
        assert (await worker.do(turn, checkpoint("one"))).ok
        await advance(CANCEL_GRACE_MS - 1)
        assert (await worker.do(turn, checkpoint("two"))).ok
        assert (await shown(api)).state == TURN_STATE_CANCELLING
        await advance(1)
        event = await event_of(worker)
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "cancelled"}))
        assert await worker.do(turn, finish()) == CANCELLED
        ended = await shown(api)
        assert (ended.state, ended.finish_time) == (TURN_STATE_CANCELLED, answer.cancel_deadline)
        following = await worker.turn()
        assert (following.turn, (await worker.do(following, finish())).ok) == (2, True)
        assert (await shown(api, 2)).state == TURN_STATE_COMPLETED
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-CANCEL-8", "R-LEASE-8")
async def test_a_worker_that_dies_does_not_hold_it_for_the_grace(pair: Pair) -> None:
    await given(pair.first)
    async with ByStream(pair.first) as worker:
        await worker.turn()
        await cancel(pair.first)
        await worker.stream.event()
        worker.stream.cut()
        async with ByStream(pair.second, ordinal=2) as other:
            following = await other.turn()
            ended = await shown(pair.first)
            assert (following.turn, ended.state) == (2, TURN_STATE_CANCELLED)
            assert ended.attempt == 1
            assert (await other.do(following, finish())).ok


@pytest.mark.spec("R-CANCEL-5", "R-CANCEL-6")
async def test_a_turn_that_has_only_just_left_the_server(pair: Pair) -> None:
    """Nobody knows yet whether it has arrived: the worker gets it, and hears that it is to be cancelled."""
    await given(pair.first, 1)
    async with ByStream(pair.first, acks=False) as worker:
        turn = await worker.turn()
        answer = await cancel(pair.second)
        assert answer.state == TURN_STATE_CANCELLING
        assert grace(await worker.stream.event()) > 0
        assert (await worker.do(turn, checkpoint("one"))).ok
        assert (await worker.do(turn, release())).ok
        ended = await shown(pair.first)
        assert (ended.state, ended.attempt, ended.step_count) == (TURN_STATE_CANCELLED, 1, 1)
