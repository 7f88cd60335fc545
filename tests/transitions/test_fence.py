"""A fence that is not the current one changes nothing, whoever brings it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.driver import Driver, Held

SCRIPTS = ["checkpoint", "finish", "fail", "release", "renew", "adopt", "orphan"]


def act(script: str, held: Held, **lease: Any) -> Any:
    """The next call of `script` under this lease, with parts of the lease exchanged."""
    given = {"checkpoint": {"key": "new", "output": b"\0new"}, "adopt": {"conn": "s.9.9"}}.get(script, {})
    if script == "finish":
        given = {"has_state": True, "state": b"\0stolen", "has_next": True, "next_message": b"\0next"}
    item = {**held.item(script, **given), **lease}
    return held.driver.call(script, items=[item]).replies[0]


def queued(driver: Driver) -> Held:
    """The head was never leased; the lease at hand is made up."""
    driver.send()
    driver.send("b")
    held = driver.claim(2)[1]
    held.view = held.view._replace(instance_id="a", fence=0, incarnation=1)
    return held


def running(driver: Driver) -> Held:
    """The head is leased, with a step saved, and not by whom the lease at hand says."""
    driver.send()
    held = driver.take()
    held.checkpoint()
    held.view = held.view._replace(fence=held.fence + 1)
    return held


def two_leases_on(driver: Driver) -> Held:
    """Two leases have ended and a third one lives; the one at hand is the first."""
    driver.send()
    held = driver.take()
    held.checkpoint()
    held.release()
    driver.take().release()
    driver.take()
    return held


def next_turn(driver: Driver) -> Held:
    """The lease at hand is of a turn that another lease finished, and the next turn runs."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.fail(delay_ms=0)
    driver.take().finish()
    driver.take()
    return held


def another_life(driver: Driver) -> Held:
    """The lease at hand is of another incarnation, all else equal."""
    driver.send()
    held = driver.take()
    held.view = held.view._replace(incarnation=2)
    return held


def future_turn(driver: Driver) -> Held:
    """The lease at hand names a turn behind the head."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.view = held.view._replace(turn=2)
    return held


def trimmed(driver: Driver) -> Held:
    """The receipt of the turn is gone."""
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send("a", b"1")
    held = driver.take()
    held.finish()
    driver.later(900_000)
    driver.trim()
    driver.send("a", b"2")
    driver.take()
    return held


BEFORE = [queued, running, two_leases_on, next_turn, another_life, future_turn, trimmed]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("before", BEFORE, ids=lambda before: before.__name__)
@pytest.mark.spec("R-FENCE-3")
def test_a_stale_fence_changes_nothing(driver: Driver, script: str, before: Callable[[Driver], Held]) -> None:
    held = before(driver)
    with driver.unchanged():
        assert act(script, held).word == "STALE_FENCE"
        assert act(script, held, fence=0).word == "STALE_FENCE"
        assert act(script, held, fence=-1).word == "STALE_FENCE"


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.spec("R-FENCE-3")
def test_a_lease_of_an_absent_instance_is_not_found(driver: Driver, script: str) -> None:
    driver.send()
    held = driver.take()
    with driver.unchanged():
        assert act(script, held, id="absent").word == "NOT_FOUND"


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("how", ["failed", "released", "expired", "lost", "returned", "completed"])
@pytest.mark.spec("R-CMD-3", "R-FENCE-3")
def test_a_lease_that_ended_changes_nothing(driver: Driver, script: str, how: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.lease()
    if how != "returned":
        held.checkpoint()
    held.end(how)
    with driver.unchanged():
        reply = act(script, held)
        assert (reply.word, reply.how) == ("LEASE_ENDED", how)
    driver.take()
    with driver.unchanged():
        reply = act(script, held)
        assert (reply.word, reply.how) == ("LEASE_ENDED", how), "and after the next claim"


@pytest.mark.spec("R-FENCE-2", "R-FENCE-3")
def test_a_lease_of_a_lost_suffix_stays_stale(driver: Driver) -> None:
    """A2: the claim had not reached the replica that was promoted; its fence must not come again."""
    driver.send()
    replica = driver.dump()
    first = driver.take()
    driver.restore(replica)
    assert driver.hello("run-2").changed
    second = driver.take()
    assert second.fence > first.fence
    with driver.unchanged():
        assert first.finish(b"done").word == "STALE_FENCE"
    assert second.finish().word == "OK"
