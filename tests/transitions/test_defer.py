"""defer: the turn is put off, and no attempt is used."""

from __future__ import annotations

import pytest

from tests.support.driver import Driver
from tests.support.lua_harness import changes


@pytest.mark.spec("R-DEFER-1", "R-WAKE-1")
def test_a_deferral_ends_the_lease(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    before = driver.state()
    reply = held.defer(45_000, "budget")
    assert (reply.word, reply.due_ms) == ("OK", driver.now + 45_000)
    assert set(changes(before, driver.state())) == {"i:a r", "e:a", "due lease:a", "due defer:a"}
    assert (driver.head(), driver.due()) == ("DEFERRED", {"defer:a": reply.due_ms})
    assert driver.record().defers == 1
    assert driver.events()[-1] == ("TURN_DEFERRED", 1, 1, "DEFERRED", 2, "budget 45000")


@pytest.mark.spec("R-DEFER-1", "R-FAIL-4")
def test_it_goes_on_in_the_same_attempt_with_its_steps(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one")
    for _ in range(5):
        held.defer(1_000)
        driver.later(999)
        assert (driver.expire(), driver.claim()) == ([], [])
        driver.later(1)
        [fired] = driver.expire()
        assert (fired.word, fired.kind, fired.outcome) == ("FIRED", "defer", "ready")
        held = driver.take()
        assert (held.view.turn, held.view.attempt, [step.key for step in held.view.steps]) == (1, 1, ["one"])
    assert driver.event_names().count("ATTEMPT_STARTED") == 1
    assert driver.record().failures == 0
    held.finish()
    assert driver.record().defers == 0, "the next turn begins anew"


@pytest.mark.spec("R-DEFER-3", "R-CMD-1", "R-CMD-2")
def test_the_record_has_the_reason_until_the_turn_goes_on(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    due = held.defer(1_000, "budget").due_ms
    assert driver.record().answer2 == b"budget"
    with driver.unchanged():
        again = held.defer(1_000, "budget", n=held.n)
        assert (again.word, again.due_ms) == ("OK", due)
    driver.elapse(1_000)
    later = driver.take()
    record = driver.record()
    assert (record.answer2, record.previous_answer1, record.previous_answer2) == (0, due, 0)
    assert later.defer(1_000).word == "OK"
    assert driver.record().answer2 == 0, "no reason"
    driver.elapse(1_000)
    driver.take().finish()


@pytest.mark.spec("R-DEFER-2", "R-LIMIT-1")
def test_how_often_a_turn_may_be_put_off(driver: Driver) -> None:
    driver.send()
    for _ in range(2):
        assert driver.take().defer(limits={"max_defers": 2}).word == "OK"
        driver.elapse(1_000)
    held = driver.lease()
    reply = held.defer(limits={"max_defers": 2})
    assert (reply.word, reply.limit, reply.value, reply.max) == ("LIMIT_EXCEEDED", "defers_per_turn", 3, 2)
    assert (driver.head(), driver.due()) == ("RUNNING", {"lease:a": driver.now + 60_000})
    with driver.unchanged():
        assert held.defer(limits={"max_defers": 2}).word == "LIMIT_EXCEEDED"
    assert held.finish().word == "OK"


@pytest.mark.spec("R-DEFER-1", "R-LEASE-3")
def test_a_deferral_may_be_the_first_sign_of_life(driver: Driver) -> None:
    driver.send()
    assert driver.lease().defer().word == "OK"
    assert driver.record().attempt == 1
    assert driver.event_names()[-2:] == ["ATTEMPT_STARTED", "TURN_DEFERRED"]


@pytest.mark.spec("R-FENCE-3", "R-CMD-1", "R-CMD-3")
def test_words_that_refuse_it(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    with driver.unchanged():
        assert driver.one("defer", **{**held.item("defer", ms=1), "id": "nobody"}).word == "NOT_FOUND"
        assert driver.one("defer", **{**held.item("defer", ms=1), "fence": 99}).word == "STALE_FENCE"
        assert (held.defer(n=2).word, held.defer(n=2).last) == ("GAP", 0)
    held.checkpoint("one")
    held.checkpoint("two")
    with driver.unchanged():
        assert held.defer(n=1).word == "ALREADY"
        assert held.defer(n=2).word == "BODY_CONFLICT"
    held.defer()
    with driver.unchanged():
        reply = held.defer()
        assert (reply.word, reply.how) == ("LEASE_ENDED", "deferred")


@pytest.mark.spec("R-CMD-3", "R-DEFER-1")
def test_c1_a_finish_after_the_handler_put_the_turn_off(driver: Driver) -> None:
    """The handler defers its turn and then returns; the SDK also completes the turn."""
    driver.create(state=b"json\0old")
    driver.send()
    held = driver.take()
    held.defer(1_000)
    with driver.unchanged():
        reply = held.finish(b"done", state=b"new")
    assert (reply.word, reply.how) == ("LEASE_ENDED", "deferred")
    driver.later(1_000)
    [fired] = driver.expire()
    assert fired.outcome == "ready"
    again = driver.take()
    assert (again.view.attempt, again.view.state, driver.record().failures) == (1, b"json\0old", 0)
    assert driver.event_names().count("TURN_READY") == 1


@pytest.mark.spec("R-DEFER-1")
def test_several_in_one_list(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.send(name)
    items = [one.item("defer", ms=ms) for one, ms in zip(driver.claim(2), (1, 2), strict=True)]
    assert [reply.due_ms - driver.now for reply in driver.call("defer", items=items).replies] == [1, 2]
