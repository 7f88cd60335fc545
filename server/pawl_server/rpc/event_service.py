"""EventService: ledgers, and following them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any

from pawl.v1 import event_service_pb2 as pb
from pawl.v1.event_pb2 import EventType
from pawl_server.domain.errors import InvalidField, Reason, Refused
from pawl_server.domain.ids import check_own_id, check_type
from pawl_server.engine import Engine
from pawl_server.log_lines import WATCHER_GONE
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, unary
from pawl_server.rpc.status import abort

log = logging.getLogger(__name__)

_NOWHERE = pb.Cursor()
_CANCELLED_S = 5.0
"""Longest time until gRPC has noticed."""


class _Gone(Exception):
    """The stream of a watcher has ended."""


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
        """Sends frames until there are no more; whatever goes wrong becomes a status with a reason."""
        context.set_trailing_metadata(self.gate.metadata)
        with self.gate.stream(where, context):
            try:
                self.gate.check(sheds=False, while_draining=False)
                if isinstance(request, Refused):
                    raise request
                async with contextlib.aclosing(begin()) as frames:
                    async for frame in frames:
                        await self._write(context, frame)
            except _Gone as gone:
                # gRPC cancels the handler of such a stream; a return would try to send a status.
                WATCHER_GONE(log, method=where, why=str(gone) or type(gone).__name__)
                await asyncio.sleep(_CANCELLED_S)
            except Exception as error:
                await abort(context, error, where)

    async def _write(self, context: Context, frame: Any) -> None:
        stall = self._engine.events.options.stall
        try:
            async with asyncio.timeout(stall):
                await context.write(frame)
        except TimeoutError:
            raise Refused(Reason.OVERLOADED, f"nothing was read for {stall:g} s") from None
        except Exception as error:
            raise _Gone(str(error)) from None


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
