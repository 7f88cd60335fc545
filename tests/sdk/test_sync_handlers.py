"""Sync handlers on a stream: threads, checkpoints, ended leases."""

from __future__ import annotations

import threading
from typing import Any

import pawl
from pawl import SyncContext, workflow
from pawl.payloads import decode
from pawl.v1 import worker_service_pb2 as work
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, leased_turn, ok, refusal, refuse
from tests.support.wait import wait_until


async def test_each_step_is_saved_before_it_returns(server: FakeServer, start_worker: StartWorker) -> None:
    after: list[str] = []

    @workflow("test", version="v1")
    def handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        for key in ("a", "b"):
            ctx.step(key, lambda key=key: f"value {key}")
            after.append(key)
        return ctx.done({}, result="end")

    server.answer = lambda command: None
    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn())
    first = await stream.command()
    assert (first.checkpoint.key, decode(first.checkpoint.output)) == ("a", "value a")
    assert after == []
    stream.answer(ok(first))
    second = await stream.command(2)
    assert after == ["a"]
    stream.answer(ok(second))
    assert decode((await stream.command(3)).finish.reply) == "end"


async def test_sync_handlers_run_at_the_same_time(server: FakeServer, start_worker: StartWorker) -> None:
    together = threading.Barrier(8)

    @workflow("test", version="v1")
    def handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        together.wait(10)
        return ctx.done({})

    start_worker(handler, concurrency=8)
    stream = await server.stream()
    stream.deliver(*(leased_turn(f"i-{i}") for i in range(8)))
    await stream.command(8)


async def test_the_next_call_of_the_context_ends_a_fenced_attempt(
    server: FakeServer, start_worker: StartWorker
) -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[Any] = []

    @workflow("test", version="v1")
    def handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        def body(step: pawl.Step) -> None:
            entered.set()
            leave.wait(10)
            seen.append(step.cancelled)

        try:
            ctx.step("a", body)
        except BaseException as error:
            seen.append(type(error))
            raise

    start_worker(handler, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(entered.is_set)
    stream.send(lease_events=[work.LeaseEvent(lease=b"i-1/1/1", ended=refusal("STALE_FENCE"))])
    await wait_until(lambda: stream.credits == 2)
    leave.set()
    await wait_until(lambda: len(seen) == 2)
    assert seen == [True, pawl.AttemptEnded]
    assert stream.commands == []


async def test_a_refused_step_raises_in_the_thread(server: FakeServer, start_worker: StartWorker) -> None:
    seen: list[Any] = []

    def answer(command: work.Command) -> work.CommandResult:
        if command.HasField("checkpoint"):
            return refuse(command, "LIMIT_EXCEEDED", limit="step_output_bytes")
        return ok(command)

    @workflow("test", version="v1")
    def handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        try:
            ctx.step("a", lambda: 1)
        except pawl.LimitExceeded as error:
            seen.append(error.limit)
        return ctx.done({})

    server.answer = answer
    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn())
    fail = await stream.command(2)
    assert seen == ["step_output_bytes"]
    assert (fail.n, fail.fail.failure.reason, fail.fail.failure.non_retryable) == (1, "LIMIT_EXCEEDED", True)
