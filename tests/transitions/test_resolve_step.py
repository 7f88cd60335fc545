"""Turns whose attempt ended in a step that must not be repeated unseen, and what is decided about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from pawl_server.store import records
from tests.support.driver import Driver, Held
from tests.support.listener import listening

SAVE, RETRY, FAIL = 1, 2, 3
PARK = 2
ENDS: dict[str, tuple[Callable[[Driver, Held], Any], str, str]] = {
    "expired": (lambda driver, _: driver.elapse(60_000), "ATTEMPT_EXPIRED", "ATTEMPT_EXPIRED"),
    "lost": (lambda _, held: held.end("lost"), "ATTEMPT_LOST", "WORKER_LOST"),
    "timeout": (lambda driver, _: driver.elapse(50_000), "ATTEMPT_EXPIRED", "OPERATION_TIMEOUT"),
    "released": (lambda _, held: held.release(), "TURN_RELEASED", ""),
}  # fmt: skip


def begun(driver: Driver, **given: Any) -> Held:
    """A turn in a step that must not be repeated unseen."""
    driver.send()
    held = driver.take()
    assert held.start(on_restart=PARK, **{"timeout_ms": 200_000, **given}).word == "OK"
    return held


def uncertain(driver: Driver, attempts: int = 3) -> Held:
    """A turn that nobody knows the outcome of."""
    driver.put_type(max_attempts=attempts)
    held = begun(driver)
    driver.elapse(60_000)
    assert driver.head() == "UNCERTAIN"
    return held


@pytest.mark.spec("R-UNCERTAIN-1")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("attempts", [1, 3])
def test_the_turn_waits_for_a_decision(driver: Driver, end: str, attempts: int) -> None:
    act, event, reason = ENDS[end]
    driver.put_type(max_attempts=attempts)
    held = begun(driver, timeout_ms=50_000 if end == "timeout" else 200_000)
    assert driver.one("await", id="a", turn=1).word == "PENDING"
    with listening(driver, driver.server) as (own,):
        act(driver, held)
        assert "done 1 a" in own.heard(), "as for a turn that failed"
    assert (driver.head(), driver.due()) == ("UNCERTAIN", {})
    assert [one.name for one in driver.events()[-2:]] == [event, "TURN_UNCERTAIN"]
    assert driver.events()[-1][1:] == (1, 1, "UNCERTAIN", 3, "step")
    failure = driver.turn(1).failure
    assert (failure.reason if failure else "") == reason
    record = driver.record()
    assert (record.failures, record.lost) == {
        "expired": (1, 0),
        "timeout": (1, 0),
        "lost": (0, 1),
        "released": (0, 0),
    }[end]
    assert driver.one("await", id="a", turn=1).word == "DONE"
    [entry] = driver.one("list_marked", set="failed", prefix="t:", limit=10).entries
    assert entry[1] == b"a"
    shown = driver.turn(1).operation
    assert shown is not None
    assert (shown.key, record.operation) == ("step", 1)
    assert driver.claim() == []
    with driver.unchanged():
        assert driver.elapse(86_400_000) == []


@pytest.mark.spec("R-UNCERTAIN-1")
def test_what_its_worker_said_is_certain(driver: Driver) -> None:
    begun(driver).fail(delay_ms=0)
    held = driver.take()
    assert held.view.operation is not None
    held.start(on_restart=PARK)
    held.checkpoint()
    driver.elapse(60_000)
    assert driver.head() == "QUEUED"
    held = driver.take()
    held.start("other", on_restart=1)
    driver.elapse(60_000)
    assert driver.head() == "FAILED", "the third attempt, in a step that may be repeated"


@pytest.mark.spec("R-UNCERTAIN-1")
def test_an_attempt_that_did_not_get_to_the_step_is_certain(driver: Driver) -> None:
    begun(driver).fail(delay_ms=0)
    driver.take()
    driver.elapse(60_000)
    assert driver.head() == "QUEUED"


@pytest.mark.spec("R-UNCERTAIN-2")
def test_it_happened(driver: Driver) -> None:
    uncertain(driver)
    reply = driver.resolve(SAVE, output=b"\0found", comment="seen at the bank")
    assert (reply.word, reply.state) == ("OK", TurnState.QUEUED)
    assert driver.events()[-2] == ("STEP_SAVED", 1, 1, "QUEUED", 2, "step 1")
    assert driver.events()[-1] == ("STEP_RESOLVED", 1, 1, "QUEUED", 2, "step 1 seen at the bank")
    assert driver.ready() == ["a"]
    held = driver.take()
    [step] = held.view.steps
    assert (step.key, step.kind, step.blob, step.attempt) == ("step", "step", b"\0found", 1)
    assert (step.saved_ms, step.resolved, step.outcome) == (driver.now, True, 0)
    assert (held.view.attempt, held.view.operation) == (2, None)
    assert held.checkpoint().state == "step_saved"
    assert held.checkpoint("two").position == 2
    assert held.finish().word == "OK"


@pytest.mark.spec("R-UNCERTAIN-2")
def test_it_may_run_again(driver: Driver) -> None:
    held = uncertain(driver)
    assert driver.resolve(RETRY).state == TurnState.QUEUED
    assert driver.events()[-1] == ("STEP_RESOLVED", 1, 1, "QUEUED", 2, "step 2 ")
    held = driver.take()
    assert (held.view.attempt, held.view.max_attempts, held.view.steps) == (2, 3, [])
    assert held.view.operation is not None
    held.start(on_restart=PARK)
    held.checkpoint()
    held.finish()


@pytest.mark.spec("R-UNCERTAIN-2", "R-POLICY-1")
@pytest.mark.parametrize(("policy", "state"), [(1, "FAILED"), (2, "SKIPPED"), (3, "PARKED")])
def test_it_fails_for_good(driver: Driver, policy: int, state: str) -> None:
    uncertain(driver)
    driver.put_type(on_exhausted=policy)
    driver.one("await", id="a", turn=1)
    given = {"reason": "LOST_MONEY", "message": "gone", "details": b"\0d", "cause": b"", "final": True}
    assert driver.resolve(FAIL, **given).state == TurnState[state]
    names = driver.event_names()
    assert names[names.index("STEP_RESOLVED") :][:2] == ["STEP_RESOLVED", "TURN_FAILED"]
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.reason, failure.message, failure.details) == ("LOST_MONEY", "gone", b"\0d")
    assert (failure.attempt, failure.failed_ms, failure.final) == (1, driver.now, True)
    assert driver.record().failures == (1 if state == "FAILED" else 0), "counted when the lease ended"
    assert driver.head() == ("FAILED" if state == "FAILED" else "")


@pytest.mark.spec("R-UNCERTAIN-2", "R-FAIL-3")
def test_an_attempt_that_was_given_back_counts_once_it_is_failed(driver: Driver) -> None:
    begun(driver).release()
    driver.resolve(FAIL, reason="NO")
    assert (driver.record().failures, driver.record().attempt) == (1, 1)
    driver.retry()
    held = driver.take()
    assert held.view.attempt == 2
    assert held.view.failure is not None
    held.finish()
    assert "1.f" not in driver.fields()


@pytest.mark.spec("R-UNCERTAIN-2")
@pytest.mark.parametrize("decision", [SAVE, RETRY])
def test_another_round_is_granted_only_if_no_attempt_is_left(driver: Driver, decision: int) -> None:
    uncertain(driver, attempts=1)
    driver.resolve(decision, output=b"\0x")
    assert driver.take().view.max_attempts == 2
    driver.cancel(force=True)
    driver.put_type(max_attempts=2)
    driver.send("a", b"2")
    driver.take().start(on_restart=PARK)
    driver.elapse(60_000)
    driver.resolve(decision, 2, output=b"\0x")
    assert driver.take().view.max_attempts == 2


@pytest.mark.spec("R-UNCERTAIN-2")
def test_a_round_of_losses_is_granted_too(driver: Driver) -> None:
    driver.send()
    for number in range(10):
        held = driver.take()
        if number == 9:
            held.start(on_restart=PARK)
        held.orphan(accepted=True)
        driver.elapse(300)
    assert driver.head() == "UNCERTAIN"
    driver.resolve(RETRY)
    assert (driver.record().extra_losses, driver.record().lost) == (10, 10)
    driver.take().orphan(accepted=True)
    driver.elapse(300)
    assert driver.head() == "QUEUED"


@pytest.mark.spec("R-UNCERTAIN-2")
def test_time_that_is_over_for_all_attempts_begins_anew(driver: Driver) -> None:
    driver.put_type(max_elapsed_ms=30_000)
    begun(driver)
    driver.elapse(60_000)
    assert driver.head() == "UNCERTAIN"
    driver.resolve(RETRY)
    assert driver.record().failing_ms == 0


@pytest.mark.spec("R-UNCERTAIN-3", "R-CONTROL-1")
@pytest.mark.parametrize("decision", [SAVE, RETRY, FAIL])
def test_a_repeat_gets_the_first_answer(driver: Driver, decision: int) -> None:
    uncertain(driver)
    first = driver.resolve(decision, output=b"\0x", reason="R")
    with driver.unchanged():
        assert driver.again() == first
        state = driver.head()
        other = driver.resolve(decision, output=b"\0x", reason="R")
        assert (other.word, TurnState(other.state).name, other.attempt) == ("WRONG_STATE", state, 0)
        assert driver.resolve(decision, request_id="r-1").word == "BODY_CONFLICT"


@pytest.mark.spec("R-UNCERTAIN-3")
def test_what_is_refused(driver: Driver) -> None:
    uncertain(driver)
    with driver.unchanged():
        other = driver.resolve(RETRY, key="other")
        assert (other.word, other.state, other.key) == ("WRONG_STATE", TurnState.UNCERTAIN, "step")
        seen = driver.resolve(RETRY, attempt=2)
        assert (seen.word, seen.attempt, seen.key) == ("WRONG_STATE", 1, "")
        assert driver.resolve(RETRY, 2).word == "NOT_FOUND"
        assert driver.resolve(RETRY, inc=9).word == "NOT_FOUND"
        over = driver.resolve(SAVE, output=b"\0" + 5 * b"x", max_steps=64, max_step=4, max_turn=1_000)
        assert (over.word, over.limit, over.value, over.max) == ("LIMIT_EXCEEDED", "step_output_bytes", 5, 4)
        assert driver.retry().word == driver.skip().word == driver.park().word == "WRONG_STATE"
    assert driver.resolve(RETRY, attempt=1).word == "OK"
    held = driver.take()
    with driver.unchanged():
        assert driver.resolve(RETRY).state == TurnState.RUNNING
    driver.put_type(min_turns=0, max_age_ms=0)
    held.finish()
    driver.later(900_000)
    driver.trim()
    assert driver.resolve(RETRY).word == "PRUNED"


@pytest.mark.spec("R-UNCERTAIN-3")
def test_as_much_as_fits_is_saved(driver: Driver) -> None:
    uncertain(driver)
    assert driver.resolve(SAVE, output=b"\0" + 4 * b"x", max_step=4).word == "OK"


@pytest.mark.spec("R-UNCERTAIN-4", "R-CANCEL-1")
def test_it_can_be_cancelled(driver: Driver) -> None:
    uncertain(driver)
    driver.send("a", b"2")
    reply = driver.cancel()
    assert (reply.word, reply.former) == ("OK", TurnState.UNCERTAIN)
    assert driver.ready() == ["a"]
    shown = driver.turn(1).operation
    assert shown is not None
    assert shown.key == "step"


@pytest.mark.spec("R-UNCERTAIN-4", "R-PAUSE-1")
def test_pausing_leaves_it_alone(driver: Driver) -> None:
    uncertain(driver)
    driver.pause()
    driver.resume()
    assert (driver.head(), driver.due(), driver.ready()) == ("UNCERTAIN", {}, [])
    driver.pause()
    driver.resolve(RETRY)
    assert (driver.head(), driver.ready()) == ("QUEUED", [])
    driver.resume()
    assert driver.ready() == ["a"]


@pytest.mark.spec("R-UNCERTAIN-1", "R-FSCK-1")
def test_it_stays_listed(driver: Driver) -> None:
    uncertain(driver)
    reply = driver.one("fsck_index", name="failed", cursor="0", limit=100, repair=True)
    assert (reply.checked, reply.findings) == (1, [])
    assert driver.one("fsck", id="a").findings == []
    driver.redis.call("ZREM", f"{driver.tag}failed", "t:v1:a")
    assert driver.one("fsck", id="a", repair=True).findings == [
        b"an entry that wakes it or lists it was missing"
    ]


@pytest.mark.spec("R-UNCERTAIN-3")
def test_without_its_step_it_can_only_be_cancelled(driver: Driver) -> None:
    uncertain(driver)
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.o", b"\xc1")
    with pytest.raises(Exception, match="can't be read"):
        driver.resolve(RETRY)
    assert driver.cancel().word == "OK"


@pytest.mark.spec("R-UNCERTAIN-1")
def test_reads_show_it_as_soon_as_it_is_so(driver: Driver) -> None:
    begun(driver, timeout_ms=30_000)
    driver.later(30_000)
    with driver.unchanged():
        assert records.instance_record(driver.get().record).state == TurnState.UNCERTAIN
