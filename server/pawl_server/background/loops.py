"""A loop that does not end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from pawl_server.store.outage import Outage, Part

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 2.0


class Loop:
    """Runs `step` for ever, which answers how many seconds to wait before the next one.

    An error of a step is logged and counted in `errors`; the next step follows after a growing pause. What
    fails because the store is away is part of its `outage`, which is told once for all loops. `poke` ends the
    wait at once.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[float]], outage: Outage | None = None) -> None:
        self.name = name
        self._part = Part(name, outage)
        self._step = step
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._poked = False

    @property
    def errors(self) -> int:
        """Steps that failed."""
        return self._part.errors

    def start(self, delay_s: float = 0.0) -> None:
        """Begins after a delay."""
        self._task = asyncio.get_running_loop().create_task(self._run(delay_s), name=self.name)

    async def stop(self) -> None:
        """Ends the loop; a step under way is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def poke(self) -> None:
        """Has the next step happen now."""
        self._poked = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self, delay_s: float) -> None:
        pause = delay_s
        failing = BACKOFF_MIN_S
        while True:
            await self._wait(pause)
            try:
                pause = await self._step()
                failing = BACKOFF_MIN_S
                self._part.works()
            except Exception as error:
                self._part.failed(error)
                pause, failing = self._backoff(failing)

    @staticmethod
    def _backoff(failing: float) -> tuple[float, float]:
        return failing * random.uniform(0.5, 1.0), min(failing * 2, BACKOFF_MAX_S)

    async def _wait(self, seconds: float) -> None:
        if not self._poked and seconds > 0:
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = loop.call_later(seconds, self.poke)
            try:
                await self._wake
            finally:
                timer.cancel()
                self._wake = None
        self._poked = False
