"""How late the event loop is."""

from __future__ import annotations

import asyncio

from pawl_server.domain.tally import SECONDS, Histogram

INTERVAL_S = 0.25


class LoopLag:
    """Asks to be called again and again, and counts in `seconds` how late that was."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Ends the measuring."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self.seconds.add(max(0.0, now - self._due))
        self._due = now + INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._look)
