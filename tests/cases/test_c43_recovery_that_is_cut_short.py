"""C-43: recovery of many things, one of which is bad, while the database restarts.

Given  250 leases that have run out, all with turns in the middle of an attempt.
Do     make the record of one instance undecodable, let the expiry pass run, and kill Redis amid it.
Expect 249 turns are ready again with one failed attempt each, whatever the order; the bad instance is named
       in `damaged`, keeps its fields, and goes on when it is mended.
"""

from __future__ import annotations

import asyncio

import pytest

from pawl_server.app import Handle, running
from pawl_server.background import timers
from pawl_server.domain.states import TurnState
from pawl_server.store import scripts_gen as scripts
from tests.support.driver import TV, Driver, driver
from tests.support.hand import STRANGER
from tests.support.items import send_item
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.wait import wait_until

__all__ = ["driver"]

COUNT = 250
BAD = 77
NAMES = [f"i{number}" for number in range(COUNT)]
GOOD = [name for number, name in enumerate(NAMES) if number != BAD]
LEASE_MS = 1_000


def leased(driver: Driver) -> None:
    """All instances run; each lease lasts a minute."""
    driver.call("send", items=[driver.message(name) for name in NAMES])
    held = driver.claim(256)
    driver.call("renew", items=[one.lease for one in held])
    assert {one.view.instance_id for one in held} >= set(NAMES)


@pytest.mark.parametrize("order", ["first", "in the middle", "last"])
@pytest.mark.spec("R-DAMAGE-1", "R-EXPIRE-1")
def test_the_bad_one_stops_no_other(driver: Driver, order: str) -> None:
    leased(driver)
    bad = NAMES[BAD]
    key, at = f"{driver.tag}i:{bad}", {"first": -1, "in the middle": 0, "last": 1}[order]
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now + 60_000 + at, f"lease:{bad}")
    good = driver.redis.call("HGET", key, "r")
    driver.redis.call("HSET", key, "r", good[:20])
    driver.later(60_001)
    passes = [driver.expire(128), driver.expire(128), driver.expire(128)]
    replies = [reply for replies in passes for reply in replies]
    assert [len(one) for one in passes] == [128, 122, 0]
    assert {reply.id for reply in replies if reply.word == "FIRED"} == set(GOOD)
    assert [reply.id for reply in replies if reply.word == "STALE"] == [bad]
    assert {driver.head(name) for name in GOOD} == {"QUEUED"}
    assert {driver.record(name).failures for name in GOOD} == {1}
    assert driver.state()["damaged"] == {f"i:{bad}": driver.now}
    assert driver.due() == {f"lease:{bad}": driver.now + 60_000}, "it is looked at again"
    assert driver.sweep() == (0, 0)
    assert len(driver.claim(256)) == COUNT - 1
    driver.redis.call("HSET", key, "r", good)
    assert "expired" in {reply.outcome for reply in driver.elapse(60_000) if reply.id == bad}
    driver.redis.call("DEL", f"{driver.tag}damaged")


@pytest.mark.parametrize("field", ["o", "1.m", "c", "y"])
@pytest.mark.spec("R-DAMAGE-1")
def test_other_fields_that_cannot_be_read_stop_no_other_either(driver: Driver, field: str) -> None:
    driver.send("own", lease_ms=60_000, create_digest=b"own")
    leased(driver)
    key = f"{driver.tag}i:own"
    before = driver.redis.call("HGET", key, field)
    if field == "y":
        driver.redis.call("HDEL", key, field)
    else:
        driver.redis.call("HSET", key, field, b"\xc1")
    driver.later(60_001)
    for _ in range(3):
        driver.expire(128)
        driver.sweep()
    assert {driver.head(name) for name in NAMES} == {"QUEUED"}
    [reply] = driver.call("claim", items=[{"tv": TV, "limit": 256, "conn": driver.conn}]).replies
    assert {view[0].decode() for view in reply.turns} >= set(NAMES)
    if before is None:
        driver.redis.call("HDEL", key, field)
    else:
        driver.redis.call("HSET", key, field, before)
    driver.elapse(60_000)
    driver.redis.call("DEL", f"{driver.tag}damaged")


