"""Checking what is stored, a part at a time, on a live server.

The keys of a partition are walked by SCAN, which names everything that is there the whole time. Instances are
recounted, indexes looked through entry by entry, keys of instances that are gone found. Each call looks at a
page of keys, or at a page of the entries of one index; the cursor says where it stands, and the server keeps
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pawl.v1.admin_service_pb2 import CheckDataResponse, Finding
from pawl_server.domain.cursor import page_position, page_token
from pawl_server.store import scripts_gen
from pawl_server.store.errors import ScriptFailed
from pawl_server.store.keys import KEYS
from pawl_server.store.scripts_gen import FsckItem, FsckOk

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

_KIND = "fsck"
_INSTANCE = "i"
_INDEXES = frozenset(
    (
        "busy",
        "damaged",
        "due",
        "e",
        "failed",
        "ids",
        "key",
        "l",
        "parked",
        "paused",
        "ready",
        "tag",
        "types",
        "x",
    )
)
"""Keyspaces whose entries are looked through."""
_LIST = 16
"""Instances per script call: a large one takes milliseconds."""


class Fsck:
    """Looks through the data of a namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def check(self, cursor: str, limit: int, *, repair: bool) -> CheckDataResponse:
        """Looks at the next part; raises Refused(CURSOR_STALE) or a StoreError.

        The cursor is (partition, place of the walk over keys, names still to look through with a place in the
        first of them).
        """
        at, place, names, inner = 0, "0", "", "0"
        scope = self._engine.namespace
        if cursor:
            at, place, names, inner = page_position(cursor, _KIND, scope, int, str, str, str)
        partitions = self._engine.store.partitions
        answer = CheckDataResponse(partitions=len(partitions), partitions_done=at)
        if at >= len(partitions):
            return answer
        partition = partitions[at]
        left = names.split("\n") if names else []
        if left:
            inner = await self._index(partition, left[0], inner, limit, repair, answer)
            if inner == "0":
                left = left[1:]
        else:
            place, left = await self._keys(partition, place, limit, repair, answer)
        if not left and place == "0":
            at += 1
        answer.partitions_done = at
        if at < len(partitions):
            answer.next_cursor = page_token(_KIND, scope, at, place, "\n".join(left), inner)
        return answer

    async def _keys(
        self,
        partition: PartitionHandle,
        place: str,
        limit: int,
        repair: bool,
        answer: CheckDataResponse,
    ) -> tuple[str, list[str]]:
        """A page of keys: instances are checked at once; gives the place after it, and the indexes found."""
        result = await scripts_gen.scan_keys(partition, now_ms=self._engine.now_ms, cursor=place, limit=limit)
        found = result.replies[0]
        names = [name.decode(errors="backslashreplace") for name in found.names]
        instances: list[str] = []
        indexes: list[str] = []
        for name in names:
            kind, _, rest = name.partition(":")
            if kind == _INSTANCE:
                instances.append(rest)
            elif kind in _INDEXES:
                indexes.append(name)
            elif kind not in KEYS:
                answer.findings.append(
                    Finding(partition=partition.index, key=name, text="is no key of this version")
                )
        for first in range(0, len(instances), _LIST):
            await self._instances(partition, instances[first : first + _LIST], repair, answer)
        return found.cursor, indexes

    async def _instances(
        self, partition: PartitionHandle, ids: list[str], repair: bool, answer: CheckDataResponse
    ) -> None:
        engine = self._engine
        try:
            result = await scripts_gen.fsck(
                partition,
                now_ms=engine.now_ms,
                server=engine.server_run,
                repair=repair,
                items=[FsckItem(one) for one in ids],
            )
        except ScriptFailed:
            if len(ids) == 1:
                raise
            # One instance stops the script of the whole list, for example a key of another type.
            for one in ids:
                await self._alone(partition, one, repair, answer)
            return
        engine.ready(partition, result.ready)
        for instance_id, reply in zip(ids, result.replies, strict=True):
            answer.instances += 1
            if isinstance(reply, FsckOk):
                self._note(answer, partition, instance_id, reply.findings)

    async def _alone(
        self, partition: PartitionHandle, instance_id: str, repair: bool, answer: CheckDataResponse
    ) -> None:
        try:
            await self._instances(partition, [instance_id], repair, answer)
        except ScriptFailed as error:
            answer.instances += 1
            self._note(answer, partition, instance_id, [f"can't be checked: {error}".encode()])

    @staticmethod
    def _note(
        answer: CheckDataResponse, partition: PartitionHandle, instance_id: str, texts: list[Any]
    ) -> None:
        for text in texts:
            answer.findings.append(
                Finding(
                    partition=partition.index,
                    instance_id=instance_id,
                    text=text.decode(errors="backslashreplace"),
                )
            )

    async def _index(
        self,
        partition: PartitionHandle,
        name: str,
        inner: str,
        limit: int,
        repair: bool,
        answer: CheckDataResponse,
    ) -> str:
        """A page of the entries of an index; gives the place after it, "0" at the end."""
        engine = self._engine
        result = await scripts_gen.fsck_index(
            partition,
            now_ms=engine.now_ms,
            server=engine.server_run,
            name=name,
            cursor=inner,
            limit=limit,
            repair=repair,
        )
        engine.ready(partition, result.ready)
        reply = result.replies[0]
        answer.entries += reply.checked
        for key, entry, text in reply.findings:
            answer.findings.append(
                Finding(
                    partition=partition.index,
                    key=key.decode(errors="backslashreplace"),
                    entry=entry.decode(errors="backslashreplace"),
                    text=text.decode(),
                )
            )
        return reply.cursor
