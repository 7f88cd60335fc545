"""The feed of a partition: every ledger event of its instances, while somebody watches.

Redis keeps it as the stream `feed`, one entry per script (lib/feed.lua), and publishes each entry on the
channel `ch:feed`. Entries come over the channel; each one names its predecessor, so one that went missing is
noticed and read from the stream. What can't be read any more (trimmed, or lost in a failover) is a break:
whoever follows has to look at the ledgers themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from pawl_server.log_lines import FEED_BROKEN, FEED_FAILS
from pawl_server.store import scripts_gen
from pawl_server.store.client import PartitionHandle
from pawl_server.store.errors import StoreError
from pawl_server.store.outage import reason
from pawl_server.store.records import unpack
from pawl_server.store.scripts_gen import ReadFeedCompacted, ReadFeedOk, ReadFeedRewound

log = logging.getLogger(__name__)

CHANNEL = "feed"
"""Name of the channel, where servers have their run id."""
KEEP_MS = 900_000
"""How long a feed is written after the last server that asked for it."""
PAGE = 64
"""Entries read at a time; one has at most the events of one script."""
MAX_HELD = 1_024
"""Entries kept while older ones are read; above that, those are read, too."""


class FeedId(NamedTuple):
    """Place of an entry: bytes written to the feed up to its end, and the generation."""

    offset: int
    gen: int

    @classmethod
    def parse(cls, text: bytes) -> FeedId:
        """Reads `<offset>-<gen>`."""
        offset, _, gen = text.partition(b"-")
        return cls(int(offset), int(gen))

    def __str__(self) -> str:
        return f"{self.offset}-{self.gen}"

    def before(self, other: FeedId) -> bool:
        """Whether this entry was written earlier."""
        return (self.gen, self.offset) < (other.gen, other.offset)


class FeedItem(NamedTuple):
    """What happened to one instance in one script; `events` are packed, see records.ledger_event."""

    instance_id: str
    tv: str
    incarnation: int
    events: list[bytes]


class FeedEntry(NamedTuple):
    """What one script added. `previous` is None for the first entry of a feed."""

    previous: FeedId | None
    id: FeedId
    items: list[FeedItem]


def feed_entry(raw: bytes) -> FeedEntry:
    """Decodes an entry."""
    _, previous, id_, flat = unpack(raw)[:4]
    items = [
        FeedItem(flat[at].decode(), flat[at + 1].decode(), flat[at + 2], flat[at + 3])
        for at in range(0, len(flat), 4)
    ]
    return FeedEntry(FeedId.parse(previous) if previous else None, FeedId.parse(id_), items)


class FeedBroken(Exception):
    """What comes after a place can't be read. `rewound`: the store lost the place; else it was trimmed."""

    def __init__(self, rewound: bool) -> None:
        super().__init__("the place was lost" if rewound else "the place was trimmed")
        self.rewound = rewound


async def read_feed(
    partition: PartitionHandle, after: FeedId, *, now_ms: int = 0
) -> AsyncGenerator[FeedEntry, None]:
    """Reads the entries after `after` up to the newest. Raises FeedBroken, StoreError."""
    while True:
        result = await scripts_gen.read_feed(partition, now_ms=now_ms, after=str(after), limit=PAGE)
        match result.replies[0]:
            case ReadFeedOk(entries=entries):
                for raw in entries:
                    entry = feed_entry(raw)
                    if entry.previous != after:
                        raise FeedBroken(rewound=False)
                    after = entry.id
                    yield entry
                if len(entries) < PAGE:
                    return
            case ReadFeedCompacted():
                raise FeedBroken(rewound=False)
            case ReadFeedRewound():
                raise FeedBroken(rewound=True)


