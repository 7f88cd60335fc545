"""Each invariant notices what it is there for: a sound state is damaged in one place at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgpack
import pytest

from pawl_server.store.records import pack_type
from tests.support.invariants import constants, unpack, violations, violations_everywhere
from tests.support.lua_harness import Harness
from tests.support.redis_server import RedisServer

Damage = Callable[[Harness], None]
STEP = {"key": "one", "kind": "run", "output": b"json\x001"}


@pytest.fixture
def sound(redis_server: RedisServer, redis_url: str) -> Harness:
    """a idle, b running, c in backoff, d queued, e blocked; f idle and trimmed; and those of `_others`."""
    harness = Harness(redis_server)
    harness.one("put_type", name="t", settings=pack_type({"min_turns": 1, "max_age_ms": 0}), digest=b"d")
    harness.one("watch", keep_ms=1)
    for name in "abcdeff":
        harness.now += 1
        message = {"message_id": f"m{harness.now}", "message": b"json\0{}"}
        harness.one("send", id=name, create=True, type="t", version="v", **message)
    leases = _claim(harness)
    harness.one("checkpoint", n=1, digest=b"1", **STEP, **leases["a"])
    last = {**STEP, "key": "two"}
    harness.one(
        "finish", n=2, digest=b"2", has_reply=True, result=b"json\0r", has_step=True, **last, **leases["a"]
    )
    harness.one("checkpoint", n=1, digest=b"1", **STEP, **leases["b"])
    harness.one("fail", n=1, digest=b"1", reason="R", delay_ms=-1, **leases["c"])
    harness.one("fail", n=1, digest=b"1", reason="R", final=True, **leases["e"])
    harness.one("finish", n=1, digest=b"1", **leases["f"])
    harness.one("finish", n=1, digest=b"1", **_claim(harness)["f"])
    harness.one("release", n=1, digest=b"1", **leases["d"])
    harness.one("await", id="b", turn=1)
    harness.one("trim", id="f")
    _others(harness)
    return harness


def _send(harness: Harness, name: str, **more: Any) -> None:
    harness.now += 1
    message = {"message_id": f"m{harness.now}", "message": b"json\0{}", "type": "t", "version": "w"}
    harness.one("send", id=name, create=True, **message, **more)


def _others(harness: Harness) -> None:
    """g paused, h asleep with a message that may expire behind it, j with a delayed message, k with a parked
    turn and one that was cancelled in the queue; l being deleted, m deleted."""
    for name in "ghkk":
        _send(harness, name)
    _send(harness, "h", ttl_ms=9_000)
    _send(harness, "j", delay_ms=5_000, words=b"key\0tag\0")
    for name in "lm":
        harness.one("create", id=name, type="t", version="w")
    harness.one("pause", id="g")
    [reply] = harness.call("claim", items=[{"tv": "t:w", "limit": 9}]).replies
    leases = {view[0].decode(): view[:4] for view in reply.turns}
    asleep, parked = (dict(zip(("id", "inc", "turn", "fence"), leases[name], strict=True)) for name in "hk")
    harness.one("sleep", n=1, digest=b"1", key="nap", ms=1_000, **{**asleep, "id": "h"})
    harness.one("fail", n=1, digest=b"1", reason="R", final=True, **{**parked, "id": "k"})
    harness.one("cancel", id="k", turn=2)
    _send(harness, "k")
    harness.one("park", id="k", turn=1)
    _send(harness, "k")
    harness.one("cancel", id="k", turn=4)
    for name, max_turns in (("l", -1), ("m", 9)):
        harness.one("delete", id=name, max_turns=max_turns)


def _claim(harness: Harness) -> dict[str, dict[str, Any]]:
    [reply] = harness.call("claim", items=[{"tv": "t:v", "limit": 9}]).replies
    return {
        view[0].decode(): {"id": view[0].decode(), "inc": view[1], "turn": view[2], "fence": view[3]}
        for view in reply.turns
    }


def redis(*command: bytes | str | int) -> Damage:
    """Runs a command whose second word is a key without the partition's tag."""
    return lambda harness: harness.redis.call(command[0], f"{harness.tag}{command[1]}", *command[2:])


def _packed(*values: Any) -> bytes:
    return cast(bytes, msgpack.packb(values))


def record(instance_id: str, lib: str = "record", field: str = "r", **values: Any) -> Damage:
    """Overwrites elements of a packed record."""

    def damage(harness: Harness) -> None:
        key = f"{harness.tag}i:{instance_id}"
        packed = unpack(harness.redis.call("HGET", key, field))
        for name, value in values.items():
            at = constants(lib)[name] - 1
            packed += [0] * (at + 1 - len(packed))
            packed[at] = value
        harness.redis.call("HSET", key, field, _packed(*packed))

    return damage


