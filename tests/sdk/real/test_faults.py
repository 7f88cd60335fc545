"""Connections that break, stall and move, workers that die and block: every turn completes once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import pawl
from pawl import Client, Context, Worker, workflow
from pawl_server.app import Handle, running
from tests.sdk.real.conftest import QUICK
from tests.support.fault_proxy import Balancer, FaultProxy
from tests.support.server import settings_for
from tests.support.wait import wait_until
from tests.support.workers import Long, StartWorker


@pytest.mark.spec("R-SDK-10")
async def test_a_partition_longer_than_any_grace_ends_in_one_completion(
    client: Client, proxy: FaultProxy, start_worker: StartWorker
) -> None:
    long = Long()
    start_worker(long.workflow, address=proxy.url)
    sent = await client.send("l-1", 1, create=long.workflow)
    await wait_until(lambda: long.ran == ["a", "b"])
    proxy.refuse()
    proxy.cut()

    async def taken_back() -> bool:
        return (await client.get_turn("l-1", sent.turn)).state != "RUNNING"

    await wait_until(taken_back)
    proxy.accept()
    # The attempt that lost its lease is cancelled, and the turn starts again from its saved step.
    await wait_until(lambda: long.ran == ["a", "b", "b"], 20)
    assert long.cancelled == 1
    long.go.set()
    turn = await client.await_turn("l-1", sent.turn, wait=20)
    assert (turn.result(), long.ran) == (2, ["a", "b", "b", "c"])


async def test_the_unary_path_keeps_leases_while_there_is_no_stream(
    server: Handle, client: Client, proxy: FaultProxy
) -> None:
    # C-29: only the stream is cut off, for longer than the lease.
    long = Long()
    worker = Worker(server.address, workflows=[long.workflow])
    task = asyncio.get_running_loop().create_task(_dialled_through(worker, proxy.url))
    sent = await client.send("l-1", 1, create=pawl.NewInstance(long.workflow, lease_timeout=3))
    await wait_until(lambda: long.ran == ["a", "b"])
    proxy.refuse()
    proxy.cut()
    clock = asyncio.get_running_loop().time
    end = clock() + 4.5

    async def still_running() -> bool:
        turn = await client.get_turn("l-1", sent.turn)
        assert (turn.state, turn.attempt) == ("RUNNING", 1)
        return clock() > end

    await wait_until(still_running)
    proxy.accept()
    long.go.set()
    turn = await client.await_turn("l-1", sent.turn, wait=20)
    assert (turn.result(), long.ran, long.cancelled) == (1, ["a", "b", "c"], 0)
    await worker.stop(0)
    await task


async def _dialled_through(worker: Worker, address: str) -> None:
    """Runs a worker whose streams, and nothing else, go through another address."""
    from pawl import worker as module
    from pawl._transport import WorkCall

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WorkCall", lambda _: WorkCall(address))
        await worker.run()


@pytest.mark.spec("R-SDK-8", "R-SDK-11")
async def test_workers_come_and_go_under_load(
    client: Client, proxy: FaultProxy, start_worker: StartWorker
) -> None:
    completed: Counter[str] = Counter()

    @workflow("busy", version="v1", initial_state=0)
    async def busy(ctx: Context, state: int, message: int) -> Any:
        value = await ctx.step("a", lambda: asyncio.sleep(0, message))
        await ctx.step("b", lambda step: completed.update([f"{ctx.instance_id} {value}"]))
        return ctx.done(state + 1)

    await client.put_workflow_type(
        pawl.WorkflowType(
            "busy", max_attempts=1000, retry=pawl.RetryPolicy(max_delay=timedelta(milliseconds=10))
        )
    )
    workers = [start_worker(busy, address=proxy.url, concurrency=8) for _ in range(2)]
    last = {}
    for number in range(20):
        sent = await asyncio.gather(*(client.send(f"b-{n}", number, create=busy) for n in range(10)))
        last = {item.instance_id: item.turn for item in sent}
        # Something is under way, and something was done since the last blow.
        await wait_until(lambda number=number: len(completed) > 5 * number, 30)
        if number % 3:
            proxy.cut()
        else:
            await workers.pop(0).stop(0)
            workers.append(start_worker(busy, address=proxy.url, concurrency=8))
    for instance_id, turn in last.items():
        assert (await client.await_turn(instance_id, turn, wait=30)).state == "COMPLETED"
    assert len(completed) == 200
    for instance_id in last:
        assert (await client.get(instance_id)).state == 20


@pytest.mark.spec("R-WORK-9")
async def test_a_stopping_server_hands_its_workers_over(
    server: Handle, client: Client, redis_url: str
) -> None:
    async with running(settings_for(redis_url, server_name="two", **QUICK)) as second:
        balancer = Balancer(server.address, second.address)
        async with balancer:
            long = Long()
            worker = Worker(balancer.url, workflows=[long.workflow])
            task = asyncio.get_running_loop().create_task(worker.run())
            async with Client(second.address) as other:
                sent = await other.send("l-1", 1, create=long.workflow)
                await wait_until(lambda: long.ran == ["a", "b"])
                balancer.targets = [second.address]
                await server.stop()
                assert long.cancelled == 0
                long.go.set()
                turn = await other.await_turn("l-1", sent.turn, wait=20)
                assert (turn.result(), long.ran) == (1, ["a", "b", "c"])
            await worker.stop(0)
            await task


BLOCKING = """
import sys, time
from pawl import Worker, workflow

