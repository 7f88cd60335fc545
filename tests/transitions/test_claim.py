"""claim: leases for the heads that are ready."""

from __future__ import annotations

import pytest

from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes


@pytest.mark.spec("R-LEASE-1", "R-LEASE-2")
def test_a_claim_leases_the_head_for_five_seconds_and_counts_no_attempt(driver: Driver) -> None:
    driver.create(state=b"json\0{}")
    driver.send("a", b"1", "m1", origin=b"from")
    driver.send("a", b"2")
    before = driver.state()
    held = driver.lease()
    view = held.view
    assert (view.instance_id, view.incarnation, view.turn, view.fence, view.attempt) == ("a", 1, 1, 1, 1)
    assert (view.max_attempts, view.lease_ms, view.attempt_timeout_ms) == (3, 60_000, 3_600_000)
    assert (view.message.message_id, view.message.blob, view.message.origin) == ("m1", b"\0001", b"from")
    assert (view.state, view.failure, view.steps) == (b"json\0{}", None, [])
    assert set(changes(before, driver.state())) == {
        "i:a r", "ready:t:v1:0 a", "types t:v1", "due lease:a", "meta fence",
    }  # fmt: skip
    record = driver.record()
    assert (record.accepted, record.attempt, record.conn) == (False, 0, driver.conn.encode())
    assert driver.due() == {"lease:a": driver.now + 5_000}
    assert driver.event_names()[-1] == "TURN_ADMITTED"


