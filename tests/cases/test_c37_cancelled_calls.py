"""C-37: callers that cancel.

Given  a server process, and clients that cancel every call they make.
Do     cancel 2,000 streams of workers, before and after the server's hello, and 2,000 calls that wait: for
       the end of a turn, and for a turn to run.
Expect the memory of the server to grow by less than 50 MiB, and nothing to be left of the calls: no stream,
       no waiter, and nothing that a stop would wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.message_service_pb2 import AwaitTurnRequest
from pawl_server.app import Handle
from tests.support.api import CALL_S, Api
from tests.support.processes import serving
from tests.support.raw_worker import ByClaim
from tests.support.stream import Stream, workflows
from tests.support.wait import wait_until

CALLS = 2_000
BATCH = 100
WARM_UP = 2
"""Batches before the first look at the memory."""
MOST_KIB = 50 * 1_024


def rss_kib(pid: int) -> int:
    """Resident memory of a process."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout)


async def cancelled_streams(api: Api, batch: int) -> None:
    """Opens streams; half of them are cancelled once the server has said hello, half before it can."""
    names = [f"s{batch}-{n}" for n in range(BATCH // 2)]
    streams = [Stream(api, session=name, credits=1, types=["idle"]) for name in names]
    clients = [ByClaim(api, "idle", session=name) for name in names]
    await asyncio.gather(*(each.open() for each in (*streams[::2], *clients[::2])))
    for stream in streams[1::2]:
        await stream._call.write(pb.WorkRequest(hello=stream.hello))
    for client in clients[1::2]:
        client._call = api.workers.Claim(client._request)
    for each in (*streams, *clients):
        each.cut()


async def cancelled_waits(api: Api, waiting: Callable[[], bool] = lambda: True) -> None:
    """Calls that wait: for a turn that nobody runs, and for one of a type that there is not.

    They are cancelled once the server is `waiting`.
    """
    request = AwaitTurnRequest(instance_id="a", turn=1)
    poll = pb.PollTurnRequest(workflows=workflows("idle"))
    for each in (request, poll):
        each.wait.FromSeconds(60)
    calls: list[Any] = [api.messages.AwaitTurn(request, timeout=CALL_S) for _ in range(BATCH // 2)]
    calls += [api.workers.PollTurn(poll, timeout=CALL_S) for _ in range(BATCH // 2)]
    await api.send("a", "m1")  # answered behind them
    await wait_until(waiting)
    for call in calls:
        call.cancel()
    for call in calls:
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await call


@pytest.mark.spec("R-WORK-9")
async def test_memory_stays_where_it_is(tmp_path: Path, redis_url: str) -> None:
    env = {"PAWL_REDIS_URL": redis_url, "PAWL_STOP_GRACE_MS": "60000"}
    async with serving(tmp_path, **env) as server, Api(await server.listening()) as api:
        await api.create("a")
        await api.send("a", "m1")
        before = 0
        for batch in range(CALLS // BATCH + WARM_UP):
            if batch == WARM_UP:
                before = rss_kib(server.pid)
            await cancelled_streams(api, batch)
            await cancelled_waits(api)
        growth = rss_kib(server.pid) - before
        print(f"the server's memory grew by {growth} KiB")
        assert growth < MOST_KIB, f"grew by {growth} KiB"
        # A stream or a waiter that was left would hold up the stop for a minute.
        server.terminate()
        assert await server.ended() == 0


async def test_nothing_is_left(server: Handle, api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    for batch in range(2):
        await cancelled_streams(api, batch)
        await cancelled_waits(api, lambda: server.gate.waiting == BATCH)
        await wait_until(lambda: not server.gate.waiting)

    def left() -> tuple[int, ...]:
        engine, gate = server.engine, server.gate
        delivery = server.delivery
        waiters = engine.awaits.count, delivery.polls.count, gate.waiting, gate.in_flight
        return len(delivery.sessions), len(delivery.holders), *waiters

    await wait_until(lambda: not any(left()), what="streams, waiters and calls are gone")
