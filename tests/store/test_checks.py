"""What is refused at start, and what the durability level is. Each refusal names the setting to change."""

from __future__ import annotations

import pytest

from pawl_server.store.checks import Durability, inspect, judge
from pawl_server.store.connection import Endpoint, session
from pawl_server.store.errors import StoreRefused
from tests.support.redis_server import RedisServer

FINE = {
    "redis_version": "7.0.15",
    "redis_mode": "standalone",
    "role": "master",
    "aof_enabled": "1",
    "maxmemory_policy": "noeviction",
    "connected_slaves": "0",
    "maxmemory": "0",
}
CONFIG = {"appendfsync": "always", "min-replicas-to-write": "0"}


@pytest.mark.spec("R-STORE-6")
@pytest.mark.parametrize(
    ("change", "setting", "text"),
    [
        ({"redis_version": "6.2.14"}, "redis_version", "7.0"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy", "noeviction"),
        ({"maxmemory_policy": "volatile-ttl"}, "maxmemory-policy", "volatile-ttl"),
        ({"connected_slaves": "2"}, "min-replicas-to-write", "2 replicas"),
    ],
)
def test_settings_that_lose_data_are_refused(change: dict[str, str], setting: str, text: str) -> None:
    with pytest.raises(StoreRefused, match=text) as caught:
        judge({**FINE, **change}, CONFIG, None)
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("info", "config"),
    [
        ({"connected_slaves": "1"}, {"min-replicas-to-write": "1"}),
        ({"connected_slaves": "1", "min_slaves_good_slaves": "1"}, {}),
    ],
)
def test_replicas_are_fine_where_writes_wait_for_them(info: dict[str, str], config: dict[str, str]) -> None:
    assert judge({**FINE, **info}, {**CONFIG, **config}, None).replicas == 1


@pytest.mark.parametrize(
    ("aof", "fsync", "level"),
    [
        ("1", "always", Durability.FSYNC),
        ("1", "everysec", Durability.EVERYSEC),
        ("1", "no", Durability.MEMORY),
        ("0", "always", Durability.MEMORY),
    ],
)
def test_the_level_is_what_redis_says_whatever_is_assumed(aof: str, fsync: str, level: Durability) -> None:
    for assume in (None, Durability.FSYNC):
        facts = judge({**FINE, "aof_enabled": aof}, {**CONFIG, "appendfsync": fsync}, assume)
        assert (facts.durability, facts.assumed) == (level, False)


def test_names_of_servers() -> None:
    assert judge(FINE, CONFIG, None).store_name == "redis 7.0.15"
    valkey = {**FINE, "redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}
    assert judge(valkey, CONFIG, None).store_name == "valkey 9.1.2"


@pytest.mark.parametrize(("aof", "level"), [("always", "fsync"), ("everysec", "everysec"), (None, "memory")])
async def test_a_real_server_is_read(aof: str | None, level: str) -> None:
    with RedisServer(aof=aof) as server:
        async with session(Endpoint.parse(server.url)) as wire:
            facts = await inspect(wire)
    assert (facts.durability, facts.assumed, facts.replicas) == (level, False, 0)


async def test_a_real_server_that_evicts_is_refused() -> None:
    with RedisServer(settings={"maxmemory-policy": "allkeys-lfu"}) as server:
        async with session(Endpoint.parse(server.url)) as wire:
            with pytest.raises(StoreRefused, match="maxmemory-policy"):
                await inspect(wire)


async def test_what_config_hides_must_be_vouched_for() -> None:
    with RedisServer(aof="always") as server:
        server.call("ACL", "SETUSER", "managed", "on", ">pw", "~*", "&*", "+@all", "-config")
        async with session(Endpoint.parse(f"unix://managed:pw@{server.socket}")) as wire:
            with pytest.raises(StoreRefused, match="appendfsync") as caught:
                await inspect(wire)
            assert caught.value.setting == "durability_assume"
            facts = await inspect(wire, Durability.EVERYSEC)
    assert (facts.durability, facts.assumed) == (Durability.EVERYSEC, True)


def test_every_level_that_can_lose_something_says_what_to_set() -> None:
    assert Durability.FSYNC.risk == ""
    for level in (Durability.EVERYSEC, Durability.MEMORY):
        assert level.risk.startswith(f"durability {level}: ")
        assert "appendfsync always" in level.risk
