"""Workflow types: stored settings, changed with compare-and-set and copied to every partition.

The partition that `crc16(name)` names is a type's home: it alone decides on a change and gives it a revision.
The settings are then copied to the others, where transitions read them; a copy is stored only over an older
one, so copies may arrive in any order. What a crash between the two leaves behind is made good by `sync`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pawl.v1.workflow_type_pb2 import Retention, WorkflowType
from pawl_server.domain.cursor import page_position, page_token
from pawl_server.domain.errors import BodyConflict, Reason, Refused
from pawl_server.domain.payload import digest_of
from pawl_server.domain.times import duration, timestamp
from pawl_server.engine.policies import policy_message
from pawl_server.store import scripts_gen
from pawl_server.store.errors import StoreError
from pawl_server.store.records import POLICY_FIELDS, TYPE_DEFAULTS, pack_type, unpack_type
from pawl_server.store.scripts_gen import GetTypeItem, GetTypeOk, PutTypeOk

if TYPE_CHECKING:
    from pawl.v1.workflow_type_pb2 import ExhaustionPolicy
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

ANY_REVISION = -1
_KIND = "types"
_SEEN = 10_000

TypeSettings = dict[str, float | str | None]
"""Settings by the names of store/records.py TYPE_FIELDS; None, or absent, means the default."""


class Types:
    """Workflow types of the namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: dict[str, int] = {}
        """Names that workers gave here, with the generation of their home when they were listed, 0 before."""
        self._tasks: set[asyncio.Task[None]] = set()

    def _home(self, name: str) -> PartitionHandle:
        return self._engine.store.partition_of(name)

    async def put(
        self, name: str, settings: TypeSettings, *, expected: int = ANY_REVISION, request_id: str = ""
    ) -> WorkflowType:
        """Stores settings; returns them with their new revision, or the first answer to a repeat.

        `expected` is the revision that must be stored, 0 for none. When this returns, every partition has the
        change. Raises Refused(REVISION_CONFLICT), BodyConflict or a StoreError.
        """
        packed = pack_type(settings)
        reply = (
            await scripts_gen.put_type(
                self._home(name),
                now_ms=self._engine.now_ms,
                name=name,
                settings=packed,
                expected=expected,
                revision=0,
                request_id=request_id,
                digest=_digest(settings, expected),
            )
        ).replies[0]
        match reply:
            case scripts_gen.PutTypeRevisionConflict(revision=revision):
                raise Refused(
                    Reason.REVISION_CONFLICT,
                    f"type {name} has revision {revision}, not {expected}",
                    {"revision": str(revision)},
                )
            case scripts_gen.PutTypeBodyConflict():
                raise BodyConflict("request", request_id)
            case PutTypeOk(revision=revision, settings=stored):
                await self._copy(name, revision, stored, self._others(name))
                return message(name, revision, stored)

    async def ensure(self, name: str, settings: TypeSettings) -> None:
        """Stores settings unless the type has some; for the first frame of a worker."""
        try:
            await self.put(name, settings, expected=0)
        except Refused as error:
            if error.reason is not Reason.REVISION_CONFLICT:
                raise

    def see(self, name: str) -> None:
        """Has a type listed that a worker asks for, in the background; `sync` tries again what fails."""
        if self._seen.get(name) != self._home(name).gen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen[name] = 0
            task = asyncio.get_running_loop().create_task(self._list_seen(), name="types seen")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _list_seen(self) -> None:
        for name in [name for name, generation in self._seen.items() if generation != self._home(name).gen]:
            home = self._home(name)
            generation = home.gen
            try:
                await scripts_gen.name_type(home, now_ms=self._engine.now_ms, name=name)
            except StoreError:
                continue
            self._seen[name] = generation

    async def get(self, name: str) -> WorkflowType:
        """Reads a type, defaults filled in; revision 0 if it was never stored. Raises a StoreError."""
        result = await scripts_gen.get_type(
            self._home(name), now_ms=self._engine.now_ms, items=[GetTypeItem(name)]
        )
        reply = result.replies[0]
        if isinstance(reply, GetTypeOk):
            return message(name, reply.revision, reply.settings)
        return message(name, 0, pack_type({}))

    async def list(self, page_size: int, token: str) -> tuple[list[WorkflowType], str]:
        """Reads a page of types by name, and the token of the next page. Revision 0: without settings.

        Raises Refused(CURSOR_STALE) or a StoreError.
        """
        after = page_position(token, _KIND, "", str)[0] if token else ""
        newest: dict[str, tuple[int, bytes]] = {}
        for page in await asyncio.gather(
            *(self._page(partition, after, page_size + 1) for partition in self._engine.store.partitions)
        ):
            for name, revision, packed in page:
                if revision > newest.get(name, (-1, b""))[0]:
                    newest[name] = (revision, packed)
        names = sorted(newest)
        shown = [message(name, *newest[name]) for name in names[:page_size]]
        more = len(names) > page_size
        return shown, page_token(_KIND, "", names[page_size - 1]) if more else ""

    async def sync(self) -> int:
        """Copies to each partition what others have newer; the number of copies. Raises a StoreError.

        Repairs a change whose server died, or lost Redis, before all partitions had it. Also lists the types
        of workers that could not be listed before.
        """
        await self._list_seen()
        copies = 0
        after = ""
        while True:
            pages = await asyncio.gather(
                *(self._page(partition, after, 100) for partition in self._engine.store.partitions)
            )
            names = sorted({name for page in pages for name, _, _ in page})
            # Only up to where every partition has answered: a full page may end early.
            full = [page[-1][0] for page in pages if len(page) == 100]
            end = min(full) if full else ""
            for name in names:
                if not end or name <= end:
                    copies += await self._sync_one(name, pages)
            if not end:
                return copies
            after = end

    async def _sync_one(self, name: str, pages: list[list[tuple[str, int, bytes]]]) -> int:
        revisions = [next((entry for entry in page if entry[0] == name), (name, 0, b"")) for page in pages]
        _, newest, packed = max(revisions, key=lambda entry: entry[1])
        behind = [
            partition
            for partition, entry in zip(self._engine.store.partitions, revisions, strict=True)
            if entry[1] < newest
        ]
        await self._copy(name, newest, packed, behind)
        return len(behind)

    def _others(self, name: str) -> list[PartitionHandle]:
        home = self._home(name)
        return [partition for partition in self._engine.store.partitions if partition is not home]

    async def _copy(self, name: str, revision: int, packed: bytes, to: list[PartitionHandle]) -> None:
        await asyncio.gather(
            *(
                scripts_gen.put_type(
                    partition,
                    now_ms=self._engine.now_ms,
                    name=name,
                    settings=packed,
                    expected=ANY_REVISION,
                    revision=revision,
                    request_id="",
                    digest=b"",
                )
                for partition in to
            )
        )

    async def _page(self, partition: PartitionHandle, after: str, limit: int) -> list[tuple[str, int, bytes]]:
        result = await scripts_gen.list_types(partition, now_ms=self._engine.now_ms, after=after, limit=limit)
        return [
            (name.decode(), int(revision), packed or pack_type({}))
            for name, revision, packed in result.replies[0].entries
        ]


