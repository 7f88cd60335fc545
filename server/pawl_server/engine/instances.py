"""Instances: create, read, list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from pawl.v1.instance_pb2 import Instance, InstanceStatus
from pawl_server.domain.cursor import page_position, page_token
from pawl_server.domain.errors import BodyConflict, LimitExceeded, NotFound, another_type, instance_deleted
from pawl_server.domain.times import duration, timestamp
from pawl_server.engine import views
from pawl_server.engine.coalesce import Coalescer
from pawl_server.engine.policies import policy_message
from pawl_server.store import scripts_gen
from pawl_server.store.records import birth, instance_record, operation_record, unpack_policy
from pawl_server.store.scripts_gen import (
    CreateItem,
    CreateOk,
    CreateReply,
    GetInstanceItem,
    GetInstanceOk,
    GetInstanceReply,
)

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

__all__ = ["CreateItem", "Instances"]

_KIND = "instances"


class Wanted(NamedTuple):
    """Which instances of a type are listed."""

    by: str = "ids"
    """"ids" for all, "tag" or "key" for those with the tag or correlation key `word`."""
    word: str = ""
    from_ms: int = 0
    before_ms: int = 0
    """End of the creation times; 0 for none."""


_ALL = Wanted()


class Instances:
    """Instances of all partitions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._creates: Coalescer[CreateItem, CreateReply] = Coalescer(
            lambda partition, items: partition.call(
                scripts_gen.CREATE,
                scripts_gen.create_args(
                    now_ms=engine.now_ms, max_state=engine.limits.state_bytes, items=items
                ),
            ),
            scripts_gen.create_decode,
        )
        self._reads: Coalescer[GetInstanceItem, GetInstanceReply] = Coalescer(
            lambda partition, items: partition.call(
                scripts_gen.GET_INSTANCE,
                scripts_gen.get_instance_args(now_ms=engine.now_ms, items=items),
            ),
            scripts_gen.get_instance_decode,
        )

    async def create(self, item: CreateItem) -> Instance:
        """Creates an instance; returns it as it was created, without its state, also for a repeat.

        Raises BodyConflict, LimitExceeded, Refused(OVERLOADED) or a StoreError.
        """
        self._engine.admit()
        partition = self._engine.store.partition_of(item.id)
        reply = await self._creates.submit(partition, item, len(item.state))
        match reply:
            case CreateOk(incarnation=incarnation, created_ms=created_ms):
                key, *tags = item.words.decode().split("\0")[:-1] or [""]
                return Instance(
                    id=item.id,
                    workflow_type=item.type,
                    version=item.version,
                    incarnation=incarnation,
                    status=InstanceStatus.INSTANCE_STATUS_IDLE,
                    create_time=timestamp(created_ms),
                    head_turn=reply.first_turn,
                    last_turn=reply.first_turn - 1,
                    oldest_kept_turn=reply.first_turn,
                    lease_timeout=duration(item.lease_ms) if item.lease_ms else None,
                    max_attempts=item.max_attempts,
                    last_seq=reply.first_seq,
                    correlation_key=key,
                    tags=tags,
                    retry=policy_message(unpack_policy(item.retry)) if item.retry else None,
                )
            case scripts_gen.CreateInstanceDeleted():
                raise instance_deleted(item.id)
            case scripts_gen.CreateLimitExceeded(limit=limit, value=value, max=maximum):
                raise LimitExceeded(limit, value, maximum)
            case scripts_gen.CreateBodyConflict(tv=stored):
                wanted = f"{item.type}:{item.version}"
                if stored != wanted:
                    raise another_type(item.id, stored, wanted)
                raise BodyConflict("instance", item.id, "exists with another state or other settings")

    async def get(self, instance_id: str) -> Instance:
        """Reads an instance with its state. Raises NotFound or a StoreError."""
        partition = self._engine.store.partition_of(instance_id)
        # The size is what the state may weigh, so that no answer of a list is very large.
        reply = await self._reads.submit(partition, GetInstanceItem(instance_id), 1 << 14)
        if not isinstance(reply, GetInstanceOk):
            raise NotFound("instance", instance_id)
        shown = views.instance(
            instance_id, instance_record(reply.record), birth(reply.tv, reply.birth), reply.state
        )
        if reply.operation and (progress := views.progress(operation_record(reply.operation))) is not None:
            shown.progress.CopyFrom(progress)
        return shown

    async def list(
        self, workflow_type: str, page_size: int, token: str, wanted: Wanted = _ALL
    ) -> tuple[list[Instance], str]:
        """Reads a page of the instances of a type in order of creation, and the token of the next page.

        All partitions are asked for what comes after the last instance of the page before and the answers
        merged by creation time and id, so that no page skips or repeats one (R-READ-4). Raises
        Refused(CURSOR_STALE) or a StoreError.
        """
        after_ms, after_id = 0, ""
        scope = workflow_type if wanted == _ALL else f"{workflow_type} {' '.join(map(str, wanted))}"
        if token:
            after_ms, after_id = page_position(token, _KIND, scope, int, str)
        pages = await asyncio.gather(
            *(
                self._page(partition, workflow_type, wanted, (after_ms, after_id), page_size + 1)
                for partition in self._engine.store.partitions
            )
        )
        found = sorted((entry for page in pages for entry in page), key=_by_creation)
        instances = [instance for _, _, instance in found[:page_size]]
        if len(found) <= page_size:
            return instances, ""
        last_ms, last_id, _ = found[page_size - 1]
        return instances, page_token(_KIND, scope, last_ms, last_id)

    async def _page(
        self,
        partition: PartitionHandle,
        workflow_type: str,
        wanted: Wanted,
        after: tuple[int, str],
        limit: int,
    ) -> list[tuple[int, str, Instance]]:
        result = await scripts_gen.list_instances(
            partition,
            now_ms=self._engine.now_ms,
            by=wanted.by,
            type=workflow_type,
            word=wanted.word,
            from_ms=wanted.from_ms,
            before_ms=wanted.before_ms,
            after_ms=after[0],
            after_id=after[1],
            limit=limit,
        )
        page: list[tuple[int, str, Instance]] = []
        for raw_id, record, tv, origin in result.replies[0].entries:
            born = birth(tv.decode(), origin)
            instance_id = raw_id.decode()
            shown = views.instance(instance_id, instance_record(record), born)
            page.append((born.created_ms, instance_id, shown))
        return page


def _by_creation(entry: tuple[int, str, Instance]) -> tuple[int, str]:
    return entry[:2]
