"""Turns that are cancelled while they run, and handlers that do not stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

import pawl
from pawl import Context, Step, SyncContext, Worker, workflow
from pawl.v1 import worker_service_pb2 as work
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, FakeStream, leased_turn, ok, refusal, refuse
from tests.support.wait import wait_until

LEASE = b"i-1/1/1"


def cancel(stream: FakeStream) -> None:
    """The server asks to cancel."""
    stream.send(lease_events=[work.LeaseEvent(lease=LEASE, cancel_grace=Duration(seconds=10))])


def end(stream: FakeStream, how: str = "cancelled") -> None:
    """The server ends the lease."""
    stream.send(lease_events=[work.LeaseEvent(lease=LEASE, ended=refusal("LEASE_ENDED", how=how))])


def actions(stream: FakeStream) -> list[str | None]:
    """What the commands of a stream do."""
    return [command.WhichOneof("action") for command in stream.commands]


@pytest.mark.spec("R-SDK-47")
async def test_the_step_that_runs_may_end_and_no_other_starts(
    server: FakeServer, start_worker: StartWorker
) -> None:
    entered, seen = asyncio.Event(), asyncio.Event()
    late: list[int] = []

    async def first(step: Step) -> int:
        entered.set()
        await wait_until(lambda: step.cancelled)
        seen.set()
        return 1

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("first", first)
        await ctx.step("second", lambda: late.append(1))
        return ctx.done({})

    start_worker(handler, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await entered.wait()
    cancel(stream)
    await wait_until(lambda: stream.credits == 2)
    assert seen.is_set()
    assert (actions(stream), late) == (["checkpoint", "release"], [])


@pytest.mark.spec("R-SDK-47")
async def test_the_same_in_a_thread(server: FakeServer, start_worker: StartWorker) -> None:
    entered = threading.Event()
    late: list[int] = []

    @workflow("test", version="v1")
    def handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        def first(step: Step) -> None:
            entered.set()
            while not step.cancelled:
                threading.Event().wait(0.001)

        ctx.step("first", first)
        ctx.step("second", lambda: late.append(1))
        return ctx.done({})

    start_worker(handler, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(entered.is_set)
    cancel(stream)
    await wait_until(lambda: stream.credits == 2)
    assert (actions(stream), late) == (["checkpoint", "release"], [])


@pytest.mark.spec("R-SDK-47")
async def test_a_handler_that_returns_nevertheless_gives_the_turn_up(
    server: FakeServer, start_worker: StartWorker
) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        entered.set()
        await go.wait()
        return ctx.done({})

    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await entered.wait()
    cancel(stream)
    await wait_until(lambda: stream.received == 3)
    go.set()
    assert (await stream.command()).HasField("release")


@pytest.mark.spec("R-SDK-47")
async def test_a_step_that_raises_while_it_is_cancelled(
    server: FakeServer, start_worker: StartWorker
) -> None:
    entered = asyncio.Event()

    async def first(step: Step) -> None:
        entered.set()
        await wait_until(lambda: step.cancelled)
        raise OSError("stopped half-way")

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("first", first)

    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await entered.wait()
    cancel(stream)
    assert (await stream.command()).fail.failure.reason == "OSError"


@pytest.mark.spec("R-SDK-47")
async def test_a_registration_that_is_refused_tells_it_too(
    server: FakeServer, start_worker: StartWorker
) -> None:
    def answer(command: work.Command) -> work.CommandResult:
        if command.HasField("start_operation"):
            return refuse(command, "WRONG_STATE", state="cancelling")
        return ok(command)

    server.answer = answer
    ran: list[int] = []

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        await ctx.step("first", lambda: ran.append(1), on_restart="park")

    start_worker(handler)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: actions(stream) == ["start_operation", "release"])
    assert ran == []


@pytest.mark.spec("R-SDK-47")
async def test_the_end_of_the_grace_stops_the_handler(server: FakeServer, start_worker: StartWorker) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    start_worker(handler, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await entered.wait()
    cancel(stream)
    end(stream)
    await asyncio.wait_for(cancelled.wait(), 30)
    await wait_until(lambda: stream.credits == 2)
    assert not stream.commands


@pytest.mark.spec("R-SDK-48")
async def test_a_handler_that_does_not_stop_is_counted_and_keeps_no_slot(
    server: FakeServer, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        entered.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                pass

    worker: Worker = start_worker(handler, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await entered.wait()
    end(stream)
    await wait_until(lambda: stream.credits == 2)
    await wait_until(lambda: worker.zombies == 1)
    assert "its handler runs on" in caplog.text
    go.set()
    await wait_until(lambda: worker.zombies == 0)


@pytest.mark.spec("R-SDK-48")
async def test_a_thread_that_does_not_stop_keeps_no_other_from_running(
    server: FakeServer, start_worker: StartWorker
) -> None:
    entered, go = threading.Event(), threading.Event()

    @workflow("test", version="v1")
    def handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        if message == "stuck":
            entered.set()
            go.wait(30)
        return ctx.done({})

    worker: Worker = start_worker(handler, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn(message="stuck"))
    await wait_until(entered.is_set)
    end(stream)
    await wait_until(lambda: worker.zombies == 1)
    stream.deliver(leased_turn("i-2"))
    await wait_until(lambda: actions(stream) == ["finish"])
    go.set()
    await wait_until(lambda: worker.zombies == 0)


def test_a_worker_that_does_not_run_has_no_zombies() -> None:
    @workflow("test", version="v1")
    async def handler(ctx: Context, state: Any, message: Any) -> Any: ...

    assert pawl.Worker("127.0.0.1:1", workflows=[handler]).zombies == 0
