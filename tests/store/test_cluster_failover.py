"""Nodes of a cluster that die, hang, come back or hand over: their partitions go on, the others never stop.

Under one loop only: each test needs a cluster of its own, which takes seconds to form.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from pawl_server.store import scripts_gen
from pawl_server.store.client import PartitionHandle, Store
from pawl_server.store.errors import StoreUnavailable
from tests.store.conftest import Open
from tests.store.scripts import ADD, STEP, value
from tests.support.redis_cluster import RedisCluster, address_of
from tests.support.wait import wait_until

PARTIAL = {"cluster-node-timeout": "1500", "cluster-require-full-coverage": "no"}
"""Nodes go on when another one is away, as operators should have it."""

CALL_S = 30.0
"""How long a call may wait for a node to be back."""

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@pytest.fixture
def guarded() -> Iterator[RedisCluster]:
    """Three primaries, the first with a replica."""
    with RedisCluster(3, replicas=1, settings=PARTIAL) as cluster:
        cluster.nodes[0].call("CONFIG", "SET", "min-replicas-to-write", "1")
        yield cluster


@asynccontextmanager
async def bystanders(store: Store, *partitions: PartitionHandle) -> AsyncIterator[list[float]]:
    """Polls other partitions all the time; none of it may fail. Yields how long each took."""
    loop = asyncio.get_running_loop()
    took: list[float] = []
    stop = asyncio.Event()

    async def poll(partition: PartitionHandle) -> None:
        while not stop.is_set():
            begin = loop.time()
            await scripts_gen.poll(partition)
            took.append(loop.time() - begin)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(poll(partition)) for partition in partitions]
    try:
        yield took
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@pytest.mark.spec("R-CLUSTER-4")
async def test_the_replica_of_a_killed_node_takes_over(open_store: Open, guarded: RedisCluster) -> None:
    store = await open_store(guarded.url, partitions=6, call_timeout=CALL_S)
    guarded.load(STEP)
    first, replica = guarded.nodes[0], guarded.replicas[0]
    mine = [p for p in store.partitions if address_of(store, p) == first.address]
    others = [p for p in store.partitions if p not in mine]
    for partition in mine:
        assert value(await partition.call(STEP, ["before"])) == 1
    await wait_until(lambda: first.call("WAIT", 1, 100) == 1)
    heard: list[int] = []
    listener = store.subscribe("run", lambda index, _: heard.append(index))
    await listener.wait_ready(10)
    async with bystanders(store, *others) as took:
        first.kill()
        after = [asyncio.ensure_future(partition.call(STEP, ["after"])) for partition in mine]
        assert [value(await call) for call in after] == [2] * len(mine)
    assert took
    for partition in mine:
        assert address_of(store, partition) == replica.address
        assert partition.gen == 2
        assert int(guarded.call("HGET", f"{partition.tag}meta", "fence")) == 2**32
        assert value(await partition.call(STEP, ["before"])) == 1
    assert {partition.gen for partition in others} == {1}
    await store.ping()
    await listener.wait_ready(10)
    for partition in mine:
        guarded.call("SPUBLISH", f"{partition.tag}ch:run", "x")
    await wait_until(lambda: sorted(heard) == [partition.index for partition in mine])
    await wait_until(lambda: store.connected and len(store.nodes) == 3)
    await wait_until(lambda: not store.outage.parts)


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_node_that_hangs_is_left_and_its_replica_used(
    open_store: Open, guarded: RedisCluster
) -> None:
    store = await open_store(
        guarded.url, partitions=3, call_timeout=CALL_S, reply_timeout=1.5, connect_timeout=1.5
    )
    guarded.load(STEP)
    first, replica = guarded.nodes[0], guarded.replicas[0]
    partition = next(p for p in store.partitions if address_of(store, p) == first.address)
    await partition.call(STEP, ["before"])
    await wait_until(lambda: first.call("WAIT", 1, 100) == 1)
    first.freeze()
    assert value(await partition.call(STEP, ["after"])) == 2
    assert address_of(store, partition) == replica.address
    first.thaw()
    await wait_until(lambda: first.role() == b"slave")
    assert value(await partition.call(STEP, ["more"])) == 3


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_planned_failover_and_back(open_store: Open, guarded: RedisCluster) -> None:
    first, replica = guarded.nodes[0], guarded.replicas[0]
    store = await open_store(
        replica.tcp_url, partitions=3, call_timeout=CALL_S
    )  # a replica names the primaries, too
    guarded.load(STEP)
    partition = next(p for p in store.partitions if address_of(store, p) == first.address)
    replica.call("CONFIG", "SET", "min-replicas-to-write", "1")
    names = itertools.count()
    for round_, (old, new) in enumerate([(first, replica), (replica, first)], start=1):
        calls = [asyncio.ensure_future(partition.call(STEP, [f"{next(names)}"])) for _ in range(5)]
        new.call("CLUSTER", "FAILOVER")
        await wait_until(lambda n=new: n.role() == b"master")
        calls += [asyncio.ensure_future(partition.call(STEP, [f"{next(names)}"])) for _ in range(5)]
        assert sorted([value(await call) for call in calls]) == list(range(10 * round_ - 9, 10 * round_ + 1))
        assert address_of(store, partition) == new.address
        await wait_until(lambda o=old: o.role() == b"slave")
    assert partition.gen == 3


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_node_without_replica_is_away_until_it_is_back(open_store: Open) -> None:
    with RedisCluster(3, settings=PARTIAL) as cluster:
        store = await open_store(cluster.url, partitions=6, call_timeout=CALL_S)
        cluster.load(STEP, ADD)
        last = cluster.nodes[2]
        mine = [p for p in store.partitions if address_of(store, p) == last.address]
        others = [p for p in store.partitions if p not in mine]
        async with bystanders(store, *others):
            last.kill()
            held = mine[0].call(STEP, ["held"])
            with pytest.raises(StoreUnavailable):
                await mine[0].call(ADD, ["x"])
            with pytest.raises(StoreUnavailable):
                await store.ping()
            assert not store.connected
            await asyncio.to_thread(last.start)
            cluster.load(STEP)
            assert value(await held) == 1
        assert [partition.gen for partition in mine] == [1] * len(mine), "its data are gone, all of them"
        await wait_until(lambda: store.connected)
        await store.ping()
        await wait_until(lambda: not store.outage.parts)


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_cluster_that_stands_still_for_one_node_goes_on_with_it(open_store: Open) -> None:
    """With full coverage required, the others answer CLUSTERDOWN as long as a slot has no node."""
    with RedisCluster(3, settings={"cluster-node-timeout": "1500"}) as cluster:
        store = await open_store(cluster.url, partitions=3, call_timeout=CALL_S)
        cluster.load(STEP, ADD)
        last = cluster.nodes[2]
        other = next(p for p in store.partitions if address_of(store, p) != last.address)
        last.kill()
        await wait_until(lambda: b"cluster_state:fail" in cluster.nodes[0].call("CLUSTER", "INFO"))
        held = other.call(STEP, ["held"])
        with pytest.raises(StoreUnavailable, match="CLUSTERDOWN"):
            await other.call(ADD, ["x"])
        assert not store.connected
        await asyncio.to_thread(last.start)
        assert value(await held) == 1
        await wait_until(lambda: store.connected)


@pytest.mark.spec("R-CLUSTER-4")
async def test_a_start_in_the_middle_of_a_failover(open_store: Open, guarded: RedisCluster) -> None:
    await (await open_store(guarded.url, partitions=6)).close()
    guarded.nodes[0].kill()
    store = await open_store(guarded.url, open_timeout=CALL_S)
    assert len(store.partitions) == 6
    await store.ping()
