"""A record that can't be read: it is never taken for an absent one, and it stops no other instance."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
import pytest

from pawl_server.store.errors import StoreDamaged
from tests.support.driver import Driver
from tests.support.invariants import constants, unpack

BAD = ["not packed", b"\x01", b"\x93\x01\x00\x01", b"\x9a\x02\x00\x01\x01\x01\x01\x01\x01\x00\x02", ""]


@pytest.fixture(params=BAD, ids=range(len(BAD)))
def damaged(driver: Driver, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Instances a, b and c, each with a message; the record of b is damaged until the test is over."""
    for name in ("a", "b", "c"):
        driver.send(name)
    key = f"{driver.tag}i:b"
    good = driver.redis.call("HGET", key, "r")
    driver.redis.call("HSET", key, "r", request.param)
    yield driver
    driver.redis.call("HSET", key, "r", good)
    driver.redis.call("ZREM", f"{driver.tag}due", "lease:b")
    driver.call("sweep", limit=100)


@pytest.mark.spec("R-DAMAGE-1")
def test_others_in_a_list_get_their_answers(damaged: Driver) -> None:
    items = [damaged.message(name, b"2") for name in ("a", "b", "c")]
    first, bad, last = damaged.call("send", items=items).replies
    assert isinstance(bad, StoreDamaged)
    assert [reply.turn for reply in (first, last)] == [2, 2]
    found = damaged.call("get_instance", items=[{"id": "a"}, {"id": "b"}, {"id": "nobody"}]).replies
    assert [isinstance(reply, StoreDamaged) for reply in found] == [False, True, False]
    assert found[2].word == "NOT_FOUND"


@pytest.mark.spec("R-DAMAGE-1")
def test_it_is_never_made_anew(damaged: Driver) -> None:
    before = damaged.redis.call("HGETALL", f"{damaged.tag}i:b")
    for call in (lambda: damaged.create("b"), lambda: damaged.send("b"), lambda: damaged.get("b")):
        with pytest.raises(StoreDamaged):
            call()
    assert damaged.redis.call("HGETALL", f"{damaged.tag}i:b") == before


@pytest.mark.spec("R-DAMAGE-1")
def test_heads_behind_it_are_claimed(damaged: Driver) -> None:
    assert [held.view.instance_id for held in damaged.claim(3)] == ["a", "c"]


@pytest.mark.spec("R-DAMAGE-1")
def test_its_timers_hold_up_no_others(damaged: Driver) -> None:
    damaged.redis.call("ZADD", f"{damaged.tag}due", 1, "lease:b")
    [held, _] = damaged.claim(2)
    held.fail(delay_ms=1_000)
    damaged.later(1_000)
    assert [(reply.word, reply.id) for reply in damaged.expire()] == [("STALE", "b"), ("FIRED", "a")]
    assert damaged.due()["lease:b"] == damaged.now + 60_000
    assert damaged.state()["damaged"] == {"i:b": damaged.now}
    damaged.redis.call("DEL", f"{damaged.tag}damaged")


@pytest.mark.spec("R-DAMAGE-1")
def test_the_sweep_goes_on_and_leaves_it_where_it_is(damaged: Driver) -> None:
    damaged.redis.call("DEL", f"{damaged.tag}ready:t:v1:0")
    [reply] = damaged.call("sweep", limit=100).replies
    assert (reply.scanned, reply.repaired) == (3, 2)
    assert damaged.redis.call("ZSCORE", f"{damaged.tag}busy", "t:v1:b")


@pytest.mark.parametrize("receipt", [b"\xc1", b"\x93\x01\x02\x03", None], ids=["garbage", "short", "missing"])
@pytest.mark.spec("R-DAMAGE-1")
def test_a_receipt_that_cannot_be_read_stops_no_timer_and_no_neighbour(
    driver: Driver, receipt: bytes | None
) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for name in ("a", "b"):
        driver.send(name)
        driver.take(name).finish()
    key = f"{driver.tag}i:a"
    driver.redis.call("HSET", key, "1.h", receipt) if receipt else driver.redis.call("HDEL", key, "1.h")
    try:
        driver.later(2_000)
        assert {reply.id for reply in driver.expire()} == {"a", "b"}
        assert driver.record("b").kept == 2, "the neighbour was trimmed"
        items = [driver.message("a"), driver.message("b", b"2")]
        driver.redis.call("HDEL", key, "1.m")
        bad, fine = driver.call("send", items=items).replies
        assert isinstance(bad, StoreDamaged)
        assert fine.turn == 2
        driver.take("b").finish()
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DAMAGE-1")
def test_a_list_tells_damaged_and_absent_instances_apart_each_time(damaged: Driver) -> None:
    items = [{"id": name} for name in ("b", "nobody", "a", "b", "nobody")]
    replies = damaged.call("settle", items=items).replies
    words = ["DAMAGED" if isinstance(reply, StoreDamaged) else reply.word for reply in replies]
    assert words == ["DAMAGED", "NOT_FOUND", "OK", "DAMAGED", "NOT_FOUND"]


