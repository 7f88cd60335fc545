"""Admission of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pawl_server.domain.errors import (
    BodyConflict,
    LimitExceeded,
    NotFound,
    Reason,
    Refused,
    another_type,
    instance_deleted,
)
from pawl_server.engine.coalesce import Coalescer
from pawl_server.store import scripts_gen
from pawl_server.store.scripts_gen import SendItem, SendOk, SendReply

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

__all__ = ["Inbox", "SendItem", "SendOk"]


class Inbox:
    """Admits messages; all that arrive in one event-loop tick become one list per partition."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sends: Coalescer[SendItem, SendReply] = Coalescer(
            self._start,
            scripts_gen.send_decode,
            lambda partition, result: engine.ready(partition, result.ready),
        )

    async def send(self, item: SendItem) -> SendOk:
        """Admits one message; the answer of the first identical send if there was one.

        Raises NotFound, BodyConflict, LimitExceeded, Refused(OVERLOADED) near the store's memory limit, or a
        StoreError: then the message may or may not have been admitted, and sending it again is safe.
        """
        self._engine.admit()
        reply = await self._submit(item)
        if type(reply) is SendOk:
            return reply
        raise _refusal(item, reply)

    async def send_many(self, items: Sequence[SendItem]) -> list[SendOk | BaseException]:
        """Admits messages in the order given, each on its own: its answer, or the error it would raise."""
        self._engine.admit()
        replies = await asyncio.gather(*map(self._submit, items), return_exceptions=True)
        return [
            reply if isinstance(reply, SendOk | BaseException) else _refusal(item, reply)
            for item, reply in zip(items, replies, strict=True)
        ]

    def _submit(self, item: SendItem) -> asyncio.Future[SendReply]:
        size = len(item.message) + len(item.state) + len(item.origin)
        return self._sends.submit(self._engine.store.partition_of(item.id), item, size)

    def _start(self, partition: PartitionHandle, items: list[SendItem]) -> Awaitable[Any]:
        engine = self._engine
        argv = scripts_gen.send_args(
            now_ms=engine.now_ms,
            server=engine.server_run,
            max_pending=engine.limits.pending_messages,
            max_message=engine.limits.message_bytes,
            max_state=engine.limits.state_bytes,
            items=items,
        )
        return partition.call(scripts_gen.SEND, argv)


def _refusal(item: SendItem, reply: SendReply) -> Refused:
    match reply:
        case scripts_gen.SendNotFound():
            return NotFound("instance", item.id)
        case scripts_gen.SendInstanceDeleted():
            return instance_deleted(item.id)
        case scripts_gen.SendBodyConflict(what="message"):
            return BodyConflict("message", item.message_id)
        case scripts_gen.SendBodyConflict(tv=stored):
            return another_type(item.id, stored, f"{item.type}:{item.version}")
        case scripts_gen.SendLimitExceeded(limit=limit, value=value, max=maximum):
            return LimitExceeded(limit, value, maximum)
        case _:
            return Refused(Reason.INTERNAL, f"unexpected reply {reply.word}")
