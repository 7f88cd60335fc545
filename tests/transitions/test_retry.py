"""retry: more attempts for a turn that has failed for good."""

from __future__ import annotations

import pytest

from pawl_server.domain.states import TurnState
from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes


def exhaust(driver: Driver, attempts: int = 3) -> None:
    """The head fails so many times, the last time for good."""
    for attempt in range(attempts, 0, -1):
        reply = driver.take().fail(delay_ms=0)
        assert reply.state == (TurnState.FAILED if attempt == 1 else TurnState.QUEUED)


@pytest.mark.spec("R-RETRY-1", "R-FAIL-3")
def test_a_failed_turn_gets_another_round(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one")
    held.fail(delay_ms=0)
    exhaust(driver, 2)
    driver.later(10)
    before = driver.state()
    result = driver.call("retry", id="a", turn=1, attempt=3, comment="fixed", request_id="r", digest=b"d")
    [reply] = result.replies
    assert (reply.word, reply.state, reply.max_attempts, result.ready) == ("OK", TurnState.QUEUED, 6, [TV])
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a c", "e:a", "failed t:v1:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert driver.events()[-1] == ("TURN_RETRIED", 1, 3, "QUEUED", 2, "fixed")
    view = driver.take().view
    assert (view.turn, view.attempt, view.max_attempts) == (1, 4, 6)
    assert view.failure is not None
    assert (view.failure.attempt, [step.key for step in view.steps]) == (3, ["one"])
    driver.elapse(60_000)
    exhaust(driver, 2)
    assert (driver.head(), driver.record().attempt) == ("FAILED", 6)
    assert driver.retry().max_attempts == 9
    driver.take().finish()
    assert driver.receipt(1).attempts == 7
    assert driver.take().view.max_attempts == 3, "the next turn begins anew"


@pytest.mark.spec("R-RETRY-1")
def test_after_a_permanent_failure(driver: Driver) -> None:
    driver.send()
    driver.take().fail(final=True)
    assert driver.retry().max_attempts == 4
    exhaust(driver, 3)
    assert driver.record().attempt == 4


@pytest.mark.spec("R-RETRY-2", "R-FAIL-1")
def test_the_backoff_begins_anew_with_each_round(driver: Driver) -> None:
    driver.put_type(max_attempts=3)
    driver.send()

    def failing() -> list[int]:
        delays = []
        while driver.head() != "FAILED":
            delays.append(driver.take().fail().delay_ms)
            driver.elapse(delays[-1])
        return delays

    assert failing() == [1_000, 2_000, 0]
    driver.retry()
    assert failing() == [1_000, 2_000, 0]
    driver.retry()
    driver.take().fail(final=True)
    driver.retry()
    driver.take().orphan()
    driver.elapse(300)
    assert failing() == [1_000, 2_000, 0], "losses do not count"


@pytest.mark.spec("R-RETRY-1", "R-EXPIRE-3")
def test_after_ten_losses(driver: Driver) -> None:
    driver.send()
    for round_number in range(2):
        for loss in range(10):
            held = driver.take()
            assert held.view.attempt == round_number * 10 + loss + 1
            held.orphan()
            outcome = driver.elapse(300)[0].outcome
            assert outcome == ("failed" if loss == 9 else "lost")
        assert driver.head() == "FAILED"
        driver.retry()
    assert driver.take().view.max_attempts == 3, "losses use up no attempts"


@pytest.mark.spec("R-RETRY-1", "R-EXPIRE-2")
def test_after_deliveries_that_nobody_received(driver: Driver) -> None:
    driver.put_type(max_attempts=1)
    driver.send()
    for attempts in (1, 2):
        for delivery in range(11):
            driver.lease()
            assert driver.elapse(5_000)[0].outcome == ("failed" if delivery == 10 else "returned")
        assert (driver.head(), driver.record().attempt) == ("FAILED", attempts)
        driver.retry()
    assert driver.head() == "QUEUED"


@pytest.mark.spec("R-RETRY-1", "R-TYPE-1")
def test_the_limits_in_force_count(driver: Driver) -> None:
    driver.send("a")
    driver.send("b", max_attempts=2, create_digest=b"own")
    for held in driver.claim(2):
        held.fail(final=True)
    driver.put_type(max_attempts=5)
    assert (driver.retry(1, "a").max_attempts, driver.retry(1, "b").max_attempts) == (6, 3)


@pytest.mark.parametrize("script", ["retry", "skip", "park"])
@pytest.mark.spec("R-RETRY-1", "R-SKIP-1", "R-PARK-1", "R-CONTROL-2")
def test_what_may_be_decided_about(driver: Driver, script: str) -> None:
    """Only a turn that has failed for good, and only the failure that was seen."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().finish()
    driver.send("a", b"3")

    def states() -> list[tuple[str, int, int]]:
        with driver.unchanged():
            replies = [driver.control(script, turn=turn) for turn in (1, 2, 3)]
        return [(reply.word, reply.state, reply.attempt) for reply in replies]

    done, queued = ("WRONG_STATE", TurnState.COMPLETED, 0), ("WRONG_STATE", TurnState.QUEUED, 0)
    assert states() == [done, queued, queued]
    held = driver.take()
    assert states()[1] == ("WRONG_STATE", TurnState.RUNNING, 0)
    held.sleep(ms=1)
    assert states()[1] == ("WRONG_STATE", TurnState.SLEEPING, 0)
    driver.elapse(1)
    driver.take().defer(1)
    assert states()[1] == ("WRONG_STATE", TurnState.DEFERRED, 0)
    driver.elapse(1)
    driver.take().fail(delay_ms=1)
    assert states()[1] == ("WRONG_STATE", TurnState.BACKOFF, 0)
    driver.elapse(1)
    driver.take().fail(final=True)
    with driver.unchanged():
        assert driver.control(script, "nobody", turn=2).word == "NOT_FOUND"
        assert driver.control(script, turn=2, inc=99).word == "NOT_FOUND"
        assert [driver.control(script, turn=turn).word for turn in (-1, 0, 4)] == ["NOT_FOUND"] * 3
        for attempt in (1, 3):
            reply = driver.control(script, turn=2, attempt=attempt)
            assert (reply.word, reply.state, reply.attempt) == ("WRONG_STATE", TurnState.FAILED, 2)
        assert driver.control(script, turn=3).state == TurnState.QUEUED
    assert driver.control(script, turn=2, attempt=2, inc=1).word == "OK"


@pytest.mark.parametrize("script", ["retry", "skip", "park", "cancel", "redrive"])
@pytest.mark.spec("R-TRIM-2", "R-RETRY-1")
def test_a_turn_that_was_trimmed(driver: Driver, script: str) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    for body in (b"1", b"2"):
        driver.send("a", body)
        driver.take().finish()
    driver.later(900_000)
    driver.trim()
    with driver.unchanged():
        assert getattr(driver, script)(1).word == "PRUNED"