class FeedTail:
    """Follows the feed of one partition.

    `on_entry` gets every entry after `place`, in order, each once; `on_break` is called when some can't be
    read: `place` is then behind them, and what they told has to be found out otherwise. `now_ms` gives
    the time that scripts get, `virtual` says that time only moves when told to. Both callbacks run in the
    event loop and must not raise.
    """

    def __init__(
        self,
        partition: PartitionHandle,
        on_entry: Callable[[FeedEntry], None],
        on_break: Callable[[], None],
        now_ms: Callable[[], int],
        *,
        virtual: bool = False,
    ) -> None:
        self.partition = partition
        self.place: FeedId | None = None
        self.breaks = 0
        self._gen = partition.gen
        self._looked = (0, 0.0)
        self._on_entry = on_entry
        self._on_break = on_break
        self._now_ms = now_ms
        self._virtual = virtual
        self._held: list[FeedEntry] = []
        self._work: asyncio.Task[None] | None = None
        self._look_due = False
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def now_ms(self) -> int:
        """The time that scripts get."""
        return self._now_ms()

    @property
    def newest(self) -> FeedId:
        """The place reached, once started."""
        assert self.place is not None
        return self.place

    @property
    def engine_ms(self) -> int:
        """Engine time now, from the last look."""
        now_ms, at = self._looked
        passed = 0.0 if self._virtual else asyncio.get_running_loop().time() - at
        return self._now_ms() or now_ms + int(passed * 1000)

    async def start(self) -> None:
        """Returns once the feed is written and followed. Raises StoreError; another call tries again."""
        if not self._ready.done() and self._work is None:
            self.look()
        await asyncio.shield(self._ready)

    def close(self) -> None:
        """Stops following."""
        if self._work is not None:
            self._work.cancel()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        self._ready.cancel()

    def hear(self, raw: bytes) -> None:
        """Takes in a published entry."""
        entry = feed_entry(raw)
        if self._work is not None:
            if len(self._held) >= MAX_HELD:
                self._held.clear()
                self._look_due = True
            self._held.append(entry)
        else:
            self._take(entry)

    def look(self) -> None:
        """Keeps the feed alive, and reads what was missed, in the background."""
        self._look_due = True
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._keep_looking())

    def _take(self, entry: FeedEntry) -> None:
        if entry.previous == self.place:
            self.place = entry.id
            self._on_entry(entry)
        elif self.place is None or self.place.before(entry.id):
            self.look()

    async def _keep_looking(self) -> None:
        pause = 0.1
        try:
            while self._look_due:
                self._look_due = False
                try:
                    await self._look()
                    pause = 0.1
                except StoreError as error:
                    FEED_FAILS(log, partition=self.partition.index, why=reason(error))
                    self._look_due = True
                    if not self._ready.done():
                        self._fail(error)
                        return
                    await asyncio.sleep(random.uniform(0.05, pause))
                    pause = min(2 * pause, 2.0)
        finally:
            self._work = None
        self._take_held()

    def _fail(self, error: StoreError) -> None:
        """The first look failed: whoever waits for it may start again."""
        ready, self._ready = self._ready, asyncio.get_running_loop().create_future()
        ready.set_exception(error)
        ready.exception()
        self._held.clear()

    def _take_held(self) -> None:
        held, self._held = self._held, []
        for entry in held:
            if self._work is not None:
                self._held.append(entry)
            else:
                self._take(entry)

    async def _look(self) -> None:
        result = await scripts_gen.watch(self.partition, now_ms=self._now_ms(), keep_ms=KEEP_MS)
        self._looked = (result.now_ms, asyncio.get_running_loop().time())
        newest = FeedId.parse(result.replies[0].newest.encode())
        if self.place is None:
            self.place = newest
        elif self.place != newest:
            await self._read(newest)
        if self.partition.gen != self._gen:
            # Events that were read from a ledger may be lost, with entries that were never heard.
            self._gen = self.partition.gen
            self._on_break()
        if not self._ready.done():
            self._ready.set_result(None)

    async def _read(self, newest: FeedId) -> None:
        assert self.place is not None
        try:
            feed = read_feed(self.partition, self.place, now_ms=self._now_ms())
            async with contextlib.aclosing(feed) as entries:
                async for entry in entries:
                    self.place = entry.id
                    self._on_entry(entry)
        except FeedBroken as broken:
            FEED_BROKEN(log, partition=self.partition.index, why=str(broken))
            self.breaks += 1
            self.place = newest
            self._look_due = True
            self._on_break()
