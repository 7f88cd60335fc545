"""Turns: read, list, wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pawl.v1.turn_pb2 import Turn
from pawl_server.domain.callback import callback_base
from pawl_server.domain.cursor import page_position, page_token, same_life
from pawl_server.domain.errors import NotFound, Reason, Refused
from pawl_server.engine import views
from pawl_server.engine.coalesce import Coalescer
from pawl_server.store import scripts_gen
from pawl_server.store.records import instance_record, turn_view
from pawl_server.store.scripts_gen import (
    FindMessageItem,
    FindMessageOk,
    GetTurnItem,
    GetTurnOk,
    GetTurnPruned,
    GetTurnReply,
    ListTurnsOk,
)

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine

_KIND = "turns"
_PAGE_BYTES = 1 << 20
_LOOK_MS = 20
"""How soon a delayed message that is due is looked for again."""
_CANCELLED_S = 1.0
"""How often a delayed message is looked for, as it may be cancelled."""


class Turns:
    """Turns of all instances."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads: Coalescer[GetTurnItem, GetTurnReply] = Coalescer(
            lambda partition, items: partition.call(
                scripts_gen.GET_TURN, scripts_gen.get_turn_args(now_ms=engine.now_ms, items=items)
            ),
            scripts_gen.get_turn_decode,
        )

    async def get(self, instance_id: str, turn: int, incarnation: int = 0, *, steps: bool = True) -> Turn:
        """Reads a turn; `steps` False leaves out its steps, `incarnation` above 0 asks for that life.

        Raises NotFound, Refused(PRUNED) or a StoreError.
        """
        name = f"{instance_id}/{turn}"
        partition = self._engine.store.partition_of(instance_id)
        # The size is what the answer may weigh: a list of large turns is read in several calls.
        reply = await self._reads.submit(partition, GetTurnItem(instance_id, turn, steps), 1 << 15)
        if isinstance(reply, GetTurnPruned):
            if incarnation and incarnation != reply.incarnation:
                raise NotFound("turn", name, incarnation, reply.incarnation)
            raise Refused(
                Reason.PRUNED,
                f"turn {turn} of {instance_id} was trimmed",
                {"resource": "turn", "name": name},
            )
        if not isinstance(reply, GetTurnOk):
            raise NotFound("turn", name, incarnation)
        record = instance_record(reply.record)
        if incarnation and incarnation != record.incarnation:
            raise NotFound("turn", name, incarnation, record.incarnation)
        view = turn_view(reply.view)
        shown = views.turn(instance_id, record, view, steps=steps)
        if view.wait is not None and view.wait.callback_key:
            base = callback_base(self._engine.namespace, instance_id, record.incarnation, turn)
            shown.wait.callback_token = base + view.wait.callback_key
        return shown

    async def list(
        self, instance_id: str, page_size: int, token: str, *, payloads: bool
    ) -> tuple[list[Turn], str]:
        """Reads a page of kept turns, newest first, and the token of the next page.

        Raises NotFound, Refused(CURSOR_STALE) or a StoreError.
        """
        before, incarnation = 0, 0
        if token:
            before, incarnation = page_position(token, _KIND, instance_id, int, int)
        result = await scripts_gen.list_turns(
            self._engine.store.partition_of(instance_id),
            now_ms=self._engine.now_ms,
            id=instance_id,
            before=before,
            limit=page_size,
            payloads=payloads,
            max_bytes=_PAGE_BYTES,
        )
        reply = result.replies[0]
        if not isinstance(reply, ListTurnsOk):
            raise NotFound("instance", instance_id)
        record = instance_record(reply.record)
        same_life(incarnation, record.incarnation)
        turns = [views.turn(instance_id, record, turn_view(view), payloads=payloads) for view in reply.turns]
        next_token = page_token(_KIND, instance_id, reply.next, record.incarnation) if reply.next else ""
        return turns, next_token

    async def wait(
        self, instance_id: str, turn: int, incarnation: int, wait_ms: int, *, noted: bool = False
    ) -> Turn:
        """Reads a turn, without its steps, once it is finished or failed for good or `wait_ms` have passed.

        `noted` says that the turn was admitted just now, and the store knows that this server waits for it.

        Raises NotFound, Refused(PRUNED, DRAINING) or a StoreError.
        """
        if wait_ms > 0:
            await self._engine.awaits.wait(instance_id, turn, wait_ms / 1000, noted=noted)
        return await self.get(instance_id, turn, incarnation, steps=False)

    async def wait_for_message(
        self, instance_id: str, message_id: str, incarnation: int, wait_ms: int
    ) -> Turn | None:
        """`wait` for the turn of a message; None if it is still delayed when `wait_ms` have passed.

        Raises NotFound and what `wait` raises.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        while True:
            turn, due_in_ms = await self._find(instance_id, message_id)
            left = end - loop.time()
            if turn:
                return await self.wait(instance_id, turn, incarnation, max(0, int(left * 1000)))
            if left <= 0:
                return None
            await asyncio.sleep(min(left, max(due_in_ms, _LOOK_MS) / 1000, _CANCELLED_S))

    async def _find(self, instance_id: str, message_id: str) -> tuple[int, int]:
        """The turn of a message, or 0 and the time until it is due."""
        result = await scripts_gen.find_message(
            self._engine.store.partition_of(instance_id),
            now_ms=self._engine.now_ms,
            items=[FindMessageItem(instance_id, message_id)],
        )
        reply = result.replies[0]
        if not isinstance(reply, FindMessageOk):
            raise NotFound("message", f"{instance_id}/{message_id}")
        return reply.turn, reply.due_ms - result.now_ms
