"""Slow walks over all partitions, a page at a time."""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pawl_server.background.loops import Loop

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

INTERVAL_S = 1.0
JITTER = 0.2


class Walks(ABC):
    """One walk per partition, looked at each second: the server that walked before this one may be gone."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self._loops = [
            Loop(f"{name} {partition.index}", _Walk(self, partition).step, engine.store.outage)
            for partition in engine.store.partitions
        ]

    @property
    def errors(self) -> int:
        """Steps that failed."""
        return sum(loop.errors for loop in self._loops)

    def start(self) -> None:
        """Begins within a second."""
        for at, loop in enumerate(self._loops, start=1):
            loop.start(INTERVAL_S * at / len(self._loops))

    async def stop(self) -> None:
        """Ends the loops."""
        for loop in self._loops:
            await loop.stop()

    @abstractmethod
    def pause_s(self, partition: PartitionHandle, cursor: str) -> float:
        """Seconds from the last page of this server to its next one, which goes on at `cursor`."""

    @abstractmethod
    async def page(self, partition: PartitionHandle, cursor: str) -> str:
        """Looks at the next page of a partition; the cursor to go on with, "0" at its end."""


class _Walk:
    """Where the walk over a partition is."""

    def __init__(self, walks: Walks, partition: PartitionHandle) -> None:
        self._walks = walks
        self._partition = partition
        self._cursor = "0"
        self._last: float | None = None

    async def step(self) -> float:
        now = asyncio.get_running_loop().time()
        pause = self._walks.pause_s(self._partition, self._cursor)
        if pause < math.inf and (self._last is None or now - self._last >= pause):
            self._last = now
            self._cursor = await self._walks.page(self._partition, self._cursor)
        return INTERVAL_S * random.uniform(1 - JITTER, 1 + JITTER)
