"""What all watchers have in common: they sleep until there is something to do, or a beat is due."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from pawl.v1.error_pb2 import Reason
from pawl.v1.event_service_pb2 import WatchReconnect
from pawl_server.domain.times import duration

if TYPE_CHECKING:
    from pawl_server.engine.events.events import Events

_SPREAD_MS = 2_000
"""Longest time that watchers of a stopping server are asked to wait, so that not all come at once."""


class Waiter:
    """One watcher. `over` says that more came than may wait for it: what came later is not there."""

    def __init__(self, events: Events) -> None:
        self.over = False
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[None] | None = None
        self._beat_at = 0.0

    def wake(self) -> None:
        """There is something to do."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    @property
    def beat_due(self) -> bool:
        """Whether nothing was sent for the time of a beat."""
        return self._loop.time() >= self._beat_at

    @property
    def must_go(self) -> bool:
        """Whether the watcher has to open another stream, once it has got what waits for it."""
        return self.over or self._events.draining

    def sent(self) -> None:
        """A frame leaves: the next beat is due later."""
        self._beat_at = self._loop.time() + self._events.options.beat

    def reconnect(self) -> WatchReconnect:
        """Asks the watcher to open another stream; the place is missing."""
        draining = self._events.draining
        delay_ms = random.uniform(0, min(_SPREAD_MS, self._events.count)) if draining else 0
        return WatchReconnect(
            reason=Reason.REASON_DRAINING if draining else Reason.REASON_OVERLOADED,
            retry_delay=duration(int(delay_ms)),
        )

    async def sleep(self) -> None:
        """Returns when woken or when a beat is due."""
        if self.beat_due:
            return
        self._sleeper = self._loop.create_future()
        timer = self._loop.call_at(self._beat_at, self.wake)
        try:
            await self._sleeper
        finally:
            timer.cancel()
            self._sleeper = None
