"""Lists that span partitions: backlog, blocked, paused and parked, each in the order of its index.

A page is merged from what every partition has after the cursor. A partition that stopped before its end says
how far it looked, and nothing beyond the nearest of these places is shown yet, so that no page skips one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pawl.v1.admin_service_pb2 import GetWorkloadResponse, TypeWorkload
from pawl.v1.instance_pb2 import Instance, InstanceStatus
from pawl.v1.message_service_pb2 import BacklogEntry, InboxEntry, ListInboxResponse
from pawl.v1.turn_pb2 import Turn
from pawl_server.domain.cursor import page_position, page_token, same_life
from pawl_server.domain.errors import NotFound
from pawl_server.domain.times import duration, timestamp
from pawl_server.engine import views
from pawl_server.store import scripts_gen
from pawl_server.store.records import (
    birth,
    delayed_record,
    instance_record,
    message_record,
    parked_record,
    receipt,
    turn_view,
)
from pawl_server.store.scripts_gen import ListInboxOk, StarvedItem

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

T = TypeVar("T")

_PAGE_BYTES = 1 << 20
_SETS = {
    InstanceStatus.INSTANCE_STATUS_BLOCKED: "failed",
    InstanceStatus.INSTANCE_STATUS_PAUSED: "paused",
}
STATUSES = frozenset(_SETS)
"""Statuses that instances can be listed by."""
STARVED_MS = 120_000
"""How long a turn is ready before it counts as starved, if nobody is there for it."""
WORKLOAD_TYPES = 1_000
STARVED_LOOK = 100


class Listing:
    """Lists of the whole namespace that are not kept by creation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def backlog(
        self, workflow_type: str, version: str, page_size: int, token: str
    ) -> tuple[list[BacklogEntry], str]:
        """Instances with unfinished turns and their heads, and the token of the next page."""
        scope = f"{workflow_type}:{version}"
        prefix = f"{workflow_type}:{version}:" if version else f"{workflow_type}:"
        entries, after = await self._marked("busy", prefix, page_size, _position(token, "backlog", scope))
        page: list[BacklogEntry] = []
        for entry in entries:
            instance = _instance(entry)
            record = instance_record(entry[2])
            head = views.turn(instance.id, record, turn_view(entry[5]), payloads=False) if entry[5] else None
            page.append(BacklogEntry(instance=instance, head=head))
        return page, page_token("backlog", scope, after) if after else ""

    async def by_status(
        self, workflow_type: str, status: InstanceStatus.ValueType, page_size: int, token: str
    ) -> tuple[list[Instance], str]:
        """Blocked or paused instances of a type by version and id, and the token of the next page."""
        scope = f"{workflow_type}:{status}"
        entries, after = await self._marked(
            _SETS[status], f"{workflow_type}:", page_size, _position(token, "status", scope)
        )
        shown = [one for one in map(_instance, entries) if one.status == status]
        return shown, page_token("status", scope, after) if after else ""

    async def parked(
        self, workflow_type: str, instance_id: str, page_size: int, token: str
    ) -> tuple[list[Turn], str]:
        """Parked turns of a type or one instance, and the token of the next page."""
        scope = f"{workflow_type}:{instance_id}"
        position = _position(token, "parked", scope)
        prefix, partitions = f"{workflow_type}:", list(self._engine.store.partitions)
        if instance_id:
            found = await self._engine.instances.get(instance_id)
            if found.workflow_type != workflow_type:
                return [], ""
            prefix += f"{found.version}:{instance_id}:"
            partitions = [self._engine.store.partition_of(instance_id)]

        async def page(partition: PartitionHandle) -> tuple[list[Any], str]:
            result = await scripts_gen.list_parked(
                partition,
                now_ms=self._engine.now_ms,
                prefix=prefix,
                after=position,
                limit=page_size + 1,
                max_bytes=_PAGE_BYTES,
            )
            return result.replies[0].entries, result.replies[0].last

        entries, after = await _merge(page, partitions, page_size)
        return [_parked(entry) for entry in entries], page_token("parked", scope, after) if after else ""

    async def inbox(
        self, instance_id: str, page_size: int, token: str, *, payloads: bool
    ) -> ListInboxResponse:
        """Unfinished turns of an instance, then its delayed messages.

        Raises NotFound, Refused(CURSOR_STALE) or a StoreError.
        """
        turn, due, incarnation = 0, "", 0
        if token:
            turn, due, incarnation = page_position(token, "inbox", instance_id, int, str, int)
        result = await scripts_gen.list_inbox(
            self._engine.store.partition_of(instance_id),
            now_ms=self._engine.now_ms,
            id=instance_id,
            after=turn,
            after_due=due,
            limit=page_size,
            payloads=payloads,
            max_bytes=_PAGE_BYTES,
        )
        reply = result.replies[0]
        if not isinstance(reply, ListInboxOk):
            raise NotFound("instance", instance_id)
        record = instance_record(reply.record)
        same_life(incarnation, record.incarnation)
        page = ListInboxResponse(pending_turns=record.pending, delayed_messages=record.delayed)
        for view, size in reply.turns:
            shown = views.turn(instance_id, record, turn_view(view), payloads=payloads)
            page.entries.append(InboxEntry(turn=shown, message_bytes=size))
        for raw, size in reply.delayed:
            shown = views.delayed(instance_id, record, delayed_record(raw), payloads=payloads)
            page.entries.append(InboxEntry(turn=shown, message_bytes=size))
        if reply.oldest:
            page.oldest_admit_time.CopyFrom(timestamp(message_record(reply.oldest).admitted_ms))
        if reply.newest:
            page.newest_admit_time.CopyFrom(timestamp(message_record(reply.newest).admitted_ms))
        if reply.more:
            page.next_page_token = page_token("inbox", instance_id, reply.turn, reply.due, record.incarnation)
        return page

    async def workload(self, workflow_type: str = "") -> GetWorkloadResponse:
        """What waits, by type and version, and what waits in vain."""
        engine = self._engine
        results = await asyncio.gather(
            *(
                scripts_gen.stats(partition, now_ms=engine.now_ms, limit=WORKLOAD_TYPES)
                for partition in engine.store.partitions
            )
        )
        answer = GetWorkloadResponse()
        totals: dict[str, list[int]] = {}
        for result in results:
            reply = result.replies[0]
            answer.more |= reply.more
            answer.parked_turns += reply.parked
            answer.damaged_records += reply.damaged
            answer.timers += reply.timers
            answer.late_timers += reply.late
            for raw, ready, oldest_ms, busy, failed, paused in reply.types:
                tv = raw.decode()
                if not workflow_type or tv.startswith(f"{workflow_type}:"):
                    total = totals.setdefault(tv, [0, 0, 0, 0, 0])
                    age = result.now_ms - oldest_ms if oldest_ms else 0
                    total[1] = max(total[1], age)
                    for at, count in ((0, ready), (2, busy), (3, failed), (4, paused)):
                        total[at] += count
        starved = await self._starved([tv for tv, total in totals.items() if total[1] >= STARVED_MS])
        for tv, (ready, age, busy, failed, paused) in sorted(totals.items(), key=lambda one: -one[1][1]):
            name, _, version = tv.partition(":")
            answer.types.append(
                TypeWorkload(
                    workflow_type=name,
                    version=version,
                    ready_turns=ready,
                    oldest_ready_age=duration(age) if ready else None,
                    busy_instances=busy,
                    blocked_instances=failed,
                    paused_instances=paused,
                    starved=tv in starved,
                )
            )
        return answer

    async def _starved(self, types: Sequence[str]) -> set[str]:
        if not types:
            return set()
        results = await asyncio.gather(
            *(
                scripts_gen.starved(
                    partition,
                    now_ms=self._engine.now_ms,
                    limit=STARVED_LOOK,
                    items=[StarvedItem(tv) for tv in types],
                )
                for partition in self._engine.store.partitions
            )
        )
        cared_for = {
            tv
            for result in results
            for tv, reply in zip(types, result.replies, strict=True)
            if reply.waiting or reply.running
        }
        return set(types) - cared_for

    async def _marked(self, kind: str, prefix: str, page_size: int, position: str) -> tuple[list[Any], str]:
        async def page(partition: PartitionHandle) -> tuple[list[Any], str]:
            result = await scripts_gen.list_marked(
                partition,
                now_ms=self._engine.now_ms,
                set=kind,
                prefix=prefix,
                after=position,
                limit=page_size + 1,
            )
            return result.replies[0].entries, result.replies[0].last

        return await _merge(page, self._engine.store.partitions, page_size)


