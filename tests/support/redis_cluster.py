"""A private Redis Cluster for tests: real nodes on loopback ports, slots moved and nodes killed by hand.

Fixture (imported by conftest.py files): `cluster`, three primaries for the whole session, emptied before each
test, with every slot back where it was. Tests that kill nodes make a cluster of their own:

    with RedisCluster(3, replicas=1) as cluster:    the last node is a replica of the first
        cluster.nodes[0].kill()
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import hiredis
import pytest

from pawl_server.store.client import PartitionHandle, Store
from pawl_server.store.script_call import Script
from tests.support.redis_server import PortTaken, RedisServer, cluster_settings, free_port
from tests.support.wait import wait_until, wait_until_sync

SLOTS = 16384
FORM_SECONDS = 60.0
"""Longest time until all nodes agree; a primary takes no writes in its first two seconds."""


def address_of(store: Store, partition: PartitionHandle) -> str:
    """The node that a store has a partition on; empty while none serves it."""
    assert store._cluster is not None
    return store._cluster.address(partition)


class ClusterNode(RedisServer):
    """One node. `id` is what the cluster calls it."""

    def __init__(self, aof: str | None = None, settings: dict[str, str] | None = None) -> None:
        while True:
            self.bus_port = free_port()
            own = cluster_settings(self.bus_port) | {"repl-diskless-sync-delay": "0"}
            try:
                super().__init__(aof=aof, port=free_port(), cluster=False, settings=own | (settings or {}))
            except PortTaken:
                continue
            return

    @property
    def id(self) -> str:
        """Its 40 hex digits."""
        return self.call("CLUSTER", "MYID").decode()

    @property
    def address(self) -> str:
        """As the cluster calls it: host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def tcp_url(self) -> str:
        """URL of its port."""
        return f"redis://{self.address}"

    def knows(self, nodes: int) -> bool:
        """Whether it finds the cluster whole and has met that many nodes."""
        info = self.call("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in info and f"cluster_known_nodes:{nodes}\r" in info

    def role(self) -> bytes:
        """`master` or `slave`."""
        return self.call("ROLE")[0]


class RedisCluster:
    """Primaries that share the slots evenly, then replicas of the first ones. `url` names all of them."""

    def __init__(
        self,
        primaries: int = 3,
        *,
        replicas: int = 0,
        aof: str | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.nodes = [ClusterNode(aof, settings) for _ in range(primaries + replicas)]
        self.primaries = self.nodes[:primaries]
        self.replicas = self.nodes[primaries:]
        try:
            self._form()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Names every node."""
        return "redis://" + ",".join(node.address for node in self.nodes)

    def _form(self) -> None:
        first = self.nodes[0]
        for at, node in enumerate(self.nodes, start=1):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", at)
        for low, high, node in self._shares():
            node.call("CLUSTER", "ADDSLOTSRANGE", low, high)
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
        wait_until_sync(self.whole, FORM_SECONDS, "the cluster forms")
        for replica, primary in zip(self.replicas, self.primaries, strict=False):
            replica.call("CLUSTER", "REPLICATE", primary.id)
        wait_until_sync(self._replicated, FORM_SECONDS, "the replicas follow")

    def _shares(self) -> Iterator[tuple[int, int, ClusterNode]]:
        count = len(self.primaries)
        for at, node in enumerate(self.primaries):
            yield SLOTS * at // count, SLOTS * (at + 1) // count - 1, node

    def whole(self) -> bool:
        """Whether all nodes find the cluster whole."""
        return all(node.knows(len(self.nodes)) for node in self.nodes)

    def _replicated(self) -> bool:
        return all(b"master_link_status:up" in node.call("INFO", "replication") for node in self.replicas)

    def load(self, *scripts: Script[Any]) -> None:
        """Makes scripts of a test known to every node."""
        for node in self.nodes:
            for script in scripts:
                node.call("SCRIPT", "LOAD", script.text)

    # Keys and slots

    def slot(self, key: str) -> int:
        """The slot of a key with a hash tag."""
        return crc_hqx(key[key.index("{") + 1 : key.index("}")].encode(), 0) % SLOTS

    def owner(self, slot: int) -> ClusterNode:
        """The node that has a slot, as it says itself."""
        for node in self.nodes:
            with suppress(OSError, AssertionError):
                for low, high, entry, *_ in node.call("CLUSTER", "SLOTS"):
                    if low <= slot <= high and entry[2].decode() == node.id and node.role() == b"master":
                        return node
        raise AssertionError(f"nobody has slot {slot}")

    def call(self, *args: bytes | str | int) -> Any:
        """A command of one key on the node that has it, also while it moves, or KEYS on all nodes."""
        if args[0] == "KEYS":
            return [name for node in self.primaries for name in node.call(*args)]
        try:
            return self.owner(self.slot(str(args[1]))).call(*args)
        except hiredis.ReplyError as error:
            word, _, address = str(error).rpartition(" ")
            if not word.startswith("ASK "):
                raise
        node = next(node for node in self.nodes if node.address == address)
        node.call("ASKING")
        return node.call(*args)

    def values(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The strings at keys of one slot; also while it moves."""
        if not keys:
            return {}
        found: dict[str, bytes] = {}
        with self.owner(self.slot(keys[0])).connections(1) as [control]:
            for key in keys:
                control.send("GET", key)
            for key in keys:
                try:
                    found[key] = control.receive()
                except hiredis.ReplyError:
                    found[key] = self.call("GET", key)
        return found

    def begin_move(self, slot: int, target: ClusterNode) -> ClusterNode:
        """Begins the classic move of a slot, key by key; where it comes from."""
        source = self.owner(slot)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode, count: int = 1000) -> int:
        """Moves up to `count` keys; how many."""
        keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Gives the slot to the target, which says so first."""
        for node in (target, source, *self.primaries):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, target: ClusterNode) -> None:
        """Moves a slot with all of its keys."""
        source = self.begin_move(slot, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, source, target)

    async def move_at_once(self, slot: int, target: ClusterNode) -> None:
        """Moves a slot as Valkey 9 does: its keys are copied while it is served, then it changes hands."""
        source = self.owner(slot)
        try:
            source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        except hiredis.ReplyError as error:
            if "subcommand" in str(error):
                pytest.skip("this server moves slots only key by key")
            raise
        await wait_until(lambda: self._has(target, slot), what="the slot arrives")

    def _has(self, node: ClusterNode, slot: int) -> bool:
        try:
            return self.owner(slot) is node
        except AssertionError:
            return False

    def reset(self) -> None:
        """Empties all nodes and gives every slot back to its first node."""
        for node in self.primaries:
            node.flush()
        for low, high, node in self._shares():
            for slot in self._astray(low, high, node):
                # A node that imports a slot takes it under a new epoch, which ends all doubt.
                self.end_move(slot, self.begin_move(slot, node), node)
        for node in self.primaries:
            self._stabilize(node)
        wait_until_sync(lambda: self.whole() and self._agree(), FORM_SECONDS, "the cluster is whole again")

    def _agree(self) -> bool:
        """Whether all nodes have the same map of the slots."""
        maps = [
            sorted((low, high, entry[2]) for low, high, entry, *_ in node.call("CLUSTER", "SLOTS"))
            for node in self.nodes
        ]
        return all(one == maps[0] for one in maps)

    def _astray(self, low: int, high: int, node: ClusterNode) -> set[int]:
        mine: set[int] = set()
        for first, last, entry, *_ in node.call("CLUSTER", "SLOTS"):
            if entry[2].decode() == node.id:
                mine.update(range(first, last + 1))
        return set(range(low, high + 1)) - mine

    def _stabilize(self, node: ClusterNode) -> None:
        own = next(line for line in node.call("CLUSTER", "NODES").decode().splitlines() if "myself" in line)
        for part in own.split()[8:]:
            if part.startswith("["):
                with suppress(hiredis.ReplyError):
                    node.call("CLUSTER", "SETSLOT", part.strip("[]").split("-")[0], "STABLE")

    def close(self) -> None:
        """Ends all nodes."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> RedisCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def cluster_of_three() -> Iterator[RedisCluster]:
    """The session's cluster."""
    with RedisCluster(3) as cluster:
        # Formed soon; from now on a node that is slow is not taken for dead.
        for node in cluster.nodes:
            node.call("CONFIG", "SET", "cluster-node-timeout", 15_000)
        yield cluster


@pytest.fixture
def cluster(cluster_of_three: RedisCluster) -> RedisCluster:
    """The session's cluster, as it was when it was new."""
    cluster_of_three.reset()
    return cluster_of_three
