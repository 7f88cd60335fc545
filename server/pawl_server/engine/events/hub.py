"""Hands what happens to those who watch: one follower per partition, however many watch.

Watchers of an instance are found by its id, so an event costs one look-up, not one per watcher. A partition
is followed while somebody on this server watches an instance of it, and a little longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pawl.v1.event_pb2 import Event
from pawl_server.engine.events.ledger import event_message
from pawl_server.log_lines import WATCHERS_BEHIND
from pawl_server.store.client import PartitionHandle
from pawl_server.store.feed import CHANNEL, FeedEntry, FeedTail
from pawl_server.store.pubsub import Hearing
from pawl_server.store.records import LedgerEvent, ledger_event

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Times in seconds.

    A watch on which nothing was sent for `beat` gets a beat; one whose reader takes nothing for `stall` ends.
    `queue` is how many events wait for one reader. Feeds are looked at each `look`, and followed for `linger`
    after the last watcher. More than `watches` watches at a time are refused.
    """

    beat: float = 15.0
    stall: float = 60.0
    queue: int = 1_024
    look: float = 5.0
    linger: float = 60.0
    watches: int = 50_000


class Happened:
    """One event on its way to watchers; its message is made once, when the first of them wants it."""

    __slots__ = ("_message", "incarnation", "instance_id", "record")

    def __init__(self, instance_id: str, incarnation: int, record: LedgerEvent) -> None:
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.record = record
        self._message: Event | None = None

    @property
    def message(self) -> Event:
        """The message; shared, never changed."""
        if self._message is None:
            self._message = event_message(self.instance_id, self.incarnation, self.record)
        return self._message


class InstanceWatcher(Protocol):
    """Who watches one instance. Called in the event loop; must not raise."""

    instance_id: str

    def offer(self, events: Sequence[Happened]) -> None:
        """Takes in what happened."""

    def look_again(self) -> None:
        """Says that events may have been missed."""


class FeedWatcher(Protocol):
    """Who watches all partitions."""

    def offer(self, partition: int, entry: FeedEntry) -> None:
        """Takes in what happened."""

    def look_again(self, partition: int) -> None:
        """Says that entries may have been missed."""


class Hub:
    """The followers of this server and who listens to them."""

    def __init__(self, engine: Engine, options: WatchOptions) -> None:
        self.options = options
        self._engine = engine
        self._tails: dict[int, _Followed] = {}
        self._instances: dict[str, set[InstanceWatcher]] = {}
        self._feeds: set[FeedWatcher] = set()
        self._listener: Hearing | None = None
        self._looking: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def instance(self, watcher: InstanceWatcher) -> AsyncIterator[FeedTail]:
        """While it lasts, the watcher is offered all that happens to its instance. Raises StoreError."""
        partition = self._engine.store.partition_of(watcher.instance_id)
        async with self._following(partition) as tail:
            watchers = self._instances.setdefault(watcher.instance_id, set())
            watchers.add(watcher)
            try:
                yield tail
            finally:
                watchers.discard(watcher)
                if not watchers:
                    self._instances.pop(watcher.instance_id, None)

    @contextlib.asynccontextmanager
    async def feeds(self, watcher: FeedWatcher) -> AsyncIterator[list[FeedTail]]:
        """While it lasts, the watcher is offered all entries after the tails' places. Raises StoreError."""
        async with contextlib.AsyncExitStack() as stack:
            tails = [
                await stack.enter_async_context(self._following(partition))
                for partition in self._engine.store.partitions
            ]
            self._feeds.add(watcher)
            stack.callback(self._feeds.discard, watcher)
            yield tails

    async def close(self) -> None:
        """Stops following."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for followed in self._tails.values():
            followed.tail.close()
        self._tails.clear()
        if self._listener is not None:
            await self._listener.close()

    @contextlib.asynccontextmanager
    async def _following(self, partition: PartitionHandle) -> AsyncIterator[FeedTail]:
        followed = self._tails.get(partition.index)
        if followed is None:
            followed = self._tails[partition.index] = _Followed(self._new_tail(partition))
        followed.users += 1
        try:
            await self._listen()
            await followed.tail.start()
            yield followed.tail
        finally:
            followed.users -= 1
            followed.idle_since = asyncio.get_running_loop().time()

    def _new_tail(self, partition: PartitionHandle) -> FeedTail:
        index = partition.index
        return FeedTail(
            partition,
            lambda entry: self._entry(index, entry),
            lambda: self._break(index),
            lambda: self._engine.now_ms,
            virtual=self._engine.settings.virtual_time,
        )

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = self._engine.store.subscribe(CHANNEL, self._hear, on_subscribed=self._look)
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking(), name="feeds")
        if not self._listener.ready:
            await self._listener.wait_ready(self._engine.settings.store_timeout_ms / 1000)

    def _hear(self, partition: int, message: bytes) -> None:
        followed = self._tails.get(partition)
        if followed is not None:
            followed.tail.hear(message)

    def _look(self) -> None:
        for followed in self._tails.values():
            followed.tail.look()

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.options.look)
            over = loop.time() - self.options.linger
            for index, followed in list(self._tails.items()):
                if not followed.users and followed.idle_since < over:
                    followed.tail.close()
                    del self._tails[index]
            self._look()

    def _entry(self, partition: int, entry: FeedEntry) -> None:
        for item in entry.items:
            watchers = self._instances.get(item.instance_id)
            if watchers:
                events = [
                    Happened(item.instance_id, item.incarnation, ledger_event(raw)) for raw in item.events
                ]
                for watcher in watchers:
                    watcher.offer(events)
        for watcher in self._feeds:
            watcher.offer(partition, entry)

    def _break(self, partition: int) -> None:
        WATCHERS_BEHIND(log, partition=partition)
        for instance_id, watchers in self._instances.items():
            if self._engine.store.partition_of(instance_id).index == partition:
                for watcher in watchers:
                    watcher.look_again()
        for watcher in self._feeds:
            watcher.look_again(partition)


class _Followed:
    """A follower and how many watchers need it."""

    __slots__ = ("idle_since", "tail", "users")

    def __init__(self, tail: FeedTail) -> None:
        self.tail = tail
        self.users = 0
        self.idle_since = 0.0