def _position(token: str, kind: str, scope: str) -> str:
    return page_position(token, kind, scope, str)[0] if token else ""


async def _merge(
    page: Callable[[PartitionHandle], Awaitable[tuple[list[Any], str]]],
    partitions: Sequence[PartitionHandle],
    page_size: int,
) -> tuple[list[Any], str]:
    """Entries in the order of their members, and the member to go on after; "" at the end."""
    pages = await asyncio.gather(*map(page, partitions))
    entries = sorted((entry for found, _ in pages for entry in found), key=lambda entry: entry[0])
    reached = min((last.encode() for _, last in pages if last), default=None)
    if reached is not None:
        entries = [entry for entry in entries if entry[0] <= reached]
    if len(entries) > page_size:
        entries = entries[:page_size]
        return entries, entries[-1][0].decode()
    return entries, reached.decode() if reached is not None else ""


def _instance(entry: Sequence[Any]) -> Instance:
    _, raw_id, record, tv, born = entry[:5]
    return views.instance(raw_id.decode(), instance_record(record), birth(tv.decode(), born))


def _parked(entry: Sequence[Any]) -> Turn:
    _, raw_id, turn, record, kept, done = entry
    return views.parked(
        raw_id.decode(), instance_record(record), turn, parked_record(kept), receipt(done) if done else None
    )
