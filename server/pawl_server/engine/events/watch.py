"""One watcher of an instance: first what its ledger holds, then what the feed brings, without a seam.

Events are numbered without gaps, so joining the two is simple: what is numbered lower than the next event was
seen already, what is numbered higher says that some were missed, and they are read from the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import TYPE_CHECKING

from pawl.v1.event_service_pb2 import Cursor, WatchBeat, WatchEnd, WatchEventsResponse
from pawl.v1.instance_pb2 import InstanceStatus
from pawl_server.domain.errors import NotFound
from pawl_server.domain.times import timestamp
from pawl_server.engine.events import ledger
from pawl_server.engine.events.hub import Happened
from pawl_server.engine.events.waiter import Waiter
from pawl_server.store.errors import StoreDeleting
from pawl_server.store.feed import FeedTail

if TYPE_CHECKING:
    from pawl_server.engine.events.events import Events

_IDLE = InstanceStatus.INSTANCE_STATUS_IDLE
_DELETING = InstanceStatus.INSTANCE_STATUS_DELETING


class InstanceWatch(Waiter):
    """Follows one instance from a place on; `after` None means from now on, no `types` all types."""

    def __init__(
        self,
        events: Events,
        instance_id: str,
        after: Cursor | None,
        types: Collection[int],
        *,
        until_idle: bool,
    ) -> None:
        super().__init__(events)
        self.instance_id = instance_id
        self._types = frozenset(types)
        self._until_idle = until_idle
        self._place = after or ledger.FROM_NOW
        self._status = 0
        self._replay: deque[Happened] = deque()
        self._queue: deque[Happened] = deque()
        self._look = False

    def offer(self, events: Sequence[Happened]) -> None:
        """Takes in what happened."""
        if len(self._queue) + len(events) > self._events.options.queue:
            self.over = True
        if not self.over:
            self._queue.extend(events)
        self.wake()

    def look_again(self) -> None:
        """Says that events may have been missed."""
        self._look = True
        self.wake()

    async def frames(self) -> AsyncGenerator[WatchEventsResponse, None]:
        """All frames. Raises NotFound, Refused(COMPACTED, REWOUND, DRAINING, OVERLOADED), StoreError."""
        async with self._events.watching(self), self._events.hub.instance(self) as tail:
            await self._begin(tail)
            yield self._beat(tail)
            while True:
                if self._look:
                    await self._read_again(tail)
                happened = self._next()
                if happened is not None:
                    self._pass(happened)
                    if not self._types or happened.record.type in self._types:
                        self.sent()
                        yield WatchEventsResponse(event=happened.message)
                elif self._look:
                    continue
                elif (last := self._last_frame()) is not None:
                    yield last
                    return
                else:
                    await self.sleep()
                if self.beat_due:
                    yield self._beat(tail)

    async def _begin(self, tail: FeedTail) -> None:
        """Finds the place to begin at, and what comes after it by now."""
        after = self._place
        page = await ledger.read(tail.partition, self.instance_id, after, now_ms=tail.now_ms)
        if after.seq < 0:
            seq, gen = page.last_seq, page.last_gen
        else:
            seq = max(after.seq, page.oldest_seq - 1)
            gen = after.gen if seq == after.seq else 0
        self._place = Cursor(incarnation=page.incarnation, seq=seq, gen=gen)
        self._status = page.status
        self._fill(page)

    async def _read_again(self, tail: FeedTail) -> None:
        """Reads what was missed."""
        self._look = False
        try:
            page = await ledger.read(
                tail.partition, self.instance_id, self._place, followed=True, now_ms=tail.now_ms
            )
        except (NotFound, StoreDeleting):
            self._status = _DELETING
            return
        except ledger.Compacted as compacted:
            if compacted.incarnation == self._place.incarnation:
                raise
            self._status = _DELETING
            return
        self._fill(page)

    def _fill(self, page: ledger.Page) -> None:
        self._replay = deque(Happened(self.instance_id, page.incarnation, record) for record in page.events)

    def _next(self) -> Happened | None:
        """The event after the place reached; None if it is not here."""
        place = self._place
        while self._status != _DELETING and (queue := self._replay or self._queue):
            happened = queue.popleft()
            record = happened.record
            if happened.incarnation < place.incarnation:
                continue
            if happened.incarnation > place.incarnation and record.gen > place.gen > 0:
                self._look = True  # the former life may have been lost
                return None
            if happened.incarnation > place.incarnation:
                self._status = _DELETING  # and the id was used again before its end was heard of
            elif record.seq == place.seq + 1:
                return happened
            elif record.seq > place.seq or record.gen > place.gen > 0:
                self._look = True
                return None
        return None

    def _pass(self, happened: Happened) -> None:
        self._place.seq, self._place.gen = happened.record.seq, happened.record.gen
        self._status = happened.record.status
        if happened.record.type == ledger.DELETED:
            self._status = _DELETING

    def _last_frame(self) -> WatchEventsResponse | None:
        """What ends the stream, if it ends here."""
        if self._status == _DELETING or (self._until_idle and self._status == _IDLE):
            status = _DELETING if self._status == _DELETING else _IDLE
            return WatchEventsResponse(end=WatchEnd(cursor=self._place, status=status))
        if self.must_go:
            frame = WatchEventsResponse(reconnect=self.reconnect())
            frame.reconnect.cursor.CopyFrom(self._place)
            return frame
        return None

    def _beat(self, tail: FeedTail) -> WatchEventsResponse:
        self.sent()
        return WatchEventsResponse(beat=WatchBeat(cursor=self._place, time=timestamp(tail.engine_ms)))
