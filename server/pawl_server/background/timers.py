"""Timers: each partition's due entries are applied when their time comes.

The loop of a partition sleeps until the earliest time it knows of, which it learns from its own script, from
polls and from replies that set a timer; at the latest it looks after a second. Of several servers one is the
first to look, and the next ones some time later, so that they do not all ask for the same thing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pawl_server.background.loops import Loop
from pawl_server.domain.lease import Lease
from pawl_server.log_lines import LEASE_ENDED
from pawl_server.store import scripts_gen as scripts

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

LIMIT = 128
"""Entries that one script looks at."""
IDLE_S = 1.0
"""The first server of a partition looks at least so often, the next ones half as often, a third, …"""
EARLY_S = 0.0005
"""A timer is looked at a little after its time, as two clocks never run quite alike.

Engine time has whole ms and is rounded down, so at most one more goes by; a look that comes too early costs
a call.
"""
PAUSE_S = 0.02
"""How soon to look again while somebody else applies what is due."""
RANK_S = 0.05
"""How much later each further server looks."""


class _Partition:
    """The timers of one partition. `due_at` is the loop's time of the next look."""

    def __init__(self, timers: Timers, partition: PartitionHandle) -> None:
        self.due_at = 0.0
        self.loop = Loop(f"timers {partition.index}", self._step, timers.outage)
        self._timers = timers
        self._partition = partition

    async def _step(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._timers.paused:
            return PAUSE_S
        if now < self.due_at:
            return self.due_at - now
        due_s = await self._timers.apply(self._partition)
        self.due_at = asyncio.get_running_loop().time() + due_s
        return due_s


class Timers:
    """Applies what is due. `stale` and `held` count entries, `fired` those of each kind that were applied.

    While `paused`, only whoever calls `apply` does so.
    """

    def __init__(self, engine: Engine) -> None:
        self.paused = False
        self.fired: dict[str, int] = {}
        self.stale = 0
        self.held = 0
        self.outage = engine.store.outage
        self._engine = engine
        self._partitions = [_Partition(self, partition) for partition in engine.store.partitions]

    @property
    def errors(self) -> int:
        """Steps that failed."""
        return sum(each.loop.errors for each in self._partitions)

    @property
    def gone(self) -> int:
        """Entries that were applied or found stale so far."""
        return sum(self.fired.values()) + self.stale

    def start(self) -> None:
        """Begins at once."""
        self._engine.leases.on_due = self.due
        for each in self._partitions:
            each.loop.start()

    async def stop(self) -> None:
        """Ends the loops."""
        for each in self._partitions:
            await each.loop.stop()

    def due(self, partition: PartitionHandle, due_ms: int, now_ms: int) -> None:
        """Something in the partition is due at an engine time; `now_ms` is the engine time now."""
        each = self._partitions[partition.index]
        at = asyncio.get_running_loop().time() + max(0, due_ms - now_ms) / 1000 + self.late_s(partition)
        if at < each.due_at - EARLY_S:
            each.due_at = at
            each.loop.poke()

    def late_s(self, partition: PartitionHandle) -> float:
        """How long after its time this server looks at a timer, by its place in the order of the servers."""
        return EARLY_S + RANK_S * self._engine.peers.rank(partition.index)

    async def apply(self, partition: PartitionHandle) -> float:
        """Applies what is due now; seconds until the next look. Raises a StoreError."""
        engine = self._engine
        result = await scripts.expire(partition, now_ms=engine.now_ms, server=engine.server_run, limit=LIMIT)
        late_s = self.late_s(partition)
        wait_s = IDLE_S * (1 + engine.peers.rank(partition.index))
        for reply in result.replies:
            match reply:
                case scripts.ExpireFired():
                    self.fired[reply.kind] = self.fired.get(reply.kind, 0) + 1
                    self._fired(partition, reply)
                case scripts.ExpireStale():
                    self.stale += 1
                case scripts.ExpireHeld():
                    self.held += 1
                case scripts.ExpireNext(due_ms=due_ms) if due_ms:
                    wait_s = min(wait_s, max(0.0, (due_ms - result.now_ms) / 1000 + late_s))
        engine.ready(partition, result.ready)
        return wait_s

    def _fired(self, partition: PartitionHandle, reply: scripts.ExpireFired) -> None:
        engine = self._engine
        if reply.kind == "operation":
            engine.counts.lease_ended(reply.outcome)
        if reply.kind != "lease":
            return
        engine.counts.lease_ended(reply.outcome)
        LEASE_ENDED(log, instance=reply.id, turn=reply.turn, outcome=reply.outcome, conn=reply.conn)
        if reply.conn:
            lease = Lease(partition.index, reply.id, reply.inc, reply.turn, reply.fence)
            engine.leases.on_lost(reply.conn, lease, reply.how)
        if reply.outcome == "failed":
            engine.awaits.notify(reply.id, reply.turn)
