"""Slots that move to other nodes, in both ways: nothing is lost, run twice, run half or run on two nodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hiredis
import pytest

from pawl_server.store import scripts_gen
from pawl_server.store.client import PartitionHandle, Store
from pawl_server.store.errors import StoreMoving, StoreUnavailable
from pawl_server.store.pubsub import ListenerOptions
from tests.store.conftest import Open
from tests.store.scripts import ADD, STEP, value
from tests.support.redis_cluster import ClusterNode, RedisCluster, address_of
from tests.support.wait import wait_until


def another(cluster: RedisCluster, store: Store, partition: PartitionHandle) -> ClusterNode:
    """A node that does not have the partition."""
    return next(node for node in cluster.nodes if node.address != address_of(store, partition))


def steps(cluster: RedisCluster, partition: PartitionHandle) -> dict[str, int]:
    """What STEP wrote; no key may be on two nodes."""
    prefix = f"{partition.tag}i:"
    names = [name.decode() for name in cluster.call("KEYS", prefix.replace("{", "\\{") + "*")]
    assert len(names) == len(set(names))
    return {name.removeprefix(prefix): int(value) for name, value in cluster.values(names).items()}


@asynccontextmanager
async def load(*partitions: PartitionHandle) -> AsyncIterator[dict[PartitionHandle, dict[str, int]]]:
    """Runs STEP with ever new names, four callers a partition; yields what was answered.

    A name is tried until it is answered, as the callers of the store do.
    """
    answered: dict[PartitionHandle, dict[str, int]] = {partition: {} for partition in partitions}
    names = map(str, itertools.count())
    stop = asyncio.Event()

    async def call(partition: PartitionHandle) -> None:
        while not stop.is_set():
            name = next(names)
            while name not in answered[partition]:
                try:
                    answered[partition][name] = value(await partition.call(STEP, [name]))
                except (StoreMoving, StoreUnavailable):
                    await asyncio.sleep(0)

    callers = [asyncio.create_task(call(partition)) for partition in partitions for _ in range(4)]
    try:
        yield answered
    finally:
        stop.set()
        await asyncio.gather(*callers)


@pytest.mark.spec("R-CLUSTER-2")
async def test_a_slot_that_moves_key_by_key_runs_nothing_until_it_has_moved(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url, partitions=3)
    cluster.load(STEP)
    partition = store.partitions[0]
    await partition.call(STEP, ["before"])
    target = another(cluster, store, partition)
    source = cluster.begin_move(partition.slot, target)
    waiting = [asyncio.ensure_future(partition.call(STEP, [f"{n}"])) for n in range(4)]
    await wait_until(lambda: not address_of(store, partition))
    while True:
        assert steps(cluster, partition) == {"before": 1}
        moved = cluster.move_keys(partition.slot, source, target, count=1)
        await asyncio.gather(*(scripts_gen.poll(other) for other in store.partitions[1:]))
        if not moved:
            break
    assert not any(future.done() for future in waiting)
    cluster.end_move(partition.slot, source, target)
    assert [value(await future) for future in waiting] == [2, 3, 4, 5]
    assert address_of(store, partition) == target.address
    assert steps(cluster, partition) == {"before": 1, "0": 2, "1": 3, "2": 4, "3": 5}
    assert sum(lane.resets for lane in store.metrics.values()) == 0


@pytest.mark.spec("R-CLUSTER-2")
async def test_without_the_key_that_never_exists_half_a_script_would_run(
    open_store: Open, cluster: RedisCluster
) -> None:
    """Why every call declares it: this is what Redis does otherwise."""
    store = await open_store(cluster.url, partitions=3)
    partition = store.partitions[0]
    source = cluster.begin_move(partition.slot, another(cluster, store, partition))
    with pytest.raises(hiredis.ReplyError, match="non local key"):
        source.call("EVAL", STEP.text, 1, f"{partition.tag}meta", "x")
    assert source.call("HGET", f"{partition.tag}meta", "steps") == b"1"
    assert steps(cluster, partition) == {}
    with pytest.raises(hiredis.ReplyError, match=r"TRYAGAIN|ASK"):
        source.call("EVAL", STEP.text, *partition.keys, "x")
    assert source.call("HGET", f"{partition.tag}meta", "steps") == b"1"


@pytest.mark.spec("R-CLUSTER-2")
async def test_calls_that_wait_for_a_slot_too_long_answer_moving(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url, partitions=3, call_timeout=0.6)
    cluster.load(STEP, ADD)
    partition = store.partitions[1]
    cluster.begin_move(partition.slot, another(cluster, store, partition))
    admission, completion = partition.call(ADD, ["a"]), partition.call(STEP, ["b"])
    for call in (completion, admission):
        with pytest.raises(StoreMoving, match="TRYAGAIN"):
            await call
    assert steps(cluster, partition) == {}
    await scripts_gen.poll(store.partitions[0])


@pytest.mark.spec("R-CLUSTER-2")
@pytest.mark.parametrize("way", ["key by key", "at once"])
async def test_slots_that_move_under_load_lose_and_repeat_nothing(
    open_store: Open, cluster: RedisCluster, way: str
) -> None:
    store = await open_store(cluster.url, partitions=3)
    cluster.load(STEP)
    async with load(*store.partitions) as answered:
        for _ in range(2):
            for partition in store.partitions[:2]:
                count = len(answered[partition])
                await wait_until(lambda p=partition, n=count: len(answered[p]) > n + 20)
                target = another(cluster, store, partition)
                if way == "at once":
                    await cluster.move_at_once(partition.slot, target)
                else:
                    await asyncio.to_thread(cluster.move, partition.slot, target)
                await wait_until(lambda p=partition, t=target: address_of(store, p) == t.address)
    for partition in store.partitions:
        assert steps(cluster, partition) == answered[partition]
        assert sorted(answered[partition].values()) == list(range(1, len(answered[partition]) + 1))
    assert all(partition.gen == (3 if partition.index < 2 else 1) for partition in store.partitions)
    assert sum(lane.resets for lane in store.metrics.values()) == 0


@pytest.mark.spec("R-CLUSTER-1")
async def test_a_node_that_loses_its_last_partition_is_left_and_used_again(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url, partitions=3)
    partition = store.partitions[2]
    home = cluster.owner(partition.slot)
    target = another(cluster, store, partition)
    cluster.move(partition.slot, target)
    await scripts_gen.poll(partition)
    await wait_until(lambda: len(store.nodes) == 2)
    assert home.address not in {node.address for node in store.nodes}
    assert store.connected
    cluster.move(partition.slot, home)
    await scripts_gen.poll(partition)
    assert (len(store.nodes), address_of(store, partition)) == (3, home.address)


@pytest.mark.spec("R-CLUSTER-1")
async def test_two_stores_follow_a_slot_and_agree_on_the_generation(
    open_store: Open, cluster: RedisCluster
) -> None:
    stores = [await open_store(cluster.url, partitions=3) for _ in range(2)]
    partition = stores[0].partitions[0]
    cluster.move(partition.slot, another(cluster, stores[0], partition))
    await asyncio.gather(*(scripts_gen.poll(store.partitions[0]) for store in stores))
    assert [store.partitions[0].gen for store in stores] == [2, 2]
    assert int(cluster.call("HGET", f"{partition.tag}meta", "fence")) == 2**32


async def test_nodes_that_name_each_other_are_asked_in_turn_and_not_without_pause(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url, partitions=3)
    cluster.load(STEP, ADD)
    partition = store.partitions[0]
    home, other = cluster.owner(partition.slot), another(cluster, store, partition)
    home.call("DEL", f"{partition.tag}meta")  # a node does not give away a slot in which it has keys
    home.call("CLUSTER", "SETSLOT", partition.slot, "NODE", other.id)  # which knows nothing of it
    try:
        held = partition.call(STEP, ["held"])
        refused = partition.call(ADD, ["x"])
        assert store._cluster is not None
        await wait_until(lambda: address_of(store, partition) == "")
        for node in list(store.nodes):  # maps that disagree, and tell nothing new of the partition
            store._cluster._apply(await store._cluster._ask_node(node))
            assert store._cluster._rooms[partition].moving
        with pytest.raises(StoreMoving, match="MOVED"):
            await refused
        assert 4 < store._cluster._rooms[partition].tries < 200, "in about a second"
    finally:
        home.call("CLUSTER", "SETSLOT", partition.slot, "NODE", home.id)
    assert value(await held) == 1
    assert address_of(store, partition) == home.address


async def test_a_store_opens_while_a_slot_moves_once_it_has_moved(
    open_store: Open, cluster: RedisCluster
) -> None:
    first = await open_store(cluster.url, partitions=3)
    partition = first.partitions[0]
    target = another(cluster, first, partition)
    source = cluster.begin_move(partition.slot, target)
    with pytest.raises(StoreUnavailable, match=r"partition 0 has no node .TRYAGAIN"):
        await open_store(cluster.url, open_timeout=1)
    opening = asyncio.ensure_future(open_store(cluster.url))
    while cluster.move_keys(partition.slot, source, target):
        pass
    cluster.end_move(partition.slot, source, target)
    second = await opening
    assert address_of(second, second.partitions[0]) == target.address


@pytest.mark.spec("R-CLUSTER-3")
async def test_a_node_that_evicts_gets_no_partition(
    open_store: Open, cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(cluster.url, partitions=3)
    partition = store.partitions[2]
    home, target = cluster.owner(partition.slot), another(cluster, store, partition)
    cluster.move(partition.slot, target)
    await scripts_gen.poll(partition)
    await wait_until(lambda: len(store.nodes) == 2)
    home.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        cluster.move(partition.slot, home)
        with pytest.raises(StoreUnavailable, match="maxmemory-policy"):
            await scripts_gen.poll(partition)
        assert not store.connected
        assert "node_refused" in {getattr(record, "event", "") for record in caplog.records}
    finally:
        home.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await wait_until(lambda: address_of(store, partition) == home.address)
    await scripts_gen.poll(partition)


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_primary_that_misses_its_replicas_runs_what_waited_once_it_has_them(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url, partitions=3)
    cluster.load(STEP, ADD)
    partition = store.partitions[0]
    node = cluster.owner(partition.slot)
    node.call("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        held = partition.call(STEP, ["held"])
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            await partition.call(ADD, ["x"])
        await scripts_gen.poll(store.partitions[1])
    finally:
        node.call("CONFIG", "SET", "min-replicas-to-write", "0")
    assert value(await held) == 1


@pytest.mark.spec("R-CLUSTER-1")
@pytest.mark.parametrize("way", ["key by key", "at once"])
async def test_hints_are_heard_wherever_the_partition_is(
    open_store: Open, cluster: RedisCluster, way: str
) -> None:
    heard: list[tuple[int, bytes]] = []
    begun: list[int] = []
    store = await open_store(cluster.url, partitions=6)
    listener = store.subscribe(
        "run1",
        lambda index, message: heard.append((index, message)),
        on_subscribed=lambda: begun.append(1),
        options=ListenerOptions(ping_interval=0.02, silence_limit=1.0, backoff_max=0.06),
    )
    await listener.wait_ready(10)
    assert begun == [1]

    async def all_heard(word: str) -> None:
        for partition in store.partitions:
            cluster.call("SPUBLISH", f"{partition.tag}ch:run1", word)
        await wait_until(lambda: len(heard) == len(store.partitions))
        assert sorted(heard) == [(at, word.encode()) for at in range(len(store.partitions))]
        heard.clear()

    await all_heard("first")
    partition = store.partitions[0]
    for word in ("moved", "back"):
        target = another(cluster, store, partition)
        if way == "at once":
            await cluster.move_at_once(partition.slot, target)
        else:
            cluster.move(partition.slot, target)
        # Nobody calls the partition: the listener is the first to know.
        await wait_until(lambda t=target: address_of(store, partition) == t.address)
        await listener.wait_ready(10)
        await all_heard(word)
    assert len(begun) >= 3
