"""EventService: ledgers, and following them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any

from pawl.v1 import event_service_pb2 as pb
from pawl.v1.event_pb2 import EventType
from pawl_server.domain.errors import InvalidField
from pawl_server.domain.ids import check_own_id, check_type
from pawl_server.engine import Engine
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, unary
from pawl_server.rpc.responses import respond

_NOWHERE = pb.Cursor()


class EventService:
    """Reads and follows ledgers."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self.gate = gate
        self._engine = engine

    @unary()
    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        """Reads events of an instance in order."""
        instance_id = check_own_id("instance_id", request.instance_id)
        after = _cursor(request.after) if request.HasField("after") else _NOWHERE
        size = convert.page_size(request.page_size)
        return await self._engine.events.list(instance_id, after, _types(request.types), size)

    async def WatchEvents(self, request: pb.WatchEventsRequest, context: Context) -> None:
        """Follows an instance."""

        def begin() -> AsyncGenerator[pb.WatchEventsResponse, None]:
            instance_id = check_own_id("instance_id", request.instance_id)
            after = _cursor(request.after) if request.HasField("after") else None
            types = _types(request.types)
            return self._engine.events.watch(instance_id, after, types, until_idle=request.until_idle)

        await self._stream(request, context, begin, "WatchEvents")

    async def WatchNamespace(self, request: pb.WatchNamespaceRequest, context: Context) -> None:
        """Follows all instances."""

        def begin() -> AsyncGenerator[pb.WatchNamespaceResponse, None]:
            types = _types(request.types)
            if request.workflow_type:
                check_type("workflow_type", request.workflow_type)
            return self._engine.events.watch_namespace(request.cursor, types, request.workflow_type)

        await self._stream(request, context, begin, "WatchNamespace")

    async def _stream(self, request: Any, context: Context, begin: Any, where: str) -> None:
        await respond(self.gate, request, context, begin, where, self._engine.events.options.stall)


def _cursor(cursor: pb.Cursor) -> pb.Cursor:
    for name in ("incarnation", "seq", "gen"):
        if getattr(cursor, name) < 0:
            raise InvalidField(f"after.{name}", f"is {getattr(cursor, name)}, below 0")
    return cursor


def _types(types: Sequence[int]) -> Collection[int]:
    """The types to pass; one that this server does not know matches nothing it has."""
    for at, value in enumerate(types):
        if value == EventType.EVENT_TYPE_UNSPECIFIED:
            raise InvalidField(f"types[{at}]", "is EVENT_TYPE_UNSPECIFIED")
    return frozenset(types)
