"""How close Redis is to `maxmemory`, so that admissions can be refused before Redis refuses everything."""

from __future__ import annotations

import asyncio
import logging

from pawl_server.log_lines import STORE_MEMORY, STORE_MEMORY_UNKNOWN
from pawl_server.store.connection import parse_info
from pawl_server.store.errors import StoreError
from pawl_server.store.lane import Lane

log = logging.getLogger(__name__)


class MemoryWatch:
    """Polls INFO memory over a lane. `ratio` is used over maximum memory, 0.0 where there is no maximum.

    `used` and `maximum` are in bytes, 0 as long as they are unknown; there is no maximum where it is 0.
    `pressure` turns on at `limit` and off again one point below, so that it does not flicker.
    """

    def __init__(self, lane: Lane, *, limit: float = 0.9, interval: float = 1.0) -> None:
        self.ratio = 0.0
        self.used = 0
        self.maximum = 0
        self.pressure = False
        self._lane = lane
        self._limit = limit
        self._interval = interval
        self._task = asyncio.get_running_loop().create_task(self._run(), name="memory watch")

    async def refresh(self) -> None:
        """Asks now. Raises StoreError."""
        info = parse_info(await self._lane.command("INFO", "memory"))
        maximum = int(info.get("maxmemory", 0))
        used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
        self.used, self.maximum = used, maximum
        self.ratio = used / maximum if maximum else 0.0
        pressure = self.ratio >= (self._limit - 0.01 if self.pressure else self._limit)
        if pressure != self.pressure:
            self.pressure = pressure
            what = "admissions are refused" if pressure else "admissions go on"
            STORE_MEMORY(log, percent=round(self.ratio * 100), what=what)

    async def close(self) -> None:
        """Stops polling."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except StoreError as error:
                STORE_MEMORY_UNKNOWN(log, why=str(error))
            await asyncio.sleep(self._interval)
