"""Turns: read, list, wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawl.v1.turn_pb2 import Turn
from pawl_server.domain.cursor import page_position, page_token
from pawl_server.domain.errors import NotFound, Reason, Refused
from pawl_server.engine import views
from pawl_server.engine.coalesce import Coalescer
from pawl_server.store import scripts_gen
from pawl_server.store.records import instance_record, turn_view
from pawl_server.store.scripts_gen import GetTurnItem, GetTurnOk, GetTurnPruned, GetTurnReply, ListTurnsOk

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine

_KIND = "turns"
_PAGE_BYTES = 1 << 20


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
        partition = self._engine.store.partition_of(instance_id)
        # The size is what the answer may weigh: a list of large turns is read in several calls.
        reply = await self._reads.submit(partition, GetTurnItem(instance_id, turn, steps), 1 << 15)
        if isinstance(reply, GetTurnPruned):
            raise Refused(
                Reason.PRUNED,
                f"turn {turn} of {instance_id} was trimmed",
                {"resource": "turn", "name": f"{instance_id}/{turn}"},
            )
        if not isinstance(reply, GetTurnOk):
            raise NotFound("turn", f"{instance_id}/{turn}")
        record = instance_record(reply.record)
        if incarnation and incarnation != record.incarnation:
            raise NotFound("turn", f"{instance_id}/{turn} of incarnation {incarnation}")
        return views.turn(instance_id, record, turn_view(reply.view), steps=steps)

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
        if incarnation and incarnation != record.incarnation:
            raise Refused(
                Reason.CURSOR_STALE,
                "page_token belongs to an earlier life of the id",
                {"field": "page_token"},
            )
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
