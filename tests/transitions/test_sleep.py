"""sleep: a step that is a span of time."""

from __future__ import annotations

import pytest

from tests.support.driver import Driver
from tests.support.lua_harness import changes

DAY_MS = 86_400_000


@pytest.mark.spec("R-SLEEP-1", "R-WAKE-1")
def test_a_sleep_is_saved_as_a_step_and_ends_the_lease(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    driver.later(5)
    before = driver.state()
    reply = held.sleep("nap", 90_000)
    assert (reply.word, reply.position, reply.wake_ms) == ("OK", 2, driver.now + 90_000)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a k", "i:a 1.2", "e:a", "due lease:a", "due sleep:a",
    }  # fmt: skip
    assert (driver.head(), driver.due()) == ("SLEEPING", {"sleep:a": reply.wake_ms})
    record = driver.record()
    assert (record.deadline_ms, record.conn, record.attempt, record.steps) == (reply.wake_ms, 0, 1, 2)
    [_, step] = driver.turn(1).steps
    assert (step.key, step.kind, step.blob, step.saved_ms) == ("nap", "sleep", b"", driver.now)
    assert driver.events()[-2:] == [
        ("STEP_SAVED", 1, 1, "RUNNING", 2, "nap 2"),
        ("TURN_SLEEPING", 1, 1, "SLEEPING", 2, "nap 90000"),
    ]


@pytest.mark.spec("R-SLEEP-1", "R-FAIL-4")
def test_it_goes_on_in_the_same_attempt_with_the_sleep_among_its_steps(driver: Driver) -> None:
    driver.send()
    first = driver.take()
    first.sleep("nap", 365 * DAY_MS)
    driver.later(365 * DAY_MS - 1)
    assert (driver.expire(), driver.claim()) == ([], [])
    driver.later(1)
    [fired] = driver.expire()
    assert (fired.word, fired.kind, fired.id, fired.outcome) == ("FIRED", "sleep", "a", "ready")
    assert (driver.head(), driver.due(), driver.ready()) == ("QUEUED", {}, ["a"])
    assert driver.events()[-1] == ("TURN_READY", 1, 1, "QUEUED", 2, "")
    held = driver.take()
    assert (held.view.attempt, [step.key for step in held.view.steps]) == (1, ["nap"])
    assert held.view.failure is None
    assert driver.event_names().count("ATTEMPT_STARTED") == 1
    assert held.checkpoint("after").position == 2
    held.finish()
    assert (driver.receipt(1).attempts, driver.receipt(1).steps) == (1, 2)


@pytest.mark.spec("R-SLEEP-1")
def test_nothing_behind_it_runs_meanwhile(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().sleep()
    driver.later(999)
    assert (driver.expire(), driver.claim(), driver.ready()) == ([], [], [])
    assert driver.send("a", b"3").turn == 3
    driver.later(1)
    assert driver.call("settle", items=[{"id": "a"}]).replies[0].state == 1
    assert driver.take().view.turn == 1


@pytest.mark.spec("R-SLEEP-2", "R-STEP-2", "R-CMD-4")
def test_a_key_that_is_saved_is_refused(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    with driver.unchanged():
        reply = held.sleep("one")
        assert (reply.word, reply.state) == ("WRONG_STATE", "step_saved")
    assert held.sleep("two").word == "OK"
    driver.elapse(1_000)
    held = driver.take()
    assert held.checkpoint("two").word == "WRONG_STATE"


@pytest.mark.spec("R-SLEEP-2", "R-STEP-3", "R-LIMIT-1")
def test_it_counts_as_a_step(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    limits = {"max_steps": 2}
    held.checkpoint("one", limits=limits)
    assert held.sleep("two", limits=limits).word == "OK"
    driver.elapse(1_000)
    held = driver.take()
    with driver.unchanged():
        reply = held.sleep("three", limits=limits)
        assert (reply.word, reply.limit, reply.value, reply.max) == ("LIMIT_EXCEEDED", "steps_per_turn", 3, 2)
    size = driver.record().bytes
    with driver.unchanged():
        reply = held.sleep("three", limits={"max_turn": size - 1})
        assert (reply.word, reply.limit, reply.value) == ("LIMIT_EXCEEDED", "turn_bytes", size)
    assert held.sleep("three", limits={"max_turn": size, "max_steps": 3}).word == "OK"


@pytest.mark.spec("R-LEASE-3", "R-CMD-4")
def test_a_refused_sleep_is_a_sign_of_life(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    assert held.sleep("one", limits={"max_steps": 0}).word == "LIMIT_EXCEEDED"
    assert driver.record().accepted
    assert driver.due() == {"lease:a": driver.now + 60_000}
    assert driver.event_names()[-1] == "ATTEMPT_STARTED"


@pytest.mark.spec("R-SLEEP-1", "R-LEASE-3")
def test_a_sleep_may_be_the_first_sign_of_life(driver: Driver) -> None:
    driver.send()
    assert driver.lease().sleep().word == "OK"
    assert driver.record().attempt == 1
    assert driver.event_names()[-3:] == ["ATTEMPT_STARTED", "STEP_SAVED", "TURN_SLEEPING"]


@pytest.mark.spec("R-FENCE-3", "R-CMD-1", "R-CMD-3")
def test_words_that_refuse_it(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    with driver.unchanged():
        assert (
            driver.one("sleep", **{**held.item("sleep", key="k", ms=1), "id": "nobody"}).word == "NOT_FOUND"
        )
        assert driver.one("sleep", **{**held.item("sleep", key="k", ms=1), "fence": 99}).word == "STALE_FENCE"
        assert (held.sleep(n=2).word, held.sleep(n=2).last) == ("GAP", 0)
    held.checkpoint("one")
    held.checkpoint("two")
    with driver.unchanged():
        assert held.sleep(n=1).word == "ALREADY"
        assert held.sleep(n=2).word == "BODY_CONFLICT"
    held.release()
    with driver.unchanged():
        reply = held.sleep()
        assert (reply.word, reply.how) == ("LEASE_ENDED", "released")


@pytest.mark.spec("R-SLEEP-1", "R-CMD-2", "R-CMD-3")
def test_what_comes_after_it_under_the_old_lease(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.sleep()
    for _ in range(2):
        with driver.unchanged():
            for reply in (held.renew(), held.finish(), held.adopt("server02.9.9"), held.orphan()):
                assert (reply.word, reply.how) == ("LEASE_ENDED", "sleeping")
        driver.elapse(1_000)
        driver.claim()


@pytest.mark.spec("R-SLEEP-1")
def test_several_in_one_list(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    held = driver.claim(3)
    items = [one.item("sleep", key="nap", ms=ms) for one, ms in zip(held, (1, 2, 3), strict=True)]
    assert [reply.wake_ms - driver.now for reply in driver.call("sleep", items=items).replies] == [1, 2, 3]
    driver.later(2)
    assert [reply.id for reply in driver.expire()] == ["a", "b"]
