"""What waits in the store, read when somebody asks, at most once a second."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import NamedTuple

from pawl_server.engine import Engine
from pawl_server.log_lines import LOOP_BROKE
from pawl_server.store import scripts_gen as scripts
from pawl_server.store.client import PartitionHandle
from pawl_server.store.errors import StoreError

log = logging.getLogger(__name__)

FRESH_S = 1.0
"""Numbers younger than that are not read again."""
PATIENCE_S = 1.0
"""How long a reader waits for new numbers; then it gets the old ones."""
OTHER = ("(other)", "")
"""Labels of the types that have none of their own; no type has that name."""

Labels = tuple[str, str]
"""Workflow type and version."""


class ByType(NamedTuple):
    """Numbers of one type and version. `oldest_age_s` is how long its oldest ready head has waited."""

    ready: int = 0
    oldest_age_s: float = 0.0
    unfinished: int = 0
    blocked: int = 0
    paused: int = 0

    def plus(self, other: ByType) -> ByType:
        """Both together."""
        return ByType(
            self.ready + other.ready,
            max(self.oldest_age_s, other.oldest_age_s),
            self.unfinished + other.unfinished,
            self.blocked + other.blocked,
            self.paused + other.paused,
        )


class Numbers(NamedTuple):
    """Everything that was read, and the loop's time of it. Ages are those at that time."""

    read_at: float
    types: dict[Labels, ByType]
    parked: int
    damaged: int
    timers: int
    late: int
    redis_calls: int
    redis_seconds: float


class TypeLabels:
    """Gives a type and version labels of its own, to at most `limit` of them as long as the server runs.

    Who has labels keeps them, so that series do not come and go; `known` has them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.known: dict[str, Labels] = {}

    def of(self, tv: str) -> Labels:
        """The labels of `type:version`."""
        labels = self.known.get(tv)
        if labels is None:
            if len(self.known) >= self.limit:
                return OTHER
            name, _, version = tv.partition(":")
            labels = self.known[tv] = (name, version)
        return labels


class Waiting:
    """Reads the numbers. `numbers` are the last ones, None before the first."""

    def __init__(self, engine: Engine, types: int) -> None:
        self.numbers: Numbers | None = None
        self.labels = TypeLabels(types)
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Task[None] | None = None
        self._tried_at = -math.inf

    async def refresh(self) -> None:
        """Reads again what is older than FRESH_S, within PATIENCE_S; however many ask, one asks Redis."""
        if self._reading is None:
            if self._loop.time() - self._tried_at < FRESH_S:
                return
            self._tried_at = self._loop.time()
            self._reading = self._loop.create_task(self._read(), name="metrics")
        await asyncio.wait([self._reading], timeout=PATIENCE_S)

    async def stop(self) -> None:
        """Ends reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            store = self._engine.store
            parts = await asyncio.gather(*(self._of(each) for each in store.partitions))
            self.numbers = self._put_together(parts, await store.script_seconds())
        except StoreError:
            pass  # the age of the numbers says so, and so does the log
        except Exception as error:
            LOOP_BROKE(log, error, part="metrics")
        finally:
            self._reading = None

    async def _of(self, partition: PartitionHandle) -> _Part:
        result = await scripts.stats(partition, now_ms=self._engine.now_ms, limit=self.labels.limit)
        return _Part(result.now_ms, result.replies[0])

    def _put_together(self, parts: list[_Part], redis: tuple[int, float]) -> Numbers:
        types: dict[Labels, ByType] = {}
        for part in parts:
            for tv, ready, oldest_ms, *counts in part.reply.types:
                age_s = max(0.0, (part.now_ms - oldest_ms) / 1000) if oldest_ms else 0.0
                labels = self.labels.of(tv.decode())
                types[labels] = types.get(labels, ByType()).plus(ByType(ready, age_s, *counts))
        for labels in self.labels.known.values():
            types.setdefault(labels, ByType())
        replies = [part.reply for part in parts]
        return Numbers(
            self._loop.time(),
            types,
            sum(reply.parked for reply in replies),
            sum(reply.damaged for reply in replies),
            sum(reply.timers for reply in replies),
            sum(reply.late for reply in replies),
            *redis,
        )


class _Part(NamedTuple):
    """The answer of one partition, and its engine time."""

    now_ms: int
    reply: scripts.StatsOk
