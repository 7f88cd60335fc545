"""Brings together streams that have credits and partitions that have work.

For each type:version there is a pool: the streams that run it, and for each partition what is known about
its ready heads. A source is *ready* when a reply, a hint, a poll or nothing yet says that it may have some; a
claim that comes back short makes it empty again. At the end of a tick idle credits are shared out: one
`claim` script per partition for all types and streams. Sources and streams take turns, so that neither waits
for another; turns that are claimed with a finish count like any other, and a source that has fallen behind
gets the next credit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pawl_server.engine.leases import Leases
from pawl_server.log_lines import CLAIM_FAILED, TURN_NOT_SENT
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.script_call import Result
from pawl_server.store.scripts_gen import ClaimItem, ClaimReply

if TYPE_CHECKING:
    from pawl_server.delivery.sessions import WorkSession
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

IN_FLIGHT = 2
"""Unanswered claims of a source."""
CLAIM_MAX = 128
"""Most turns that one script claims of a source."""
SHARE = 8
"""Turns that a stream takes before the next stream gets its turn."""
RETRY_S = 0.1
REGISTER_S = 3.0
"""A server that waits for work says so again after that time; the store forgets it after 5 s."""


class Source:
    """The ready heads of a type:version in one partition, as far as is known."""

    __slots__ = ("blocked_until", "flying", "hints", "more", "partition", "pool", "registered_at", "served")

    def __init__(self, pool: Pool, partition: PartitionHandle) -> None:
        self.pool = pool
        self.partition = partition
        self.hints = 0
        self.flying = 0
        self.more = False
        self.served = 0
        self.registered_at = 0.0
        self.blocked_until = 0.0


class Pool:
    """The streams and sources of one type:version. `idle` is a queue: first in, first served."""

    __slots__ = ("idle", "ready", "sessions", "sources", "tv")

    def __init__(self, tv: str, partitions: list[PartitionHandle]) -> None:
        self.tv = tv
        self.sessions: set[WorkSession] = set()
        self.idle: dict[WorkSession, None] = {}
        self.sources = [Source(self, partition) for partition in partitions]
        self.ready: dict[int, Source] = dict(enumerate(self.sources))


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""


def _served(source: Source) -> int:
    return source.served


def _least_served(pool: Pool) -> int:
    return min((source.served for source in pool.ready.values()), default=0)


_Entry = tuple[ClaimItem, "WorkSession", Source]


class Dispatcher:
    """Claims turns for the streams of this server. `claims` counts scripts, `claimed` turns."""

    def __init__(self, leases: Leases, partitions: list[PartitionHandle]) -> None:
        self.claims = 0
        self.claimed = 0
        self._leases = leases
        self._partitions = partitions
        self._pools: dict[str, Pool] = {}
        self._hungry: dict[Pool, None] = {}
        self._most_served = 0
        leases.tick.after = self._flush

    # What happens

    def register(self, session: WorkSession) -> None:
        """A stream opened."""
        for tv in session.hello.types:
            pool = self._pools.get(tv)
            if pool is None:
                pool = self._pools[tv] = Pool(tv, self._partitions)
            pool.sessions.add(session)

    def unregister(self, session: WorkSession) -> None:
        """A stream closed."""
        for tv in session.hello.types:
            pool = self._pools[tv]
            pool.sessions.discard(session)
            pool.idle.pop(session, None)
            if not pool.sessions:
                del self._pools[tv]
                self._hungry.pop(pool, None)

    def offer(self, session: WorkSession) -> None:
        """A stream may have idle credits."""
        for tv in session.hello.types:
            pool = self._pools.get(tv)
            if pool is not None and session in pool.sessions:
                pool.idle.setdefault(session)
                if pool.ready:
                    self._hungry.setdefault(pool)
        if self._hungry:
            self._leases.tick.arm()

    def ready(self, partition: PartitionHandle, types: Iterable[str]) -> None:
        """Heads of these type:version have become ready in a partition."""
        for tv in types:
            pool = self._pools.get(tv)
            if pool is not None:
                source = pool.sources[partition.index]
                source.hints += 1
                if partition.index not in pool.ready:
                    pool.ready[partition.index] = source
                    source.served = max(source.served, self._most_served)
                if pool.idle:
                    self._hungry.setdefault(pool)
                elif source.registered_at:
                    # The store believes that this server waits here, and has told nobody else.
                    source.registered_at = 0.0
                    self._pass_on(partition, tv)
        if self._hungry:
            self._leases.tick.arm()

    def told(self, partition: PartitionHandle, tv: str) -> None:
        """Another server has made heads ready and told this one alone: without credits it passes that on."""
        pool = self._pools.get(tv)
        if pool is not None and self._room(pool, 1):
            self.ready(partition, (tv,))
        else:
            self._pass_on(partition, tv)

    def _pass_on(self, partition: PartitionHandle, tv: str) -> None:
        self._leases.claim(partition, [ClaimItem(tv, 0, "")], _ignore)

    def refresh(self, partition: PartitionHandle, now: float) -> None:
        """Looks at the sources of a partition again whose registration as waiting is about to lapse."""
        for pool in self._pools.values():
            source = pool.sources[partition.index]
            if pool.idle and now - source.registered_at > REGISTER_S:
                self.ready(partition, (pool.tv,))

    def registered(self, partition: int, tv: str) -> None:
        """A finish found nothing to claim, and has registered this server as waiting."""
        pool = self._pools.get(tv)
        if pool is not None:
            pool.sources[partition].registered_at = asyncio.get_running_loop().time()

    def served(self, partition: int, tv: str, count: int) -> None:
        """Turns of a source were handed out; a source that becomes ready later does not catch up on them."""
        pool = self._pools.get(tv)
        if pool is not None:
            source = pool.sources[partition]
            source.served += count
            self._most_served = max(self._most_served, source.served)

    def behind(self, session: WorkSession, partition: int, tv: str) -> bool:
        """Whether another source that is ready for a stream was given no more than this one.

        A stream that executes many turns serves several sources at once: it may be so many turns off.
        """
        pool = self._pools.get(tv)
        if pool is None:
            return True
        own = pool.sources[partition]
        enough = own.served - len(session.held.states) + 1
        for each in session.hello.types:
            pool = self._pools.get(each)
            if pool is not None and any(
                source.served <= enough and source is not own for source in pool.ready.values()
            ):
                return True
        return False

    @property
    def at_rest(self) -> bool:
        """Whether no claim is due or under way."""
        return not self._hungry and not any(
            source.flying for pool in self._pools.values() for source in pool.sources
        )

    # Claims

    def _flush(self) -> None:
        if not self._hungry:
            return
        hungry, self._hungry = self._hungry, {}
        scripts: dict[int, list[_Entry]] = {}
        now = asyncio.get_running_loop().time()
        for pool in sorted(hungry, key=_least_served) if len(hungry) > 1 else hungry:
            self._share_out(pool, now, scripts)
        for index, entries in scripts.items():
            self._claim(self._partitions[index], entries)

    def _share_out(self, pool: Pool, now: float, scripts: dict[int, list[_Entry]]) -> None:
        sources = [
            source
            for source in pool.ready.values()
            if source.flying < IN_FLIGHT and source.blocked_until <= now
        ]
        if not sources:
            return
        sources.sort(key=_served)
        room = self._room(pool, CLAIM_MAX * len(sources))
        for left in range(len(sources), 0, -1):
            if room <= 0:
                return
            source = sources[len(sources) - left]
            share = -(-room // left)
            if left == 1 and not source.more and room > 2 and len(self._partitions) > 1:
                share = room // 2  # the rest is for what the other partitions may announce meanwhile
            room -= self._give(pool, source, min(share, CLAIM_MAX), scripts)

    @staticmethod
    def _room(pool: Pool, enough: int) -> int:
        """Idle credits of a pool, counted up to about `enough`; streams without any leave the queue."""
        total = 0
        spent = []
        for session in pool.idle:
            room = session.idle
            if room:
                total += room
                if total >= enough:
                    break
            else:
                spent.append(session)
        for session in spent:
            del pool.idle[session]
        return total

    def _give(self, pool: Pool, source: Source, share: int, scripts: dict[int, list[_Entry]]) -> int:
        """Reserves up to `share` credits for a claim at a source; how many it got."""
        given = 0
        alone = len(pool.idle) == 1
        entries = scripts.setdefault(source.partition.index, [])
        while given < share and pool.idle:
            session = next(iter(pool.idle))
            del pool.idle[session]
            count = min(session.idle, share - given, CLAIM_MAX if alone else SHARE)
            if count <= 0:
                continue
            session.reserved += count
            given += count
            entries.append((ClaimItem(pool.tv, count, session.conn), session, source))
            if session.idle > 0:
                pool.idle[session] = None  # behind the others
        return given

    def _claim(self, partition: PartitionHandle, entries: list[_Entry]) -> None:
        if not entries:
            return
        issued = {source: source.hints for _, _, source in entries}
        for source in issued:
            source.flying += 1
        self.claims += 1
        answered: Callable[[Result[ClaimReply] | Exception], None]
        answered = partial(self._answered, partition, entries, issued)
        self._leases.claim(partition, [entry[0] for entry in entries], answered)

    def _answered(
        self,
        partition: PartitionHandle,
        entries: list[_Entry],
        issued: dict[Source, int],
        result: Result[ClaimReply] | Exception,
    ) -> None:
        for item, session, _ in entries:
            session.reserved -= item.limit
        for source in issued:
            source.flying -= 1
        if isinstance(result, Exception):
            self._failed(partition, entries, result)
            return
        now = asyncio.get_running_loop().time()
        for source in issued:
            source.registered_at = 0.0  # a claim that is filled ends the registration
        for (item, session, source), reply in zip(entries, result.replies, strict=True):
            source.more = reply.more
            if not reply.more and len(reply.turns) < item.limit:
                source.registered_at = now
            self.served(partition.index, item.tv, len(reply.turns))
            self._deliver(partition, session, reply.turns)
        for source, hints in issued.items():
            if not source.more and source.hints == hints:
                source.pool.ready.pop(partition.index, None)
        self.ready(partition, result.ready)
        self._again(entries)

    def _deliver(self, partition: PartitionHandle, session: WorkSession, views: list[Any]) -> None:
        self.claimed += len(views)
        for view in views:
            try:
                session.deliver(partition.index, view)
            except Exception as error:
                TURN_NOT_SENT(log, error, partition=partition.index)

    def _failed(self, partition: PartitionHandle, entries: list[_Entry], why: Exception) -> None:
        """What was claimed nevertheless comes back by itself, as nobody receives it."""
        if not isinstance(why, StoreUnavailable):  # an outage is told by the loops that end it, too
            CLAIM_FAILED(log, partition=partition.index, why=str(why))
        loop = asyncio.get_running_loop()
        for _, _, source in entries:
            source.blocked_until = loop.time() + RETRY_S
        loop.call_later(RETRY_S, self._again, entries)

    def _again(self, entries: list[_Entry]) -> None:
        """Credits came back, and sources may be asked again."""
        for _, session, source in entries:
            if not session.closed:
                self.offer(session)
            pool = source.pool
            if pool.idle and pool.ready and pool.sessions:
                self._hungry.setdefault(pool)
        if self._hungry:
            self._leases.tick.arm()
