"""The sweep: a slow walk over unfinished instances, which gives back wake-ups that were lost.

It also hands the leases of servers that are gone to whoever wants them, on demand and all at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import TYPE_CHECKING

from pawl_server.background.loops import Loop
from pawl_server.log_lines import SWEEP_REPAIRED
from pawl_server.store import scripts_gen as scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
JITTER = 0.2
SELDOM = 10
"""The second server of a partition walks some ten times more slowly than the first, the third 20 times, …"""
DEAD_GRACE_MS = 5_000
DEAD_PAGE = 200


class Sweeper:
    """Walks. `repaired` counts wake-ups that were given back; in good health it stays 0."""

    def __init__(self, engine: Engine) -> None:
        self.repaired = 0
        self.scanned = 0
        self._engine = engine
        self._loops = [
            Loop(f"sweep {partition.index}", _Walk(self, partition).step, engine.store.outage)
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

    def pause_s(self, partition: PartitionHandle) -> float:
        """How long this server waits between two pages: all servers together walk little more than one."""
        return INTERVAL_S * (1 - JITTER + SELDOM * self._engine.peers.rank(partition.index))

    async def page(self, partition: PartitionHandle, cursor: str) -> str:
        """Sweeps the next instances of a partition; the cursor to go on with. Raises a StoreError."""
        reply = await sweep_page(self._engine, partition, cursor, self._engine.settings.sweep_budget)
        self.scanned += reply.scanned
        self.repaired += reply.repaired
        if reply.repaired:
            SWEEP_REPAIRED(log, wakeups=reply.repaired, partition=partition.index)
        return reply.cursor


class _Walk:
    """Where the sweep of a partition is."""

    def __init__(self, sweeper: Sweeper, partition: PartitionHandle) -> None:
        self._sweeper = sweeper
        self._partition = partition
        self._cursor = "0"
        self._last = -math.inf

    async def step(self) -> float:
        now = asyncio.get_running_loop().time()
        # Looked at each second, because the server before this one may be gone.
        if now - self._last >= self._sweeper.pause_s(self._partition):
            self._last = now
            self._cursor = await self._sweeper.page(self._partition, self._cursor)
        return INTERVAL_S * random.uniform(1 - JITTER, 1 + JITTER)


async def sweep_page(
    engine: Engine, partition: PartitionHandle, cursor: str, limit: int, dead: Sequence[str] = ()
) -> scripts.SweepOk:
    """One call of the sweep script; what it made ready is passed on. Raises a StoreError."""
    result = await scripts.sweep(
        partition,
        now_ms=engine.now_ms,
        server=engine.server_run,
        cursor=cursor,
        limit=limit,
        dead=",".join(dead),
        grace_ms=DEAD_GRACE_MS,
    )
    engine.ready(partition, result.ready)
    reply = result.replies[0]
    if reply.orphaned:
        engine.counts.orphaned["server"] += reply.orphaned
        engine.leases.on_due(partition, result.now_ms + DEAD_GRACE_MS, result.now_ms)
    return reply


async def sweep_dead(engine: Engine, partition: PartitionHandle, dead: Sequence[str]) -> int:
    """Orphans the leases of servers that are gone, in the whole partition; how many. Raises a StoreError."""
    cursor, orphaned = "0", 0
    while True:
        reply = await sweep_page(engine, partition, cursor, DEAD_PAGE, dead)
        orphaned += reply.orphaned
        cursor = reply.cursor
        if cursor == "0":
            return orphaned
