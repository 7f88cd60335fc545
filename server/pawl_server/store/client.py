"""The store as the engine sees it: a namespace of partitions, each of which runs scripts."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import hiredis

from pawl_server.log_lines import STORE_OPEN
from pawl_server.store import scripts_gen
from pawl_server.store.checks import Durability, Facts, inspect
from pawl_server.store.connection import Endpoint, Preparation, require_primary, session
from pawl_server.store.errors import StoreError, StoreRefused, StoreUnavailable
from pawl_server.store.keys import DEFAULT_PARTITIONS, namespace_tag, partition_of, partition_tag
from pawl_server.store.lane import Lane, LaneMetrics, LaneOptions, Link
from pawl_server.store.memory import MemoryWatch
from pawl_server.store.outage import Outage, reason
from pawl_server.store.pubsub import Listener, ListenerOptions, OnMessage
from pawl_server.store.script_call import Arg, Script
from pawl_server.store.wire import Wire

log = logging.getLogger(__name__)

SCHEMA = 1
"""Version of the stored form that this build reads and writes."""

MAX_PARTITIONS = 1024
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a store is opened with. Times are seconds.

    `url` is a `redis://`, `rediss://` or `unix://` address. `partitions` None takes what the namespace was
    made with, or 2. `virtual_time` makes a namespace whose clock only moves when told. `durability_assume` is
    believed only where Redis cannot be asked. `open_timeout` bounds `Store.open`; for the others see
    LaneOptions. `memory_limit` is the share of maxmemory from which admissions are refused.
    """

    url: str
    namespace: str = "default"
    partitions: int | None = None
    virtual_time: bool = False
    durability_assume: Durability | None = None
    open_timeout: float = 10.0
    call_timeout: float = 10.0
    reply_timeout: float = 5.0
    connect_timeout: float = 5.0
    retry_unanswered: bool = True
    memory_limit: float = 0.9
    memory_interval: float = 1.0

    def lane_options(self) -> LaneOptions:
        """The part that concerns lanes."""
        return LaneOptions(
            call_timeout=self.call_timeout,
            reply_timeout=self.reply_timeout,
            connect_timeout=self.connect_timeout,
            retry_unanswered=self.retry_unanswered,
        )


class PartitionHandle:
    """One partition. `tag` is the prefix of its keys, `gen` its generation, 1 or more once connected."""

    __slots__ = ("_bulk", "_hot", "_key", "gen", "index", "tag")

    def __init__(self, index: int, tag: str, hot: Lane, bulk: Lane) -> None:
        self.index = index
        self.tag = tag
        self.gen = 0
        self._key = tag + "meta"
        self._hot = hot
        self._bulk = bulk

    def call(self, script: Script[Any], argv: Iterable[Arg]) -> Awaitable[Any]:
        """Runs a script here; the raw reply, or StoreUnavailable, StoreMemory, StoreMoving, ScriptFailed."""
        return (self._bulk if script.bulk else self._hot).call(script, self._key, argv)

    def __repr__(self) -> str:
        return f"<partition {self.index} {self.tag} gen {self.gen}>"


