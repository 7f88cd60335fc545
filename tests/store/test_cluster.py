"""A store on three primaries: opening, spreading, refusing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pawl_server.store.checks import Durability
from pawl_server.store.errors import StoreRefused, StoreUnavailable
from tests.store.conftest import Open
from tests.store.scripts import STEP
from tests.support.redis_cluster import RedisCluster, address_of
from tests.support.redis_server import RedisServer, free_port
from tests.support.wait import wait_until


@pytest.mark.spec("R-CLUSTER-1")
async def test_a_new_namespace_has_64_partitions_spread_over_the_nodes(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url)
    placed = Counter(address_of(store, partition) for partition in store.partitions)
    assert placed == {node.address: share for node, share in zip(cluster.nodes, (21, 22, 21), strict=True)}
    assert {partition.gen for partition in store.partitions} == {1}
    assert store.connected
    await store.ping()


@pytest.mark.spec("R-CLUSTER-1")
async def test_every_partition_runs_scripts_on_the_node_that_has_it(
    open_store: Open, cluster: RedisCluster
) -> None:
    store = await open_store(cluster.url, partitions=12)
    cluster.load(STEP)
    await asyncio.gather(*(partition.call(STEP, ["a"]) for partition in store.partitions))
    for partition in store.partitions:
        assert cluster.call("GET", f"{partition.tag}i:a") == b"1"
    assert len(store.metrics) == 6
    assert all(lane.connects == 1 and lane.moved == 0 for lane in store.metrics.values())
    assert all(store.metrics[f"hot {node.address}"].calls > 4 for node in cluster.nodes)


async def test_any_node_leads_to_the_whole_cluster(open_store: Open, cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        store = await open_store(node.tcp_url, partitions=6)
        assert len(store.nodes) == 3


async def test_a_unix_socket_is_used_for_its_node(open_store: Open, cluster: RedisCluster) -> None:
    first = cluster.nodes[0]
    store = await open_store(first.url, partitions=6)
    sockets = {node.address: node.endpoint.path for node in store.nodes}
    assert sockets == {node.address: str(first.socket) if node is first else "" for node in cluster.nodes}


async def test_hosts_that_are_away_are_passed_over(open_store: Open, cluster: RedisCluster) -> None:
    store = await open_store(f"redis://127.0.0.1:{free_port()},{cluster.nodes[2].address}", partitions=3)
    await store.ping()


async def test_a_cluster_of_one_node_without_a_port(open_store: Open) -> None:
    with RedisServer(cluster=True) as server:
        store = await open_store(server.url)
        assert (len(store.partitions), len(store.nodes)) == (64, 1)
        await store.ping()
        listener = store.subscribe("run", lambda *_: None)
        await listener.wait_ready(10)


async def test_the_form_of_a_namespace_is_fixed_for_all_nodes(
    open_store: Open, cluster: RedisCluster
) -> None:
    await open_store(cluster.url, partitions=5)
    for node in cluster.nodes:
        assert len((await open_store(node.tcp_url)).partitions) == 5
    with pytest.raises(StoreRefused, match="made with 5 partitions, this server wants 64") as caught:
        await open_store(cluster.url, partitions=64)
    assert caught.value.setting == "partitions"


@pytest.mark.spec("R-CLUSTER-3")
async def test_each_node_is_checked_at_the_start(open_store: Open, cluster: RedisCluster) -> None:
    bad = cluster.nodes[2]
    bad.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreRefused) as caught:
            await open_store(cluster.url, partitions=6)
    finally:
        bad.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert caught.value.setting == "maxmemory-policy"
    await open_store(cluster.url, partitions=6)


@pytest.mark.spec("R-CLUSTER-3")
async def test_the_weakest_node_says_what_a_write_survives(open_store: Open, cluster: RedisCluster) -> None:
    for node in cluster.nodes[:2]:
        node.call("CONFIG", "SET", "appendonly", "yes")
        node.call("CONFIG", "SET", "appendfsync", "always")
    try:
        store = await open_store(cluster.url, partitions=6)
        assert (store.durability, store.durability_assumed) == (Durability.MEMORY, False)
    finally:
        for node in cluster.nodes[:2]:
            node.call("CONFIG", "SET", "appendonly", "no")


async def test_several_hosts_that_are_no_cluster_are_refused(open_store: Open) -> None:
    with RedisServer(port=free_port(), cluster=False) as server:
        url = f"redis://127.0.0.1:{server.port},127.0.0.1:{free_port()}"
        with pytest.raises(StoreRefused, match="not part of a cluster") as caught:
            await open_store(url)
        assert caught.value.setting == "redis_url"


async def test_another_database_than_0_is_refused(open_store: Open, cluster: RedisCluster) -> None:
    with pytest.raises(StoreRefused, match="database") as caught:
        await open_store(f"{cluster.nodes[0].tcp_url}/3")
    assert caught.value.setting == "redis_url"


async def test_a_cluster_with_a_slot_that_nobody_has(open_store: Open, cluster: RedisCluster) -> None:
    store = await open_store(cluster.url, partitions=3)
    slot = store.partitions[1].slot
    cluster.owner(slot).call("CLUSTER", "DELSLOTS", slot)
    try:
        with pytest.raises(StoreUnavailable, match=f"slot {slot}|CLUSTERDOWN"):
            await open_store(cluster.owner(0).tcp_url, open_timeout=0.3)
    finally:
        cluster.nodes[1].call("CLUSTER", "ADDSLOTS", slot)


async def test_memory_near_the_limit_of_one_node_is_pressure(open_store: Open, cluster: RedisCluster) -> None:
    store = await open_store(cluster.url, partitions=6, memory_interval=0.01)
    full = cluster.nodes[1]
    assert not store.memory_pressure
    full.call("CONFIG", "SET", "maxmemory", "1")
    try:
        await wait_until(lambda: store.memory_pressure)
        assert store.memory_bytes[1] == 1
        await store.ping()
    finally:
        full.call("CONFIG", "SET", "maxmemory", "0")
    await wait_until(lambda: not store.memory_pressure)


async def test_a_closed_store_answers_unavailable(open_store: Open, cluster: RedisCluster) -> None:
    store = await open_store(cluster.url, partitions=6)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.ping()


async def test_scripts_removed_from_a_node_are_loaded_again(open_store: Open, cluster: RedisCluster) -> None:
    store = await open_store(cluster.url, partitions=6)
    cluster.nodes[0].call("SCRIPT", "FLUSH")
    await store.ping()
    assert sum(lane.noscript for lane in store.metrics.values()) == 1
    assert sum(lane.resets for lane in store.metrics.values()) == 0


async def test_what_all_nodes_spent_in_scripts(open_store: Open, cluster: RedisCluster) -> None:
    store = await open_store(cluster.url, partitions=6)
    before, _ = await store.script_seconds()
    await asyncio.gather(*(store.ping() for _ in range(5)))
    calls, seconds = await store.script_seconds()
    assert calls - before == 15
    assert seconds > 0
