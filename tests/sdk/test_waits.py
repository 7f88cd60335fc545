"""Waits for signals and callbacks, on a stream."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import pawl
from pawl import Context, Received, SyncContext, workflow
from pawl.payloads import decode, encode
from pawl.v1 import worker_service_pb2 as work
from pawl.v1.failure_pb2 import Failure
from pawl.v1.payload_pb2 import Payload
from pawl.v1.step_pb2 import Step, WaitOutcome
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, leased_turn, ok, refusal
from tests.sdk.handlers import Point
from tests.support.wait import wait_until

RECEIVED, TIMED_OUT, REJECTED = (
    WaitOutcome.WAIT_OUTCOME_RECEIVED,
    WaitOutcome.WAIT_OUTCOME_TIMED_OUT,
    WaitOutcome.WAIT_OUTCOME_REJECTED,
)


def waiting(sync: bool, **options: Any) -> pawl.Workflow:
    """A workflow that waits for a signal, and says what it got."""

    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("before", lambda: 1)
        got = await ctx.wait_for_signal("review", **options)
        assert isinstance(got, Received)
        return ctx.done({}, [got.received, got.value])

    def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        ctx.step("before", lambda: 1)
        got = ctx.wait_for_signal("review", **options)
        return ctx.done({}, [got.received, got.value])

    return workflow("test", version="v1")(sync_handler if sync else handler)


def answered(command: work.Command, **fields: Any) -> work.CommandResult:
    """The answer to a wait."""
    result = work.WaitSignalResult(position=2, **fields)
    return work.CommandResult(lease=command.lease, n=command.n, wait_signal=result)


def saved(outcome: WaitOutcome.ValueType, output: Payload | None = None, kind: str = "signal") -> list[Step]:
    """Steps of a turn whose wait is over."""
    return [
        Step(position=1, key="before", output=encode(1)),
        Step(position=2, key="review", kind=kind, output=output, wait_outcome=outcome),
    ]


@pytest.mark.spec("R-SDK-45")
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("value", [{"ok": True}, None])
async def test_a_signal_that_is_there_is_taken_at_once(
    server: FakeServer, start_worker: StartWorker, sync: bool, value: Any
) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        if command.HasField("wait_signal"):
            return answered(command, outcome=RECEIVED, value=encode(value))
        return ok(command)

    server.answer = answer
    start_worker(waiting(sync, name="approval", timeout=timedelta(hours=1)))
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: len(stream.commands) == 3)
    wait = stream.commands[1].wait_signal
    assert (wait.key, wait.name, wait.callback_key, wait.timeout.seconds) == ("review", "approval", "", 3600)
    assert decode(stream.commands[2].finish.reply) == [True, value]
    assert [command.n for command in stream.commands] == [1, 2, 3]


@pytest.mark.spec("R-SDK-45")
@pytest.mark.parametrize("sync", [False, True])
async def test_a_wait_gives_the_turn_back(server: FakeServer, start_worker: StartWorker, sync: bool) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        return answered(command, suspended=True) if command.HasField("wait_signal") else ok(command)

    server.answer = answer
    start_worker(waiting(sync), concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: stream.credits == 2)
    assert [c.WhichOneof("action") for c in stream.commands] == ["checkpoint", "wait_signal"]
    wait = stream.commands[1].wait_signal
    assert (wait.name, wait.HasField("timeout")) == ("review", False)
    # What came later: the handler starts over, and goes on behind the wait.
    again = leased_turn(fence=2)
    again.steps.extend(saved(RECEIVED, encode(5)))
    stream.deliver(again)
    await wait_until(lambda: len(stream.commands) == 3)
    assert decode(stream.commands[2].finish.reply) == [True, 5]


@pytest.mark.spec("R-SDK-45")
async def test_a_wait_that_timed_out(server: FakeServer, start_worker: StartWorker) -> None:
    start_worker(waiting(False))
    stream = await server.stream()
    turn = leased_turn()
    turn.steps.extend(saved(TIMED_OUT))
    stream.deliver(turn)
    assert decode((await stream.command()).finish.reply) == [False, None]


@pytest.mark.spec("R-SDK-45")
async def test_a_lease_event_does_not_outrun_the_answer(
    server: FakeServer, start_worker: StartWorker
) -> None:
    # The stream may tell that the lease is over before the wait is answered: it ended because of the wait.
    server.answer = lambda command: None if command.HasField("wait_signal") else ok(command)
    start_worker(waiting(False), concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    command = await stream.command(2)
    ended = work.LeaseEvent(lease=command.lease, ended=refusal("LEASE_ENDED", how="waiting"))
    stream.send(lease_events=[ended])
    stream.answer(answered(command, suspended=True))
    await wait_until(lambda: stream.credits == 2)
    assert len(stream.commands) == 2


@pytest.mark.spec("R-SDK-45")
async def test_the_value_is_built_as_asked(server: FakeServer, start_worker: StartWorker) -> None:
    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("before", lambda: 1)
        got = await ctx.wait_for_signal("review", returns=Point)
        return ctx.done({}, [type(got.value).__name__, got.value.x])

    start_worker(handler)
    stream = await server.stream()
    turn = leased_turn()
    turn.steps.extend(saved(RECEIVED, encode({"x": 3})))
    stream.deliver(turn)
    assert decode((await stream.command()).finish.reply) == ["Point", 3]


def calling(sync: bool = False, timeout: float | None = None) -> pawl.Workflow:
    """A workflow that hands out a callback and waits for its result."""

    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        callback = ctx.callback("review")
        await ctx.step("before", lambda: callback.token)
        try:
            return ctx.done({}, await callback.result(timeout=timeout))
        except pawl.CallbackRejected as error:
            return ctx.done({}, ["rejected", error.failure.reason, error.failure.message])

    def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        callback = ctx.callback("review")
        ctx.step("before", lambda: callback.token)
        return ctx.done({}, callback.result(timeout=timeout))

    return workflow("test", version="v1")(sync_handler if sync else handler)


@pytest.mark.spec("R-SDK-46")
@pytest.mark.parametrize("sync", [False, True])
async def test_a_callback(server: FakeServer, start_worker: StartWorker, sync: bool) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        if command.HasField("wait_signal"):
            return answered(command, outcome=RECEIVED, value=encode("yes"))
        return ok(command)

    server.answer = answer
    start_worker(calling(sync, 60.0))
    stream = await server.stream()
    stream.deliver(leased_turn(callback_base="cb1.abc."))
    await wait_until(lambda: len(stream.commands) == 3)
    assert decode(stream.commands[0].checkpoint.output) == "cb1.abc.review"
    wait = stream.commands[1].wait_signal
    assert (wait.key, wait.name, wait.callback_key, wait.timeout.seconds) == ("review", "", "review", 60)
    assert decode(stream.commands[2].finish.reply) == "yes"


@pytest.mark.spec("R-SDK-46")
async def test_a_callback_that_is_rejected(server: FakeServer, start_worker: StartWorker) -> None:
    start_worker(calling())
    stream = await server.stream()
    turn = leased_turn(callback_base="cb1.abc.")
    why = Failure(reason="NO", message="not this one").SerializeToString()
    turn.steps.extend(saved(REJECTED, Payload(encoding="pawl/failure", data=why), "callback"))
    stream.deliver(turn)
    assert decode((await stream.command()).finish.reply) == ["rejected", "NO", "not this one"]


@pytest.mark.spec("R-SDK-46")
async def test_a_callback_without_result_fails_the_turn(
    server: FakeServer, start_worker: StartWorker
) -> None:
    start_worker(calling())
    stream = await server.stream()
    turn = leased_turn(callback_base="cb1.abc.")
    turn.steps.extend(saved(TIMED_OUT, kind="callback"))
    stream.deliver(turn)
    failure = (await stream.command()).fail.failure
    assert (failure.reason, failure.non_retryable) == ("CallbackTimeout", True)


@pytest.mark.spec("R-SDK-46")
@pytest.mark.parametrize(("base", "key"), [("", "review"), ("cb1.abc.", "no spaces")])
async def test_callbacks_that_can_not_be(
    server: FakeServer, start_worker: StartWorker, base: str, key: str
) -> None:
    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done({}, ctx.callback(key).token)

    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn(callback_base=base))
    assert (await stream.command()).fail.failure.reason == "StepError"


@pytest.mark.spec("R-SDK-45")
@pytest.mark.parametrize("timeout", [-1.0, float("nan"), 366 * 86_400.0])
async def test_timeouts_out_of_range(server: FakeServer, start_worker: StartWorker, timeout: float) -> None:
    start_worker(waiting(False, timeout=timeout))
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: stream.commands and stream.commands[-1].HasField("fail"))
    failure = stream.commands[-1].fail.failure
    assert failure.reason == "StepError"
    assert "timeout of wait 'review'" in failure.message


@pytest.mark.spec("R-SDK-45")
@pytest.mark.parametrize("kind", ["step", "sleep", "callback"])
async def test_what_was_no_wait_is_none_now(server: FakeServer, start_worker: StartWorker, kind: str) -> None:
    start_worker(waiting(False))
    stream = await server.stream()
    turn = leased_turn()
    turn.steps.extend(saved(RECEIVED, encode(1), kind))
    stream.deliver(turn)
    failure = (await stream.command()).fail.failure
    assert (failure.reason, failure.non_retryable) == ("StepError", True)
    assert "is a wait for a signal now" in failure.message


async def test_a_wait_is_awaited_before_the_next_step(server: FakeServer, start_worker: StartWorker) -> None:
    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        wait = ctx.wait_for_signal("a")
        with pytest.raises(pawl.StepError, match="was not awaited"):
            await ctx.step("b", lambda: 1)
        del wait
        await asyncio.sleep(0)
        return ctx.done({})

    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn())
    assert (await stream.command()).fail.failure.reason == "StepError"
