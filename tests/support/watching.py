"""A watcher as a plain client: reads the frames of one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from pawl.v1 import event_service_pb2 as pb
from pawl.v1.event_pb2 import Event, EventType
from tests.support.api import Api

READ_S = 30.0


def name_of(event: Event) -> str:
    """Such as `TURN_ADMITTED`: the detail that is set."""
    return (event.WhichOneof("detail") or "").upper()


def types(*names: str) -> list[Any]:
    """The numbers of event types."""
    return [EventType.Value(f"EVENT_TYPE_{name}") for name in names]


class Watch:
    """One stream of frames. `async with Watch.of(api, "a") as watch`; leaving it cancels the stream."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.beats: list[pb.WatchBeat] = []

    @classmethod
    def of(cls, api: Api, instance_id: str, after: pb.Cursor | None = None, **fields: Any) -> Watch:
        """Watches an instance."""
        return cls(
            api.events.WatchEvents(pb.WatchEventsRequest(instance_id=instance_id, after=after, **fields))
        )

    @classmethod
    def namespace(cls, api: Api, cursor: str = "", **fields: Any) -> Watch:
        """Watches everything."""
        return cls(api.events.WatchNamespace(pb.WatchNamespaceRequest(cursor=cursor, **fields)))

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()

    async def frame(self) -> Any:
        """The next frame; None once the server has ended the stream. Raises AioRpcError if it was refused."""
        async with asyncio.timeout(READ_S):
            frame = await self.call.read()
        return None if frame is grpc.aio.EOF else frame

    async def begin(self) -> pb.WatchBeat:
        """The beat that every watch begins with."""
        frame = await self.frame()
        assert frame.WhichOneof("item") == "beat", frame
        self.beats.append(frame.beat)
        return frame.beat

    async def next(self) -> Any:
        """The next frame that is no beat; None at the end of the stream."""
        while True:
            frame = await self.frame()
            if frame is None or not frame.HasField("beat"):
                return frame
            self.beats.append(frame.beat)

    async def event(self) -> Event:
        """The next frame, which must be an event."""
        frame = await self.next()
        assert frame.WhichOneof("item") == "event", frame
        return frame.event

    async def until(self, found: Callable[[Event], bool]) -> list[Event]:
        """The events up to one that is wanted, included."""
        events = [await self.event()]
        while not found(events[-1]):
            events.append(await self.event())
        return events

    async def events(self, count: int) -> list[Event]:
        """The next events."""
        return [await self.event() for _ in range(count)]

    async def everything(self, count: int) -> list[pb.NamespaceEvent]:
        """At least so many events of a namespace, in whole frames."""
        found: list[pb.NamespaceEvent] = []
        while len(found) < count:
            frame = await self.next()
            assert frame.WhichOneof("item") == "events", frame
            found += frame.events.events
        return found
