"""grpc.health.v1: ready means that this process turns its loop and that Redis answers a real script.

"" and every service of pawl.v1 follow readiness. The service name `pawl.liveness` is SERVING as long as the
process answers at all: a supervisor that restarts servers must not do so because Redis is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from pawl_server.log_lines import NOT_READY, READY

log = logging.getLogger(__name__)

LIVENESS = "pawl.liveness"
INTERVAL_S = 1.0
PING_TIMEOUT_S = 2.0
MAX_LAG_S = 2.0
"""How late the loop may be before the server calls itself not ready."""

_Status = health_pb2.HealthCheckResponse.ServingStatus


class Health:
    """Keeps the statuses of `servicer` up to date. `ping` raises if the store does not answer."""

    def __init__(self, ping: Callable[[], Awaitable[None]], services: Sequence[str]) -> None:
        self.servicer = HealthServicer()
        self.ready = False
        self._ping = ping
        self._services = ("", *services)
        self._task: asyncio.Task[None] | None = None
        self._draining = False

    async def start(self) -> None:
        """Looks once, then again each second."""
        await self.servicer.set(LIVENESS, _Status.SERVING)
        await self._look(0.0)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="health")

    async def drain(self) -> None:
        """Not ready from now on."""
        self._draining = True
        await self._set(False)

    async def stop(self) -> None:
        """Ends the watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            due = time.monotonic() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            await self._look(time.monotonic() - due)

    async def _look(self, lag_s: float) -> None:
        why = ""
        if lag_s > MAX_LAG_S:
            why = f"the event loop was {lag_s:.1f} s late"
        else:
            try:
                async with asyncio.timeout(PING_TIMEOUT_S):
                    await self._ping()
            except Exception as error:
                why = str(error) or f"no answer from the store in {PING_TIMEOUT_S:g} s"
        await self._set(not why and not self._draining, why)

    async def _set(self, ready: bool, why: str = "") -> None:
        if ready == self.ready and self._task is not None:
            return
        self.ready = ready
        if ready:
            READY(log)
        elif not self._draining:
            NOT_READY(log, why=why)
        status = _Status.SERVING if ready else _Status.NOT_SERVING
        for service in self._services:
            await self.servicer.set(service, status)
