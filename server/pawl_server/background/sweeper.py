"""The sweep: a slow walk over unfinished instances, which gives back wake-ups that were lost.

It also hands the leases of servers that are gone to whoever wants them, on demand and all at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pawl_server.background.walks import INTERVAL_S, JITTER, Walks
from pawl_server.log_lines import SWEEP_REPAIRED
from pawl_server.store import scripts_gen as scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

SELDOM = 10
"""The second server of a partition walks some ten times more slowly than the first, the third 20 times, …"""
DEAD_GRACE_MS = 5_000
DEAD_PAGE = 200


class Sweeper(Walks):
    """Walks. `repaired` counts wake-ups that were given back; in good health it stays 0."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "sweep")
        self.repaired = 0
        self.scanned = 0

    def pause_s(self, partition: PartitionHandle, cursor: str) -> float:
        """How long this server waits between two pages: all servers together walk little more than one."""
        return INTERVAL_S * (1 - JITTER + SELDOM * self.engine.peers.rank(partition.index))

    async def page(self, partition: PartitionHandle, cursor: str) -> str:
        """Sweeps the next instances of a partition; the cursor to go on with. Raises a StoreError."""
        reply = await sweep_page(self.engine, partition, cursor, self.engine.settings.sweep_budget)
        self.scanned += reply.scanned
        self.repaired += reply.repaired
        if reply.repaired:
            SWEEP_REPAIRED(log, wakeups=reply.repaired, partition=partition.index)
        return reply.cursor


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
