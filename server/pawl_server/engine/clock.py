"""The clock of a namespace with virtual time, which moves only when it is told to.

The clock itself is kept in the store, one per partition and all alike, so that it outlives servers. To move
it is to visit each due time on the way in order: set the clock, renew the leases of workers that are here,
apply what is due, and let what follows from that come to rest before going on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pawl_server.domain.errors import InvalidField, Reason, Refused
from pawl_server.domain.times import DAY
from pawl_server.store import scripts_gen as scripts

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

ADVANCE_MAX_MS = 3_650 * DAY
LOOK_S = 0.002
"""How often the end of what is under way is looked for."""
HAND_OUT_S = 2.0
"""How long the clock waits for turns to reach their workers, however little patience the caller has."""


class Due(Protocol):
    """Who applies what is due: the timers."""

    fired: dict[str, int]
    """Entries that were applied so far, by kind."""
    paused: bool
    """Whether nothing is applied but by `apply`."""

    @property
    def gone(self) -> int:
        """Entries that were applied or found stale so far."""
        ...

    async def apply(self, partition: PartitionHandle) -> float:
        """Applies some of what is due now. Raises a StoreError."""
        ...


class Floor(Protocol):
    """Where turns run: the streams of this server."""

    @property
    def running(self) -> set[bytes]:
        """Names of the leases that workers hold here."""
        ...

    @property
    def at_rest(self) -> bool:
        """Whether no turn is on its way to a worker, and no answer on its way back."""
        ...

    async def renew(self) -> None:
        """Renews the leases of workers that are here; returns once that is done."""
        ...


class Reading(NamedTuple):
    """Engine time, and the earliest due time, 0 if nothing is due ever; in ms."""

    now_ms: int
    next_ms: int


class Advanced(NamedTuple):
    """Engine time in ms after a move, timers that were applied, and turns that are still running."""

    now_ms: int
    fired: int
    running: int


class Clock:
    """Reads and moves the clock. One move at a time."""

    def __init__(self, engine: Engine, due: Due, floor: Floor) -> None:
        self._engine = engine
        self._due = due
        self._floor = floor
        self._moving = asyncio.Lock()

    async def read(self) -> Reading:
        """What the clock shows. Raises a StoreError."""
        return await self._set(0)

    async def advance(self, to_ms: int | None, by_ms: int, patience_s: float, limit_s: float) -> Advanced:
        """Moves the clock to a time, or by a span if `to_ms` is None.

        `patience_s` is how long running turns are waited for, each once, `limit_s` how long the call may
        take. Raises InvalidField, Refused(WRONG_STATE) while there are other servers, Refused(DEADLINE), a
        StoreError; then the clock has moved part of the way.
        """
        async with self._moving:
            self._check_alone()
            now_ms = (await self.read()).now_ms
            target_ms = now_ms + by_ms if to_ms is None else to_ms
            if not now_ms <= target_ms <= now_ms + ADVANCE_MAX_MS:
                raise InvalidField(
                    "time", f"is {target_ms - now_ms} ms after the clock, not within 0 to {ADVANCE_MAX_MS}"
                )
            fired = self._fired()
            waited = _Patience(self._floor, patience_s)
            try:
                async with asyncio.timeout(limit_s):
                    await self._walk(target_ms, waited)
            except TimeoutError:
                reached_ms = (await self.read()).now_ms
                raise Refused(
                    Reason.DEADLINE, f"the clock is {target_ms - reached_ms} ms short of its target"
                ) from None
            return Advanced(target_ms, self._fired() - fired, len(self._floor.running))

    def _fired(self) -> int:
        return sum(self._due.fired.values())

    def _check_alone(self) -> None:
        """Leases of workers elsewhere would run out, and what follows there would not be waited for."""
        peers = self._engine.peers
        others = [peer.address for peer in peers.servers if peer.run != peers.run]
        if others:
            raise Refused(
                Reason.WRONG_STATE,
                f"other servers use the namespace, or did within the last 3 s: {', '.join(others)}; its clock"
                " moves only while there is one",
                {"state": "several_servers"},
            )

    async def _walk(self, target_ms: int, waited: _Patience) -> None:
        await waited.rest()
        while await self._step(target_ms):
            await waited.rest()
        await self._set(target_ms)

    async def _step(self, target_ms: int) -> bool:
        """Moves the clock to the next due time and applies what is due; False if there is none."""
        self._due.paused = True  # leases are renewed before those that run out are looked for
        try:
            reading = await self.read()
            if not 0 < reading.next_ms <= target_ms:
                return False
            await self._set(max(reading.next_ms, reading.now_ms))
            await self._floor.renew()
            await self._apply()
            return True
        finally:
            self._due.paused = False

    async def _apply(self) -> None:
        """Applies what is due now, partition by partition, until nothing is or nothing gives way."""
        for partition in self._engine.store.partitions:
            while True:
                gone = self._due.gone
                now_ms, next_ms = await self._set_in(partition, 0)
                if not 0 < next_ms <= now_ms:
                    break
                await self._due.apply(partition)
                if self._due.gone == gone:
                    break

    async def _set(self, to_ms: int) -> Reading:
        partitions = self._engine.store.partitions
        readings = await asyncio.gather(*(self._set_in(each, to_ms) for each in partitions))
        dues = [next_ms for _, next_ms in readings if next_ms]
        return Reading(max(now_ms for now_ms, _ in readings), min(dues, default=0))

    async def _set_in(self, partition: PartitionHandle, to_ms: int) -> Reading:
        result = await scripts.advance(partition, now_ms=self._engine.now_ms, to_ms=to_ms)
        reply = result.replies[0]
        if not isinstance(reply, scripts.AdvanceOk):
            raise Refused(Reason.WRONG_STATE, "the namespace has real time", {"state": reply.state})
        return Reading(result.now_ms, reply.next_ms)


class _Patience:
    """Waits for turns to end, for each one once."""

    def __init__(self, floor: Floor, seconds: float) -> None:
        self._floor = floor
        self._seconds = seconds
        self._waited: set[bytes] = set()

    async def rest(self) -> None:
        """Returns once turns are with their workers, and those that were not waited for yet have ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            passed = loop.time() - began
            running = self._floor.running - self._waited if passed < self._seconds else set()
            if not running and (self._floor.at_rest or passed > HAND_OUT_S):
                self._waited |= self._floor.running
                return
            await asyncio.sleep(LOOK_S)
