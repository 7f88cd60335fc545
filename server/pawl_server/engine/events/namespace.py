"""One watcher of a whole namespace: the feeds of all partitions, each in its own order.

Its place is, for each partition, an entry of the feed and how many events of the next entry were passed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pawl.v1.event_service_pb2 import NamespaceEvent, NamespaceEvents, WatchBeat, WatchNamespaceResponse
from pawl_server.domain.cursor import page_position, page_token
from pawl_server.domain.errors import Reason, Refused
from pawl_server.domain.times import timestamp
from pawl_server.engine.events.ledger import event_message
from pawl_server.engine.events.waiter import Waiter
from pawl_server.store.feed import FeedBroken, FeedEntry, FeedId, FeedTail, read_feed
from pawl_server.store.records import ledger_event

if TYPE_CHECKING:
    from pawl_server.engine.events.events import Events

_KIND = "feed"
_FRAME_EVENTS = 256


class Place(NamedTuple):
    """Behind an entry of a partition's feed, and `passed` events of the next one."""

    entry: FeedId
    passed: int = 0


def cursor_of(namespace: str, places: Collection[Place]) -> str:
    """The places of all partitions as clients keep them."""
    numbers = [n for place in places for n in (place.entry.offset, place.entry.gen, place.passed)]
    return page_token(_KIND, namespace, *numbers)


def places_of(namespace: str, cursor: str, partitions: int) -> list[Place]:
    """The places of a cursor. Raises Refused(CURSOR_STALE)."""
    n = page_position(cursor, _KIND, namespace, *[int] * (3 * partitions), field="cursor")
    return [Place(FeedId(n[at], n[at + 1]), n[at + 2]) for at in range(0, len(n), 3)]


class NamespaceWatch(Waiter):
    """Follows everything from a place on.

    An empty `cursor` means from now on, no `types` all types, an empty `workflow_type` all instances. Raises
    Refused(CURSOR_STALE).
    """

    def __init__(self, events: Events, cursor: str, types: Collection[int], workflow_type: str) -> None:
        super().__init__(events)
        self._namespace = events.engine.namespace
        partitions = len(events.engine.store.partitions)
        self._places = places_of(self._namespace, cursor, partitions) if cursor else []
        self._types = frozenset(types)
        self._workflow_type = workflow_type
        self._queue: deque[tuple[int, FeedEntry]] = deque()
        self._queued = 0
        self._look: set[int] = set()
        self._reading = False
        self._frame: list[NamespaceEvent] = []

    def offer(self, partition: int, entry: FeedEntry) -> None:
        """Takes in what happened."""
        if self._queue and self._queued >= self._events.options.queue:
            if self._reading:
                # What is not in the queue is read as well, from the feed.
                self._look.update(each for each, _ in self._queue)
                self._queue.clear()
                self._queued = 0
            else:
                self.over = True
        if not self.over:
            self._queue.append((partition, entry))
            self._queued += _size(entry)
        self.wake()

    def look_again(self, partition: int) -> None:
        """Says that entries may have been missed."""
        self._look.add(partition)
        self.wake()

    async def frames(self) -> AsyncGenerator[WatchNamespaceResponse, None]:
        """All frames. Raises Refused(COMPACTED, REWOUND, DRAINING, OVERLOADED), StoreError."""
        async with self._events.watching(self), self._events.hub.feeds(self) as tails:
            self._begin(tails)
            yield self._beat(tails)
            while True:
                if self._look:
                    async with contextlib.aclosing(self._read(tails)) as frames:
                        async for frame in frames:
                            yield frame
                elif self._queue:
                    for frame in self._take_next():
                        yield frame
                elif self._frame:
                    yield self._cut()
                elif self.must_go:
                    yield self._reconnect()
                    return
                else:
                    await self.sleep()
                if self.beat_due:
                    yield self._cut() if self._frame else self._beat(tails)

    def _begin(self, tails: list[FeedTail]) -> None:
        if not self._places:
            self._places = [Place(tail.newest) for tail in tails]
        self._look = {at for at, tail in enumerate(tails) if self._places[at].entry != tail.newest}

    async def _read(self, tails: list[FeedTail]) -> AsyncGenerator[WatchNamespaceResponse, None]:
        """Reads what one feed has after its place. Raises Refused(COMPACTED, REWOUND), StoreError."""
        partition = self._look.pop()
        tail, after = tails[partition], self._places[partition].entry
        self._reading = True
        try:
            async with contextlib.aclosing(read_feed(tail.partition, after, now_ms=tail.now_ms)) as entries:
                async for entry in entries:
                    for frame in self._take(partition, entry):
                        yield frame
        except FeedBroken as broken:
            if broken.rewound:
                metadata = {"last_seq": "0", "gen": str(tail.partition.gen)}
                raise Refused(Reason.REWOUND, "the store lost the place of the cursor", metadata) from None
            raise Refused(
                Reason.COMPACTED, "what follows the cursor was trimmed", {"oldest_seq": "0"}
            ) from None
        finally:
            self._reading = False

    def _take_next(self) -> Iterator[WatchNamespaceResponse]:
        partition, entry = self._queue.popleft()
        self._queued -= _size(entry)
        return self._take(partition, entry)

    def _take(self, partition: int, entry: FeedEntry) -> Iterator[WatchNamespaceResponse]:
        """Passes an entry; the frames that are full with it."""
        place = self._places[partition]
        if entry.previous != place.entry:
            if place.entry.before(entry.id):
                self._look.add(partition)
            return
        passed = 0
        for item in entry.items:
            workflow_type = item.tv.partition(":")[0]
            wanted = not self._workflow_type or workflow_type == self._workflow_type
            for raw in item.events:
                passed += 1
                if passed <= place.passed or not wanted:
                    continue
                record = ledger_event(raw)
                if self._types and record.type not in self._types:
                    continue
                event = event_message(item.instance_id, item.incarnation, record)
                self._frame.append(NamespaceEvent(event=event, workflow_type=workflow_type))
                self._places[partition] = Place(place.entry, passed)
                if len(self._frame) >= _FRAME_EVENTS:
                    yield self._cut()
        self._places[partition] = Place(entry.id)

    def _cut(self) -> WatchNamespaceResponse:
        self._frame[-1].cursor = cursor_of(self._namespace, self._places)
        frame = WatchNamespaceResponse(events=NamespaceEvents(events=self._frame))
        self._frame = []
        self.sent()
        return frame

    def _beat(self, tails: list[FeedTail]) -> WatchNamespaceResponse:
        self.sent()
        cursor = cursor_of(self._namespace, self._places)
        return WatchNamespaceResponse(
            beat=WatchBeat(namespace_cursor=cursor, time=timestamp(tails[0].engine_ms))
        )

    def _reconnect(self) -> WatchNamespaceResponse:
        frame = WatchNamespaceResponse(reconnect=self.reconnect())
        frame.reconnect.namespace_cursor = cursor_of(self._namespace, self._places)
        return frame


def _size(entry: FeedEntry) -> int:
    return sum(len(item.events) for item in entry.items)
