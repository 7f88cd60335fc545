"""Leases on a stream: ended, delivered again, named by beats; streams that fall silent."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

import pawl
from pawl import Context, Worker, workflow
from pawl.v1 import worker_service_pb2 as work
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, leased_turn, refusal, refuse
from tests.sdk.flows import Gates, counter
from tests.support.wait import wait_until


@pytest.mark.spec("R-SDK-10")
@pytest.mark.parametrize("reason", ["STALE_FENCE", "LEASE_ENDED", "NOT_FOUND"])
@pytest.mark.spec("R-SDK-10")
async def test_an_ended_lease_cancels_its_attempt_without_a_word(
    server: FakeServer, start_worker: StartWorker, reason: str
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    stream.send(lease_events=[work.LeaseEvent(lease=b"i-1/1/1", ended=refusal(reason))])
    await wait_until(lambda: gates.cancelled == ["i-1"])
    # The slot is offered again.
    await wait_until(lambda: stream.credits == 2)
    assert not stream.commands


async def test_a_checkpoint_under_a_stale_fence_cancels_its_attempt(
    server: FakeServer, start_worker: StartWorker
) -> None:
    # C-1: the lease ended in the meantime; nothing is reported as a failure.
    server.answer = lambda command: refuse(command, "LEASE_ENDED", how="expired")
    gates = Gates("a", "b")
    gates.open["a"].set()
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: gates.cancelled == ["i-1"])
    assert [command.WhichOneof("action") for command in stream.commands] == ["checkpoint"]
    assert gates.entered == ["a"]


@pytest.mark.spec("R-SDK-10")
@pytest.mark.spec("R-SDK-10")
async def test_a_handler_that_swallows_its_cancellation_gets_no_further(
    server: FakeServer, start_worker: StartWorker
) -> None:
    after: list[str] = []
    waiting = asyncio.Event()

    @workflow("test", version="v1")
    async def stubborn(ctx: Context, state: Any, message: Any) -> Any:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        try:
            await ctx.step("late", lambda: after.append("ran"))
        except pawl.AttemptEnded:
            after.append("refused")
            raise

    start_worker(stubborn)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await waiting.wait()
    stream.send(lease_events=[work.LeaseEvent(lease=b"i-1/1/1", ended=refusal("STALE_FENCE"))])
    await wait_until(lambda: after)
    assert after == ["refused"]
    assert not stream.commands


async def test_a_new_lease_of_the_same_instance_ends_the_old_attempt(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn(fence=1))
    await wait_until(lambda: gates.entered == ["a"])
    stream.deliver(leased_turn(fence=2))
    await wait_until(lambda: gates.entered == ["a", "a"])
    assert gates.cancelled == ["i-1"]


async def test_a_turn_delivered_twice_runs_once(server: FakeServer, start_worker: StartWorker) -> None:
    gates = Gates("a")
    start_worker(gates.workflow, concurrency=1)
    stream = await server.stream()
    stream.deliver(leased_turn())
    stream.deliver(leased_turn())
    # The second delivery used a credit, but no slot.
    await wait_until(lambda: stream.credits == 2)
    assert gates.entered == ["a"]


async def test_beats_name_what_is_held(server: FakeServer, start_worker: StartWorker) -> None:
    server.beat_interval = 0.05
    gates = Gates("a")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1"), leased_turn("i-2"))
    await wait_until(lambda: any(len(beat.leases) == 2 for beat in stream.beats))
    for event in gates.open.values():
        event.set()
    await stream.command(2)
    await wait_until(lambda: not stream.beats[-1].leases)
    numbers = [beat.number for beat in stream.beats]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_finish_under_way_is_not_in_the_beat(server: FakeServer, start_worker: StartWorker) -> None:
    server.beat_interval = 0.05
    server.answer = lambda command: None
    start_worker(counter)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1", {"add": 1}, state={"count": 1}))
    await stream.command()
    seen = len(stream.beats)
    await wait_until(lambda: len(stream.beats) >= seen + 3)
    assert not any(beat.leases for beat in stream.beats[seen + 1 :])


async def test_a_silent_server_is_left(server: FakeServer, start_worker: StartWorker) -> None:
    # C-27: an intermediary may hold a dead stream open.
    server.beat_interval = 0.05
    server.answer_beats = False
    start_worker(counter)
    first = await server.stream()
    second = await server.stream(2)
    assert second.hello.stream_ordinal > first.hello.stream_ordinal
    await wait_until(lambda: first.closed)


async def test_a_refused_first_hello_ends_the_worker(server: FakeServer) -> None:
    server.refuse_hello = (grpc.StatusCode.INVALID_ARGUMENT, "no such type")
    with pytest.raises(pawl.InvalidField):
        await asyncio.wait_for(Worker(server.address, workflows=[counter]).run(), 10)


async def test_two_runs_at_once_are_refused(server: FakeServer, start_worker: StartWorker) -> None:
    worker = start_worker(counter)
    await server.stream()
    with pytest.raises(RuntimeError, match="runs already"):
        await worker.run()
