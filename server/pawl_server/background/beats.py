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
from pawl_server.log_lines import CLOCK_STEPPED, SERVER_MARKED_DEAD, SERVERS_GONE
from pawl_server.store import scripts_gen as scripts
from pawl_server.version import VERSION

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
ROUND_TRIP_MAX_S = 0.2
"""A beat that took longer says too little about when Redis read its clock: it is compared with nothing."""
STEP_MS = 500
"""A clock that moves against ours by more than this has been stepped."""

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


class ClockWatch:
    """Compares Redis' clock with the monotonic clock.

    `step_ms` is a step that was found and is to be reported with the next beat, 0 if there is none;
    `shift_seen` is the correction in force when the comparison began.
    """

    def __init__(self) -> None:
        self.step_ms = 0
        self.shift_seen = 0
        self._offset_ms: float | None = None

    def compare(self, time_ms: int, shift: int, began: float, ended: float) -> bool:
        """Takes the answer to a beat: Redis' time, and when we asked and heard, in seconds.

        Whether it shows a step. Only a quick answer tells: after a slow one the older comparison stands, so
        that a stall is never taken for a step, nor does it hide one.
        """
        reported, self.step_ms = self.step_ms, 0
        if ended - began > ROUND_TRIP_MAX_S:
            if reported:
                self._offset_ms = None
            return False
        offset_ms = time_ms - (began + ended) * 500
        if not reported and self._offset_ms is not None:
            step_ms = round(offset_ms - self._offset_ms)
            if abs(step_ms) > STEP_MS:
                self.step_ms = step_ms
                return True
        self._offset_ms, self.shift_seen = offset_ms, shift
        return False


class _Partition:
    """The beats of one partition."""

    def __init__(self, beats: Beats, partition: PartitionHandle) -> None:
        self.loop = Loop(f"beats {partition.index}", self.step, beats.engine.store.outage)
        self._beats = beats
        self._partition = partition
        self._first = True
        self._clock = ClockWatch()
        self._swept: list[str] = []

    async def step(self) -> float:
        """One beat, and what it asks for."""
        began = monotonic()
        reply = await self._beats.beat(self._partition, self._first, self._clock, self._swept)
        ended = monotonic()
        self._first, self._swept = False, []
        found = self._clock.compare(reply.time_ms, reply.shift, began, ended)
        await self._follow(reply)
        return 0.0 if found else max(0.05, INTERVAL_S - (ended - began))

    async def _follow(self, reply: scripts.BeatOk) -> None:
        if reply.stepped:
            CLOCK_STEPPED(log, ms=reply.stepped, partition=self._partition.index)
        if reply.marked:
            SERVER_MARKED_DEAD(log, partition=self._partition.index)
            self._beats.holder.renew_all()
        self._beats.engine.peers.seen(self._partition.index, reply.alive)
        dead = [run.decode() for run in reply.dead]
        if dead:
            orphaned = await sweep_dead(self._beats.engine, self._partition, dead)
            SERVERS_GONE(log, runs=", ".join(dead), orphaned=orphaned, partition=self._partition.index)
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

    def now(self) -> None:
        """Beats at once: something has changed that others should know."""
        for each in self._partitions:
            each.loop.poke()

    async def stop(self) -> None:
        """Ends the loops."""
        for each in self._partitions:
            await each.loop.stop()

    async def beat(
        self, partition: PartitionHandle, first: bool, clock: ClockWatch, swept: list[str]
    ) -> scripts.BeatOk:
        """One beat and its answer. Raises a StoreError."""
        engine = self.engine
        result = await scripts.beat(
            partition,
            now_ms=engine.now_ms,
            server=engine.server_run,
            name=engine.server_name,
            address=engine.peers.address,
            build=VERSION,
            draining=self.holder.draining,
            first=first,
            step_ms=clock.step_ms,
            shift_seen=clock.shift_seen,
            swept=",".join(swept),
        )
        self.count += 1
        reply: scripts.BeatOk = result.replies[0]
        self.stepped += bool(reply.stepped)
        return reply
