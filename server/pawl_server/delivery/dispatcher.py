"""Brings together streams that have credits, calls that poll, and partitions that have work.

For each type:version there is a pool: the takers that run it, which are streams and groups of polling calls,
and for each partition what is known about its ready heads. A source is *ready* when a reply, a hint, a poll
or nothing yet says that it may have some, and also while nobody would tell: only a claim that comes back
short makes it empty, as it registers this server as waiting. At the end of a tick idle credits are shared
out: one `claim` script per partition for all types and takers. Sources and takers take turns, so that neither
waits for another; turns that are claimed with a finish count like any other, and a source that has fallen
behind gets the next credit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

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
"""Turns that a taker gets before it is the next one's turn."""
RETRY_S = 0.1
REGISTER_S = 3.0
"""A server that waits for work says so again after that time; the store forgets it after 5 s."""


class Taker(Protocol):
    """Who takes turns: a stream, or calls that poll.

    `types` are type:version, `conn` is what leases of its turns are marked with, `reserved` is for the
    dispatcher to keep: how many turns claims under way may still bring.
    """

    conn: str
    closed: bool
    reserved: int

    @property
    def types(self) -> tuple[str, ...]: ...

    @property
    def idle(self) -> int:
        """How many more turns can be claimed for it."""
        ...

    def deliver(self, partition: int, view: list[Any]) -> None:
        """Takes a turn, as claim_view of lib/claim.lua makes it."""
        ...


class Source:
    """The ready heads of a type:version in one partition, as far as is known.

    `hints` counts what said that there are some, `seen` how many of them a claim has followed.
    """

    __slots__ = (
        "blocked_until", "flying", "hints", "more", "partition", "pool", "registered_at", "seen", "served",
    )  # fmt: skip

    def __init__(self, pool: Pool, partition: PartitionHandle) -> None:
        self.pool = pool
        self.partition = partition
        self.hints = 0
        self.seen = 0
        self.flying = 0
        self.more = False
        self.served = 0
        self.registered_at = 0.0
        self.blocked_until = 0.0


class Pool:
    """The takers and sources of one type:version. `idle` is a queue: first in, first served."""

    __slots__ = ("idle", "ready", "sources", "takers", "tv")

    def __init__(self, tv: str, partitions: list[PartitionHandle]) -> None:
        self.tv = tv
        self.takers: set[Taker] = set()
        self.idle: dict[Taker, None] = {}
        self.sources = [Source(self, partition) for partition in partitions]
        self.ready: dict[int, Source] = dict(enumerate(self.sources))


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""


def _served(source: Source) -> int:
    return source.served


def _least_served(pool: Pool) -> int:
    return min((source.served for source in pool.ready.values()), default=0)


_Entry = tuple[ClaimItem, Taker, Source]


