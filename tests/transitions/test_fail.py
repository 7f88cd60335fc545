"""fail, settle: failed attempts, backoff, and the end of a turn that blocks its inbox."""

from __future__ import annotations

import pytest

from pawl_server.domain.states import TurnState
from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes


@pytest.mark.spec("R-FAIL-1", "R-FAIL-3")
def test_a_failed_attempt_backs_off_and_keeps_everything_else(driver: Driver) -> None:
    driver.create(state=b"json\0old")
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one")
    before = driver.state()
    reply = held.fail("BROKEN", message="why", details=b"json\0{}", truncated=True)
    assert (reply.word, reply.state, reply.delay_ms) == ("OK", TurnState.BACKOFF, 1_000)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a 1.f", "e:a", "due lease:a", "due backoff:a",
    }  # fmt: skip
    assert driver.due() == {"backoff:a": driver.now + 1_000}
    assert driver.events()[-1] == ("ATTEMPT_FAILED", 1, 1, "BACKOFF", 2, "BROKEN")
    failure = driver.turn(1).failure
    assert failure is not None
    assert failure == (1, driver.now, "BROKEN", "why", b"json\0{}", False, True, b"")
    assert driver.claim() == []


@pytest.mark.spec("R-FAIL-1")
def test_the_backoff_doubles_up_to_its_maximum(driver: Driver) -> None:
    driver.put_type(max_attempts=100)
    driver.send()
    delays = []
    for _ in range(9):
        delays.append(driver.take().fail().delay_ms)
        driver.later(delays[-1])
        driver.expire()
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


@pytest.mark.spec("R-FAIL-1", "R-TYPE-1")
def test_the_backoff_follows_the_settings(driver: Driver) -> None:
    driver.put_type(max_attempts=100, backoff_initial_ms=50, backoff_max_ms=400, backoff_factor=2.5)
    driver.send()
    delays = []
    for _ in range(5):
        delays.append(driver.take().fail().delay_ms)
        driver.later(delays[-1])
        driver.expire()
    assert delays == [50, 125, 312, 400, 400]


@pytest.mark.spec("R-FAIL-1")
def test_a_factor_that_overflows_still_means_the_maximum(driver: Driver) -> None:
    driver.put_type(max_attempts=2_000, backoff_initial_ms=1, backoff_max_ms=7, backoff_factor=100)
    driver.send()
    delay = 0
    for _ in range(200):
        delay = driver.take().fail().delay_ms
        driver.later(delay)
        driver.expire()
    assert delay == 7


@pytest.mark.spec("R-FAIL-1")
def test_the_worker_may_give_the_delay(driver: Driver) -> None:
    driver.send()
    assert driver.take().fail(delay_ms=12_345).delay_ms == 12_345
    driver.later(12_345)
    driver.expire()
    reply = driver.take().fail(delay_ms=0)
    assert (reply.state, reply.delay_ms) == (TurnState.QUEUED, 0)
    assert driver.ready() == ["a"]


