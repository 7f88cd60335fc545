"""fsck and fsck_index: each damage made by hand is named, mended where possible, and nothing else touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from tests.support.driver import TV, Driver
from tests.support.invariants import constants, unpack
from tests.support.lua_harness import changes

INDEXES = (
    "busy",
    "failed",
    "paused",
    "parked",
    "damaged",
    "due",
    "ready",
    "types",
    "ids",
    "tag",
    "key",
    "e",
    "l",
    "x",
)
LATER = "9999999999999"


@pytest.fixture
def full(driver: Driver) -> Driver:
    """Instances in every state; `kept` has one trimmed turn and payloads of one, a reply and a last step."""
    driver.put_type("k", min_turns=1, max_age_ms=0)
    driver.create("kept", kind="k", words=b"word\0blue\0red\0")
    for body in (b"1", b"2"):
        driver.send("kept", body, type="k", version="v1")
        driver.lease("kept", tv="k:v1").finish(b"reply", step=("one", b"x"))
    driver.create("idle", words=b"\0red\0")
    for name in ("failed", "parked", "backoff", "asleep", "waiting", "deferred", "running"):
        driver.send(name)
        begun(driver, name)
    signalled(driver)
    behind(driver)
    driver.send("delayed", b"1", delay_ms=60_000)
    driver.send("delayed", b"2", delay_ms=90_000)
    driver.send("paused")
    driver.pause("paused")
    for body in (b"1", b"2", b"3"):
        driver.send("queued", body, ttl_ms=600_000)
    driver.cancel(2, "queued")
    driver.send("deleted")
    driver.delete("deleted", max_turns=-1)
    return driver


def signalled(driver: Driver) -> None:
    """Turns that received signals, one of them still to come, and a wait without end."""
    driver.send("signalled", b"1")
    driver.signal("s1", turn=0, on="signalled")
    held = driver.take("signalled")
    held.wait()
    held.finish()
    driver.send("signalled", b"2")
    driver.take("signalled").finish()
    driver.signal("s2", turn=0, on="signalled")
    driver.send("endless")
    driver.take("endless").wait()


def begun(driver: Driver, name: str) -> None:
    """A turn that was received, and is now as the instance is called."""
    held = driver.take(name)
    if name == "backoff":
        held.fail()
    elif name == "asleep":
        held.sleep()
    elif name == "waiting":
        driver.signal("s1", "other", on=name)
        held.wait(ms=1_000)
    elif name == "deferred":
        held.defer()
    elif name == "running":
        held.checkpoint("one")
        held.checkpoint("two")
    else:
        held.fail(final=True)
    if name == "parked":
        driver.park(1, name)


def behind(driver: Driver) -> None:
    """A head with more ended turns before it than are passed at once."""
    for number in range(1, 20):
        driver.send("behind", b"%d" % number)
    held = driver.take("behind")
    for turn in range(2, 19):
        driver.cancel(turn, "behind")
    held.finish()


def check(driver: Driver, *, repair: bool = False) -> list[str]:
    """Looks at everything; what is wrong, as `instance: text` or `key member: text`."""
    found: list[str] = []
    names = driver.keys()
    items = [{"id": name[2:]} for name in names if name.startswith("i:")]
    replies = driver.call("fsck", items=items, repair=repair).replies
    for item, reply in zip(items, replies, strict=True):
        found += [f"{item['id']}: {text.decode()}" for text in reply.findings]
    for name in names:
        if name.partition(":")[0] in INDEXES:
            found += [f"{name} {text}" for text in walk(driver, name, repair=repair)]
    return found


def walk(driver: Driver, name: str, *, repair: bool = False, limit: int = 1_000) -> list[str]:
    """Looks at one index."""
    cursor, found = "0", []
    for _ in range(1_000):
        reply = driver.one("fsck_index", name=name, cursor=cursor, limit=limit, repair=repair)
        found += [f"{one[1].decode()}: {one[2].decode()}".lstrip(": ") for one in reply.findings]
        cursor = reply.cursor
        if cursor == "0":
            return found
    raise AssertionError("no end")


def mend(driver: Driver) -> list[str]:
    """What is found, first without touching it, then mended so that nothing is left to find."""
    with driver.unchanged():
        found = check(driver)
    check(driver, repair=True)
    with driver.unchanged():
        assert check(driver, repair=True) == []
    return found


def set_record(driver: Driver, name: str, **fields: int) -> None:
    """Changes elements of a record."""
    key, layout = f"{driver.tag}i:{name}", constants("record")
    values = unpack(driver.redis.call("HGET", key, "r"))
    values += [0] * (layout["LAST_FIELD"] - len(values))
    for field, value in fields.items():
        values[layout[field] - 1] = value
    driver.redis.call("HSET", key, "r", msgpack.packb(values, use_bin_type=False) or b"")


@pytest.mark.spec("R-FSCK-1")
def test_nothing_is_wrong_with_any_state(full: Driver) -> None:
    with full.unchanged():
        assert check(full) == []
        assert check(full, repair=True) == []


NOT_IN_BUSY = "was not in busy"
ENTRY = "an entry that wakes it or lists it was missing"
LOST = [
    ("ZREM busy t:v1:queued", [f"queued: {NOT_IN_BUSY}"]),
    ("ZREM busy ~t:v1:delayed", [f"delayed: {NOT_IN_BUSY} for its delayed messages"]),
    ("ZREM failed t:v1:failed", [f"failed: {ENTRY}"]),
    ("ZREM paused t:v1:paused", [f"paused: {ENTRY}"]),
    ("ZREM parked t:v1:parked:0000000000000001", ["parked: parked turn 1 was not listed"]),
    (f"ZREM ready:{TV}:0 queued", [f"queued: {ENTRY}", f"types {TV}: nothing stands behind it"]),
    (f"ZREM types {TV}", [f"queued: {ENTRY}"]),
    ("ZREM due lease:running", [f"running: {ENTRY}"]),
    ("ZREM due backoff:backoff", [f"backoff: {ENTRY}"]),
    ("ZREM due sleep:asleep", [f"asleep: {ENTRY}"]),
    ("ZREM due defer:deferred", [f"deferred: {ENTRY}"]),
    ("ZREM due wait:waiting", [f"waiting: {ENTRY}"]),
    ("ZREM due delayed:delayed", [f"delayed: {ENTRY}"]),
    ("ZREM due expiry:queued", [f"queued: {ENTRY}"]),
    ("ZREM due gc:kept", ["kept: the entry for trimming was missing"]),
    ("ZREM due settle:behind", [f"behind: {ENTRY}"]),
    ("ZREM due delete:deleted", ["deleted: its deletion had stopped"]),
    ("DEL l:delayed", [f"delayed: delayed message m-{number} was not listed" for number in "12"]),
    ("ZREM ids:t idle", ["idle: was not in ids:t"]),
    ("ZREM key:k:word kept", ["kept: was not in key:k:word"]),
    ("ZREM tag:k:blue kept", ["kept: was not in tag:k:blue"]),
    ("ZREM tag:t:red idle", ["idle: was not in tag:t:red"]),
    ("ZREM typeindex k", ["kept: its type was not listed"]),
]


@pytest.mark.parametrize(("command", "expected"), LOST, ids=[command for command, _ in LOST])
@pytest.mark.spec("R-FSCK-2", "R-FSCK-3")
def test_what_an_index_has_lost_comes_back(full: Driver, command: str, expected: list[str]) -> None:
    before = full.state()
    word, key, *rest = command.split()
    assert full.redis.call(word, full.tag + key, *rest)
    assert mend(full) == expected
    left = changes(before, full.state())
    assert set(left) <= {"due delete:deleted", "due gc:kept", f"ready:{TV}:0 queued", f"types {TV}"}, (
        "the time may be another"
    )


COUNTERS = [
    ("queued", "PENDING", 7, "pending turns is 7, a recount gives 2"),
    ("kept", "KBYTES", 1, "kept bytes is 1, a recount gives"),
    ("parked", "PARKED_TURNS", 0, "parked turns is 0, a recount gives 1"),
    ("waiting", "SIGNALLED", 3, "turns with signals is 3, a recount gives 1"),
    ("signalled", "SIGNALLED", 0, "turns with signals is 0, a recount gives 2"),
    ("delayed", "DELAYED", 3, "delayed messages is 3, a recount gives 2"),
    ("delayed", "DELAYED_AT", 1, "time of the first delayed message is 1, a recount gives"),
    ("idle", "SEQ", 0, "ledger ends with event 1, the record says 0"),
]


@pytest.mark.parametrize(("name", "field", "value", "text"), COUNTERS)
@pytest.mark.spec("R-FSCK-2", "R-FSCK-3")
def test_counters_are_recounted(full: Driver, name: str, field: str, value: int, text: str) -> None:
    before = full.state()
    set_record(full, name, **{field: value})
    [found] = mend(full)
    assert found.startswith(f"{name}: {text}")
    assert changes(before, full.state()) == {}


NOTHING = "nothing stands behind it"
STRAY = [
    ("ZADD busy 0 t:v1:idle", f"busy t:v1:idle: {NOTHING}"),
    ("ZADD busy 0 t:v2:queued", f"busy t:v2:queued: {NOTHING}"),
    ("ZADD busy 0 t:v1:nobody", f"busy t:v1:nobody: {NOTHING}"),
    ("ZADD busy 0 ~t:v1:queued", f"busy ~t:v1:queued: {NOTHING}"),
    ("ZADD busy 0 ~t:v2:delayed", f"busy ~t:v2:delayed: {NOTHING}"),
    ("ZADD failed 0 t:v1:queued", f"failed t:v1:queued: {NOTHING}"),
    ("ZADD failed 0 t:v2:failed", f"failed t:v2:failed: {NOTHING}"),
    ("ZADD failed 0 t:v1:deleted", f"failed t:v1:deleted: {NOTHING}"),
    ("ZADD types 1 t:v3", f"types t:v3: {NOTHING}"),
    ("ZADD paused 0 t:v1:queued", f"paused t:v1:queued: {NOTHING}"),
    ("ZADD paused 0 t:v2:paused", f"paused t:v2:paused: {NOTHING}"),
    ("ZADD parked 0 t:v1:idle:0000000000000001", f"parked t:v1:idle:0000000000000001: {NOTHING}"),
    ("ZADD parked 0 t:v2:parked:0000000000000001", f"parked t:v2:parked:0000000000000001: {NOTHING}"),
    ("ZADD parked 0 t:v1:parked:0000000000000002", f"parked t:v1:parked:0000000000000002: {NOTHING}"),
    ("ZADD parked 0 t:v1:nobody:0000000000000001", f"parked t:v1:nobody:0000000000000001: {NOTHING}"),
    ("ZADD parked 0 what", f"parked what: {NOTHING}"),
    ("ZADD damaged 1 i:idle", f"damaged i:idle: {NOTHING}"),
    ("ZADD damaged 1 q:delayed:m-1", f"damaged q:delayed:m-1: {NOTHING}"),
    ("ZADD damaged 1 q:idle:m-1", f"damaged q:idle:m-1: {NOTHING}"),
    ("ZADD damaged 1 i:nobody", f"damaged i:nobody: {NOTHING}"),
    (f"ZADD ready:{TV}:0 1 idle", f"ready:{TV}:0 idle: {NOTHING}"),
    (f"ZADD ready:{TV}:0 1 paused", f"ready:{TV}:0 paused: {NOTHING}"),
    (f"ZADD ready:{TV}:0 1 deleted", f"ready:{TV}:0 deleted: {NOTHING}"),
    ("ZADD ready:u:v1:0 1 queued", f"ready:u:v1:0 queued: {NOTHING}"),
    (f"ZADD due {LATER} lease:queued", f"due lease:queued: {NOTHING}"),
    (f"ZADD due {LATER} sleep:backoff", f"due sleep:backoff: {NOTHING}"),
    (f"ZADD due {LATER} wait:signalled", f"due wait:signalled: {NOTHING}"),
    (f"ZADD due {LATER} wait:endless", f"due wait:endless: {NOTHING}"),
    (f"ZADD due {LATER} backoff:paused", f"due backoff:paused: {NOTHING}"),
    (f"ZADD due {LATER} gc:idle", f"due gc:idle: {NOTHING}"),
    (f"ZADD due {LATER} gc:nobody", f"due gc:nobody: {NOTHING}"),
    (f"ZADD due {LATER} gc:deleted", f"due gc:deleted: {NOTHING}"),
    (f"ZADD due {LATER} delete:idle", f"due delete:idle: {NOTHING}"),
    (f"ZADD due {LATER} delayed:idle", f"due delayed:idle: {NOTHING}"),
    (f"ZADD due {LATER} expiry:delayed", f"due expiry:delayed: {NOTHING}"),
    (f"ZADD due {LATER} settle:queued", f"due settle:queued: {NOTHING}"),
    (f"ZADD due {LATER} other:queued", f"due other:queued: {NOTHING}"),
    (f"ZADD due {LATER} nothing", f"due nothing: {NOTHING}"),
    ("ZADD ids:t 1 nobody", f"ids:t nobody: {NOTHING}"),
    ("ZADD ids:u 1 idle", f"ids:u idle: {NOTHING}"),
    ("ZADD tag:t:red 1 kept", f"tag:t:red kept: {NOTHING}"),
    ("ZADD key:t:word 1 kept", f"key:t:word kept: {NOTHING}"),
    ("ZADD key:t:word 1 deleted", f"key:t:word deleted: {NOTHING}"),
    ("ZADD l:delayed 1 0000000000000001gone", "delayed: list of delayed messages has 0000000000000001gone"),
    ("RPUSH e:nobody x", "e:nobody no instance"),
    ("ZADD l:nobody 1 x", "l:nobody no instance"),
    ("ZADD x:nobody 1 1", "x:nobody no instance"),
    ("HSET i:idle 9.m x", "idle: field 9.m is left of a turn that was trimmed"),
    ("HSET i:kept 0.h x", "kept: field 0.h is left of a turn that was trimmed"),
    ("HSET i:kept 1.m x", "kept: field 1.m is left of a turn that was trimmed"),
    ("HSET i:idle d:gone 77", "idle: field d:gone leads nowhere"),
    ("HSET i:kept d:gone 0", "kept: field d:gone leads nowhere"),
    ("HSET i:idle d:gone q", "idle: field d:gone leads nowhere"),
    ("HSET i:kept 0.g x", "kept: signals are left of turn 0, which was trimmed"),
    ("HSET i:idle 2.g x", "idle: signals are left of turn 2, which was trimmed"),
    ("HSET i:waiting 1.g.2 x", "waiting: field 1.g.2 is no value of a signal"),
    ("HSET i:signalled 1.g.2 x", "signalled: field 1.g.2 is no value of a signal"),
    ("HSET i:idle 1.g.1 x", "idle: field 1.g.1 is no value of a signal"),
    ("HSET i:signalled g:other 2", "signalled: field g:other leads nowhere"),
    ("HSET i:idle g:s1 1", "idle: field g:s1 leads nowhere"),
    ("HSET i:idle w x", "idle: something is left of a wait that has ended"),
]


@pytest.mark.parametrize(("command", "expected"), STRAY, ids=[command for command, _ in STRAY])
@pytest.mark.spec("R-FSCK-2", "R-FSCK-3")
def test_what_nothing_stands_behind_goes(full: Driver, command: str, expected: str) -> None:
    before = full.state()
    word, key, *rest = command.split()
    full.redis.call(word, full.tag + key, *rest)
    [found] = mend(full)
    assert found.startswith(expected)
    assert changes(before, full.state()) == {}


@pytest.mark.spec("R-FSCK-3", "R-WAIT-1")
@pytest.mark.parametrize("name", ["waiting", "endless"])
@pytest.mark.parametrize("damage", ["HSET", "HDEL"])
def test_a_wait_that_can_not_be_read_is_begun_anew(full: Driver, name: str, damage: str) -> None:
    full.redis.call(damage, f"{full.tag}i:{name}", "w", *(["x"] if damage == "HSET" else []))
    assert mend(full) == [f"{name}: what the head waits for can't be read"]
    assert full.head(name) == "QUEUED"
    [held] = [held for held in full.claim(10) if held.view.instance_id == name]
    assert held.view.attempt == 1
    assert held.wait().suspended


@pytest.fixture
def broken(full: Driver) -> Iterator[Driver]:
    """For damages that stay."""
    yield full
    full.redis.call("FLUSHALL")


TOLD = [
    ("HDEL i:queued 3.m", "queued: turn 3 has lost its message"),
    ("HDEL i:kept 2.h", "kept: turn 2 has lost its receipt"),
    ("HSET i:kept 2.h x", "kept: turn 2 has lost its receipt"),
    ("HDEL i:running 1.2", "running: the head has 1 steps, its record says 2"),
    ("HSET i:delayed q:m-1 x", "delayed: delayed message m-1 can't be read"),
    ("HSET i:idle o x", "idle: what creation fixed can't be read"),
    ("HSET i:waiting 1.g x", "waiting: what turn 1 has received can't be read"),
    ("HDEL i:waiting 1.g.1", "waiting: turn 1 has lost the value of signal 1"),
    ("HDEL i:signalled 3.g.1", "signalled: turn 3 has lost the value of signal 1"),
]


@pytest.mark.parametrize(("command", "expected"), TOLD, ids=[command for command, _ in TOLD])
@pytest.mark.spec("R-FSCK-3")
def test_what_can_not_be_mended_is_told_each_time(broken: Driver, command: str, expected: str) -> None:
    word, key, *rest = command.split()
    broken.redis.call(word, broken.tag + key, *rest)
    for repair in (False, True, True):
        assert expected in check(broken, repair=repair)


@pytest.mark.spec("R-FSCK-3", "R-DAMAGE-1")
def test_a_record_that_cannot_be_read_is_marked_and_keeps_what_it_has(broken: Driver) -> None:
    broken.redis.call("HSET", f"{broken.tag}i:queued", "r", b"\xc1")
    found = ["queued: its record can't be read"]
    with broken.unchanged():
        assert check(broken) == found
    with broken.unchanged("damaged i:queued"):
        assert check(broken, repair=True) == found
        assert check(broken, repair=True) == found
    assert set(broken.state()["damaged"]) == {"i:queued"}


@pytest.mark.spec("R-FSCK-1")
def test_absent_instances_are_not_found(driver: Driver) -> None:
    driver.send("a")
    replies = driver.call("fsck", items=[{"id": name} for name in ("nobody", "a")]).replies
    assert [reply.word for reply in replies] == ["NOT_FOUND", "OK"]


@pytest.mark.spec("R-FSCK-1", "R-FSCK-3")
def test_what_time_has_decided_is_no_finding(full: Driver) -> None:
    """A backoff that is over, messages that are due: the next transition settles them."""
    full.redis.call("ZREM", f"{full.tag}busy", "~t:v1:delayed")
    full.later(61_000)
    assert mend(full) == ["delayed: was not in busy for its delayed messages"]
    full.one("settle", id="delayed")
    assert full.head("delayed") == "QUEUED"


@pytest.mark.spec("R-FSCK-1")
def test_an_index_is_walked_some_entries_at_a_time(driver: Driver) -> None:
    for number in range(400):
        driver.send(f"i{number:03}")
    for number in range(0, 400, 4):
        driver.redis.call("DEL", f"{driver.tag}i:i{number:03}")
        driver.redis.call("DEL", f"{driver.tag}e:i{number:03}")
    reply: Any = driver.one("fsck_index", name="busy", cursor="0", limit=50)
    assert 50 <= reply.checked < 400
    found = walk(driver, "busy", limit=50)
    assert len(set(found)) == 100
    for name in ("busy", "ids:t", f"ready:{TV}:0"):
        assert len(set(walk(driver, name, limit=50, repair=True))) == 100
    driver.redis.call("HSET", f"{driver.tag}i:i001", "r", b"\xc1")
    assert walk(driver, "busy") == [], "what can't be read is left alone"
    driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-FSCK-1")
def test_an_instance_twice_in_a_list_is_mended_once(full: Driver) -> None:
    full.redis.call("ZREM", f"{full.tag}busy", "t:v1:queued")
    replies = full.call("fsck", items=[{"id": "queued"}] * 2, repair=True).replies
    assert [len(reply.findings) for reply in replies] == [1, 0]


@pytest.mark.spec("R-FSCK-1")
def test_a_key_of_an_instance_counts_as_one_entry(driver: Driver) -> None:
    driver.send("a")
    reply = driver.one("fsck_index", name="e:a", cursor="0", limit=1)
    assert (reply.cursor, reply.checked, reply.findings) == ("0", 1, [])
