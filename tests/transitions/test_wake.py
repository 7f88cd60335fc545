"""wake: the end of a delay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes


@pytest.mark.parametrize("end", ["backoff", "defer"])
@pytest.mark.spec("R-WAKE-2")
def test_wake_ends_a_delay(driver: Driver, end: str) -> None:
    driver.send()
    held = driver.take()
    if end == "defer":
        held.defer(60_000)
    else:
        held.fail(delay_ms=60_000)
    driver.later(10)
    before = driver.state()
    result = driver.call("wake", id="a", comment="now", request_id="w", digest=b"d")
    assert (result.replies[0].woken, result.ready) == (True, [TV])
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a c", "e:a", f"due {end}:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert driver.events()[-1] == ("TURN_WOKEN", 1, 1, "QUEUED", 2, "now")
    assert driver.take().view.attempt == (1 if end == "defer" else 2)


def nothing(driver: Driver) -> None:
    driver.create()


def queued(driver: Driver) -> None:
    driver.send()


def running(driver: Driver) -> None:
    driver.send()
    driver.take()


def asleep(driver: Driver) -> None:
    driver.send()
    driver.take().sleep(ms=60_000)


def failed(driver: Driver) -> None:
    driver.send()
    driver.take().fail(final=True)


def delayed(driver: Driver) -> None:
    driver.create()
    driver.send("a", b"1", delay_ms=60_000)


@pytest.mark.parametrize(
    "state", [nothing, queued, running, asleep, failed, delayed], ids=lambda one: one.__name__
)
@pytest.mark.spec("R-WAKE-2")
def test_wake_changes_nothing_else(driver: Driver, state: Callable[[Driver], None]) -> None:
    state(driver)
    driver.later(10)
    with driver.unchanged("i:a c"):
        assert (driver.wake().word, driver.again().woken) == ("OK", False)


@pytest.mark.spec("R-WAKE-2", "R-SETTLE-1")
def test_wake_of_a_delay_that_is_over_finds_the_head_ready(driver: Driver) -> None:
    driver.send()
    driver.take().defer(500)
    driver.later(500)
    assert not driver.wake().woken
    assert (driver.head(), driver.ready(), driver.event_names()[-1]) == ("QUEUED", ["a"], "TURN_READY")


@pytest.mark.spec("R-CONTROL-1", "R-WAKE-2")
def test_repeats_and_refusals(driver: Driver) -> None:
    with driver.unchanged():
        assert driver.wake("nobody").word == "NOT_FOUND"
    driver.send()
    driver.take().fail(delay_ms=60_000)
    assert driver.wake(request_id="w").woken
    driver.take().fail(delay_ms=60_000)
    with driver.unchanged():
        assert driver.wake(request_id="w").woken, "the first answer, and no second wake"
        assert driver.wake(request_id="w", comment="other").word == "BODY_CONFLICT"


def expired(driver: Driver) -> None:
    driver.later(5_000)
    driver.expire()


def over_and_paused(driver: Driver) -> None:
    """The settling makes the head ready that the pause stops."""
    driver.take().defer(5_000)
    driver.later(5_000)
    driver.pause()


def over_and_claimed(driver: Driver) -> None:
    driver.take()


STOPS: list[Callable[[Driver], object]] = [
    Driver.pause, Driver.cancel, lambda driver: driver.cancel_message("m-1"), Driver.delete, expired,
    lambda driver: driver.delete(max_turns=-1), over_and_paused, over_and_claimed,
]  # fmt: skip


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.spec("R-WAKE-3")
def test_a_type_without_ready_heads_is_not_listed(driver: Driver, stop: Callable[[Driver], object]) -> None:
    driver.send("a", b"1", ttl_ms=5_000)
    assert set(driver.state()["types"]) == {TV}
    stop(driver)
    assert (driver.ready(), driver.state().get("types", {})) == ([], {})


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.spec("R-WAKE-3")
def test_a_type_with_another_ready_head_stays_listed(
    driver: Driver, stop: Callable[[Driver], object]
) -> None:
    driver.send("a", b"1", ttl_ms=5_000)
    driver.later(1)
    driver.send("b", b"2")
    stop(driver)
    assert (driver.ready(), list(driver.state()["types"])) == (["b"], [TV])
