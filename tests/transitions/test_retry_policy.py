"""Retry policies: of types, instances and steps."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from pawl_server.store.records import pack_policy
from tests.support.driver import Driver

FAILED, BACKOFF = TurnState.FAILED, TurnState.BACKOFF


def fail(driver: Driver, reason: str = "ERROR", **given: Any) -> tuple[TurnState, int]:
    """Claims the head and fails; its state and the delay, which passes."""
    reply = driver.take().fail(reason, **given)
    assert reply.word == "OK", reply
    driver.elapse(reply.delay_ms)
    return TurnState(reply.state), reply.delay_ms


def step(key: str = "one", **policy: Any) -> dict[str, Any]:
    """What a failure of a step with a policy of its own carries."""
    return {"step_key": key, "step_policy": pack_policy({"max_attempts": 3, **policy})}


@pytest.mark.spec("R-FAIL-5")
def test_the_jitter_of_a_type(driver: Driver) -> None:
    driver.put_type(max_attempts=1_000, jitter=0.5, backoff_initial_ms=1_000, backoff_factor=1)
    driver.send()
    delays = [fail(driver)[1] for _ in range(60)]
    assert all(500 <= delay <= 1_000 for delay in delays)
    assert len(set(delays)) > 40


@pytest.mark.spec("R-FAIL-5")
def test_a_delay_that_the_worker_chose_has_no_jitter(driver: Driver) -> None:
    driver.put_type(jitter=1)
    driver.send()
    assert fail(driver, delay_ms=777) == (BACKOFF, 777)


@pytest.mark.spec("R-FAIL-6")
@pytest.mark.parametrize(("room", "state"), [(3_000, BACKOFF), (2_999, FAILED)])
def test_no_attempt_begins_later_than_max_elapsed(driver: Driver, room: int, state: TurnState) -> None:
    driver.put_type(max_attempts=100, max_elapsed_ms=room)
    driver.send()
    driver.later(50_000)  # waiting for a worker does not count
    assert fail(driver) == (BACKOFF, 1_000)
    assert fail(driver)[0] == state
    assert driver.record().failures == 2


@pytest.mark.spec("R-FAIL-6")
def test_max_elapsed_counts_from_the_claim_of_the_first_attempt_that_failed(driver: Driver) -> None:
    driver.put_type(max_attempts=100, max_elapsed_ms=10_000)
    driver.send()
    held = driver.take()
    held.sleep(ms=60_000)
    driver.elapse(60_000)
    held = driver.take()
    driver.later(4_000)
    assert held.fail(delay_ms=6_000).state == BACKOFF
    driver.elapse(6_000)
    assert fail(driver, delay_ms=1)[0] == FAILED


@pytest.mark.spec("R-FAIL-6", "R-RETRY-1")
def test_a_retry_grants_max_elapsed_anew(driver: Driver) -> None:
    driver.put_type(max_attempts=100, max_elapsed_ms=10)
    driver.send()
    assert fail(driver)[0] == FAILED
    driver.later(60_000)
    driver.retry()
    assert fail(driver, delay_ms=10)[0] == BACKOFF
    assert fail(driver, delay_ms=1)[0] == FAILED


@pytest.mark.spec("R-FAIL-6")
def test_reasons_that_are_final(driver: Driver) -> None:
    driver.put_type(final_reasons="\0BAD_CARD\0WORSE\0")
    driver.send()
    assert fail(driver, "BAD")[0] == BACKOFF, "whole words only"
    assert fail(driver, "BAD_CARD") == (FAILED, 0)
    driver.retry()
    assert fail(driver, "WORSE")[0] == FAILED


@pytest.mark.spec("R-FAIL-6")
def test_reasons_of_the_server_can_be_final(driver: Driver) -> None:
    driver.put_type(final_reasons="\0ATTEMPT_EXPIRED\0")
    driver.send()
    driver.take()
    driver.elapse(60_000)
    assert driver.head() == "FAILED"


@pytest.mark.spec("R-FAIL-7")
def test_an_instance_has_fields_of_its_own(driver: Driver) -> None:
    driver.put_type(max_attempts=100, backoff_initial_ms=10, backoff_max_ms=45, backoff_factor=3)
    own = pack_policy({"backoff_initial_ms": 20, "final_reasons": "\0NO\0"})
    driver.create("a", retry=own)
    driver.create("b")
    driver.send("a")
    driver.send("b")
    delays = [driver.take("a").fail().delay_ms, driver.take("b").fail().delay_ms]
    driver.elapse(100)
    delays += [driver.take("a").fail().delay_ms, driver.take("b").fail().delay_ms]
    assert delays == [20, 10, 45, 30]
    driver.elapse(100)
    assert driver.take("a").fail("NO").state == FAILED
    assert driver.take("b").fail("NO").state == BACKOFF


@pytest.mark.spec("R-FAIL-7", "R-CREATE-1")
def test_an_instance_that_a_message_creates_has_them_too(driver: Driver) -> None:
    driver.send("a", create_digest=b"own", retry=pack_policy({"backoff_initial_ms": 33}))
    assert fail(driver)[1] == 33


@pytest.mark.spec("R-FAIL-7")
def test_attempts_of_a_step_are_its_own(driver: Driver) -> None:
    driver.put_type(max_attempts=2)
    driver.send()
    policy = step(max_attempts=5, backoff_initial_ms=10, backoff_factor=2)
    assert [fail(driver, **policy) for _ in range(4)] == [(BACKOFF, ms) for ms in (10, 20, 40, 80)]
    assert driver.take().view.max_attempts == 2
    driver.elapse(60_000)
    assert driver.head() == "QUEUED", "the first failure that counts for the turn"
    assert fail(driver, **policy) == (BACKOFF, 10), "in a row"
    assert fail(driver)[0] == FAILED, "the second one that counts"
    assert (driver.record().failures, driver.record().step_failures, driver.record().attempt) == (7, 5, 7)


@pytest.mark.spec("R-FAIL-7")
def test_a_step_that_has_used_up_its_attempts_fails_the_turn(driver: Driver) -> None:
    driver.put_type(max_attempts=100)
    driver.send()
    assert fail(driver, **step(max_attempts=2))[0] == BACKOFF
    assert fail(driver, **step("two", max_attempts=2))[0] == BACKOFF, "another step"
    assert fail(driver, **step("two", max_attempts=2))[0] == FAILED
    assert driver.retry().max_attempts == 100
    assert fail(driver, **step("two", max_attempts=2))[0] == BACKOFF, "a new round"
    assert fail(driver, **step("two", max_attempts=2))[0] == FAILED


@pytest.mark.spec("R-FAIL-7")
def test_a_step_does_not_inherit_from_its_type(driver: Driver) -> None:
    driver.put_type(max_attempts=100, backoff_initial_ms=7, final_reasons="\0NO\0", max_elapsed_ms=1)
    driver.send()
    assert fail(driver, "NO", **step()) == (BACKOFF, 1_000)
    assert fail(driver, "NO", **step(final_reasons="\0NO\0"))[0] == FAILED


@pytest.mark.spec("R-FAIL-8", "R-FAIL-3")
def test_causes_are_kept(driver: Driver) -> None:
    driver.send()
    driver.take().fail(cause=b"packed", delay_ms=0)
    failure = driver.turn(1).failure
    assert failure is not None
    assert failure.cause == b"packed"
    view = driver.take().view.failure
    assert view is not None
    assert view.cause == b"packed"
