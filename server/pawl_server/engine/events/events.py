"""The events part of the engine: who reads ledgers, who watches, and how watching ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import TYPE_CHECKING

from pawl.v1.event_pb2 import Event
from pawl.v1.event_service_pb2 import Cursor, ListEventsResponse, WatchEventsResponse, WatchNamespaceResponse
from pawl_server.domain.errors import Reason, Refused
from pawl_server.engine.events import ledger
from pawl_server.engine.events.hub import Hub, WatchOptions
from pawl_server.engine.events.namespace import NamespaceWatch
from pawl_server.engine.events.waiter import Waiter
from pawl_server.engine.events.watch import InstanceWatch

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine


_LAST_FRAMES_S = 2.0
"""Who has not taken its last frame by then reads too slowly."""


class Events:
    """Ledgers of all instances. `options` may be replaced before the first watch."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.draining = False
        self.hub = Hub(engine, WatchOptions())
        self._watches: set[Waiter] = set()
        self._left = asyncio.Event()

    @property
    def options(self) -> WatchOptions:
        """How watching works."""
        return self.hub.options

    @options.setter
    def options(self, options: WatchOptions) -> None:
        self.hub.options = options

    @property
    def count(self) -> int:
        """Watches under way."""
        return len(self._watches)

    async def list(
        self, instance_id: str, after: Cursor, types: Collection[int], page_size: int
    ) -> ListEventsResponse:
        """Reads up to `page_size` events of the types after a place; no types mean all.

        Raises NotFound, Refused(COMPACTED, REWOUND), StoreError.
        """
        partition = self.engine.store.partition_of(instance_id)
        limit = ledger.WHOLE if types else page_size
        page = await ledger.read(partition, instance_id, after, limit=limit, now_ms=self.engine.now_ms)
        next_place = Cursor(incarnation=page.incarnation, seq=page.last_seq, gen=page.last_gen)
        events: list[Event] = []
        for record in page.events:
            if len(events) == page_size:
                break
            next_place.seq, next_place.gen = record.seq, record.gen
            if not types or record.type in types:
                events.append(ledger.event_message(instance_id, page.incarnation, record))
        return ListEventsResponse(
            events=events, next=next_place, last_seq=page.last_seq, oldest_seq=page.oldest_seq
        )

    def watch(
        self, instance_id: str, after: Cursor | None, types: Collection[int], *, until_idle: bool
    ) -> AsyncGenerator[WatchEventsResponse, None]:
        """Follows an instance from a place on, None for now; see InstanceWatch.frames."""
        return InstanceWatch(self, instance_id, after, types, until_idle=until_idle).frames()

    def watch_namespace(
        self, cursor: str, types: Collection[int], workflow_type: str
    ) -> AsyncGenerator[WatchNamespaceResponse, None]:
        """Follows everything from a place on, "" for now; see NamespaceWatch.frames. Raises Refused."""
        return NamespaceWatch(self, cursor, types, workflow_type).frames()

    @contextlib.asynccontextmanager
    async def watching(self, watch: Waiter) -> AsyncIterator[None]:
        """Counts a watch while it lasts. Raises Refused(DRAINING, OVERLOADED)."""
        if self.draining:
            raise Refused(Reason.DRAINING, "the server is stopping")
        if self.count >= self.options.watches:
            raise Refused(Reason.OVERLOADED, f"{self.count} watches are open")
        self._watches.add(watch)
        try:
            yield
        finally:
            self._watches.discard(watch)
            if not self._watches:
                self._left.set()

    async def drain(self, seconds: float) -> None:
        """Asks all watchers to go; returns once they have, or after `seconds`, at most two."""
        self.draining = True
        for watch in self._watches:
            watch.wake()
        self._left.clear()
        if self._watches:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, _LAST_FRAMES_S)):
                    await self._left.wait()

    async def close(self) -> None:
        """Stops following the feeds."""
        await self.hub.close()
