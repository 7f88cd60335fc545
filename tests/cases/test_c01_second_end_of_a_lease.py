"""C-1: one holder ends its lease twice.

Given  a worker that holds turn 1 of an instance.
Do     end its lease in each way that lets the turn go on: give it back, put it off, sleep, wait for a signal
       or a callback that has not come, report a failure. Then end it in any other way, as a runtime does that
       ends each handler it ran, save a step, or register one and report on it.
Expect the later calls to be answered with LEASE_ENDED (FAILED_PRECONDITION: nothing to repeat, no failure),
       what is stored as it was, and the turn to run once more with the same attempt number, or the next one
       after a failure; then it completes once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from pawl.v1.instance_service_pb2 import GetInstanceRequest, WakeInstanceRequest
from pawl.v1.turn_service_pb2 import ResolveCallbackRequest
from pawl.v1.worker_service_pb2 import LeasedTurn
from tests.support.api import CALL_S, Api, json
from tests.support.stored import Stored
from tests.support.stream import (
    UNNUMBERED,
    Stream,
    checkpoint,
    defer,
    fail,
    finish,
    refusal,
    release,
    report_progress,
    sleep,
    start_operation,
    started,
    wait_signal,
)  # fmt: skip
from tests.support.wait import wait_until


class End(NamedTuple):
    """A way to end a lease after which the turn runs again: how the lease has ended then, and the command.

    `goes_on` lets the turn run, where time alone (`timed`) would not or takes too long. The next lease is one
    of `attempt` and has the steps `saved`.
    """

    how: str
    command: dict[str, Any]
    goes_on: Callable[[Api, LeasedTurn], Awaitable[Any]] | None = None
    attempt: int = 1
    saved: tuple[str, ...] = ()
    timed: bool = False


def wake(api: Api, _: LeasedTurn) -> Awaitable[Any]:
    """Somebody ends the delay."""
    return api.instances.WakeInstance(WakeInstanceRequest(instance_id="a"), timeout=CALL_S)


def signal(api: Api, _: LeasedTurn) -> Awaitable[Any]:
    """What it waits for comes."""
    return api.signal("a")


def answer(api: Api, turn: LeasedTurn) -> Awaitable[Any]:
    """The callback gets its result."""
    request = ResolveCallbackRequest(token=f"{turn.callback_base}call", value=json("1"))
    return api.turns.ResolveCallback(request, timeout=CALL_S)


ENDS = {
    "release": End("released", release()),
    "defer": End("deferred", defer(), wake),
    "sleep": End("sleeping", sleep("nap", ms=100), saved=("nap",), timed=True),
    "wait": End("waiting", wait_signal("wait"), signal, saved=("wait",)),
    "wait with an end": End("waiting", wait_signal("wait", ms=600_000), signal, saved=("wait",)),
    "wait for a callback": End("waiting", wait_signal("wait", callback="call"), answer, saved=("wait",)),
    "wait that times out": End("waiting", wait_signal("wait", ms=100), saved=("wait",), timed=True),
    "fail": End("failed", fail(delay_ms=60_000), wake, attempt=2),
}
LATER = {
    "finish": finish(b"9", b"again"),
    "finish and go on": finish(b"9", again=b"more", step=("late", b"out")),
    "fail": fail(),
    "fail for good": fail(final=True),
    "checkpoint": checkpoint("late"),
    "release": release(),
    "defer": defer(1),
    "sleep": sleep("late", 1),
    "wait": wait_signal("late"),
    "wait for a callback": wait_signal("late", callback="other"),
    "start_operation": start_operation(2, "late"),
    "report_progress": report_progress(position=2, key="late"),
}


ENDED = (
    "ATTEMPT_FAILED",
    "ATTEMPT_EXPIRED",
    "ATTEMPT_LOST",
    "TURN_FAILED",
    "TURN_COMPLETED",
    "TURN_CANCELLED",
)
"""Events of attempts and turns that ended."""


def number(action: dict[str, Any], n: int) -> int:
    """The number of a command; 0 for kinds that have none."""
    return 0 if action.keys() & set(UNNUMBERED) else n


async def state_of(api: Api) -> bytes:
    """The state of instance `a`."""
    answer = await api.instances.GetInstance(GetInstanceRequest(instance_id="a"), timeout=CALL_S)
    return answer.instance.state.data


def image(stored: Stored) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """All that is stored of instance `a`: fields, ledger, and what is due."""
    tag = stored.tag("a")
    return (
        stored.redis.call("HGETALL", f"{tag}i:a"),
        stored.redis.call("LRANGE", f"{tag}e:a", 0, -1),
        stored.redis.call("ZRANGE", f"{tag}due", 0, -1, "WITHSCORES"),
    )


@pytest.mark.spec("R-CMD-3", "R-CMD-4", "R-LEASE-9", "R-WAIT-1", "R-SLEEP-1", "R-DEFER-1")
@pytest.mark.parametrize("first", ENDS)
async def test_a_turn_that_goes_on_later_cant_be_ended_again(api: Api, stored: Stored, first: str) -> None:
    end = ENDS[first]
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, state=json(b"1"))
        await stream.command(turn, checkpoint("one"))
        assert refusal(await stream.command(turn, end.command, n=2))[0] == ""
        before = image(stored)
        for name, later in LATER.items():
            result = await stream.command(turn, later, n=number(later, 3))
            assert refusal(result) == ("LEASE_ENDED", {"how": end.how}), name
        assert end.timed or image(stored) == before, "nothing was counted, kept or ended"
        assert await state_of(api) == b"1"

        if end.goes_on is not None:
            await end.goes_on(api, turn)
        await stream.credit(1)
        again = await stream.turn()
        assert (again.turn, again.attempt) == (1, end.attempt)
        assert again.HasField("last_failure") == (end.attempt > 1)
        assert [step.key for step in again.steps] == ["one", *end.saved]
        # The end of the lease before is still known, and no end of this one.
        await wait_until(lambda: stored.accepted("a"))
        running = image(stored)
        for name, later in LATER.items():
            result = await stream.command(turn, later, n=number(later, 3))
            assert refusal(result)[0] == "LEASE_ENDED", name
        assert image(stored)[1:] == running[1:]
        assert refusal(await stream.command(again, finish(b"2")))[0] == ""
        assert (await state_of(api), stored.record("a").pending) == (b"2", 0)
        events = stored.events("a")
        assert [name for name in events if name.startswith(ENDED)] == [
            *(["ATTEMPT_FAILED"] * (end.attempt - 1)), "TURN_COMPLETED",
        ]  # fmt: skip
        assert events.count("STEP_SAVED") == 1 + len(end.saved)
        assert stream.waiting("turns") == 0


@pytest.mark.spec("R-CMD-3", "R-FINISH-1")
async def test_a_turn_that_has_completed_cant_be_ended_again(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, state=json(b"1"))
        await stream.command(turn, finish(b"2"))
        before = image(stored)
        for name, later in LATER.items():
            result = await stream.command(turn, later, n=number(later, 2))
            assert refusal(result) == ("LEASE_ENDED", {"how": "completed"}), name
        assert image(stored) == before