class Store:
    """An open namespace. Make it with `Store.open`; use it from one event loop."""

    def __init__(self, settings: StoreSettings, endpoint: Endpoint, facts: Facts, partitions: int) -> None:
        self.settings = settings
        self.address = endpoint.shown
        self.facts = facts
        self._endpoint = endpoint
        self._scripts = list(scripts_gen.SCRIPTS.values())
        self.outage = Outage()
        self._hot, self._bulk = self._lane("hot"), self._lane("bulk")
        tags = [partition_tag(settings.namespace, at, partitions) for at in range(partitions)]
        self.partitions = [PartitionHandle(at, tag, self._hot, self._bulk) for at, tag in enumerate(tags)]
        self._memory: MemoryWatch | None = None
        self._listeners: list[Listener] = []

    @classmethod
    async def open(cls, settings: StoreSettings) -> Store:
        """Connects, checks Redis' settings, opens the namespace, and introduces itself to each partition.

        Raises StoreRefused, which names the setting to change, at once; StoreUnavailable if there is no
        usable primary within `open_timeout`; ScriptFailed if a script does not load.
        """
        if not _NAMESPACE.fullmatch(settings.namespace):
            raise StoreRefused("namespace", f"{settings.namespace!r} is not 1 to 64 of A-Z a-z 0-9 _ . -")
        endpoint = Endpoint.parse(settings.url)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.open_timeout
        facts, partitions = await _first_look(settings, endpoint, deadline)
        store = cls(settings, endpoint, facts, partitions)
        try:
            left = max(0.1, deadline - loop.time())
            await asyncio.gather(store._hot.start(left), store._bulk.start(left))
            store._memory = MemoryWatch(
                store._hot, limit=settings.memory_limit, interval=settings.memory_interval
            )
            await store._memory.refresh()
        except BaseException:
            await store.close()
            raise
        STORE_OPEN(log, store=facts.store_name, at=endpoint.shown, durability=str(facts.durability))
        return store

    def _lane(self, name: str) -> Lane:
        prepare = Preparation(self._endpoint, f"pawl-{name}", self._scripts, self._hello)
        link = Link(self._endpoint.dial, prepare, self._scripts)
        return Lane(name, link, self.settings.lane_options(), self.outage)

    async def _hello(self, wire: Wire) -> None:
        """Introduces a fresh connection to every partition, before any other script runs on it."""
        argv = scripts_gen.hello_args(
            run_id=wire.run_id.decode(),
            partitions=len(self.partitions),
            virtual=self.settings.virtual_time,
            reader=SCHEMA,
            writer=SCHEMA,
        )
        sha = scripts_gen.HELLO.sha
        calls = [wire.execute("EVALSHA", sha, 1, each.tag + "meta", *argv) for each in self.partitions]
        for partition, raw in zip(self.partitions, await asyncio.gather(*calls), strict=True):
            match scripts_gen.hello_decode(raw).replies[0]:
                case scripts_gen.HelloOk(gen=gen):
                    partition.gen = gen
                case scripts_gen.HelloSchemaNewer(min_reader=reader, min_writer=writer):
                    raise StoreRefused(
                        "schema",
                        f"the data needs a server that reads schema {reader} and writes {writer}; "
                        f"this one knows {SCHEMA}: upgrade it",
                    )
                case scripts_gen.HelloWrongPartitions(partitions=stored):
                    raise _wrong_partitions(self.settings.namespace, stored, len(self.partitions))

    @property
    def durability(self) -> Durability:
        """What an acknowledged write survives; see `durability_assumed`."""
        return self.facts.durability

    @property
    def durability_assumed(self) -> bool:
        """Whether `durability` is the operator's word because Redis cannot be asked."""
        return self.facts.assumed

    @property
    def store_name(self) -> str:
        """Such as `valkey 9.1.2`."""
        return self.facts.store_name

    @property
    def connected(self) -> bool:
        """Whether both lanes are usable now."""
        return self._hot.ready and self._bulk.ready

    @property
    def waiting(self) -> int:
        """Calls that are queued or unanswered, a measure of load."""
        return self._hot.waiting + self._bulk.waiting

    @property
    def memory_pressure(self) -> bool:
        """Whether Redis is so close to maxmemory that admissions should be refused."""
        return self._memory is not None and self._memory.pressure

    @property
    def memory_ratio(self) -> float:
        """Used over maximum memory; 0.0 without a maximum."""
        return self._memory.ratio if self._memory is not None else 0.0

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Used and maximum memory, in bytes; 0 for unknown or no maximum."""
        return (self._memory.used, self._memory.maximum) if self._memory is not None else (0, 0)

    @property
    def listeners(self) -> list[Listener]:
        """Connections that hear private channels."""
        return list(self._listeners)

    @property
    def metrics(self) -> dict[str, LaneMetrics]:
        """Counters by lane."""
        return {"hot": self._hot.metrics, "bulk": self._bulk.metrics}

    def partition_of(self, instance_id: str) -> PartitionHandle:
        """The partition that holds an instance."""
        return self.partitions[partition_of(instance_id, len(self.partitions))]

    async def ping(self) -> None:
        """Runs a real script. Raises StoreError if Redis does not answer as it should."""
        await scripts_gen.poll(self.partitions[0])

    def subscribe(
        self,
        server_run: str,
        on_message: OnMessage,
        *,
        on_subscribed: Callable[[], None] | None = None,
        options: ListenerOptions | None = None,
    ) -> Listener:
        """Listens to the private channel of `server_run` in each partition until the store is closed.

        `on_message(partition index, message)` and `on_subscribed()` run in the event loop; the latter
        whenever listening has begun (again), that is, when hints may have been missed.
        """
        channels = [f"{partition.tag}ch:{server_run}" for partition in self.partitions]
        listener = Listener(
            self._endpoint,
            channels,
            on_message,
            on_subscribed=on_subscribed,
            options=options,
            outage=self.outage,
        )
        self._listeners.append(listener)
        return listener

    async def close(self) -> None:
        """Closes all connections; unanswered calls fail with StoreUnavailable."""
        for listener in self._listeners:
            await listener.close()
        if self._memory is not None:
            await self._memory.close()
        await asyncio.gather(self._hot.close(), self._bulk.close())


async def _first_look(settings: StoreSettings, endpoint: Endpoint, deadline: float) -> tuple[Facts, int]:
    """Checks Redis and opens the namespace, as soon as there is a primary; the facts and the partitions."""
    loop = asyncio.get_running_loop()
    why: object = "no time left"
    while (left := deadline - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(left, settings.connect_timeout)):
                async with session(endpoint, "pawl-start") as wire:
                    await require_primary(wire)
                    facts = await inspect(wire, settings.durability_assume)
                    return facts, await _open_namespace(settings, wire)
        except (OSError, StoreUnavailable, hiredis.ReplyError) as error:
            why = reason(error)
            if isinstance(error, hiredis.ReplyError) and str(error).startswith(("WRONGPASS", "NOAUTH")):
                raise StoreRefused(
                    "redis_url", f"{endpoint.shown} does not accept the password: {error}"
                ) from None
        await asyncio.sleep(random.uniform(0.05, 0.2))
    raise StoreUnavailable(
        f"no usable Redis at {endpoint.shown} in {settings.open_timeout:g} s: {why}", maybe_applied=False
    )


async def _open_namespace(settings: StoreSettings, wire: Wire) -> int:
    """Fixes the namespace's form, or compares it with what was fixed; the number of partitions."""
    wanted = settings.partitions if settings.partitions is not None else DEFAULT_PARTITIONS
    if not 1 <= wanted <= MAX_PARTITIONS:
        raise StoreRefused("partitions", f"is {wanted}; it must be 1 to {MAX_PARTITIONS}")
    script = scripts_gen.OPEN_NAMESPACE
    argv = scripts_gen.open_namespace_args(partitions=wanted, virtual=settings.virtual_time)
    raw = await wire.execute("EVAL", script.text, 1, namespace_tag(settings.namespace) + "meta", *argv)
    reply = scripts_gen.open_namespace_decode(raw).replies[0]
    if settings.partitions is not None and reply.partitions != settings.partitions:
        raise _wrong_partitions(settings.namespace, reply.partitions, settings.partitions)
    if reply.virtual != settings.virtual_time:
        made, now = ("virtual", "real") if reply.virtual else ("real", "virtual")
        raise StoreRefused(
            "virtual_time",
            f"namespace {settings.namespace} was made with {made} time, this server wants {now} time; "
            "use another namespace",
        )
    return reply.partitions


def _wrong_partitions(namespace: str, stored: int, wanted: int) -> StoreError:
    return StoreRefused(
        "partitions",
        f"namespace {namespace} was made with {stored} partitions, this server wants {wanted}; the number "
        f"cannot be changed by a start: set it to {stored} or leave it out",
    )