def _digest(settings: TypeSettings, expected: int) -> bytes:
    fields = sorted(
        (name, value if isinstance(value, str) else float(value))
        for name, value in settings.items()
        if value is not None
    )
    return digest_of(repr((fields, expected)).encode())


def message(name: str, revision: int, packed: bytes) -> WorkflowType:
    """Stored settings as a message, defaults filled in."""
    changed_ms, stored = unpack_type(packed)
    whole = {
        field: default if stored.get(field) is None else stored[field]
        for field, default in TYPE_DEFAULTS.items()
    }
    value = {field: int(number) for field, number in whole.items() if isinstance(number, float | int)}
    policy = {field: whole[field] for field in POLICY_FIELDS if field != "max_attempts"}
    if value["min_turns"] == 0:
        retention = Retention(keep_none=True)
    else:
        retention = Retention(
            min_turns=value["min_turns"],
            max_age=duration(value["max_age_ms"]),
            max_turns=value["max_turns"],
            max_bytes=value["max_bytes"],
        )
    return WorkflowType(
        name=name,
        lease_timeout=duration(value["lease_ms"]),
        max_attempts=value["max_attempts"],
        retry=policy_message(policy),
        attempt_timeout=duration(value["attempt_timeout_ms"]),
        retention=retention,
        on_exhausted=cast("ExhaustionPolicy.ValueType", value["on_exhausted"]),
        queue_timeout=duration(value["queue_timeout_ms"]) if value["queue_timeout_ms"] else None,
        total_timeout=duration(value["total_timeout_ms"]) if value["total_timeout_ms"] else None,
        revision=revision,
        update_time=timestamp(changed_ms) if revision else None,
    )