def receipt_with(driver: Driver, name: str, value: object) -> bytes:
    """Receipt 1 of instance a, with one element changed."""
    fields = unpack(driver.redis.call("HGET", f"{driver.tag}i:a", "1.h"))
    fields[constants("receipt")[name] - 1] = value
    return msgpack.packb(fields, use_bin_type=False) or b""


@pytest.mark.parametrize("name", ["R_FINISHED", "R_STEPS", "R_BYTES"])
@pytest.mark.spec("R-DAMAGE-1")
def test_a_receipt_with_text_for_a_number_ends_the_trimming_of_its_instance_alone(
    driver: Driver, name: str
) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    driver.send("a")
    driver.take("a").finish()
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.h", receipt_with(driver, name, b"x"))
    try:
        driver.later(2_000)
        assert driver.trim().trimmed == 0
        assert driver.record("a").kept == 1
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DAMAGE-1")
def test_a_trimmed_receipt_that_cannot_be_read_ends_the_trimming(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send("a")
    driver.take("a").finish()
    assert driver.record("a").kept == 2, "the payloads are gone"
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.h", b"\xc1")
    try:
        driver.later(900_000)
        assert (driver.trim().trimmed, driver.record("a").oldest) == (0, 1)
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.parametrize(
    ("field", "value"),
    [("1.m", msgpack.packb(7)), ("1.m", b"\xc1"), ("d:m-hello", b"one"), ("d:m-hello", b"q")],
)
@pytest.mark.spec("R-DAMAGE-1")
def test_a_repeat_of_a_message_that_cannot_be_read_is_not_admitted(
    driver: Driver, field: str, value: bytes
) -> None:
    driver.send("a")
    driver.redis.call("HSET", f"{driver.tag}i:a", field, value)
    try:
        with pytest.raises(StoreDamaged):
            driver.send("a")
        assert driver.record("a").tail == 1
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DAMAGE-1")
def test_a_head_without_its_message_is_marked_until_it_is_deleted(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.send(name)
    driver.redis.call("HDEL", f"{driver.tag}i:a", "1.m")
    try:
        assert [held.view.instance_id for held in driver.claim(2)] == ["b"]
        assert driver.state()["damaged"] == {"i:a": driver.now}
        driver.delete("a")
        assert "damaged" not in driver.state()
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DAMAGE-1")
def test_what_creation_fixed_cannot_be_read(driver: Driver) -> None:
    driver.create("a")
    driver.redis.call("HSET", f"{driver.tag}i:a", "o", b"\xc1")
    try:
        with driver.unchanged(), pytest.raises(StoreDamaged):
            driver.create("a")
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DAMAGE-1", "R-CANCEL-3")
def test_a_message_whose_receipt_is_gone_is_not_taken_back(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take("a").finish()
    driver.redis.call("HDEL", f"{driver.tag}i:a", "1.h")
    try:
        with driver.unchanged(), pytest.raises(StoreDamaged):
            driver.cancel_message("m-1")
    finally:
        driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DAMAGE-1", "R-CONTROL-1")
def test_an_answer_comes_before_a_parked_message_that_cannot_be_read(driver: Driver) -> None:
    driver.send("a")
    driver.take("a").fail(final=True)
    driver.park()
    driver.wake(request_id="used")
    kept = unpack(driver.redis.call("HGET", f"{driver.tag}i:a", "1.p"))
    broken = msgpack.packb([1, b"\xc1", *kept[2:]], use_bin_type=False) or b""
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.p", broken)
    with driver.unchanged():
        assert driver.redrive(request_id="used").word == "BODY_CONFLICT"
        with pytest.raises(StoreDamaged):
            driver.redrive()
