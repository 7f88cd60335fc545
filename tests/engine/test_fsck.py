"""Checking and mending what is stored: every damage made by hand is found, and gone after a repair."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import cast

import msgpack
import pytest

from pawl_server.domain.errors import Refused
from pawl_server.engine import Engine
from pawl_server.engine.control import Target
from pawl_server.store.keys import partition_tag
from pawl_server.store.records import InstanceRecord
from tests.support.hand import Hand
from tests.support.invariants import violations_everywhere
from tests.support.items import create_item, send_item
from tests.support.redis_server import RedisServer
from tests.support.server import open_engine

TAG = partition_tag("virtual", 0, 1)
NOTHING = "nothing stands behind it"


@pytest.fixture
async def engine(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Engine]:
    """An engine with one partition and instances in every state, and nothing that looks after them."""
    async with open_engine(redis_url, partitions=1) as engine:
        hand = Hand(engine)

        async def make(name: str, *, max_attempts: int = 0, words: bytes = b"") -> None:
            await engine.instances.create(create_item(name, max_attempts=max_attempts, words=words))

        await make("idle", words=b"k\0blue\0red\0")
        await engine.inbox.send(send_item("idle"))
        await hand.finish("idle", state=b"1")
        for name in ("failed", "parked"):
            await make(name, max_attempts=1)
            await engine.inbox.send(send_item(name))
            await hand.fail(name)
        await engine.control.park(Target("parked", turn=1))
        for name in ("backoff", "running"):
            await make(name)
            await engine.inbox.send(send_item(name))
        await hand.fail("backoff", final=False)
        await hand.claim("running")
        await make("delayed")
        await engine.inbox.send(send_item("delayed", delay_ms=600_000, ttl_ms=60_000))
        await make("paused")
        await engine.inbox.send(send_item("paused"))
        await engine.control.pause(Target("paused"))
        await make("queued")
        for at in range(3):
            await engine.inbox.send(send_item("queued", f"m{at}", ttl_ms=600_000))
        await engine.control.cancel(Target("queued", turn=2), force=False)
        yield engine
    assert violations_everywhere(redis_server) == []


async def check(engine: Engine, *, repair: bool = False, size: int = 200) -> list[tuple[str, str, str, str]]:
    """Walks through everything; the findings."""
    found: list[tuple[str, str, str, str]] = []
    cursor, counted = "", 0
    for _ in range(10_000):
        answer = await engine.fsck.check(cursor, size, repair=repair)
        found += [(one.instance_id, one.key, one.entry, one.text) for one in answer.findings]
        counted += answer.instances
        cursor = answer.next_cursor
        if not cursor:
            assert (answer.partitions_done, answer.partitions) == (1, 1)
            assert counted >= 8
            return found
    raise AssertionError("no end")


@pytest.mark.spec("R-FSCK-1")
@pytest.mark.parametrize("size", [1, 3, 200])
async def test_nothing_is_wrong(engine: Engine, redis_server: RedisServer, size: int) -> None:
    assert violations_everywhere(redis_server) == []
    assert await check(engine, size=size) == []
    assert await check(engine, size=size, repair=True) == []


def _record(redis: RedisServer, name: str, field: str, value: int) -> None:
    """Changes one element of a packed record."""
    at = InstanceRecord._fields.index(field)
    key = f"{TAG}i:{name}"
    record = msgpack.unpackb(redis.call("HGET", key, "r"), raw=True)
    record += [0] * (at + 1 - len(record))
    record[at] = value
    redis.call("HSET", key, "r", cast(bytes, msgpack.packb(record)))


def _lost(command: str, *words: str) -> Callable[[RedisServer], object]:
    key, *rest = words
    return lambda redis: redis.call(command, TAG + key, *rest)


LOST: dict[str, Callable[[RedisServer], object]] = {
    "busy": _lost("ZREM", "busy", "t:v1:queued"),
    "busy for delayed messages": _lost("ZREM", "busy", "~t:v1:delayed"),
    "failed": _lost("ZREM", "failed", "t:v1:failed"),
    "paused": _lost("ZREM", "paused", "t:v1:paused"),
    "parked": _lost("DEL", "parked"),
    "ready": _lost("ZREM", "ready:t:v1:0", "queued"),
    "lease": _lost("ZREM", "due", "lease:running"),
    "backoff": _lost("ZREM", "due", "backoff:backoff"),
    "delayed": _lost("ZREM", "due", "delayed:delayed"),
    "expiry": _lost("ZREM", "due", "expiry:queued"),
    "list of delayed messages": _lost("DEL", "l:delayed"),
    "ids": _lost("ZREM", "ids:t", "idle"),
    "tag": _lost("DEL", "tag:t:red"),
    "key": _lost("ZREM", "key:t:k", "idle"),
    "pending": lambda redis: _record(redis, "queued", "pending", 7),
    "kept bytes": lambda redis: _record(redis, "idle", "kept_bytes", 1),
    "parked turns": lambda redis: _record(redis, "parked", "parked_turns", 0),
    "delayed messages": lambda redis: _record(redis, "delayed", "delayed", 3),
}

STRAY: dict[str, Callable[[RedisServer], object]] = {
    "busy": _lost("ZADD", "busy", "0", "t:v1:idle"),
    "busy of nobody": _lost("ZADD", "busy", "0", "t:v1:nobody"),
    "failed": _lost("ZADD", "failed", "0", "t:v1:idle"),
    "paused": _lost("ZADD", "paused", "0", "t:v1:nobody"),
    "parked": _lost("ZADD", "parked", "0", "t:v1:idle:0000000000000001"),
    "damaged": _lost("ZADD", "damaged", "1", "i:idle"),
    "ready": _lost("ZADD", "ready:t:v1:0", "1", "idle"),
    "ready of another type": _lost("ZADD", "ready:u:v1:0", "1", "queued"),
    "lease": _lost("ZADD", "due", "9999999999999", "lease:queued"),
    "sleep": _lost("ZADD", "due", "9999999999999", "sleep:backoff"),
    "gc": _lost("ZADD", "due", "9999999999999", "gc:nobody"),
    "delete": _lost("ZADD", "due", "9999999999999", "delete:idle"),
    "delayed": _lost("ZADD", "due", "9999999999999", "delayed:idle"),
    "unknown timer": _lost("ZADD", "due", "9999999999999", "nothing"),
    "ids": _lost("ZADD", "ids:t", "1", "nobody"),
    "ids of another type": _lost("ZADD", "ids:u", "1", "idle"),
    "tag": _lost("ZADD", "tag:t:red", "1", "nobody"),
    "list of delayed messages": _lost("ZADD", "l:delayed", "1", "0000000000000001gone"),
    "ledger of nobody": _lost("RPUSH", "e:nobody", "x"),
    "expiries of nobody": _lost("ZADD", "x:nobody", "1", "1"),
    "field of a trimmed turn": _lost("HSET", "i:idle", "9.m", "x"),
    "message id of nothing": _lost("HSET", "i:idle", "d:gone", "77"),
}


DAMAGES = {**LOST, **{f"stray {name}": damage for name, damage in STRAY.items()}}


@pytest.mark.spec("R-FSCK-2", "R-FSCK-3")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_damage(
    engine: Engine, redis_server: RedisServer, damage: Callable[[RedisServer], object]
) -> None:
    damage(redis_server)
    before = violations_everywhere(redis_server)
    found = await check(engine)
    assert found, before
    assert violations_everywhere(redis_server) == before, "looking changes nothing"
    assert await check(engine, repair=True)
    assert await check(engine) == []
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-FSCK-3")
async def test_what_can_not_be_mended_is_told_and_left(engine: Engine, redis_server: RedisServer) -> None:
    key = f"{TAG}i:idle"
    record = redis_server.call("HGET", key, "r")
    redis_server.call("HSET", key, "r", b"\xc1")
    redis_server.call("SET", f"{TAG}i:wrong", "x")
    redis_server.call("SET", f"{TAG}strange", "x")
    found = await check(engine, repair=True)
    assert ("idle", "", "", "its record can't be read") in found
    assert ("", "strange", "", "is no key of this version") in found
    assert any(one[0] == "wrong" and "can't be checked" in one[3] for one in found)
    assert redis_server.call("ZRANGE", f"{TAG}damaged", 0, -1) == [b"i:idle"]
    redis_server.call("HSET", key, "r", record)
    redis_server.call("DEL", f"{TAG}i:wrong", f"{TAG}strange")
    assert await check(engine, repair=True) == [("", "damaged", "i:idle", NOTHING)]
    assert await check(engine) == []


async def test_what_is_deleted_while_it_is_looked_at_is_no_finding(engine: Engine) -> None:
    names = ("delayed", "queued", "failed")
    step = await engine.fsck.check("", 1_000, repair=True)
    for name in names:
        await engine.control.delete(Target(name))
    found = list(step.findings)
    while step.next_cursor:
        step = await engine.fsck.check(step.next_cursor, 1_000, repair=True)
        found += step.findings
    assert found == []


async def test_a_cursor_of_something_else(engine: Engine) -> None:
    with pytest.raises(Refused, match="CURSOR_STALE"):
        await engine.fsck.check("x", 200, repair=False)