class Dispatcher:
    """Claims turns for the streams and polls of this server. `claims` counts scripts, `claimed` turns.

    `answered` is called after the answer to each claim; whoever waits for the outcome sets it.
    """

    def __init__(self, leases: Leases, partitions: list[PartitionHandle]) -> None:
        self.claims = 0
        self.claimed = 0
        self._leases = leases
        self._partitions = partitions
        self._pools: dict[str, Pool] = {}
        self._hungry: dict[Pool, None] = {}
        self._most_served = 0
        self.answered: Callable[[], None] | None = None
        leases.tick.after = self._flush

    # What happens

    def register(self, taker: Taker) -> None:
        """A stream opened, or somebody polls."""
        for tv in taker.types:
            pool = self._pools.get(tv)
            if pool is None:
                pool = self._pools[tv] = Pool(tv, self._partitions)
            pool.takers.add(taker)

    def unregister(self, taker: Taker) -> None:
        """A stream closed, or nobody polls any longer."""
        for tv in taker.types:
            pool = self._pools[tv]
            pool.takers.discard(taker)
            pool.idle.pop(taker, None)
            if not pool.takers:
                del self._pools[tv]
                self._hungry.pop(pool, None)

    def offer(self, taker: Taker) -> None:
        """A taker may have idle credits."""
        for tv in taker.types:
            pool = self._pools.get(tv)
            if pool is not None and taker in pool.takers:
                pool.idle.setdefault(taker)
                if pool.ready:
                    self._hungry.setdefault(pool)
        if self._hungry:
            self._leases.tick.arm()

    def look(self, taker: Taker) -> None:
        """Has all sources of a taker looked at, whatever is known of them, if it has idle credits."""
        for tv in taker.types:
            pool = self._pools[tv]
            for source in pool.sources:
                source.hints += 1
                self._may_have(pool, source)
        self.offer(taker)

    def quiet(self, taker: Taker) -> bool:
        """Whether no claim for the taker is under way or due: what there was, it has."""
        return not taker.reserved and not any(self._pools[tv].ready for tv in taker.types)

    def _may_have(self, pool: Pool, source: Source) -> None:
        """Nothing is known of a source any longer, or that it has something."""
        index = source.partition.index
        if index not in pool.ready:
            pool.ready[index] = source
            source.served = max(source.served, self._most_served)

    def ready(self, partition: PartitionHandle, types: Iterable[str]) -> None:
        """Heads of these type:version have become ready in a partition."""
        for tv in types:
            pool = self._pools.get(tv)
            if pool is not None:
                source = pool.sources[partition.index]
                source.hints += 1
                self._may_have(pool, source)
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
        if pool is not None:
            pool.sources[partition.index].registered_at = 0.0  # the store has struck this server off
            self.ready(partition, (tv,))
            if self._room(pool, 1):
                return
        self._pass_on(partition, tv)

    def _pass_on(self, partition: PartitionHandle, tv: str) -> None:
        self._leases.claim(partition, [ClaimItem(tv, 0, "")], _ignore)

    def refresh(self, partition: PartitionHandle, now: float) -> None:
        """Looks at the sources of a partition again whose registration as waiting is about to lapse."""
        for pool in self._pools.values():
            source = pool.sources[partition.index]
            if now - source.registered_at > REGISTER_S:
                self._may_have(pool, source)
                if pool.idle:
                    self._hungry.setdefault(pool)
        if self._hungry:
            self._leases.tick.arm()

    def registered(self, partition: int, tv: str) -> None:
        """A finish found nothing to claim, and has registered this server as waiting."""
        pool = self._pools.get(tv)
        if pool is not None:
            source = pool.sources[partition]
            source.registered_at = asyncio.get_running_loop().time()
            if source.hints == source.seen and not source.flying:
                pool.ready.pop(partition, None)

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
        for each in session.types:
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
        """Idle credits of a pool, counted up to about `enough`; takers without any leave the queue."""
        total = 0
        spent = []
        for taker in pool.idle:
            room = taker.idle
            if room:
                total += room
                if total >= enough:
                    break
            else:
                spent.append(taker)
        for taker in spent:
            del pool.idle[taker]
        return total

    def _give(self, pool: Pool, source: Source, share: int, scripts: dict[int, list[_Entry]]) -> int:
        """Reserves up to `share` credits for a claim at a source; how many it got."""
        given = 0
        alone = len(pool.idle) == 1
        entries = scripts.setdefault(source.partition.index, [])
        while given < share and pool.idle:
            taker = next(iter(pool.idle))
            del pool.idle[taker]
            count = min(taker.idle, share - given, CLAIM_MAX if alone else SHARE)
            if count <= 0:
                continue
            taker.reserved += count
            given += count
            entries.append((ClaimItem(pool.tv, count, taker.conn), taker, source))
            if taker.idle > 0:
                pool.idle[taker] = None  # behind the others
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
        for item, taker, _ in entries:
            taker.reserved -= item.limit
        for source in issued:
            source.flying -= 1
        if isinstance(result, Exception):
            self._failed(partition, entries, result)
            return
        now = asyncio.get_running_loop().time()
        for source, hints in issued.items():
            source.registered_at = 0.0  # a claim that is filled ends the registration
            source.seen = max(source.seen, hints)
        for (item, taker, source), reply in zip(entries, result.replies, strict=True):
            source.more = reply.more
            if not reply.more and len(reply.turns) < item.limit:
                source.registered_at = now
            self.served(partition.index, item.tv, len(reply.turns))
            self._deliver(partition, taker, reply.turns)
        for source, hints in issued.items():
            if source.registered_at and source.hints == hints:
                source.pool.ready.pop(partition.index, None)
        self.ready(partition, result.ready)
        self._again(entries)
        if self.answered is not None:
            self.answered()

    def _deliver(self, partition: PartitionHandle, taker: Taker, views: list[Any]) -> None:
        self.claimed += len(views)
        for view in views:
            try:
                taker.deliver(partition.index, view)
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
        for _, taker, source in entries:
            if not taker.closed:
                self.offer(taker)
            pool = source.pool
            if pool.idle and pool.ready and pool.takers:
                self._hungry.setdefault(pool)
        if self._hungry:
            self._leases.tick.arm()
