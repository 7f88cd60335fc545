"""What nodes of a cluster say about slots, read."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.store.connection import Endpoint
from pawl_server.store.errors import StoreRefused
from pawl_server.store.keys import partition_tag
from pawl_server.store.slots import Directory, Redirect, SlotMap, slot_of
from tests.support.redis_cluster import RedisCluster

SLOTS: list[Any] = [
    [5461, 10922, [b"10.0.0.2", 6379, b"b" * 40, []], [b"10.0.0.5", 6379, b"e" * 40, []]],
    [0, 5460, [b"10.0.0.1", 6379, b"a" * 40]],
    [10923, 16000, [b"", 6380, b"c" * 40]],
    [16001, 16001, [None, 6381, b"d" * 40]],
    [16002, 16002, [b"?", 6381, b"f" * 40]],
]


@pytest.mark.parametrize(
    ("slot", "owner"),
    [
        (0, "10.0.0.1:6379"),
        (5460, "10.0.0.1:6379"),
        (5461, "10.0.0.2:6379"),
        (10922, "10.0.0.2:6379"),
        (10923, "asked:6380"),
        (16001, "asked:6381"),
        (16002, ""),
        (16003, ""),
        (16383, ""),
    ],
)
def test_the_owner_of_a_slot(slot: int, owner: str) -> None:
    assert SlotMap.parse(SLOTS, "asked").owner(slot) == owner


def test_a_map_names_every_node_and_may_be_empty() -> None:
    assert SlotMap.parse(SLOTS, "h").addresses["e" * 40] == "10.0.0.5:6379"
    assert SlotMap.parse([], "h").owner(7) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MOVED 3999 10.0.0.7:6379", ("MOVED", "10.0.0.7:6379")),
        ("MOVED 3999 ::1:6379", ("MOVED", "::1:6379")),
        ("MOVED 3999 :6379", ("MOVED", "asked:6379")),
        ("ASK 3999 node.example:6379", ("ASK", "node.example:6379")),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ("TRYAGAIN", "")),
        ("CLUSTERDOWN Hash slot not served", ("CLUSTERDOWN", "")),
        ("NOREPLICAS Not enough good replicas to write.", ("NOREPLICAS", "")),
    ],
)
def test_redirections(text: str, expected: tuple[str, str]) -> None:
    redirect = Redirect.parse(text, "asked")
    assert redirect == expected
    assert redirect.moving is (redirect.word in ("MOVED", "ASK", "TRYAGAIN"))


def test_slots_are_those_of_redis(cluster: RedisCluster) -> None:
    for at in range(20):
        tag = partition_tag("default", at, 20)
        assert cluster.nodes[0].call("CLUSTER", "KEYSLOT", f"{tag}meta") == slot_of(tag)


def test_addresses_are_reached_with_the_credentials_of_the_url() -> None:
    seeds = Endpoint.parse_all("redis://me:pw@a:7000,b:7001")
    assert [(seed.host, seed.port, seed.password) for seed in seeds] == [("a", 7000, "pw"), ("b", 7001, "pw")]
    node = Directory(seeds).endpoint("c:7002")
    assert (node.host, node.port, node.username, node.password, node.path) == ("c", 7002, "me", "pw", "")
    assert node.shown == "redis://c:7002"
    assert Directory(Endpoint.parse_all("rediss://a")).endpoint("c:1").tls is not None


@pytest.mark.parametrize("url", ["redis://a,", "redis://,a", "redis://a,,b", "redis://a:1,b:x"])
def test_lists_of_hosts_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(StoreRefused) as caught:
        Endpoint.parse_all(url)
    assert caught.value.setting == "redis_url"
