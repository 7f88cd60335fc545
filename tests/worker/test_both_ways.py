"""Every command by every way of being a worker: the same results, the same refusals.

A scenario is played by a worker on a work stream, by one that polls and by two on Claim streams, each with an
instance of its own, and returns what it was answered. That is the same for all, and stands beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.payload_pb2 import Payload
from pawl.v1.step_pb2 import WaitOutcome
from pawl.v1.turn_pb2 import (
    TURN_STATE_COMPLETED,
    TURN_STATE_DEFERRED,
    TURN_STATE_SLEEPING,
    TURN_STATE_WAITING,
    Turn,
)
from pawl.v1.turn_service_pb2 import GetTurnRequest
from tests.support.api import CALL_S, Api, json
from tests.support.raw_worker import Answer, ByClaim, ByPolls, ByStream, Worker
from tests.support.stream import Stream, checkpoint, defer, fail, finish, release, sleep, wait_signal
from tests.support.wait import wait_until

WAYS: dict[str, Callable[[Api], AbstractAsyncContextManager[Any]]] = {
    "stream": ByStream,
    "polls": ByPolls,
    "claim": ByClaim,
    "renewed claim": lambda api: ByClaim(api, renew=True),
}
LIMITS = {
    "state_bytes": 65_536, "reply_bytes": 65_536, "message_bytes": 32_768, "step_output_bytes": 65_536,
}  # fmt: skip


class Play(NamedTuple):
    """What a scenario has."""

    api: Api
    worker: Worker
    id: str

    async def turn_given(self, messages: int = 1, **spec: Any) -> pb.LeasedTurn:
        """Makes the instance, with messages, and takes its first turn."""
        await self.api.create(self.id, **spec)
        for number in range(messages):
            await self.api.send(self.id, f"m{number + 1}")
        return await self.worker.turn()

    async def turn_of(self, number: int = 1) -> Turn:
        """A turn as GetTurn shows it."""
        request = GetTurnRequest(instance_id=self.id, turn=number)
        return (await self.api.turns.GetTurn(request, timeout=CALL_S)).turn

    async def until(self, state: int) -> None:
        """Returns once the first turn is in that state."""

        async def reached() -> bool:
            return (await self.turn_of()).state == state

        await wait_until(reached)


def ok(already: bool = False, **detail: Any) -> Answer:
    """A success."""
    return Answer(already=already, detail=tuple(sorted(detail.items())))


def no(reason: str, **metadata: str) -> Answer:
    """A refusal."""
    return Answer.refused(reason, metadata)


DONE = ok(finishTime=True)
GOT = {"outcome": "WAIT_OUTCOME_RECEIVED", "value": {"data": "eWVz", "encoding": "json"}}
Scenario = Callable[[Play], Awaitable[list[Answer]]]
SCENARIOS: dict[str, tuple[Scenario, list[Answer]]] = {}


def answers(*expected: Answer) -> Callable[[Scenario], Scenario]:
    """Says what a scenario is answered."""

    def keep(scenario: Scenario) -> Scenario:
        SCENARIOS[scenario.__name__] = (scenario, list(expected))
        return scenario

    return keep


@answers(DONE, DONE)
async def a_finish_and_its_repeat(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    done = finish(b"1", b"reply", step=("last", b"out"))
    first = await play.worker.do(turn, done)
    shown = await play.turn_of()
    assert (shown.state, shown.reply.data) == (TURN_STATE_COMPLETED, b"reply")
    assert [(step.key, step.output.data) for step in shown.steps] == [("last", b"out")]
    again = await play.worker.do(turn, done, n=1)
    assert (await play.turn_of()) == shown
    return [first, again]


@answers(ok(finishTime=True, continuationTurn="2"), DONE)
async def a_continuation(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    first = await play.worker.do(turn, finish(b"1", again=b"more"))
    following = await play.worker.turn()
    assert (following.turn, following.message.data, following.state.data) == (2, b"more", b"1")
    assert following.origin.continuation.message_id == "m1"
    return [first, await play.worker.do(following, finish())]


@answers(
    ok(position=1), ok(position=2), ok(position=2), ok(already=True), ok(state="TURN_STATE_QUEUED"), DONE
)
async def steps_and_their_replay(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, checkpoint("one", b"1")), await do(turn, checkpoint("two", b"2", "call"))]
    got.append(await do(turn, checkpoint("two", b"2", "call"), n=2))
    got.append(await do(turn, checkpoint("one", b"1"), n=1))
    got.append(await do(turn, fail(delay_ms=0), n=3))
    again = await play.worker.turn()
    assert [(step.key, step.kind, step.output.data) for step in again.steps] == [
        ("one", "step", b"1"),
        ("two", "call", b"2"),
    ]
    assert (again.attempt, again.last_failure.reason) == (2, "BROKEN")
    return [*got, await do(again, finish())]


@answers(ok(position=1), no("WRONG_STATE", state="step_saved"), DONE)
async def a_key_twice(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    return [
        await do(turn, checkpoint("same", b"1")),
        await do(turn, checkpoint("same", b"2"), n=2),
        await do(turn, finish(), n=2),
    ]


@answers(
    ok(state="TURN_STATE_BACKOFF", retryDelay="0.030s"),
    ok(state="TURN_STATE_BACKOFF", retryDelay="0.030s"),
    DONE,
)
async def a_failure_with_a_delay(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    first = await play.worker.do(turn, fail(delay_ms=30))
    again = await play.worker.do(turn, fail(delay_ms=30), n=1)
    second = await play.worker.turn()
    assert second.attempt == 2
    return [first, again, await play.worker.do(second, finish())]


@answers(ok(state="TURN_STATE_FAILED"), ok(state="TURN_STATE_FAILED"))
async def a_failure_for_good(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    got = [await play.worker.do(turn, fail("WRONG", final=True))]
    assert (await play.turn_of()).last_failure.reason == "WRONG"
    return [*got, await play.worker.do(turn, fail("WRONG", final=True), n=1)]


@answers(ok(), ok(), DONE)
async def a_release(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    got = [await play.worker.do(turn, release()), await play.worker.do(turn, release(), n=1)]
    again = await play.worker.turn()
    assert (again.turn, again.attempt, again.fence > turn.fence) == (1, 1, True)
    return [*got, await play.worker.do(again, finish())]


@answers(ok(position=1, wakeTime=True), ok(position=1, wakeTime=True), DONE)
async def a_sleep(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    got = [await play.worker.do(turn, sleep("nap", 200))]
    await play.until(TURN_STATE_SLEEPING)
    got.append(await play.worker.do(turn, sleep("nap", 200), n=1))
    again = await play.worker.turn()
    assert [(step.key, step.kind, step.output.data) for step in again.steps] == [("nap", "sleep", b"")]
    assert again.attempt == 1
    return [*got, await play.worker.do(again, finish())]


@answers(ok(dueTime=True), ok(dueTime=True), DONE)
async def a_deferral(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    got = [await play.worker.do(turn, defer(200, "busy"))]
    await play.until(TURN_STATE_DEFERRED)
    got.append(await play.worker.do(turn, defer(200, "busy"), n=1))
    again = await play.worker.turn()
    assert (again.attempt, len(again.steps)) == (1, 0)
    return [*got, await play.worker.do(again, finish())]


@answers(ok(position=1, **GOT), ok(position=1, **GOT), ok(position=2), DONE)
async def a_wait_for_what_has_come(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    await play.api.signal(play.id, "s1", "go", "yes")
    got = [await play.worker.do(turn, wait_signal("answer"))]
    got.append(await play.worker.do(turn, wait_signal("answer"), n=1))
    return [
        *got,
        await play.worker.do(turn, checkpoint("after"), n=2),
        await play.worker.do(turn, finish(), n=3),
    ]


@answers(
    ok(position=1, suspended=True), ok(position=1, suspended=True), no("LEASE_ENDED", how="waiting"), DONE
)
async def a_wait_that_a_signal_ends(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    got = [await play.worker.do(turn, wait_signal("answer"))]
    waiting = await play.turn_of()
    assert (waiting.state, waiting.wait.name, waiting.wait.HasField("deadline")) == (
        TURN_STATE_WAITING,
        "go",
        False,
    )
    got += [await play.worker.do(turn, wait_signal("answer"), n=1), await play.worker.do(turn, finish(), n=2)]
    assert (await play.api.signal(play.id, "s1", "go", "yes")).consumed_position == 1
    again = await play.worker.turn()
    assert [(step.key, step.kind, step.output.data, step.wait_outcome) for step in again.steps] == [
        ("answer", "signal", b"yes", WaitOutcome.WAIT_OUTCOME_RECEIVED)
    ]
    assert (again.attempt, again.callback_base) == (1, turn.callback_base)
    return [*got, await play.worker.do(again, finish())]


@answers(
    ok(position=1, suspended=True, deadline=True), ok(position=1, suspended=True, deadline=True),
    ok(position=2, **GOT), DONE,
)  # fmt: skip
async def a_wait_that_time_ends(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    got = [await play.worker.do(turn, wait_signal("answer", ms=200))]
    await play.until(TURN_STATE_WAITING)
    got.append(await play.worker.do(turn, wait_signal("answer", ms=200), n=1))
    again = await play.worker.turn()
    [step] = again.steps
    assert (step.key, step.wait_outcome) == ("answer", WaitOutcome.WAIT_OUTCOME_TIMED_OUT)
    assert (again.attempt, step.output.data) == (1, b"")
    await play.api.signal(play.id, "s1", "go", "yes")
    return [*got, await play.worker.do(again, wait_signal("later")), await play.worker.do(again, finish())]


@answers(no("GAP", last="0"), ok(position=1), no("GAP", last="1"), DONE)
async def a_gap(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    return [
        await do(turn, checkpoint("one"), n=2),
        await do(turn, checkpoint("one"), n=1),
        await do(turn, finish(), n=3),
        await do(turn, finish(), n=2),
    ]


@answers(ok(position=1), ok(position=2), DONE, *[ok(already=True)] * 7)
async def commands_long_past(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, checkpoint("one")), await do(turn, checkpoint("two")), await do(turn, finish())]
    old = (checkpoint("one"), finish(), fail(), release(), sleep(), defer(), wait_signal())
    return [*got, *[await do(turn, command, n=2) for command in old]]


@answers(
    ok(position=1), *[no("BODY_CONFLICT")] * 7, DONE, *[no("BODY_CONFLICT")] * 2
)  # fmt: skip
async def another_body(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, checkpoint("one", b"1"))]
    others = (checkpoint("one", b"2"), finish(), fail(), release(), sleep("one"), defer(), wait_signal("one"))
    got += [await do(turn, command, n=1) for command in others]
    got.append(await do(turn, finish(reply=b"1"), n=2))
    return [*got, await do(turn, finish(reply=b"2"), n=2), await do(turn, fail(), n=2)]


@answers(ok(), *[no("LEASE_ENDED", how="released")] * 2, ok(), *[no("STALE_FENCE")] * 7, DONE)
async def leases_of_the_past(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, release()), await do(turn, finish(), n=2)]
    second = await play.worker.turn()
    got += [await do(turn, finish(reply=b"stolen"), n=2), await do(second, release())]
    third = await play.worker.turn()
    commands = (checkpoint("one"), finish(), fail(), release(), sleep(), defer(), wait_signal())
    got += [await do(turn, command, n=2) for command in commands]
    return [*got, await do(third, finish())]


@answers(DONE, *[no("LEASE_ENDED", how="completed")] * 7)
async def commands_after_the_finish(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, finish())]
    commands = (checkpoint("one"), finish(), fail(), release(), sleep(), defer(), wait_signal())
    return [*got, *[await do(turn, command, n=2) for command in commands]]


@answers(
    *[no("LIMIT_EXCEEDED", limit=name, value=str(most + 1), max=str(most)) for name, most in LIMITS.items()],
    DONE,
)
async def too_much(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    return [
        await do(turn, finish(state=b"x" * 65_537), n=1),
        await do(turn, finish(reply=b"x" * 65_537), n=1),
        await do(turn, finish(again=b"x" * 32_769), n=1),
        await do(turn, checkpoint("big", b"x" * 65_537), n=1),
        await do(turn, finish(), n=1),
    ]


BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("checkpoint.key", checkpoint("")),
    ("checkpoint.kind", checkpoint("k", kind="a b")),
    ("checkpoint.output.encoding", {"checkpoint": pb.Checkpoint(key="k", output=Payload(encoding="a b"))}),
    ("finish.last_step.key", finish(step=("", b"x"))),
    ("finish.state.digest", {"finish": pb.Finish(state=Payload(digest=b"x" * 33))}),
    ("fail.failure.reason", fail("")),
    ("fail.retry_delay", fail(delay_ms=86_400_001)),
    ("sleep.key", sleep("")),
    ("sleep.duration", sleep(ms=0)),
    ("sleep.duration", {"sleep": pb.Sleep(key="nap")}),
    ("sleep.duration", sleep(ms=365 * 86_400_000 + 1)),
    ("defer.delay", defer(0)),
    ("defer.delay", {"defer": pb.Defer()}),
    ("defer.delay", defer(365 * 86_400_000 + 1)),
    ("defer.reason", defer(reason="a b")),
    ("wait_signal.key", wait_signal("")),
    ("wait_signal.name", wait_signal(name="")),
    ("wait_signal.name", wait_signal(name="a b")),
    ("wait_signal.callback_key", wait_signal(callback="a b")),
    ("wait_signal.callback_key", {"wait_signal": pb.WaitSignal(key="k", name="a", callback_key="b")}),
    ("wait_signal.timeout", wait_signal(ms=0)),
    ("wait_signal.timeout", wait_signal(ms=365 * 86_400_000 + 1)),
)  # fmt: skip


@answers(*[no("INVALID_FIELD", field=field) for field, _ in BAD], *[no("INVALID_FIELD", field="n")] * 2, DONE)
async def bad_fields(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, command, n=1) for _, command in BAD]
    got += [await do(turn, finish(), n=n) for n in (0, -1)]
    return [*got, await do(turn, finish(), n=1)]


@answers(no("UNIMPLEMENTED"), no("UNIMPLEMENTED"), DONE)
async def what_the_server_does_not_know(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    sends = pb.Finish()
    sends.sends.add(instance_id="b")
    return [
        await do(turn, {}, n=1),
        await do(turn, {"finish": sends}, n=1),
        await do(turn, finish(), n=1),
    ]


@answers(*[no("INVALID_FIELD", field="lease")] * 4, no("NOT_FOUND", resource="instance", name="absent"))
async def leases_that_never_were(play: Play) -> list[Answer]:
    absent = b"\x95\x00\xa6absent\x01\x01\x01"
    return [
        await play.worker.do(lease, release(), n=1)
        for lease in (b"", b"junk", b"\x95\x7f\xa1a\x01\x01\x01", b"x" * 257, absent)
    ]


@answers(ok(position=1), ok(position=2), ok(position=3), ok(position=4), DONE)
async def a_lease_that_is_renewed_parted_and_adopted(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    workers, do = play.api.workers, play.worker.do
    got = [await do(turn, checkpoint("one"))]
    for detach in (False, True):
        request = pb.RenewLeasesRequest(leases=[turn.lease], detach=detach)
        renewed = (await workers.RenewLeases(request, timeout=CALL_S)).results[0]
        assert 0 <= (10_000 if detach else 60_000) - renewed.remaining.ToMilliseconds() < 5_000
        got.append(await do(turn, checkpoint(f"after {detach}".replace(" ", "-"))))
    high = 1 << 50  # above what a server gives
    async with Stream(play.api, session="taker", ordinal=high, leases=[turn.lease]) as taker:
        event = await taker.event()
        assert (event.lease, event.HasField("ended")) == (turn.lease, False)
        adoption = pb.AdoptLeasesRequest(session="taker", stream_ordinal=high, leases=[turn.lease])
        adopted = (await workers.AdoptLeases(adoption, timeout=CALL_S)).results[0]
        assert adopted.remaining.ToMilliseconds() > 50_000
        got.append(await do(turn, checkpoint("on-another-stream")))
        got.append(await do(turn, finish()))
    return got


@pytest.mark.spec("R-WORKER-1", "R-CMD-1", "R-CMD-3", "R-CMD-4")
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_every_way_gets_the_same_answers(api: Api, scenario: str) -> None:
    played, expected = SCENARIOS[scenario]
    for at, (way, opened) in enumerate(WAYS.items()):
        async with opened(api) as worker:
            got = await played(Play(api, worker, f"instance-{at}"))
        assert got == expected, way


@pytest.mark.spec("R-WORKER-1")
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_gets_all_that_a_turn_has(api: Api, way: str) -> None:
    async with WAYS[way](api) as worker:
        await api.create("a", state=json(b"0"), max_attempts=5)
        await api.send("a", "m1", b"hello", origin=b"me")
        turn = await worker.turn()
        assert (turn.instance_id, turn.workflow_type, turn.version, turn.turn) == ("a", "t", "v1", 1)
        assert (turn.message_id, turn.message.data, turn.message.encoding) == ("m1", b"hello", "json")
        assert (turn.state.data, turn.origin.client, turn.namespace) == (b"0", b"me", "default")
        assert (turn.attempt, turn.max_attempts, turn.incarnation > 0, turn.fence > 0) == (1, 5, True, True)
        assert (turn.lease_timeout.seconds, turn.attempt_timeout.seconds) == (60, 3_600)
        assert turn.lease_time.ToMilliseconds() >= turn.admit_time.ToMilliseconds() > 0
        assert (await worker.do(turn, finish())).ok
