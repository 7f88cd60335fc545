"""One work stream: hello, credits, acceptance, batches, the last checkpoint, beats."""

from __future__ import annotations

from typing import Any

import pytest

import pawl
from pawl import Context, workflow
from pawl.payloads import decode
from pawl.v1 import worker_service_pb2 as work
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, leased_turn, ok, refuse
from tests.sdk.flows import Gates, counter
from tests.support.wait import wait_until


async def test_hello(server: FakeServer, start_worker: StartWorker) -> None:
    settings = workflow("other", version="v2", lease_timeout=10, max_attempts=7)(counter.handler)
    worker = start_worker(counter, settings, concurrency=7, session="s-1", labels={"zone": "a"})
    stream = await server.stream()
    hello = stream.hello
    assert (hello.session, hello.stream_ordinal, hello.sdk) == ("s-1", 1, "pawl-python")
    assert hello.sdk_version
    assert [(ref.workflow_type, ref.version) for ref in hello.workflows] == [("test", "v1"), ("other", "v2")]
    assert not hello.workflows[0].HasField("settings")
    assert hello.workflows[1].settings.lease_timeout.seconds == 10
    assert hello.workflows[1].settings.max_attempts == 7
    assert hello.labels == {"zone": "a"}
    assert hello.max_frame_bytes >= 4 * 1024 * 1024
    assert stream.frames[0].credits_total == 7
    assert worker.session == "s-1"


async def test_a_one_step_turn_is_one_command(server: FakeServer, start_worker: StartWorker) -> None:
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1", {"add": 2}, state={"count": 1}))
    command = await stream.command()
    assert (command.n, command.lease) == (1, b"i-1/1/1")
    assert command.finish.last_step.key == "add"
    assert decode(command.finish.last_step.output) == 2
    assert decode(command.finish.state) == {"count": 3}
    assert decode(command.finish.reply) == 2
    # The slot is offered again with the finish itself, so that the server can claim along with it.
    assert [frame.credits_total for frame in stream.frames if frame.commands] == [65]


