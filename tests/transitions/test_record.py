"""The record of an instance: what it holds after which call, and that every change of it is stored."""

from __future__ import annotations

import pytest

from tests.support.driver import Driver
from tests.support.invariants import Packed, unpack

RECEIPT = ("HOW", "N", "DIGEST", "WORD", "ANSWER1", "ANSWER2")


def stored(driver: Driver, name: str = "a") -> bytes:
    """The record as it is stored."""
    return driver.redis.call("HGET", f"{driver.tag}i:{name}", "r")


def test_trailing_zeros_are_not_stored(driver: Driver) -> None:
    driver.create()
    assert len(unpack(stored(driver))) == 10
    driver.send()
    queued = len(unpack(stored(driver)))
    assert unpack(stored(driver))[-1] != 0
    driver.take().finish()
    assert len(unpack(stored(driver))) == 10 < queued


@pytest.mark.spec("R-CMD-3")
def test_a_new_lease_begins_without_receipts_and_keeps_those_of_the_one_before(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint()
    held.fail(delay_ms=1_000)
    before = Packed(stored(driver), "record")
    assert [before[name] for name in ("HOW", "N", "WORD", "ANSWER2")] == [2, 2, 2, 1_000]
    driver.later(1_000)
    driver.expire()
    driver.lease()
    record = Packed(stored(driver), "record")
    assert [record[name] for name in RECEIPT] == [0] * 6
    assert [record[f"P{name}"] for name in RECEIPT] == [before[name] for name in RECEIPT]
    assert record["PFENCE"] == before["FENCE"]


@pytest.mark.parametrize("how", ["failed", "released", "expired", "lost", "returned"])
@pytest.mark.spec("R-LEASE-1")
def test_a_lease_that_ended_leaves_no_holder(driver: Driver, how: str) -> None:
    driver.send()
    driver.lease().end(how)
    record = driver.record()
    assert (record.conn or b"", record.deadline_ms, record.accepted, record.orphaned) == (
        b"",
        0,
        False,
        False,
    )


@pytest.mark.spec("R-SETTLE-1")
def test_a_delay_that_is_over_leaves_no_deadline(driver: Driver) -> None:
    driver.send()
    driver.take().fail(delay_ms=1_000)
    assert driver.record().deadline_ms == driver.now + 1_000
    driver.later(1_000)
    driver.one("settle", id="a")
    assert driver.record().deadline_ms == 0


@pytest.mark.spec("R-WAKE-1")
def test_a_delay_that_was_ended_leaves_no_deadline(driver: Driver) -> None:
    driver.send()
    driver.take().fail(delay_ms=1_000)
    driver.wake()
    assert (driver.head(), driver.record().deadline_ms) == ("QUEUED", 0)


@pytest.mark.spec("R-LEASE-8")
def test_an_orphaning_that_shortens_nothing_is_stored_and_undone(driver: Driver) -> None:
    """At the ceiling of the attempt a renewal moves no deadline; what it changes is stored all the same."""
    driver.put_type(attempt_timeout_ms=10_000)
    driver.send()
    held = driver.take()
    deadline = driver.record().deadline_ms
    assert held.orphan(grace_ms=60_000).deadline_ms == deadline == driver.now + 10_000
    assert driver.record().orphaned
    assert held.renew().remaining_ms == 10_000
    assert not driver.record().orphaned


@pytest.mark.spec("R-TRIM-1")
def test_a_trim_that_removes_nothing_arms_and_disarms_its_timer(driver: Driver) -> None:
    driver.put_type(min_turns=9)
    driver.send()
    driver.take().finish()
    assert "gc:a" not in driver.due()
    driver.put_type(min_turns=0, max_age_ms=5_000)
    assert (driver.trim().trimmed, driver.due()["gc:a"]) == (0, driver.now + 5_000)
    assert driver.violations() == [], "the timer is noted in the record"
    driver.put_type(min_turns=9)
    driver.later(5_000)
    assert [(reply.kind, reply.outcome) for reply in driver.expire()] == [("gc", "0")]
    assert "gc:a" not in driver.due()
