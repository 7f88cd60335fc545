"""The store as a whole, with the real scripts: opening, refusing, generations, memory, restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pawl_server.store import keys, scripts_gen
from pawl_server.store.errors import StoreRefused, StoreUnavailable
from tests.store.conftest import Open
from tests.support.redis_server import RedisServer
from tests.support.wait import wait_until


@pytest.mark.standalone
async def test_a_new_namespace_has_two_partitions(open_store: Open, redis_url: str) -> None:
    store = await open_store(redis_url)
    assert [partition.gen for partition in store.partitions] == [1, 1]
    assert [p.tag for p in store.partitions] == [keys.partition_tag("default", at, 2) for at in range(2)]
    assert store.connected
    assert store.store_name.startswith(("valkey ", "redis "))
    await store.ping()


async def test_an_instance_is_always_in_the_same_partition(open_store: Open, redis_url: str) -> None:
    store = await open_store(redis_url, partitions=7)
    ids = [f"order-{at}" for at in range(100)]
    assert [store.partition_of(id_).index for id_ in ids] == [keys.partition_of(id_, 7) for id_ in ids]


@pytest.mark.spec("R-STORE-1")
async def test_the_form_of_a_namespace_is_fixed_by_its_first_server(open_store: Open, redis_url: str) -> None:
    await open_store(redis_url, partitions=3)
    assert len((await open_store(redis_url)).partitions) == 3
    with pytest.raises(StoreRefused, match=r"made with 3 partitions, this server wants 4") as caught:
        await open_store(redis_url, partitions=4)
    assert caught.value.setting == "partitions"
    with pytest.raises(StoreRefused, match="made with real time") as caught:
        await open_store(redis_url, virtual_time=True)
    assert caught.value.setting == "virtual_time"
    assert len((await open_store(redis_url, namespace="other", partitions=4)).partitions) == 4


@pytest.mark.spec("R-STORE-2")
async def test_a_newer_schema_is_refused(open_store: Open, redis_server: RedisServer, redis_url: str) -> None:
    store = await open_store(redis_url)
    redis_server.call("HSET", store.partitions[1].tag + "meta", "min_reader", 99)
    with pytest.raises(StoreRefused, match="schema 99") as caught:
        await open_store(redis_url)
    assert caught.value.setting == "schema"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"namespace": "a{b}"}, "namespace"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "n" * 65}, "namespace"),
        ({"partitions": 0}, "partitions"),
        ({"partitions": 1025}, "partitions"),
    ],
)
async def test_settings_out_of_range_are_refused(
    open_store: Open, redis_url: str, settings: dict[str, Any], setting: str
) -> None:
    with pytest.raises(StoreRefused) as caught:
        await open_store(redis_url, **settings)
    assert caught.value.setting == setting


@pytest.mark.standalone
async def test_a_wrong_password_is_refused_at_once(open_store: Open) -> None:
    with RedisServer(settings={"requirepass": "right"}, start=False) as server:
        server.start(expect=b"NOAUTH")
        for url in (f"unix://:wrong@{server.socket}", server.url):
            with pytest.raises(StoreRefused, match="password") as caught:
                await open_store(url)
            assert "wrong" not in str(caught.value)
        store = await open_store(f"unix://:right@{server.socket}")
        await store.subscribe("run", lambda *_: None).wait_ready(10)


async def test_a_database_that_does_not_exist_is_refused_at_once(open_store: Open, redis_url: str) -> None:
    with pytest.raises(StoreRefused, match="no database 999") as caught:
        await open_store(f"{redis_url}?db=999")
    assert caught.value.setting == "redis_url"


@pytest.mark.spec("R-STORE-7")
async def test_redis_down_at_start_is_a_typed_error(open_store: Open) -> None:
    with RedisServer(start=False) as server, pytest.raises(StoreUnavailable, match=str(server.socket)):
        await open_store(server.url, open_timeout=0.2)


async def test_open_waits_for_a_server_that_is_starting(open_store: Open) -> None:
    with RedisServer(start=False) as server:
        opening = asyncio.ensure_future(open_store(server.url))
        await asyncio.to_thread(server.start)
        await (await opening).ping()


@pytest.mark.standalone
async def test_open_waits_until_a_replica_is_promoted(open_store: Open) -> None:
    with RedisServer() as server:
        server.call("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailable, match="not a primary"):
            await open_store(server.url, open_timeout=2)
        opening = asyncio.ensure_future(open_store(server.url))
        await asyncio.sleep(0)
        server.call("REPLICAOF", "NO", "ONE")
        await (await opening).ping()


@pytest.mark.standalone
@pytest.mark.spec("R-STORE-7")
async def test_a_restarted_redis_is_a_new_generation(open_store: Open) -> None:
    with RedisServer(aof="always") as server:
        store = await open_store(server.url)
        await asyncio.to_thread(server.restart)
        await wait_until(lambda: store.connected)
        await store.ping()
        assert [partition.gen for partition in store.partitions] == [2, 2]
        fences = [server.call("HGET", partition.tag + "meta", "fence") for partition in store.partitions]
        assert [int(fence) >= 2**32 for fence in fences] == [True, True]


async def test_two_stores_on_one_redis_agree_on_the_generation(open_store: Open, redis_url: str) -> None:
    stores = [await open_store(redis_url) for _ in range(3)]
    assert {partition.gen for store in stores for partition in store.partitions} == {1}


@pytest.mark.spec("R-STORE-5")
async def test_scripts_removed_from_redis_are_loaded_again(
    open_store: Open, redis_server: RedisServer, redis_url: str
) -> None:
    store = await open_store(redis_url)
    redis_server.call("SCRIPT", "FLUSH")
    await asyncio.gather(*(scripts_gen.poll(partition) for partition in store.partitions))
    assert sum(lane.noscript for lane in store.metrics.values()) == len(store.partitions)
    assert sum(lane.resets for lane in store.metrics.values()) == 0


async def test_memory_near_its_limit_is_pressure(open_store: Open) -> None:
    with RedisServer() as server:
        store = await open_store(server.url, memory_interval=0.01)
        assert (store.memory_pressure, store.memory_ratio) == (False, 0.0)
        used = int(server.call("INFO", "memory").split(b"used_memory:")[1].split()[0])
        server.call("CONFIG", "SET", "maxmemory", used)
        await wait_until(lambda: store.memory_pressure)
        await store.ping()
        server.call("CONFIG", "SET", "maxmemory", used * 10)
        await wait_until(lambda: not store.memory_pressure)


@pytest.mark.spec("R-STORE-8")
async def test_a_server_can_restart_while_redis_is_full(open_store: Open) -> None:
    with RedisServer() as server:
        await (await open_store(server.url)).close()
        server.call("CONFIG", "SET", "maxmemory", 1)
        store = await open_store(server.url)
        await store.ping()
        assert store.memory_pressure


async def test_a_closed_store_answers_unavailable(open_store: Open, redis_url: str) -> None:
    store = await open_store(redis_url)
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.ping()
