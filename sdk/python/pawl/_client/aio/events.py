"""Ledgers: what happened to instances, and what happens to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from pawl._client.aio_connection import Connection
from pawl._events import (
    Event,
    EventCursor,
    EventPage,
    NamespaceEvent,
    cursor_message,
    cursor_of,
    event_of,
    page_of,
    types_of,
)
from pawl._transport.retry import Reopening
from pawl.errors import ServerError
from pawl.v1 import event_service_pb2 as events


class EventCalls(Connection):
    """Calls of EventService."""

    async def list_events_page(
        self,
        instance_id: str,
        *,
        after: EventCursor | None = None,
        types: Iterable[str] = (),
        page_size: int = 0,
        timeout: float | None = None,
    ) -> EventPage:
        """Reads events of an instance in order, from the oldest kept one or behind a place.

        `types` are names such as "TURN_COMPLETED", empty for all; `page_size` is 1 to 100, 0 for 50. Raises
        NotFound, Compacted, Rewound.
        """
        request = events.ListEventsRequest(
            instance_id=instance_id, after=cursor_message(after), types=types_of(types), page_size=page_size
        )
        return page_of(await self._call(self._stubs.events.ListEvents, request, timeout))

    async def list_events(
        self,
        instance_id: str,
        *,
        after: EventCursor | None = None,
        types: Iterable[str] = (),
        page_size: int = 0,
    ) -> AsyncIterator[Event]:
        """Iterates over the events of an instance that there are now; see `list_events_page`."""
        names = list(types)
        while True:
            page = await self.list_events_page(instance_id, after=after, types=names, page_size=page_size)
            for event in page.items:
                yield event
            if page.next.seq >= page.last_seq:
                return
            after = page.next

    async def watch(
        self,
        instance_id: str,
        *,
        after: EventCursor | None = None,
        types: Iterable[str] = (),
        until_idle: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Event]:
        """Follows an instance: each event once, in order, through reconnections and stopping servers.

        Ends when the instance is deleted.

        Args:
            instance_id: instance to follow.
            after: begin behind this place; `EventCursor(0)` with the oldest event that is kept. None begins
                with what happens from now on.
            types: names such as "TURN_COMPLETED"; empty for all.
            until_idle: end once the instance is IDLE.
            timeout: seconds for the first connection; once that stands, others are tried for ever.

        Raises NotFound, also if the instance was deleted while there was no connection, Compacted if events
        were missed that are kept no more, Rewound if the store lost events that were given out.
        """
        names = types_of(types)
        again = Reopening(timeout or self.timeout)
        while True:
            request = events.WatchEventsRequest(
                instance_id=instance_id, after=cursor_message(after), types=names, until_idle=until_idle
            )
            try:
                watch = self._stubs.events.WatchEvents
                async with aclosing(self._stream(watch, request)) as frames:
                    async for frame in frames:
                        again.worked()
                        kind = frame.WhichOneof("item")
                        if kind == "event":
                            event = event_of(frame.event)
                            after = event.cursor
                            yield event
                        elif kind == "beat":
                            after = cursor_of(frame.beat.cursor)
                        elif kind == "end":
                            return
                        elif kind == "reconnect":
                            after = cursor_of(frame.reconnect.cursor)
                            again.asked(frame.reconnect.retry_delay.ToTimedelta().total_seconds())
            except ServerError as problem:
                again.failed(problem)
            await self._sleep(again.pause())

    async def watch_namespace(
        self,
        *,
        cursor: str = "",
        types: Iterable[str] = (),
        workflow_type: str = "",
        timeout: float | None = None,
    ) -> AsyncIterator[NamespaceEvent]:
        """Follows all instances: each event once, those of one instance in order, through reconnections.

        Args:
            cursor: `NamespaceEvent.cursor` of the last event that is done with; not older than some minutes.
                Empty begins with what happens from now on.
            types: names such as "TURN_COMPLETED"; empty for all.
            workflow_type: only instances of this type; empty for all.
            timeout: seconds for the first connection; once that stands, others are tried for ever.

        Raises Compacted if what follows the cursor is kept no more, Rewound if the store lost it,
        InvalidField for a cursor that is none.
        """
        names = types_of(types)
        again = Reopening(timeout or self.timeout)
        while True:
            request = events.WatchNamespaceRequest(cursor=cursor, types=names, workflow_type=workflow_type)
            try:
                watch = self._stubs.events.WatchNamespace
                async with aclosing(self._stream(watch, request)) as frames:
                    async for frame in frames:
                        again.worked()
                        kind = frame.WhichOneof("item")
                        if kind == "events":
                            for item in frame.events.events:
                                cursor = item.cursor or cursor
                                yield NamespaceEvent(event_of(item.event), item.workflow_type, item.cursor)
                        elif kind == "beat":
                            cursor = frame.beat.namespace_cursor
                        elif kind == "reconnect":
                            cursor = frame.reconnect.namespace_cursor
                            again.asked(frame.reconnect.retry_delay.ToTimedelta().total_seconds())
            except ServerError as problem:
                again.failed(problem)
            await self._sleep(again.pause())