@pytest.mark.spec("R-DAMAGE-1", "R-SWEEP-1")
def test_a_head_without_its_message_is_named(driver: Driver) -> None:
    """It can't be handed out; what is behind it in the ready set is."""
    for name in ("a", "b"):
        driver.send(name)
    message = driver.redis.call("HGET", f"{driver.tag}i:a", "1.m")
    driver.redis.call("HDEL", f"{driver.tag}i:a", "1.m")
    assert [held.view.instance_id for held in driver.claim(5)] == ["b"]
    assert driver.state()["damaged"] == {"i:a": driver.now}
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.m", message)
    driver.sweep()
    driver.take("a").finish()
    driver.redis.call("DEL", f"{driver.tag}damaged")


async def all_leased(server: Handle) -> None:
    """All instances run under leases of a worker that nobody hears of any more."""
    store = server.engine.store
    for partition in store.partitions:
        names = [name for name in NAMES if store.partition_of(name) is partition]
        items = [send_item(name, create=True, lease_ms=LEASE_MS) for name in names]
        await scripts.send(
            partition, server=STRANGER, max_pending=9, max_message=99, max_state=99, items=items
        )
        claims = [scripts.ClaimItem(TV, 256, f"{STRANGER}.1.1")]
        [claimed] = (
            await scripts.claim(
                partition, server=STRANGER, delivery_ms=60_000, max_bytes=1 << 20, items=claims
            )
        ).replies
        views = [scripts.RenewItem(view[0].decode(), view[1], view[2], view[3], 0) for view in claimed.turns]
        await scripts.renew(partition, server=STRANGER, detach_ms=0, items=views)
        assert len(views) == len(names)


@pytest.mark.timeout(120)
@pytest.mark.spec("R-DAMAGE-1", "R-EXPIRE-1", "R-STORE-7")
async def test_redis_is_killed_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "LIMIT", 16)
    with RedisServer(aof="always") as redis:
        async with running(settings_for(redis.url)) as server:
            stored = Stored(server, redis)
            background = server.background.timers
            background.paused = True
            await all_leased(server)
            key = f"{stored.tag(NAMES[BAD])}i:{NAMES[BAD]}"
            good = redis.call("HGET", key, "r")
            redis.call("HSET", key, "r", b"bad")
            due = max(stored.due("lease", name) for name in NAMES)
            await wait_until(lambda: redis_ms(redis) > due, what="all leases have run out")
            background.paused = False
            await wait_until(lambda: background.gone > 0, what="the pass has begun")
            await asyncio.to_thread(redis.restart)

            def recovered() -> int:
                return sum(stored.record(name).state == TurnState.QUEUED for name in GOOD)

            await wait_until(lambda: recovered() == COUNT - 1, what="249 turns are ready again")
            assert {stored.record(name).failures for name in GOOD} == {1}
            assert {stored.events(name).count("ATTEMPT_EXPIRED") for name in GOOD} == {1}
            damaged = [
                redis.call("ZRANGE", f"{part.tag}damaged", 0, -1) for part in server.engine.store.partitions
            ]
            assert sorted(damaged) == [[], [f"i:{NAMES[BAD]}".encode()]]
            assert redis.call("HGET", key, "r") == b"bad"
            redis.call("HSET", key, "r", good)
            redis.call("ZADD", f"{stored.tag(NAMES[BAD])}due", 1, f"lease:{NAMES[BAD]}")
            await wait_until(lambda: stored.record(NAMES[BAD]).state == TurnState.QUEUED)


def redis_ms(redis: RedisServer) -> int:
    """Redis' time in ms."""
    seconds, micros = redis.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000
