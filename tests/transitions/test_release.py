"""Giving turns back, again and again; and servers that no longer wait."""

from __future__ import annotations

import pytest

from tests.support.driver import TV, Driver


@pytest.mark.spec("R-LEASE-9")
def test_a_turn_that_is_given_back_without_end_slows_down_and_costs_no_attempt(driver: Driver) -> None:
    driver.send()
    for number in range(1, 13):
        driver.take().release()
        record = driver.record("a")
        assert (record.failures, record.lost) == (0, 0)
        if number <= 10:
            assert driver.head() == "QUEUED"
        else:
            assert driver.head() == "BACKOFF"
            assert driver.due() == {"backoff:a": driver.now + 1_000}
            driver.later(1_000)
            driver.expire()
    driver.take().finish()
    assert driver.record("a").releases == 0, "the next turn begins anew"


@pytest.mark.spec("R-DELIVER-2")
def test_servers_that_are_gone_leave_nothing_behind(driver: Driver) -> None:
    for number in range(20):
        driver.server = f"run{number}"
        driver.claim()
        driver.later(6_000)
    assert list(driver.state()[f"waiting:{TV}"]) == ["run19"]
    assert 0 < driver.redis.call("PTTL", f"{driver.tag}waiting:{TV}") <= 10_000