def newest_event(instance_id: str, at: int, value: int) -> Damage:
    """Overwrites an element of the newest ledger event."""

    def damage(harness: Harness) -> None:
        key = f"{harness.tag}e:{instance_id}"
        event = unpack(harness.redis.call("LINDEX", key, -1))
        harness.redis.call("LSET", key, -1, _packed(*event[:at], value, *event[at + 1 :]))

    return damage


def entry_lost(harness: Harness) -> None:
    """Takes an entry out of the middle of the feed."""
    key = f"{harness.tag}feed"
    [(id_, _), *_] = harness.redis.call("XRANGE", key, "-", "+", "COUNT", 3)[2:]
    harness.redis.call("XDEL", key, id_)


def test_a_sound_state_has_no_violation(sound: Harness) -> None:
    assert violations(sound.redis, sound.tag) == []
    assert violations_everywhere(sound.redis) == []


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (redis("SET", "stray", "x"), "stray: not in the key catalogue"),
        (redis("SADD", "types", "x"), "types: is a"),
        (redis("HSET", "meta:x", "a", 1), "meta:x: does not look like meta"),
        (redis("EXPIRE", "due", 1000), "due: has a time to live"),
        (redis("ZREM", "due", "lease:b"), "b: reasons to wake are [], wanted ['lease']"),
        (redis("ZREM", "due", "backoff:c"), "c: reasons to wake are [], wanted ['backoff']"),
        (redis("ZREM", "ready:t:v:0", "d"), "d: reasons to wake are [], wanted ['ready t:v']"),
        (
            redis("ZADD", "ready:t:v:0", 1, "b"),
            "b: reasons to wake are ['lease', 'ready t:v'], wanted ['lease']",
        ),
        (redis("ZADD", "ready:t:v:0", 1, "e"), "e: reasons to wake are ['ready t:v'], wanted []"),
        (redis("ZADD", "due", 1, "backoff:gone"), "gone: reasons to wake are ['backoff'], wanted []"),
        (redis("ZADD", "due", 1, "nap:a"), "due: unknown kind nap"),
        (redis("ZADD", "due", 1, "lease:b"), "b: lease is due at 1.0, before its deadline"),
        (redis("ZREM", "busy", "t:v:e"), "busy: lacks t:v:e"),
        (redis("ZADD", "busy", 0, "t:v:a"), "busy: has t:v:a"),
        (redis("ZREM", "types", "t:v"), "types: lacks t:v"),
        (redis("ZADD", "ids:t", 1, "a"), "ids:t: "),
        (redis("ZREM", "key:t:key", "j"), "key:t:key: None, wanted"),
        (redis("ZADD", "tag:t:tag", 1, "a"), "tag:t:tag: "),
        (redis("ZREM", "due", "gc:f"), "due: gc entries of ['k'], wanted of ['f', 'k']"),
        (redis("ZREM", "due", "sleep:h"), "h: reasons to wake are [], wanted ['sleep']"),
        (redis("ZREM", "due", "delayed:j"), "due: delayed entries of [], wanted of ['j']"),
        (redis("ZREM", "due", "expiry:h"), "due: expiry entries of [], wanted of ['h']"),
        (redis("ZADD", "due", 1, "expiry:h"), "h: expiry is due before"),
        (redis("ZADD", "due", 1, "settle:h"), "due: settle entries of ['h'], wanted of []"),
        (redis("ZREM", "due", "delete:l"), "due: delete entries of [], wanted of ['l']"),
        (redis("ZREM", "busy", "~t:w:j"), "busy: lacks ~t:w:j"),
        (redis("ZREM", "busy", "~t:w:l"), "busy: lacks ~t:w:l"),
        (redis("ZREM", "failed", "t:v:e"), "failed: lacks t:v:e"),
        (redis("ZADD", "failed", 0, "t:v:a"), "failed: has t:v:a"),
        (redis("ZREM", "paused", "t:w:g"), "paused: lacks t:w:g"),
        (redis("ZREM", "parked", f"t:w:k:{1:016}"), "parked: lacks t:w:k:0000000000000001"),
        (redis("ZADD", "ready:t:w:0", 1, "g"), "g: reasons to wake are ['ready t:w'], wanted []"),
        (redis("ZADD", "l:j", 1, f"{2:016}other"), "l:j: "),
        (record("j", DELAYED=0), "j: delayed, the first of them and parked are (0, "),
        (record("k", PARKED_TURNS=0), "k: delayed, the first of them and parked are (0, 0, 0), a recount"),
        (redis("ZADD", "x:h", 1, "7"), "x:h: "),
        (record("h", EXPIRES_AT=9e12), "h: something expires at"),
        (redis("HDEL", "i:j", "q:m1800000000013"), "l:j: "),
        (redis("HSET", "i:k", "2.m", _packed(1, "m", "d", "x", "", 1, 0, "")), "k: field 2.m should not be"),
        (redis("HDEL", "i:k", "4.h"), "k: pending is 1, a recount gives 2"),
        (record("k", STATE=12), "k: the head has state 12, tombstones are [4]"),
        (redis("HDEL", "dead", "m"), "dead: "),
        (redis("ZADD", "x:l", 1, "1"), "l: or x:l without an instance"),
        (redis("HSET", "meta", "fence", 1), "meta: fence"),
        (redis("HSET", "meta", "incarnation", 1), "meta: incarnation"),
        (record("b", FENCE=3), "meta: fence given out twice"),
        (record("b", INC=1), "meta: incarnation given out twice"),
        (record("b", PENDING=2), "b: pending is 2, a recount gives 1"),
        (record("b", KEPT=3), "b: oldest 1, kept 3, head 1, tail 1 are out of order"),
        (record("a", STATE=1), "a: state 1 with 0 pending turns"),
        (record("d", STATE=11), "d: the head has state 11, tombstones are []"),
        (record("b", HOW=3), "b: running with fence"),
        (record("a", KBYTES=1), "a: kept bytes are 1, a recount gives"),
        (record("a", "receipt", "1.h", R_BYTES=1), "a: turn 1: the receipt says (1, 2)"),
        (record("b", BYTES=1), "b: the head has"),
        (record("b", STEPS=0), "b: the head has 1 steps, the record says 0"),
        (redis("HSET", "i:b", "k", "other"), "b: step keys are"),
        (record("b", FLAGS=0), "b: flags 0, servers that await a turn are b'server01'"),
        (record("a", FLAGS=16), "a: flags 16, settings of its own are [0, 0]"),
        (redis("HDEL", "i:a", "1.m"), "a: field 1.m is missing"),
        (redis("HDEL", "i:a", "1.h"), "a: field 1.h is missing"),
        (redis("HDEL", "i:c", "1.f"), "c: field 1.f is missing"),
        (redis("HSET", "i:a", "2.m", "x"), "a: field 2.m should not be there"),
        (
            redis("HSET", "i:a", "1.2", _packed(1, "k", "r", "x", "d", 1, 1)),
            "a: field 1.2 should not be there",
        ),
        (
            redis("HSET", "i:f", "1.m", _packed(1, "m", "d", "x", "", 1, 0, "")),
            "f: field 1.m should not be there",
        ),
        (redis("HSET", "i:a", "d:other", 1), "a: field d:other should not be there"),
        (record("f", "receipt", "1.h", R_REPLY=b"left"), "f: field 1.h without payloads is missing"),
        (redis("HSET", "i:gone", "s", "x"), "i:gone: has no record"),
        (redis("RPUSH", "e:a", _packed(*[1] * 10)), "e:a: 7 events kept of 6"),
        (redis("LTRIM", "e:a", 1, -1), "e:a: 5 events kept of 6"),
        (redis("RPUSH", "e:gone", "x"), "e:gone: ledger without an instance"),
        (newest_event("a", 7, 3), "e:a: folding tells status 3, it is 1"),
        (newest_event("c", 6, 1), "e:c: folding tells state 1 of turn 1, it is 5"),
        (newest_event("b", 6, 5), "e:b: folding tells state 5 of turn 1, it is 2"),
        (redis("HDEL", "meta", "watch"), "feed: nobody watches"),
        (redis("UNLINK", "feed"), "feed: ends at None, not at"),
        (redis("HSET", "meta", "feed", "9-1"), "feed: ends at"),
        (entry_lost, "feed: "),
        (redis("RPUSH", "e:d", _packed(*[1] * 10)), "feed: the newest events of d differ"),
        (redis("UNLINK", "e:d"), "feed: d is gone, and its newest event is another"),
    ],
)
def test_damage_is_noticed(sound: Harness, damage: Damage, found: str) -> None:
    if found == "types: is a":
        sound.redis.call("DEL", f"{sound.tag}types")
    damage(sound)
    assert any(text.startswith(found) for text in violations(sound.redis, sound.tag))


def test_keys_outside_of_namespaces_are_noticed(sound: Harness) -> None:
    sound.redis.call("SET", "pawl:stray", "x")
    assert violations_everywhere(sound.redis) == ["pawl:stray: outside of every namespace"]