async def test_an_unchanged_state_and_an_empty_reply_stay_out(
    server: FakeServer, start_worker: StartWorker
) -> None:
    @workflow("test", version="v1")
    async def nothing(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done(state)

    start_worker(nothing)
    stream = await server.stream()
    stream.deliver(leased_turn(state={"a": 1}))
    assert (await stream.command()).finish == work.Finish()


async def test_an_instance_without_state_starts_with_the_initial_one(
    server: FakeServer, start_worker: StartWorker
) -> None:
    start_worker(counter)
    stream = await server.stream()
    turn = leased_turn("i-1", {"add": 2})
    turn.ClearField("state")
    stream.deliver(turn)
    assert decode((await stream.command()).finish.state) == {"count": 2}


async def test_turns_of_a_frame_are_answered_in_one(server: FakeServer, start_worker: StartWorker) -> None:
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(*(leased_turn(f"i-{i}", {"add": i}, state={"count": 0}) for i in range(64)))
    await stream.command(64)
    with_commands = [frame for frame in stream.frames if frame.commands]
    assert [len(frame.commands) for frame in with_commands] == [64]
    assert with_commands[0].received_through == 2
    assert with_commands[0].credits_total == 128


async def test_frames_are_cut_by_bytes_and_items(server: FakeServer, start_worker: StartWorker) -> None:
    @workflow("test", version="v1")
    async def large(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done({}, result="x" * message)

    start_worker(large, concurrency=600)
    stream = await server.stream()
    stream.deliver(*(leased_turn(f"s-{i}", 1) for i in range(300)))
    stream.deliver(*(leased_turn(f"l-{i}", 60_000) for i in range(10)))
    await stream.command(310)
    for frame in stream.frames:
        assert len(frame.commands) <= 256
        assert frame.ByteSize() <= 256 * 1024 + 1024


async def test_every_frame_says_what_was_received(server: FakeServer, start_worker: StartWorker) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    # Accepts at once, although the handler has nothing to say yet.
    await wait_until(lambda: stream.received == 2)
    assert not stream.commands


async def test_credits_are_what_is_not_running(server: FakeServer, start_worker: StartWorker) -> None:
    gates = Gates()
    start_worker(gates.workflow, concurrency=2)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1"))
    stream.deliver(leased_turn("i-2"))
    await wait_until(lambda: stream.received == 3)
    assert stream.credits == 2
    gates.open["end"].set()
    await wait_until(lambda: stream.credits == 4)


@pytest.mark.spec("R-SDK-2")
@pytest.mark.spec("R-SDK-2")
async def test_a_checkpoint_waits_for_the_next_step_only(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.answer = lambda command: None
    gates = Gates("a", "b")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    gates.open["a"].set()
    command = await stream.command()
    assert (command.n, command.checkpoint.key) == (1, "a")
    # No answer yet, so the body of the second step must not have begun.
    assert gates.entered == ["a"]
    stream.answer(ok(command))
    await wait_until(lambda: gates.entered == ["a", "b"])
    assert len(stream.commands) == 1


async def test_a_handler_that_goes_on_waiting_has_its_checkpoint_saved(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    gates.open["a"].set()
    assert (await stream.command()).checkpoint.key == "a"
    gates.open["end"].set()
    finish = await stream.command(2)
    assert finish.n == 2
    assert not finish.finish.HasField("last_step")


async def test_a_finish_waits_for_the_checkpoint(server: FakeServer, start_worker: StartWorker) -> None:
    server.answer = lambda command: None
    gates = Gates("a")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    gates.open["a"].set()
    checkpoint = await stream.command()
    gates.open["end"].set()
    await wait_until(lambda: gates.entered == ["a", "end"])
    assert len(stream.commands) == 1
    stream.answer(ok(checkpoint))
    assert (await stream.command(2)).HasField("finish")


async def test_a_failure_saves_what_was_done(server: FakeServer, start_worker: StartWorker) -> None:
    @workflow("test", version="v1")
    async def failing(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("a", lambda: 1)
        raise pawl.RetryableError("later", delay=0)

    start_worker(failing)
    stream = await server.stream()
    stream.deliver(leased_turn())
    assert (await stream.command()).checkpoint.key == "a"
    fail = await stream.command(2)
    assert (fail.n, fail.fail.failure.reason) == (2, "RetryableError")
    # A delay of zero is not the same as none.
    assert fail.fail.HasField("retry_delay")
    await wait_until(lambda: stream.credits == 65)


@pytest.mark.spec("R-SDK-12")
@pytest.mark.spec("R-SDK-12")
async def test_an_undecodable_message_fails_its_turn_and_no_other(
    server: FakeServer, start_worker: StartWorker
) -> None:
    # C-31
    start_worker(counter)
    stream = await server.stream()
    bad = leased_turn("bad", attempt=2)
    bad.message.data = b'{"add": '
    strange = leased_turn("strange")
    strange.message.encoding = "protobuf"
    stream.deliver(bad, strange, leased_turn("good", {"add": 1}, state={"count": 0}))
    await stream.command(3)
    by_lease = {command.lease.split(b"/")[0]: command for command in stream.commands}
    failure = by_lease[b"bad"].fail.failure
    assert (failure.reason, failure.non_retryable) == ("UNDECODABLE", False)
    assert "'json'" in failure.message
    assert "position 8" in failure.message
    assert "'protobuf'" in by_lease[b"strange"].fail.failure.message
    assert by_lease[b"good"].HasField("finish")
    assert not stream.closed


async def test_a_workflow_that_is_not_here_fails_its_turn(
    server: FakeServer, start_worker: StartWorker
) -> None:
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn(workflow="unknown"))
    assert (await stream.command()).fail.failure.reason == "UNDELIVERABLE"


@pytest.mark.parametrize("reason", ["STORE_UNAVAILABLE", "OVERLOADED", "MOVING", "INTERNAL", "DRAINING"])
async def test_a_command_refused_for_now_is_repeated(
    server: FakeServer, start_worker: StartWorker, reason: str
) -> None:
    refused: list[work.Command] = []

    def answer(command: work.Command) -> work.CommandResult:
        if len(refused) < 2:
            refused.append(command)
            return refuse(command, reason)
        return ok(command)

    server.answer = answer
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1", {"add": 2}, state={"count": 1}))
    last = await stream.command(3)
    assert refused == [last, last]


@pytest.mark.parametrize(
    ("reason", "attempts", "final"),
    [("INTERNAL", 6, False), ("UNIMPLEMENTED", 1, True), ("WRONG_STATE", 1, True)],
)
async def test_a_command_that_can_not_succeed_fails_the_turn(
    server: FakeServer, start_worker: StartWorker, reason: str, attempts: int, final: bool
) -> None:
    server.answer = lambda command: refuse(command, reason) if command.HasField("finish") else ok(command)
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1", {"add": 2}, state={"count": 1}))
    await wait_until(lambda: any(command.HasField("fail") for command in stream.commands))
    assert len(stream.commands) == attempts + 1
    failure = stream.commands[-1].fail.failure
    assert (failure.reason, failure.non_retryable) == (reason, final)


async def test_a_gap_is_filled(server: FakeServer, start_worker: StartWorker) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        return refuse(command, "GAP", last="4") if command.n != 5 else ok(command)

    server.answer = answer
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1", {"add": 2}, state={"count": 1}))
    assert (await stream.command(2)).n == 5


async def test_already_is_success(server: FakeServer, start_worker: StartWorker) -> None:
    server.answer = lambda command: work.CommandResult(lease=command.lease, n=command.n, already=True)
    gates = Gates("a", "b")
    for event in gates.open.values():
        event.set()
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    assert (await stream.command(2)).HasField("finish")


async def test_a_step_over_a_limit_fails_the_turn_for_good(
    server: FakeServer, start_worker: StartWorker
) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        if command.HasField("checkpoint"):
            return refuse(command, "LIMIT_EXCEEDED", limit="steps_per_turn", value="2", max="1")
        return ok(command)

    server.answer = answer
    caught: list[pawl.LimitExceeded] = []

    @workflow("test", version="v1")
    async def swallowing(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("a", lambda: 1)
        try:
            await ctx.step("b", lambda: 1)
        except pawl.LimitExceeded as error:
            caught.append(error)
        return ctx.done({})

    start_worker(swallowing)
    stream = await server.stream()
    stream.deliver(leased_turn())
    fail = await stream.command(2)
    # A refused command has not used its number.
    assert (fail.n, fail.fail.failure.reason, fail.fail.failure.non_retryable) == (1, "LIMIT_EXCEEDED", True)
    assert [error.limit for error in caught] == ["steps_per_turn"]


async def test_a_finish_over_a_limit_fails_the_turn_for_good(
    server: FakeServer, start_worker: StartWorker
) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        return (
            refuse(command, "LIMIT_EXCEEDED", limit="state_bytes")
            if command.HasField("finish")
            else ok(command)
        )

    server.answer = answer
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1", {"add": 2}, state={"count": 1}))
    fail = await stream.command(2)
    assert (fail.n, fail.fail.failure.reason, fail.fail.failure.non_retryable) == (1, "LIMIT_EXCEEDED", True)
    await wait_until(lambda: stream.credits == 65)


async def test_a_command_too_large_for_any_frame_fails_its_turn(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.max_frame_bytes = 64 * 1024

    @workflow("test", version="v1")
    async def large(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done({}, result="x" * 70_000)

    start_worker(large)
    stream = await server.stream()
    stream.deliver(leased_turn())
    failure = (await stream.command()).fail.failure
    assert (failure.reason, failure.non_retryable) == ("LIMIT_EXCEEDED", True)
    assert not stream.closed
