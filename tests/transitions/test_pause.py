"""pause and resume: whether turns of an instance begin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pawl_server.domain.states import TurnState
from tests.support.driver import TV, Driver, Held
from tests.support.lua_harness import changes

PAUSED, ACTIVE, IDLE = 4, 2, 1


@pytest.mark.spec("R-PAUSE-1", "R-WAKE-1")
def test_a_paused_instance_begins_no_turn(driver: Driver) -> None:
    driver.send("a")
    driver.send("b")
    before = driver.state()
    assert (driver.pause(comment="by hand").word, driver.again().changed) == ("OK", True)
    assert set(changes(before, driver.state())) == {
        "i:a r",
        "i:a c",
        "e:a",
        "paused t:v1:a",
        "ready:t:v1:0 a",
    }
    assert driver.events()[-1] == ("PAUSED", 0, 0, "", PAUSED, "by hand")
    assert driver.record().paused
    assert [held.view.instance_id for held in driver.claim(5)] == ["b"]
    assert driver.ready() == []


@pytest.mark.spec("R-PAUSE-1", "R-PAUSE-2")
def test_the_second_pause_and_the_second_resume_change_nothing(driver: Driver) -> None:
    driver.send()
    driver.pause()
    with driver.unchanged("i:a c"):
        assert (driver.pause().word, driver.again().changed) == ("OK", False)
    driver.resume()
    assert driver.state().get("paused") is None
    with driver.unchanged("i:a c"):
        assert (driver.resume().word, driver.again().changed) == ("OK", False)


@pytest.mark.spec("R-PAUSE-2")
def test_resume_makes_a_queued_head_ready(driver: Driver) -> None:
    driver.send()
    driver.pause()
    driver.later(1_000)
    result = driver.call("resume", id="a", comment="go")
    assert (result.replies[0].changed, result.ready) == (True, [TV])
    assert (driver.ready(), driver.events()[-1]) == (["a"], ("RESUMED", 0, 0, "", ACTIVE, "go"))
    assert driver.take().view.turn == 1


@pytest.mark.spec("R-PAUSE-1", "R-PAUSE-2")
def test_an_idle_instance_may_be_paused(driver: Driver) -> None:
    driver.create()
    driver.pause()
    assert driver.events()[-1].status == PAUSED
    driver.send()
    assert (driver.head(), driver.ready(), driver.sweep()) == ("QUEUED", [], (0, 0))
    driver.resume()
    driver.take().finish()
    driver.pause()
    driver.resume()
    assert (driver.events()[-1].status, driver.ready()) == (IDLE, [])


ENDS: dict[str, Callable[[Held], object]] = {
    "finish": lambda held: held.finish(),
    "fail": lambda held: held.fail(delay_ms=0),
    "backoff": lambda held: held.fail(delay_ms=500),
    "final": lambda held: held.fail(final=True),
    "release": lambda held: held.release(),
    "sleep": lambda held: held.sleep(ms=500),
    "wait": lambda held: held.wait(ms=500),
    "defer": lambda held: held.defer(500),
    "expire": lambda held: held.driver.elapse(60_000),
    "cancel": lambda held: held.driver.cancel(force=True),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.spec("R-PAUSE-1", "R-PAUSE-2", "R-WAKE-1")
def test_the_turn_that_runs_may_end_in_any_way(driver: Driver, end: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.pause()
    assert held.renew().word == "OK"
    assert held.checkpoint().word == "OK"
    ENDS[end](held)
    assert driver.events()[-1].status == PAUSED
    assert (driver.ready(), driver.sweep()) == ([], (0, 0))
    assert {kind.partition(":")[0] for kind in driver.due()} <= {"gc"}
    driver.elapse(500)
    assert (driver.ready(), driver.claim()) == ([], [])
    driver.resume()
    assert driver.ready() == ([] if end == "final" else ["a"])


@pytest.mark.parametrize("end", ["sleep", "wait", "defer", "backoff"])
@pytest.mark.parametrize("passed", [0, 300, 499, 500, 10_000])
@pytest.mark.spec("R-PAUSE-1", "R-PAUSE-2")
def test_a_delay_runs_on_and_what_is_left_of_it_is_waited_for(driver: Driver, end: str, passed: int) -> None:
    driver.send()
    ENDS[end](driver.take())
    due = driver.due()
    driver.pause()
    assert driver.due() == {}
    driver.later(passed)
    assert (driver.expire(), driver.claim(), driver.sweep()) == ([], [], (0, 0))
    driver.resume()
    if passed < 500:
        assert (driver.due(), driver.ready()) == (due, [])
        assert [reply.word for reply in driver.elapse(500 - passed)] == ["FIRED"]
    assert (driver.due(), driver.ready(), driver.head()) == ({}, ["a"], "QUEUED")


@pytest.mark.spec("R-PAUSE-1", "R-SETTLE-1")
def test_a18_a_pause_after_the_delay_is_over(driver: Driver) -> None:
    """The timer has not fired yet: whoever touches the instance finds the head ready; a claim finds none."""
    driver.send()
    driver.take().sleep(ms=500)
    driver.later(500)
    driver.pause()
    assert (driver.head(), driver.ready(), driver.due(), driver.claim()) == ("QUEUED", [], {}, [])
    assert driver.event_names()[-2:] == ["TURN_READY", "PAUSED"]
    driver.resume()
    assert driver.take().view.attempt == 1


@pytest.mark.spec("R-PAUSE-1")
def test_a18_a_stale_ready_entry_of_a_paused_instance_is_removed(driver: Driver) -> None:
    driver.send()
    driver.pause()
    driver.redis.call("ZADD", f"{driver.tag}ready:{TV}:0", 1, "a")
    assert driver.claim() == []
    assert driver.ready() == []


@pytest.mark.spec("R-PAUSE-1")
def test_a_lease_of_a_paused_instance_expires(driver: Driver) -> None:
    driver.send()
    driver.lease()
    driver.pause()
    assert [reply.outcome for reply in driver.elapse(5_000)] == ["returned"]
    assert (driver.head(), driver.ready()) == ("QUEUED", [])


@pytest.mark.spec("R-PAUSE-1", "R-PAUSE-2", "R-RETRY-1", "R-SKIP-1")
@pytest.mark.parametrize("decision", ["retry", "skip", "park", "cancel"])
def test_a_blocked_instance_may_be_paused_and_decided_about(driver: Driver, decision: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().fail(final=True)
    driver.pause()
    assert driver.state()["failed"] == driver.state()["paused"] == {f"{TV}:a": 0}
    assert getattr(driver, decision)().word == "OK"
    assert ("failed" in driver.state(), driver.ready(), driver.head()) == (False, [], "QUEUED")
    driver.resume()
    assert driver.take().view.turn == (1 if decision == "retry" else 2)


@pytest.mark.spec("R-PAUSE-2")
def test_resume_of_a_blocked_instance_leaves_it_blocked(driver: Driver) -> None:
    driver.send()
    driver.take().fail(final=True)
    driver.pause()
    driver.resume()
    assert (driver.head(), driver.ready(), driver.events()[-1].status) == ("FAILED", [], 3)


@pytest.mark.spec("R-PAUSE-1", "R-WAKE-2")
def test_wake_of_a_paused_instance_ends_the_delay_for_the_time_after(driver: Driver) -> None:
    driver.send()
    driver.take().fail(delay_ms=60_000)
    driver.pause()
    assert driver.wake().woken
    assert (driver.head(), driver.ready(), driver.due()) == ("QUEUED", [], {})
    driver.resume()
    assert driver.take().view.attempt == 2


@pytest.mark.spec("R-PAUSE-1", "R-DELAY-1", "R-TTL-1")
def test_messages_of_a_paused_instance_are_admitted_and_expire(driver: Driver) -> None:
    driver.create()
    driver.pause()
    driver.send("a", b"late", delay_ms=500)
    driver.send("a", b"short", ttl_ms=500)
    assert {reply.outcome for reply in driver.elapse(500)} == {"admitted", "expired"}
    assert driver.receipt(1).state == TurnState.EXPIRED
    assert (driver.record().head, driver.head(), driver.ready()) == (2, "QUEUED", [])
    driver.resume()
    assert driver.take().view.turn == 2


@pytest.mark.spec("R-CONTROL-1")
def test_words_that_refuse_them(driver: Driver) -> None:
    driver.create()
    for script in ("pause", "resume"):
        with driver.unchanged():
            assert driver.control(script, "nobody").word == "NOT_FOUND"
        driver.control(script, request_id=f"{script}-1", comment="one")
        with driver.unchanged():
            assert driver.control(script, request_id=f"{script}-1", comment="two").word == "BODY_CONFLICT"
