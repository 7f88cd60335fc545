"""The store as the engine sees it: a namespace of partitions, each of which runs scripts."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from pawl_server.log_lines import STORE_OPEN
from pawl_server.store import scripts_gen
from pawl_server.store.checks import Durability, Facts, weakest
from pawl_server.store.cluster import Cluster
from pawl_server.store.cluster_listener import ClusterListener
from pawl_server.store.connection import Endpoint
from pawl_server.store.errors import StoreRefused
from pawl_server.store.keys import partition_of
from pawl_server.store.lane import Lane
from pawl_server.store.memory import MemoryWatch
from pawl_server.store.node import Hello, Node
from pawl_server.store.opening import Found, StoreSettings, first_look
from pawl_server.store.outage import Outage
from pawl_server.store.partition import PartitionHandle
from pawl_server.store.pubsub import Hearing, Listener, ListenerOptions, OnMessage
from pawl_server.store.slots import Directory
from pawl_server.store.waiting import LaneMetrics

__all__ = ["PartitionHandle", "Store", "StoreSettings"]

log = logging.getLogger(__name__)

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Store:
    """An open namespace. Make it with `Store.open`; use it from one event loop."""

    def __init__(self, settings: StoreSettings, directory: Directory, found: Found) -> None:
        self.settings = settings
        self.address = ", ".join(seed.shown for seed in directory.seeds)
        self.outage = Outage()
        self._endpoint = found.endpoint
        clustered = found.slots is not None
        self.partitions = [PartitionHandle(at, tag, cluster=clustered) for at, tag in enumerate(found.tags)]
        hello = Hello(settings.namespace, len(self.partitions), virtual=settings.virtual_time)
        self._cluster: Cluster | None = None
        self._listeners: list[Listener | ClusterListener] = []
        if clustered:
            self._cluster = Cluster(settings, directory, found, self.partitions, hello, self.outage)
        else:
            self._node = Node(found.endpoint, hello, settings.lane_options(), outage=self.outage)
            [self._node.facts] = found.facts.values()
            for partition in self.partitions:
                self._node.take(partition)
            self._node.begin(settings.memory_limit, settings.memory_interval)

    @classmethod
    async def open(cls, settings: StoreSettings) -> Store:
        """Connects, checks Redis' settings, opens the namespace, and introduces itself to each partition.

        Raises StoreRefused, which names the setting to change, at once; StoreUnavailable if there is no
        usable primary within `open_timeout`; ScriptFailed if a script does not load.
        """
        if not _NAMESPACE.fullmatch(settings.namespace):
            raise StoreRefused("namespace", f"{settings.namespace!r} is not 1 to 64 of A-Z a-z 0-9 _ . -")
        directory = Directory(Endpoint.parse_all(settings.url))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.open_timeout
        store = cls(settings, directory, await first_look(settings, directory, deadline))
        try:
            left = max(0.1, deadline - loop.time())
            await (store._cluster.start(left) if store._cluster is not None else store._node.connected(left))
            await asyncio.gather(*(node.look_at_memory() for node in store.nodes))
        except BaseException:
            await store.close()
            raise
        STORE_OPEN(log, store=store.store_name, at=store.address, durability=str(store.durability))
        return store

    @property
    def nodes(self) -> list[Node]:
        """The nodes that the store is connected to, or wants to be."""
        return list(self._cluster.nodes.values()) if self._cluster is not None else [self._node]

    @property
    def facts(self) -> Facts:
        """What holds on every node."""
        return weakest(node.facts for node in self.nodes if node.facts is not None)

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
        """Whether all nodes are usable now."""
        return self._cluster.reachable if self._cluster is not None else self._node.ready

    @property
    def waiting(self) -> int:
        """Calls that are queued or unanswered, a measure of load."""
        rooms = self._cluster.parked_calls if self._cluster is not None else 0
        return sum(node.waiting for node in self.nodes) + rooms

    @property
    def memory_pressure(self) -> bool:
        """Whether a node is so close to maxmemory that admissions should be refused."""
        return any(memory.pressure for memory in self._memories)

    @property
    def memory_ratio(self) -> float:
        """Used over maximum memory, where it is highest; 0.0 without a maximum."""
        return max((memory.ratio for memory in self._memories), default=0.0)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Used and maximum memory of all nodes, in bytes; 0 for unknown or no maximum."""
        memories = self._memories
        return sum(memory.used for memory in memories), sum(memory.maximum for memory in memories)

    @property
    def _memories(self) -> list[MemoryWatch]:
        return [node.memory for node in self.nodes if node.memory is not None]

    @property
    def listeners(self) -> list[Listener]:
        """Connections that hear private channels."""
        return [each for listener in self._listeners for each in listener.connections]

    @property
    def lanes(self) -> dict[str, Lane]:
        """All lanes by name: `hot` and `bulk`, in a cluster with the node, as in `hot 10.0.0.7:6379`."""
        return {lane.name: lane for node in self.nodes for lane in node.lanes}

    @property
    def metrics(self) -> dict[str, LaneMetrics]:
        """Counters by lane."""
        return {name: lane.metrics for name, lane in self.lanes.items()}

    def partition_of(self, instance_id: str) -> PartitionHandle:
        """The partition that holds an instance."""
        return self.partitions[partition_of(instance_id, len(self.partitions))]

    async def ping(self) -> None:
        """Runs a real script on each node. Raises StoreError if Redis does not answer as it should."""
        if self._cluster is None:
            await scripts_gen.poll(self.partitions[0])
        else:
            await asyncio.gather(*map(scripts_gen.poll, self._cluster.representatives()))

    async def script_seconds(self) -> tuple[int, float]:
        """Scripts that Redis ran since its start, for all clients, and the seconds that it spent in them.

        Raises StoreError.
        """
        spent = await asyncio.gather(*(node.script_seconds() for node in self.nodes))
        return sum(calls for calls, _ in spent), sum(seconds for _, seconds in spent)

    def subscribe(
        self,
        server_run: str,
        on_message: OnMessage,
        *,
        on_subscribed: Callable[[], None] | None = None,
        options: ListenerOptions | None = None,
    ) -> Hearing:
        """Listens to the private channel of `server_run` in each partition until the store is closed.

        `on_message(partition index, message)` and `on_subscribed()` run in the event loop; the latter
        whenever listening has begun (again), that is, when hints may have been missed.
        """
        channels = [f"{partition.tag}ch:{server_run}" for partition in self.partitions]
        if self._cluster is not None:
            listener = ClusterListener(
                self._cluster, channels, on_message, on_subscribed=on_subscribed, options=options
            )
        else:
            listener = Listener(
                self._endpoint,
                channels,
                on_message,
                on_subscribed=on_subscribed,
                options=options,
                outage=self.outage,
                name=f"listener {server_run}",
            )
        self._listeners.append(listener)
        return listener

    async def close(self) -> None:
        """Closes all connections; unanswered calls fail with StoreUnavailable."""
        for listener in self._listeners:
            await listener.close()
        await (self._cluster.close() if self._cluster is not None else self._node.close())
