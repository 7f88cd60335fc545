"""One Redis node as the store uses it: two lanes, introduced to the partitions that it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from pawl_server.store import scripts_gen
from pawl_server.store.checks import Facts
from pawl_server.store.connection import Endpoint, Preparation, parse_info
from pawl_server.store.errors import StoreRefused, StoreUnavailable
from pawl_server.store.lane import REDIRECT, Lane, LaneOptions, Link
from pawl_server.store.memory import MemoryWatch
from pawl_server.store.opening import wrong_partitions
from pawl_server.store.outage import Outage
from pawl_server.store.partition import PartitionHandle
from pawl_server.store.script_call import Script
from pawl_server.store.wire import Call, Wire

SCHEMA = 1
"""Version of the stored form that this build reads and writes."""

SCRIPTS: Sequence[Script[Any]] = tuple(scripts_gen.SCRIPTS.values())


class Hello:
    """Introduces connections to partitions, which comes before any other script of theirs."""

    def __init__(self, namespace: str, partitions: int, *, virtual: bool) -> None:
        self._namespace = namespace
        self._partitions = partitions
        self._virtual = virtual

    async def __call__(
        self, execute: Callable[..., asyncio.Future[Any]], run_id: bytes, homes: Sequence[PartitionHandle]
    ) -> dict[PartitionHandle, str]:
        """Runs `hello` in each of `homes`; those whose slot this node does not serve, with what it said.

        `execute` sends a command over the connection, `run_id` is that of its Redis. Raises StoreRefused for
        data that this server must not touch, else hiredis.ReplyError or StoreUnavailable.
        """
        argv = scripts_gen.hello_args(
            run_id=run_id.decode(),
            partitions=self._partitions,
            virtual=self._virtual,
            reader=SCHEMA,
            writer=SCHEMA,
        )
        # The text and not its name: nothing repeats this call if the node has forgotten its scripts.
        calls = [execute("EVAL", scripts_gen.HELLO.text, *home.keys, *argv) for home in homes]
        elsewhere: dict[PartitionHandle, str] = {}
        for home, call in zip(homes, calls, strict=True):
            try:
                self._judge(home, await call)
            except hiredis.ReplyError as error:
                if str(error).partition(" ")[0] not in REDIRECT:
                    raise
                elsewhere[home] = str(error)
        return elsewhere

    def _judge(self, home: PartitionHandle, raw: Any) -> None:
        match scripts_gen.hello_decode(raw).replies[0]:
            case scripts_gen.HelloOk(gen=gen):
                home.gen = gen
            case scripts_gen.HelloSchemaNewer(min_reader=reader, min_writer=writer):
                raise StoreRefused(
                    "schema",
                    f"the data needs a server that reads schema {reader} and writes {writer}; "
                    f"this one knows {SCHEMA}: upgrade it",
                )
            case scripts_gen.HelloWrongPartitions(partitions=stored):
                raise wrong_partitions(self._namespace, stored, self._partitions)


class Node:
    """Lanes to one node. `homes` are the partitions whose calls they carry, `address` its name in a cluster.

    `facts` is what the checks found, None while nobody has looked. In a cluster, `redirected` takes over
    calls whose slot is not served here, `elsewhere` learns of partitions whose introduction says the same,
    `lost` of the end of a connection.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Hello,
        options: LaneOptions,
        *,
        outage: Outage | None = None,
        address: str = "",
        redirected: Callable[[Node, Call, str], None] | None = None,
        elsewhere: Callable[[Node, PartitionHandle, str], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.address = address
        self.homes: list[PartitionHandle] = []
        self.facts: Facts | None = None
        self._hello = hello
        self._options = options
        self._outage = outage
        self._redirected = redirected
        self._elsewhere = elsewhere
        self._lost = lost
        self._memory: MemoryWatch | None = None
        self.hot = self._lane("hot")
        self.bulk = self._lane("bulk")

    def _lane(self, kind: str) -> Lane:
        prepare = Preparation(self.endpoint, f"pawl-{kind}", SCRIPTS, self._greet)
        redirect = self._redirect if self._redirected is not None else None
        link = Link(self.endpoint.dial, prepare, SCRIPTS, redirect, self._lost)
        name = f"{kind} {self.address}" if self.address else kind
        return Lane(name, link, self._options, self._outage)

    def _redirect(self, call: Call, text: str) -> None:
        if self._redirected is not None:
            self._redirected(self, call, text)

    async def _greet(self, wire: Wire) -> None:
        """Introduces a fresh connection to all partitions of this node."""
        elsewhere = await self._hello(wire.execute, wire.run_id, tuple(self.homes))
        for home, text in elsewhere.items():
            if self._elsewhere is None:
                raise StoreUnavailable(f"Redis answered {text}", maybe_applied=False)
            self._elsewhere(self, home, text)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """The hot one and the bulk one."""
        return self.hot, self.bulk

    @property
    def ready(self) -> bool:
        """Whether both lanes are usable now."""
        return self.hot.ready and self.bulk.ready

    @property
    def waiting(self) -> int:
        """Calls that are queued or unanswered."""
        return self.hot.waiting + self.bulk.waiting

    @property
    def why(self) -> str:
        """Why it is not ready."""
        return next((lane.why for lane in self.lanes if not lane.ready), "")

    @property
    def refusal(self) -> BaseException | None:
        """Why no waiting will make it ready: StoreRefused or ScriptFailed."""
        return next(filter(None, (lane.refusal for lane in self.lanes)), None)

    @property
    def memory(self) -> MemoryWatch | None:
        """How full the node is; None before it begins."""
        return self._memory

    def begin(self, memory_limit: float, memory_interval: float) -> None:
        """Connects in the background, for ever."""
        self.hot.begin()
        self.bulk.begin()
        self._memory = MemoryWatch(self.hot, limit=memory_limit, interval=memory_interval)

    async def look_at_memory(self) -> None:
        """Asks now. Raises StoreError."""
        if self._memory is not None:
            await self._memory.refresh()

    async def script_seconds(self) -> tuple[int, float]:
        """Scripts that the node ran since its start, for all clients; their seconds. Raises StoreError."""
        info = parse_info(await self.bulk.command("INFO", "commandstats"))
        stats = dict(pair.split("=", 1) for pair in info.get("cmdstat_evalsha", "").split(",") if "=" in pair)
        return int(stats.get("calls", 0)), int(stats.get("usec", 0)) / 1e6

    async def connected(self, timeout: float) -> None:
        """Returns once both lanes were connected. Raises StoreRefused, ScriptFailed, StoreUnavailable."""
        await asyncio.gather(*(lane.connected(timeout) for lane in self.lanes))

    async def introduce(self, homes: Sequence[PartitionHandle]) -> dict[PartitionHandle, str]:
        """Introduces both connections to partitions that may come here; those that the node does not serve.

        The caller has to `take` the others before it waits for anything: a new connection would not know
        them. Raises StoreUnavailable unless both lanes are connected and stay so, hiredis.ReplyError,
        StoreRefused.
        """
        wires = [lane.wire for lane in self.lanes]
        elsewhere: dict[PartitionHandle, str] = {}
        for lane, wire in zip(self.lanes, wires, strict=True):
            if wire is None or lane.wire is not wire:
                raise StoreUnavailable(f"no connection: {self.why}", maybe_applied=False)
            elsewhere |= await self._hello(lane.execute, wire.run_id, homes)
        if [lane.wire for lane in self.lanes] != wires:
            raise StoreUnavailable("a connection ended", maybe_applied=False)
        return elsewhere

    def take(self, home: PartitionHandle) -> None:
        """Makes calls of a partition come here; every new connection is introduced to it."""
        if home not in self.homes:
            self.homes.append(home)
        home.place(self.hot, self.bulk)

    def give_up(self, home: PartitionHandle) -> list[Call]:
        """Forgets a partition; its calls that were not sent."""
        self.homes.remove(home)
        return [call for lane in self.lanes for call in lane.take(home)]

    async def close(self) -> None:
        """Closes the connections; unanswered calls fail with StoreUnavailable."""
        if self._memory is not None:
            await self._memory.close()
        await asyncio.gather(*(lane.close() for lane in self.lanes))
        if self._outage is not None:
            for lane in self.lanes:
                self._outage.works(lane.name)