@pytest.mark.spec("R-LEASE-1")
def test_only_the_head_is_leased_and_only_once(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    assert [held.view.turn for held in driver.claim(10)] == [1]
    assert driver.claim(10) == []


@pytest.mark.spec("R-DELIVER-1")
def test_heads_are_claimed_in_the_order_in_which_they_became_ready(driver: Driver) -> None:
    for name in ("c", "a", "b"):
        driver.send(name)
        driver.later(1)
    driver.send("other", type="t", version="v2")
    assert [held.view.instance_id for held in driver.claim(2)] == ["c", "a"]
    assert [held.view.instance_id for held in driver.claim(2)] == ["b"]
    assert [held.view.instance_id for held in driver.claim(2, tv="t:v2")] == ["other"]
    assert driver.claim(2, tv="t:v3") == []


@pytest.mark.spec("R-DELIVER-1")
def test_a_backlog_longer_than_a_page_keeps_its_order(driver: Driver) -> None:
    names = [f"i{number:03}" for number in range(75)]
    for name in names:
        driver.later(1)
        driver.send(name)
    first = driver.claim(40)
    assert "types" in driver.state()
    rest = driver.claim(40)
    assert [held.view.instance_id for held in first + rest] == names
    assert "types" not in driver.state()


@pytest.mark.spec("R-DELIVER-3")
def test_a_claim_says_whether_more_is_ready(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.send(name)
    item = {"tv": TV, "limit": 1}
    assert driver.one("claim", **item).more
    assert not driver.one("claim", **{**item, "limit": 2}).more
    assert not driver.one("claim", **item).more


@pytest.mark.spec("R-DELIVER-3")
def test_types_names_what_is_ready_until_all_is_claimed(driver: Driver) -> None:
    first = driver.now
    driver.send("a")
    driver.later(10)
    driver.send("b")
    assert driver.state()["types"] == {TV: float(first)}
    driver.claim(1)
    assert list(driver.state()["types"]) == [TV]
    driver.claim(1)
    assert "types" not in driver.state()


@pytest.mark.spec("R-LEASE-1")
def test_one_list_serves_several_streams(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    driver.send("z", version="v2")
    items = [
        {"tv": TV, "limit": 1, "conn": "s.1.1"},
        {"tv": "t:v2", "limit": 5, "conn": "s.1.2"},
        {"tv": TV, "limit": 5, "conn": "s.1.3"},
        {"tv": TV, "limit": 5, "conn": "s.1.4"},
    ]
    replies = driver.call("claim", items=items).replies
    assert [[view[0] for view in reply.turns] for reply in replies] == [[b"a"], [b"z"], [b"b", b"c"], []]
    assert [reply.more for reply in replies] == [True, False, False, False]
    assert [driver.record(name).conn for name in ("a", "z", "b", "c")] == [
        b"s.1.1", b"s.1.2", b"s.1.3", b"s.1.3",
    ]  # fmt: skip


@pytest.mark.spec("R-DELIVER-1")
def test_a_claim_stops_at_its_bytes_but_gives_one_turn_at_least(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name, b"x" * 1_000, "m1")
    assert len(driver.claim(3, max_bytes=1)) == 1
    assert len(driver.claim(3, max_bytes=2_000)) == 2


@pytest.mark.spec("R-LEASE-1", "R-STEP-1")
def test_a_later_attempt_gets_steps_and_the_last_failure(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one", b"1")
    held.checkpoint("two", b"2")
    held.fail("BROKEN", message="why", details=b"json\0{}", delay_ms=0)
    view = driver.lease().view
    assert [(step.key, step.blob, step.attempt) for step in view.steps] == [
        ("one", b"\0001", 1), ("two", b"\0002", 1),
    ]  # fmt: skip
    assert view.failure is not None
    assert (view.attempt, view.failure.reason, view.failure.attempt) == (2, "BROKEN", 1)


@pytest.mark.spec("R-STEP-1")
def test_the_next_turn_begins_without_steps(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one")
    held.checkpoint("two")
    held.finish(step=("three", b"3"))
    again = driver.take()
    assert (again.view.turn, again.view.steps, again.view.attempt, again.view.failure) == (2, [], 1, None)
    assert again.checkpoint("one").position == 1


@pytest.mark.spec("R-FENCE-1")
def test_fences_rise_over_all_instances_and_generations(driver: Driver) -> None:
    fences: list[int] = []
    for generation in range(4):
        for name in ("a", "b"):
            driver.send(name, b"%d" % generation)
            held = driver.take(name)
            held.finish()
            fences.append(held.fence)
        driver.hello(f"run-{generation + 2}")
    assert fences == sorted(set(fences))
    assert fences[-1] == 3 * 2**32 + 8


@pytest.mark.spec("R-FENCE-1")
def test_fences_beyond_ten_to_the_thirteenth_are_exact(driver: Driver) -> None:
    high = 2**52
    driver.set_meta(fence=high)
    driver.send("a", b"1")
    driver.send("b", b"1")
    first, second = driver.claim(2)
    assert (first.fence, second.fence) == (high + 1, high + 2)
    assert (first.renew().word, second.renew().word) == ("OK", "OK")
    wrong = {**first.lease, "fence": high + 2}
    assert driver.one("renew", **wrong).word == "STALE_FENCE"
    first.finish()
    assert (driver.receipt(1).fence, driver.meta("fence")) == (high + 1, high + 2)
    assert first.renew().word == "LEASE_ENDED"


@pytest.mark.spec("R-DELIVER-1")
def test_a_stale_ready_entry_is_removed_and_gives_nothing(driver: Driver) -> None:
    driver.send("a")
    driver.take()
    driver.create("idle")
    for name in ("a", "idle", "gone"):
        driver.redis.call("ZADD", f"{driver.tag}ready:{TV}:0", 1, name)
    driver.redis.call("ZADD", f"{driver.tag}types", 1, TV)
    assert driver.claim() == []
    assert driver.ready() == []


@pytest.mark.spec("R-DELIVER-1")
def test_a_hundred_stale_entries_do_not_hide_what_is_ready(driver: Driver) -> None:
    for number in range(100):
        driver.redis.call("ZADD", f"{driver.tag}ready:{TV}:0", number, f"gone-{number}")
    driver.send("a")
    item = {"tv": TV, "limit": 1}
    first = driver.one("claim", **item)
    assert (first.turns, first.more) == ([], True), "more: ask again"
    assert driver.lease().view.instance_id == "a"


@pytest.mark.spec("R-DELIVER-2")
def test_an_empty_claim_registers_the_server_and_a_full_one_does_not(driver: Driver) -> None:
    waiting = f"waiting:{TV}"
    driver.claim()
    assert driver.state()[waiting] == {driver.server: driver.now + 5_000}
    driver.send("a")
    driver.send("b")
    driver.claim(1)
    assert waiting not in driver.state()
    driver.claim(2)
    assert driver.state()[waiting] == {driver.server: driver.now + 5_000}


@pytest.mark.spec("R-DELIVER-1")
def test_the_bytes_of_saved_steps_count(driver: Driver) -> None:
    driver.send("a")
    held = driver.take("a")
    held.checkpoint("one", b"x" * 500)
    held.release()
    driver.later(1)
    driver.send("b")
    assert [held.view.instance_id for held in driver.claim(2, max_bytes=500)] == ["a"]


@pytest.mark.spec("R-TYPE-1")
def test_one_setting_of_an_instance_leaves_the_other_to_its_type(driver: Driver) -> None:
    driver.put_type(lease_ms=7_000, max_attempts=4)
    driver.create("a", lease_ms=9_000)
    driver.create("b", max_attempts=6)
    views = {}
    for name in ("a", "b"):
        driver.send(name)
        held = driver.take(name)
        views[name] = (held.view.lease_ms, held.view.max_attempts)
        assert driver.record(name).deadline_ms == driver.now + held.view.lease_ms
    assert views == {"a": (9_000, 4), "b": (7_000, 6)}
