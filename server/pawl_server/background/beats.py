"""Beats of the server: each second one per partition.

A beat keeps this server's leases from being taken for those of a dead one, compares engine time with this
machine's own clock, and names servers that are gone, whose leases are then orphaned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from pawl_server.background.loops import Loop
from pawl_server.background.sweeper import sweep_dead
from pawl_server.store import scripts_gen as scripts
from pawl_server.version import VERSION

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
ROUND_TRIP_MAX_S = 0.2
"""A beat that took longer says too little about when it was applied to expect anything of the next."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds that also count while the machine is suspended, where the system can tell."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Holder(Protocol):
    """Who holds leases, as far as beats are concerned: delivery."""

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        ...

    def renew_all(self) -> None:
        """Renews the leases of all open streams at once."""


class _Partition:
    """The beats of one partition."""

    def __init__(self, beats: Beats, partition: PartitionHandle) -> None:
        self.loop = Loop(f"beats {partition.index}", self.step)
        self._beats = beats
        self._partition = partition
        self._first = True
        self._shift = 0
        self._applied: tuple[int, float] | None = None
        self._swept: list[str] = []

    def _expected_ms(self) -> int:
        """Engine time now, going by the last beat and the own clock; 0 if that can't be told."""
        if self._applied is None:
            return 0
        then_ms, then = self._applied
        return then_ms + round((monotonic() - then) * 1000)

    async def step(self) -> float:
        """One beat, and what it asks for."""
        began = monotonic()
        reply, now_ms = await self._beats.beat(
            self._partition, self._first, self._expected_ms(), self._shift, self._swept
        )
        took = monotonic() - began
        self._applied = (now_ms, began + took / 2) if took < ROUND_TRIP_MAX_S else None
        self._shift, self._first, self._swept = reply.shift, False, []
        await self._follow(reply)
        return max(0.05, INTERVAL_S - took)

    async def _follow(self, reply: scripts.BeatOk) -> None:
        if reply.stepped:
            log.warning("partition %d: Redis' clock stepped by %d ms", self._partition.index, reply.stepped)
        if reply.marked:
            log.warning("partition %d: others believed this server dead", self._partition.index)
            self._beats.holder.renew_all()
        dead = [run.decode() for run in reply.dead]
        if dead:
            orphaned = await sweep_dead(self._beats.engine, self._partition, dead)
            log.info("servers %s are gone: %d leases orphaned", ", ".join(dead), orphaned)
            self._swept = dead


class Beats:
    """Beats in every partition. `count` counts them, `stepped` the steps of Redis' clock that they found."""

    def __init__(self, engine: Engine, holder: Holder) -> None:
        self.count = 0
        self.stepped = 0
        self.engine = engine
        self.holder = holder
        self._partitions = [_Partition(self, partition) for partition in engine.store.partitions]

    @property
    def errors(self) -> int:
        """Steps that failed."""
        return sum(each.loop.errors for each in self._partitions)

    async def start(self) -> None:
        """Returns after the first beat everywhere. Raises a StoreError."""
        pauses = await asyncio.gather(*(each.step() for each in self._partitions))
        for each, pause in zip(self._partitions, pauses, strict=True):
            each.loop.start(pause)

    async def stop(self) -> None:
        """Ends the loops."""
        for each in self._partitions:
            await each.loop.stop()

    async def beat(
        self, partition: PartitionHandle, first: bool, expect_ms: int, shift: int, swept: list[str]
    ) -> tuple[scripts.BeatOk, int]:
        """One beat; its answer and engine time. Raises a StoreError."""
        engine = self.engine
        result = await scripts.beat(
            partition,
            now_ms=engine.now_ms,
            server=engine.server_run,
            name=engine.server_name,
            address=engine.address,
            build=VERSION,
            draining=self.holder.draining,
            first=first,
            expect_ms=expect_ms,
            shift_seen=shift,
            swept=",".join(swept),
        )
        self.count += 1
        reply: scripts.BeatOk = result.replies[0]
        self.stepped += bool(reply.stepped)
        return reply, result.now_ms
