"""The real server on a private embedded store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pawl._convert import set_span, time_of
from pawl.client import Client
from pawl.testing.v1 import clock_service_pb2 as clock
from pawl.testing.v1.clock_service_pb2_grpc import ClockServiceStub
from pawl.worker import Worker
from pawl.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Clock:
    """What the clock of a server with virtual time shows."""

    now: datetime
    """Engine time."""
    next_due: datetime | None
    """When something is due next; None if nothing ever is."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What came of moving the clock."""

    now: datetime
    """Engine time after it."""
    fired: int
    """Timers that were applied on the way."""
    running: int
    """Turns that are still running; 0 unless one took longer than `settle`."""


class Server:
    """A running server and a client of it."""

    def __init__(self, address: str, client: Client) -> None:
        self.address = address
        self.client = client

    @asynccontextmanager
    async def worker(self, *workflows: Workflow, grace: float = 5.0, **options: Any) -> AsyncIterator[Worker]:
        """Runs a worker until the block ends. `options` are those of `Worker`."""
        worker = Worker(self.address, workflows=workflows, grace=grace, **options)
        task = asyncio.get_running_loop().create_task(worker.run())
        try:
            yield worker
        finally:
            await worker.stop()
            await task

    async def clock(self) -> Clock:
        """Reads the clock. Raises Unimplemented if the server has real time."""
        answer = await self._call("GetClock", clock.GetClockRequest(), 30.0)
        return Clock(answer.engine_time.ToDatetime(tzinfo=UTC), time_of(answer.next_due_time))

    async def advance(
        self,
        by: float | timedelta = 0.0,
        *,
        to: datetime | None = None,
        settle: float | timedelta | None = None,
        timeout: float = 60.0,
    ) -> Advanced:
        """Moves the clock of a server with virtual time, by way of everything that is due until then.

        The clock stops at each due time in order. There, what is due is applied: backoffs, sleeps and delays
        end, leases and deadlines run out, and turns that become ready go to the workers. Before the clock
        goes on, those turns may run. Workers that are connected keep their leases, up to the attempt timeout.

        Args:
            by: seconds or timedelta, 0 to 3,650 days.
            to: time to move to instead.
            settle: seconds or timedelta of real time, at most 60, for which each turn that runs is waited
                for; default is 2. A handler that hangs costs that once, and goes on while the clock moves.
            timeout: seconds of real time for the whole call.

        Raises InvalidField for a time out of range, Unimplemented if the server has real time, WrongState if
        other servers use the namespace, DeadlineExceeded.
        """
        if to is None:
            span = by if isinstance(by, timedelta) else timedelta(seconds=by)
            to = (await self.clock()).now + span
        request = clock.AdvanceRequest()
        request.time.FromDatetime(to)
        set_span(request.settle_timeout, settle)
        answer = await self._call("Advance", request, timeout)
        return Advanced(answer.engine_time.ToDatetime(tzinfo=UTC), answer.fired, answer.running)

    async def _call(self, name: str, request: Any, timeout: float) -> Any:
        transport = self.client._transport
        stub = transport.stub(ClockServiceStub)
        return await transport.call(getattr(stub, name), request, timeout=timeout)


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Server]:
    """Runs a real server in this event loop, on a free port, its data in a temporary folder.

    Args:
        settings: fields of `pawl_server.settings.Settings`, for example `namespace`, `redis_url` or
            `virtual_time=True`, with which time stands still until `Server.advance` moves it.

    Raises RuntimeError if the extra `[server]` is not installed.
    """
    try:
        from pawl_server.app import running
        from pawl_server.settings import Settings
    except ImportError as error:
        raise RuntimeError("pawl.testing.server needs: pip install 'pawl-workflows[server]'") from error
    with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
        chosen = {"port": 0, "data_dir": Path(folder), "stop_grace_ms": 1_000, **settings}
        async with running(Settings(**chosen)) as handle, Client(handle.address) as client:
            yield Server(handle.address, client)
