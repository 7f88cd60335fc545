"""What the server hears of a step while it runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import pawl
from pawl import Context, RetryPolicy, Step, SyncContext, Worker, WorkflowError, workflow
from pawl.payloads import decode, encode
from pawl.v1 import worker_service_pb2 as work
from pawl.v1.operation_pb2 import OnRestart, Operation
from tests.sdk.blocking_server import blocking_server
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, FakeStream, leased_turn, ok, refuse
from tests.support.wait import wait_until, wait_until_sync


def one_step(fn: Callable[..., Any], **options: Any) -> pawl.Workflow:
    """A workflow with one step."""

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done({}, await ctx.step("read", fn, **options))

    return handler


async def delivered(server: FakeServer, **fields: Any) -> FakeStream:
    """A stream that has delivered one turn."""
    stream = await server.stream()
    stream.deliver(leased_turn(**fields))
    return stream


def actions(stream: FakeStream) -> list[str | None]:
    """What the commands of a stream do."""
    return [command.WhichOneof("action") for command in stream.commands]


@pytest.mark.spec("R-SDK-40")
async def test_a_short_step_is_not_registered(server: FakeServer, start_worker: StartWorker) -> None:
    start_worker(one_step(lambda: 1))
    stream = await delivered(server)
    await stream.command()
    assert actions(stream) == ["finish"]


@pytest.mark.spec("R-SDK-40")
@pytest.mark.parametrize("sync", [False, True])
async def test_a_step_that_takes_long_is_registered(
    server: FakeServer, start_worker: StartWorker, sync: bool
) -> None:
    go = threading.Event()

    @workflow("test", version="v1")
    def in_thread(ctx: SyncContext, state: Any, message: Any) -> Any:
        return ctx.done({}, ctx.step("read", lambda: go.wait(30), kind="tool", timeout=60))

    async def wait() -> bool:
        return await asyncio.to_thread(go.wait, 30)

    start_worker(in_thread if sync else one_step(wait, kind="tool", timeout=60))
    stream = await delivered(server)
    start = (await stream.command()).start_operation
    go.set()
    assert (start.position, start.key, start.kind) == (1, "read", "tool")
    assert start.on_restart == OnRestart.ON_RESTART_UNSPECIFIED
    assert not start.HasField("heartbeat_timeout")
    assert timedelta(seconds=30) < start.timeout.ToTimedelta() <= timedelta(seconds=60)
    assert stream.commands[0].n == 0
    await wait_until(lambda: actions(stream)[-1] == "finish")
    assert stream.commands[-1].n == (2 if sync else 1)


@pytest.mark.spec("R-SDK-40")
@pytest.mark.parametrize(
    "options", [{"on_restart": "park"}, {"heartbeat_timeout": 20.0}, {"heartbeat_timeout": 20, "timeout": 30}]
)
async def test_such_a_step_starts_once_the_server_knows(
    server: FakeServer, start_worker: StartWorker, options: dict[str, Any]
) -> None:
    ran = asyncio.Event()
    server.answer = lambda command: None
    start_worker(one_step(ran.set, **options))
    stream = await delivered(server)
    command = await stream.command()
    start = command.start_operation
    assert start.key == "read"
    assert (start.on_restart == OnRestart.ON_RESTART_PARK) == (options.get("on_restart") == "park")
    assert start.HasField("heartbeat_timeout") == ("heartbeat_timeout" in options)
    assert not ran.is_set()
    stream.answer(ok(command))
    await asyncio.wait_for(ran.wait(), 30)
    assert (await stream.command(2)).HasField("finish")


@pytest.mark.spec("R-SDK-41")
async def test_reports_are_sent_one_by_one_the_newest_only(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.answer = lambda command: None
    told = asyncio.Event()
    go = asyncio.Event()

    async def read(step: Step) -> str:
        step.progress("reading", 1, 9, unit="pages")
        step.progress("reading", 2, 9, unit="pages")
        told.set()
        await go.wait()
        step.progress("sorting")
        step.heartbeat({"at": "z"}, checkpoint=[7])
        step.progress("sorting", 5)
        return "read"

    start_worker(one_step(read))
    stream = await delivered(server)
    start = await stream.command()
    assert start.HasField("start_operation")
    await told.wait()
    assert len(stream.commands) == 1
    stream.answer(ok(start))
    first = await stream.command(2)
    report = first.report_progress
    assert (report.sequence, report.progress.phase, report.progress.done, report.progress.total) == (
        2, "reading", 2, 9,
    )  # fmt: skip
    assert report.progress.unit == "pages"
    go.set()
    # The step has returned: its last value goes ahead of what saves it, although nothing was answered.
    last = (await stream.command(3)).report_progress
    assert (last.sequence, last.progress.phase, last.progress.done) == (5, "sorting", 5)
    assert not last.progress.HasField("total")
    assert decode(last.details) == {"at": "z"}, "what was not sent yet is not lost"
    assert decode(last.resume) == [7]
    assert (await stream.command(4)).HasField("finish")


@pytest.mark.spec("R-SDK-41")
async def test_a_phase_that_changes_is_told_at_once(server: FakeServer, start_worker: StartWorker) -> None:
    go = [asyncio.Event() for _ in range(3)]

    async def read(step: Step) -> None:
        for at in range(3):
            step.progress(f"phase {at}", 1)
            step.progress(f"phase {at}", 2)
            await go[at].wait()

    start_worker(one_step(read))
    stream = await delivered(server)
    began = time.monotonic()
    for at in range(3):
        await wait_until(lambda at=at: _phases(stream)[-1:] == [f"phase {at}"])
        go[at].set()
    if time.monotonic() - began < 3:
        assert _phases(stream) == ["phase 0", "phase 1", "phase 2"], "values of a phase wait"


def _phases(stream: FakeStream) -> list[str]:
    return [c.report_progress.progress.phase for c in stream.commands if c.HasField("report_progress")]


@pytest.mark.spec("R-SDK-41")
async def test_a_report_waits_its_time_and_is_sent_then(
    server: FakeServer, start_worker: StartWorker
) -> None:
    go = asyncio.Event()

    async def read(step: Step) -> None:
        step.heartbeat("a")
        step.heartbeat("b")
        await go.wait()

    start_worker(one_step(read, timeout=20, heartbeat_timeout=0.4))
    stream = await delivered(server)
    await wait_until(lambda: [decode(d) for d in _details(stream)][-1:] == ["b"])
    go.set()
    assert len(_details(stream)) <= 2


def _details(stream: FakeStream) -> list[Any]:
    return [c.report_progress.details for c in stream.commands if c.HasField("report_progress")]


@pytest.mark.spec("R-SDK-41")
async def test_what_was_not_sent_travels_with_the_failure(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.answer = lambda command: None if command.HasField("start_operation") else ok(command)

    def read(step: Step) -> None:
        step.heartbeat({"page": 3}, checkpoint={"from": 4})
        raise OSError("gone")

    start_worker(one_step(read))
    stream = await delivered(server)
    await wait_until(lambda: "fail" in actions(stream))
    fail = stream.commands[-1].fail
    assert (fail.step_key, fail.failure.reason) == ("read", "OSError")
    last = fail.last_progress
    assert (last.position, last.key, last.sequence) == (1, "read", 1)
    assert (decode(last.details), decode(last.resume)) == ({"page": 3}, {"from": 4})


@pytest.mark.spec("R-SDK-41")
async def test_the_next_attempt_goes_on_from_the_checkpoint(
    server: FakeServer, start_worker: StartWorker
) -> None:
    seen: list[Any] = []

    def read(step: Step) -> None:
        seen.append(step.checkpoint)
        step.heartbeat(checkpoint=2)
        seen.append(step.checkpoint)

    start_worker(one_step(read))
    last = Operation(key="read", position=1, resume=encode(1))
    stream = await delivered(server, operation=last)
    await wait_until(lambda: "finish" in actions(stream))
    stream.deliver(leased_turn("i-2", operation=Operation(key="other", resume=encode(1))))
    await wait_until(lambda: actions(stream).count("finish") == 2)
    assert seen == [1, 2, None, 2]


@pytest.mark.spec("R-SDK-41")
@pytest.mark.parametrize(
    ("report", "why"),
    [
        (lambda step: step.progress(""), "phase must be"),
        (lambda step: step.progress("x" * 81), "phase must be"),
        (lambda step: step.progress("p", -1), "done must be"),
        (lambda step: step.progress("p", 1.5), "done must be"),
        (lambda step: step.progress("p", True), "done must be"),
        (lambda step: step.progress("p", 0, -1), "total must be"),
        (lambda step: step.progress("p", unit="p/s"), "unit must be"),
        (lambda step: step.progress("p", unit="x" * 33), "unit must be"),
        (lambda step: step.heartbeat("x" * 8_191), "details takes 8193 bytes"),
        (lambda step: step.heartbeat(checkpoint="x" * 32_767), "checkpoint takes 32769 bytes"),
        (lambda step: step.heartbeat(object()), "details: "),
    ],
)
async def test_a_bad_report_fails_the_step_for_good(
    server: FakeServer, start_worker: StartWorker, report: Callable[[Step], None], why: str
) -> None:
    def read(step: Step) -> str:
        try:
            report(step)
        except WorkflowError:
            pass
        return "went on"

    start_worker(one_step(read))
    stream = await delivered(server)
    failure = (await stream.command()).fail.failure
    assert failure.non_retryable
    assert failure.reason == "StepError"
    assert why in failure.message


@pytest.mark.spec("R-SDK-41")
async def test_reports_of_the_largest_size_are_sent(server: FakeServer, start_worker: StartWorker) -> None:
    def read(step: Step) -> None:
        step.progress("x" * 80, (1 << 63) - 1, (1 << 63) - 1, unit="x" * 32)
        step.heartbeat("x" * 8_190, checkpoint="x" * 32_766)

    server.answer = lambda command: None if command.HasField("start_operation") else ok(command)
    start_worker(one_step(read, on_restart="retry"))
    stream = await delivered(server)
    await wait_until(lambda: "finish" in actions(stream))


@pytest.mark.spec("R-SDK-42")
async def test_reports_go_on_with_the_next_stream(server: FakeServer, start_worker: StartWorker) -> None:
    server.answer = lambda command: None
    go = asyncio.Event()

    async def read(step: Step) -> None:
        step.heartbeat("a")
        await go.wait()

    start_worker(one_step(read))
    first = await delivered(server)
    await first.command()
    first.cut()
    second = await server.stream(2)
    again = await second.command()
    assert again.start_operation.key == "read"
    second.answer(ok(again))
    assert decode((await second.command(2)).report_progress.details) == "a"
    go.set()


@pytest.mark.spec("R-SDK-42")
async def test_a_refusal_that_passes_is_tried_again(server: FakeServer, start_worker: StartWorker) -> None:
    refused = [2]

    def answer(command: work.Command) -> work.CommandResult:
        if command.HasField("start_operation") and refused[0]:
            refused[0] -= 1
            return refuse(command, "STORE_UNAVAILABLE")
        return ok(command)

    server.answer = answer
    start_worker(one_step(lambda: 1, on_restart="park"))
    stream = await delivered(server)
    await wait_until(lambda: actions(stream) == ["start_operation"] * 3 + ["finish"])


@pytest.mark.spec("R-SDK-42")
async def test_a_lease_that_is_over_ends_the_attempt(server: FakeServer, start_worker: StartWorker) -> None:
    server.answer = lambda command: refuse(command, "LEASE_ENDED", how="expired")
    ran: list[int] = []
    start_worker(one_step(lambda: ran.append(1), on_restart="park"), concurrency=1)
    stream = await delivered(server)
    await wait_until(lambda: stream.credits == 2)
    assert (ran, actions(stream)) == ([], ["start_operation"])


@pytest.mark.spec("R-SDK-42")
async def test_a_server_without_operations_is_worked_with(
    server: FakeServer, start_worker: StartWorker
) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        early = command.HasField("start_operation") or command.HasField("report_progress")
        return refuse(command, "UNIMPLEMENTED") if early else ok(command)

    server.answer = answer

    async def read(step: Step) -> int:
        step.heartbeat(1)
        return 3

    start_worker(one_step(read, heartbeat_timeout=10))
    stream = await delivered(server)
    await wait_until(lambda: actions(stream) == ["start_operation", "finish"])


@pytest.mark.spec("R-SDK-43")
async def test_the_policy_of_a_step_goes_with_its_failure(
    server: FakeServer, start_worker: StartWorker
) -> None:
    def broken() -> None:
        raise OSError("gone") from ValueError("deeper")

    policy = RetryPolicy(max_attempts=9, jitter=0.5, max_elapsed=timedelta(seconds=5), factor=3)
    start_worker(one_step(broken, retry=policy))
    stream = await delivered(server)
    fail = (await stream.command()).fail
    assert (fail.step_key, fail.step_retry.max_attempts, fail.step_retry.jitter) == ("read", 9, 0.5)
    assert fail.step_retry.max_elapsed.ToTimedelta() == timedelta(seconds=5)
    assert (fail.failure.cause.reason, fail.failure.cause.message) == ("ValueError", "deeper")


@pytest.mark.spec("R-SDK-43")
async def test_a_failure_outside_of_steps_names_none(server: FakeServer, start_worker: StartWorker) -> None:
    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("fine", lambda: 1, retry=RetryPolicy(max_attempts=9))
        raise OSError("gone")

    start_worker(handler)
    stream = await delivered(server)
    await wait_until(lambda: "fail" in actions(stream))
    fail = stream.commands[-1].fail
    assert (fail.step_key, fail.HasField("step_retry")) == ("", False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": 0.05}, "timeout of step 'read'"),
        ({"heartbeat_timeout": 0.05}, "heartbeat_timeout of step 'read'"),
        ({"heartbeat_timeout": 6, "timeout": 5}, "heartbeat_timeout of step 'read'"),
        ({"on_restart": "never"}, "on_restart of step 'read'"),
    ],
)
async def test_options_out_of_range(
    server: FakeServer, start_worker: StartWorker, options: dict[str, Any], why: str
) -> None:
    start_worker(one_step(lambda: 1, **options))
    stream = await delivered(server)
    failure = (await stream.command()).fail.failure
    assert (failure.reason, failure.non_retryable) == ("StepError", True)
    assert why in failure.message


@pytest.mark.spec("R-SDK-44")
async def test_while_the_loop_is_blocked_the_watchdog_speaks() -> None:
    with blocking_server(leased_turn(lease_timeout=0.6)) as server:

        def read(step: Step) -> None:
            step.heartbeat("from a blocked loop", checkpoint=4)
            wait_until_sync(lambda: len(server.early) >= 2)

        worker = Worker(server.address, workflows=[one_step(read)])
        task = asyncio.get_running_loop().create_task(worker.run())
        await wait_until(lambda: server.commands)
        start, report = server.early[:2]
        assert start.start_operation.key == "read"
        assert decode(report.report_progress.details) == "from a blocked loop"
        assert decode(report.report_progress.resume) == 4
        await worker.stop()
        await task


@pytest.mark.spec("R-SDK-44")
async def test_a_silent_step_that_blocks_the_loop_is_registered() -> None:
    with blocking_server(leased_turn(lease_timeout=0.6)) as server:

        def compute(step: Step) -> None:
            wait_until_sync(lambda: server.early)

        worker = Worker(server.address, workflows=[one_step(compute, timeout=2.0)])
        task = asyncio.get_running_loop().create_task(worker.run())
        await wait_until(lambda: server.commands)
        assert server.early[0].start_operation.key == "read"
        await worker.stop()
        await task
