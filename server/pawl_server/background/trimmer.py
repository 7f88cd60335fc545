"""The trimmer: a slow walk over all instances, for what no timer of theirs tells.

Old events go, settings that were made stricter reach instances that rest, and lost `gc` entries come back.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING

from pawl_server.background.loops import Loop
from pawl_server.store import scripts_gen as scripts

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

INTERVAL_S = 1.0
JITTER = 0.2
KEYS = 200
"""Keys of a partition that are looked at in a second; instances with a history have two."""
REST_S = 600.0
"""How long a partition rests after a whole walk."""
LIST = 16
"""Instances per script."""
TURNS = 64
"""Turns of each tier that one look at an instance trims; its timer goes on at once."""


class Trimmer:
    """Walks. `trimmed` counts turns, once when their payloads and once when their receipts go."""

    def __init__(self, engine: Engine) -> None:
        self.trimmed = 0
        self.walks = 0
        self._engine = engine
        self._loops = [
            Loop(f"trim {partition.index}", _Walk(self, partition).step, engine.store.outage)
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

    def first(self, partition: PartitionHandle) -> bool:
        """Whether it is this server that walks the partition."""
        return self._engine.peers.rank(partition.index) == 0

    async def page(self, partition: PartitionHandle, cursor: str) -> str:
        """Trims the next instances of a partition; the cursor to go on with. Raises a StoreError."""
        engine = self._engine
        result = await scripts.scan_keys(partition, now_ms=engine.now_ms, cursor=cursor, limit=KEYS)
        page = result.replies[0]
        names = [name.decode() for name in page.names if name.startswith(b"i:")]
        for first in range(0, len(names), LIST):
            items = [scripts.TrimItem(name.removeprefix("i:")) for name in names[first : first + LIST]]
            trimmed = await scripts.trim(
                partition, now_ms=engine.now_ms, server=engine.server_run, limit=TURNS, items=items
            )
            engine.ready(partition, trimmed.ready)
            for reply in trimmed.replies:
                if isinstance(reply, scripts.TrimOk):
                    self.trimmed += reply.trimmed
        self.walks += page.cursor == "0"
        return page.cursor


class _Walk:
    """Where the walk over a partition is."""

    def __init__(self, trimmer: Trimmer, partition: PartitionHandle) -> None:
        self._trimmer = trimmer
        self._partition = partition
        self._cursor = "0"
        self._rested = -math.inf
        """The loop's time at which the next walk begins."""

    async def step(self) -> float:
        now = asyncio.get_running_loop().time()
        # Looked at each second, because the server before this one may be gone.
        if now >= self._rested and self._trimmer.first(self._partition):
            self._cursor = await self._trimmer.page(self._partition, self._cursor)
            if self._cursor == "0":
                self._rested = now + REST_S
        return INTERVAL_S * random.uniform(1 - JITTER, 1 + JITTER)