@workflow("blocking", version="v1")
async def blocking(ctx, state, message):
    def compute(step):
        print("computing", flush=True)
        end = time.monotonic() + float(sys.argv[2])
        while time.monotonic() < end:
            pass
        return step.attempt
    return ctx.done(None, result=await ctx.step("compute", compute))

Worker(sys.argv[1], workflows=[blocking]).run_forever()
"""


@pytest.mark.spec("R-SDK-9")
@pytest.mark.slow
async def test_a_handler_that_blocks_its_worker_keeps_its_turn(redis_url: str) -> None:
    # It blocks at once, so even that the turn was received is told by the watchdog.
    async with running(settings_for(redis_url)) as server, Client(server.address) as client:
        await _block(server, client, 4.5)


@pytest.mark.spec("R-SDK-9")
async def test_a_handler_that_blocks_until_its_stream_is_closed_keeps_its_turn(redis_url: str) -> None:
    settings = settings_for(redis_url, beat_interval_ms=200)
    async with running(settings) as server, Client(server.address) as client:
        await _block(server, client, 3)


async def _block(server: Handle, client: Client, seconds: float) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BLOCKING, server.address, str(seconds), stdout=asyncio.subprocess.PIPE, env=env
    )
    try:
        new = pawl.NewInstance("blocking", "v1", lease_timeout=3)
        sent = await client.send("b-1", 1, create=new, wait=40)
        assert sent.result() == 1
        assert sent.outcome is not None
        assert sent.outcome.attempt == 1
    finally:
        process.terminate()
        await process.wait()
    assert process.stdout is not None
    assert await process.stdout.read() == b"computing\n"


async def test_a_dead_worker_is_replaced(client: Client, start_worker: StartWorker) -> None:
    long = Long()
    dead = Worker(client, workflows=[long.workflow])
    task = asyncio.get_running_loop().create_task(dead.run())
    sent = await client.send("l-1", 1, create=long.workflow)
    await wait_until(lambda: long.ran == ["a", "b"])
    task.cancel()
    await asyncio.wait({task})
    long.go.set()
    start_worker(long.workflow)
    turn = await client.await_turn("l-1", sent.turn, wait=20)
    assert (turn.result(), long.ran) == (2, ["a", "b", "b", "c"])


async def test_a_stopped_worker_gives_its_turns_back(client: Client, start_worker: StartWorker) -> None:
    long = Long()
    first = start_worker(long.workflow)
    sent = await client.send("l-1", 1, create=long.workflow)
    await wait_until(lambda: long.ran == ["a", "b"])
    await first.stop(0)
    long.go.set()
    start_worker(long.workflow)
    turn = await client.await_turn("l-1", sent.turn, wait=20)
    assert (turn.result(), long.ran) == (1, ["a", "b", "b", "c"])


async def test_sends_survive_lost_answers(client: Client, proxy: FaultProxy) -> None:
    @workflow("inbox", version="v1")
    async def inbox(ctx: Context, state: Any, message: Any) -> Any: ...

    async with Client(proxy.url) as through:
        await through.create("i-1", inbox)
        for number in range(10):
            proxy.down.drop(1)
            sent = await through.send("i-1", number, id=f"m-{number}")
            assert sent.turn == number + 1
    assert (await client.get("i-1")).pending_turns == 10