@pytest.mark.spec("R-FAIL-1", "R-WAKE-1")
def test_the_end_of_the_backoff_makes_the_turn_ready(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    driver.later(999)
    assert driver.expire() == []
    driver.later(1)
    result = driver.call("expire", limit=10)
    assert [(reply.word, reply.kind, reply.outcome) for reply in result.replies[:-1]] == [
        ("FIRED", "backoff", "ready")
    ]
    assert (result.ready, driver.due()) == ([TV], {})
    assert driver.take().view.attempt == 2


@pytest.mark.spec("R-SETTLE-1", "R-WAKE-1")
def test_a_backoff_that_is_over_needs_no_timer(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    with driver.unchanged():
        assert driver.one("settle", id="a").state == TurnState.BACKOFF
        assert driver.one("settle", id="absent").word == "NOT_FOUND"
    driver.later(1_000)
    result = driver.call("settle", items=[{"id": "a"}, {"id": "a"}])
    assert [reply.state for reply in result.replies] == [TurnState.QUEUED] * 2
    assert (result.ready, driver.ready(), driver.due()) == ([TV], ["a"], {})
    with driver.unchanged():
        assert driver.one("settle", id="a").state == TurnState.QUEUED


@pytest.mark.spec("R-SETTLE-1")
def test_the_timer_and_a_settling_call_make_it_ready_once(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    driver.later(1_000)
    driver.one("settle", id="a")
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now, "backoff:a")
    with driver.unchanged("due backoff:a"):
        assert [(reply.word, reply.kind) for reply in driver.expire()] == [("STALE", "backoff")]
    assert driver.due() == {}


@pytest.mark.spec("R-FAIL-2", "R-WAKE-1")
def test_the_last_attempt_blocks_the_inbox(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    for attempt in (1, 2):
        held = driver.take()
        assert held.view.attempt == attempt
        assert held.fail(delay_ms=0).state == TurnState.QUEUED
    reply = driver.take().fail()
    assert (reply.state, reply.delay_ms) == (TurnState.FAILED, 0)
    assert driver.events()[-2:] == [
        ("ATTEMPT_FAILED", 1, 3, "FAILED", 2, "ERROR"),
        ("TURN_FAILED", 1, 3, "FAILED", 3, "ERROR"),
    ]
    assert (driver.due(), driver.ready()) == ({}, [])
    assert driver.state()["busy"] == driver.state()["failed"] == {"t:v1:a": 0}
    driver.later(10**9)
    assert (driver.expire(), driver.claim(), driver.sweep()) == ([], [], (0, 0))


@pytest.mark.spec("R-FAIL-2")
def test_a_final_failure_blocks_at_once(driver: Driver) -> None:
    driver.send()
    reply = driver.take().fail("NOPE", final=True, delay_ms=5)
    assert (reply.state, reply.delay_ms) == (TurnState.FAILED, 0)
    failure = driver.turn(1).failure
    assert failure is not None
    assert failure.final
    assert driver.head() == "FAILED"


@pytest.mark.parametrize("own", [0, 2], ids=["of the type", "of its own"])
@pytest.mark.spec("R-FAIL-2", "R-TYPE-1")
def test_the_number_of_attempts_follows_the_settings(driver: Driver, own: int) -> None:
    driver.put_type(max_attempts=2 if own == 0 else 9)
    driver.create(max_attempts=own)
    driver.send()
    held = driver.take()
    assert held.view.max_attempts == 2
    held.fail(delay_ms=0)
    assert driver.take().fail().state == TurnState.FAILED


@pytest.mark.spec("R-TYPE-1")
def test_a_setting_holds_for_the_next_transition_that_needs_it(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.put_type(max_attempts=1)
    assert held.fail().state == TurnState.FAILED


@pytest.mark.spec("R-FAIL-4", "R-LEASE-3")
def test_a_failure_of_a_turn_nobody_had_received_receives_it_first(driver: Driver) -> None:
    driver.send()
    assert driver.lease().fail(delay_ms=0).word == "OK"
    assert driver.event_names()[-2:] == ["ATTEMPT_STARTED", "ATTEMPT_FAILED"]
    assert driver.take().view.attempt == 2


@pytest.mark.spec("R-FAIL-3")
def test_only_the_last_failure_is_kept(driver: Driver) -> None:
    driver.send()
    driver.take().fail("ONE", delay_ms=0)
    driver.later(5)
    driver.take().fail("TWO", delay_ms=0)
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.attempt, failure.reason, failure.failed_ms) == (2, "TWO", driver.now)


@pytest.mark.spec("R-WAKE-1")
def test_a_list_of_failures_is_judged_one_by_one(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    first, second, third = driver.claim(3)
    items = [
        first.item("fail", reason="X", delay_ms=0),
        second.item("fail", reason="X", delay_ms=10),
        third.item("fail", reason="X", final=True),
        first.item("fail", reason="X", delay_ms=0),
    ]
    result = driver.call("fail", items=items)
    states = [reply.state for reply in result.replies]
    assert states == [TurnState.QUEUED, TurnState.BACKOFF, TurnState.FAILED, TurnState.QUEUED]
    assert (result.ready, driver.ready(), driver.due()) == ([TV], ["a"], {"backoff:b": driver.now + 10})
    assert driver.record("a").failures == 1
