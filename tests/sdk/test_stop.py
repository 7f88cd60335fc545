"""Stopping a worker: gracefully, at the end of its grace, by signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import pytest

from pawl import SyncContext, Worker, workflow
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, leased_turn
from tests.sdk.flows import Gates, counter
from tests.support.wait import wait_until


@pytest.mark.spec("R-SDK-11")
@pytest.mark.spec("R-SDK-11")
async def test_running_turns_end_and_new_ones_are_given_back(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    worker = start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn("i-1"))
    await wait_until(lambda: gates.entered == ["a"])
    stopping = asyncio.get_running_loop().create_task(worker.stop(grace=30))
    await asyncio.sleep(0)
    stream.deliver(leased_turn("i-2"))
    release = await stream.command()
    assert release.HasField("release")
    assert (release.lease, release.n) == (b"i-2/1/1", 1)
    assert gates.entered == ["a"]
    for event in gates.open.values():
        event.set()
    await asyncio.wait_for(stopping, 10)
    assert stream.commands[-1].HasField("finish")
    # No credit was given after the stop began, and the stream was ended in good order.
    assert stream.credits == 64
    await wait_until(lambda: stream.frames[-1].end)


@pytest.mark.spec("R-SDK-11")
@pytest.mark.spec("R-SDK-11")
async def test_at_the_end_of_the_grace_turns_are_given_back(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a", "b")
    gates.open["a"].set()
    worker = start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a", "b"])
    await asyncio.wait_for(worker.stop(grace=0), 10)
    assert gates.cancelled == ["i-1"]
    kinds = [command.WhichOneof("action") for command in stream.commands]
    assert kinds == ["checkpoint", "release"]
    assert stream.commands[-1].n == 2


async def test_an_idle_worker_stops_at_once(server: FakeServer) -> None:
    worker = Worker(server.address, workflows=[counter])
    task = asyncio.get_running_loop().create_task(worker.run())
    stream = await server.stream()
    await asyncio.wait_for(worker.stop(), 5)
    await asyncio.wait_for(task, 5)
    assert stream.frames[-1].end


async def test_a_worker_that_was_stopped_does_not_run(server: FakeServer) -> None:
    worker = Worker(server.address, workflows=[counter])
    await worker.stop()
    await asyncio.wait_for(worker.run(), 1)
    assert server.streams == []


async def test_a_cancelled_run_reports_no_failure(server: FakeServer) -> None:
    gates = Gates("a")
    task = asyncio.get_running_loop().create_task(Worker(server.address, workflows=[gates.workflow]).run())
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: gates.cancelled == ["i-1"])
    assert stream.commands == []


async def test_a_sync_handler_is_left_to_its_lease(server: FakeServer, start_worker: StartWorker) -> None:
    entered, leave = threading.Event(), threading.Event()

    @workflow("test", version="v1")
    def blocking(ctx: SyncContext, state: Any, message: Any) -> Any:
        entered.set()
        leave.wait()
        return ctx.done({})

    worker = start_worker(blocking)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(entered.is_set)
    try:
        await asyncio.wait_for(worker.stop(grace=0), 10)
        assert stream.commands == []
    finally:
        leave.set()


SCRIPT = """
import sys
from pawl import Worker
from tests.sdk.flows import counter
Worker(sys.argv[1], workflows=[counter]).run_forever()
print("stopped")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_stop_gracefully(server: FakeServer, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, server.address, stdout=asyncio.subprocess.PIPE, env=env
    )
    try:
        await server.stream()
        process.send_signal(number)
        output, _ = await asyncio.wait_for(process.communicate(), 20)
    finally:
        if process.returncode is None:
            process.kill()
    assert output == b"stopped\n"
    assert process.returncode == 0
    assert server.streams[0].frames[-1].end
