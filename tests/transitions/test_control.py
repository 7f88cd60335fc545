"""Control calls in common: the answers that an instance remembers by request id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.store.errors import StoreDamaged
from tests.support.driver import Driver

Before = Callable[[Driver], None]
ANSWERS = 8


def queued(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")


def paused(driver: Driver) -> None:
    queued(driver)
    driver.control("pause", request_id="")


def backoff(driver: Driver) -> None:
    queued(driver)
    driver.take().fail(delay_ms=60_000)


def failed(driver: Driver) -> None:
    queued(driver)
    driver.take().fail(final=True)


def parked(driver: Driver) -> None:
    failed(driver)
    driver.control("park", turn=1, request_id="")


CALLS: dict[str, tuple[Before, dict[str, Any]]] = {
    "pause": (queued, {}),
    "resume": (paused, {}),
    "wake": (backoff, {}),
    "retry": (failed, {"turn": 1, "attempt": 1}),
    "skip": (failed, {"turn": 1}),
    "park": (failed, {"turn": 1}),
    "redrive": (parked, {"turn": 1, "max_pending": 99}),
    "cancel": (queued, {"turn": 2}),
    "cancel_message": (queued, {"message_id": "m-2"}),
}
"""Each control call, and a state in which it changes something."""
EACH = pytest.mark.parametrize("script", CALLS)


@EACH
@pytest.mark.spec("R-CONTROL-1")
def test_the_same_request_again(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    driver.later(10)
    first = driver.control(script, request_id="x", **given)
    assert first.word == "OK"
    for server in ("server01", "server02"):
        driver.later(10)
        driver.server = server
        with driver.unchanged():
            assert driver.control(script, request_id="x", **given) == first
            other = driver.control(script, request_id="x", **{**given, "comment": "other"})
            assert other.word == "BODY_CONFLICT"


@EACH
@pytest.mark.spec("R-CONTROL-1")
def test_eight_answers_are_remembered(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    first = driver.control(script, request_id="x", **given)
    for number in range(ANSWERS - 1):
        driver.control("wake", request_id=f"w{number}")
    with driver.unchanged():
        assert driver.control(script, request_id="x", **given) == first
    driver.control("wake", request_id="one too many")
    reply = driver.control(script, request_id="x", **given)
    if script in ("pause", "resume", "wake"):
        assert (reply.word, reply == first) == ("OK", False), "judged anew"
    else:
        assert reply.word == "WRONG_STATE"


@EACH
@pytest.mark.spec("R-CONTROL-1")
def test_a_request_id_of_another_call(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    driver.control("pause" if script == "wake" else "wake", request_id="x")
    with driver.unchanged():
        assert driver.control(script, request_id="x", **given).word == "BODY_CONFLICT"


@EACH
@pytest.mark.spec("R-CONTROL-1")
def test_without_a_request_id_nothing_is_remembered(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    assert driver.control(script, request_id="", **given).word == "OK"
    assert "c" not in driver.fields()
    reply = driver.control(script, request_id="", **given)
    if script in ("pause", "resume", "wake"):
        assert (reply.word, list(reply)) == ("OK", [False])
    else:
        assert reply.word == "WRONG_STATE"


@pytest.mark.spec("R-CONTROL-1")
def test_a_refusal_is_not_remembered(driver: Driver) -> None:
    queued(driver)
    held = driver.take()
    assert driver.retry(1, request_id="x").word == "WRONG_STATE"
    held.fail(final=True)
    assert driver.retry(1, request_id="x").word == "OK"


@EACH
@pytest.mark.spec("R-CONTROL-1", "R-DELETE-3")
def test_a_new_life_remembers_nothing(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    driver.control(script, request_id="x", **given)
    driver.delete()
    driver.create()
    reply = driver.control(script, request_id="x", **given)
    if script in ("pause", "resume", "wake"):
        assert (reply.word, *reply) == ("OK", script == "pause")
    else:
        assert reply.word == ("NOT_FOUND" if script == "cancel_message" else "PRUNED")


@EACH
@pytest.mark.spec("R-DAMAGE-1")
def test_an_instance_that_cannot_be_read(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    key = f"{driver.tag}i:a"
    good = driver.redis.call("HGET", key, "r")
    driver.redis.call("HSET", key, "r", "not packed")
    with pytest.raises(StoreDamaged):
        driver.control(script, **given)
    driver.redis.call("HSET", key, "r", good)
    driver.redis.call("HSET", key, "c", "not packed")
    assert driver.control(script, **given).word == "OK", "answers that can't be read are forgotten"


@EACH
@pytest.mark.spec("R-CONTROL-1", "R-SETTLE-1")
def test_a_repeat_applies_what_time_has_decided(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    first = driver.control(script, request_id="x", **given)
    driver.send("a", b"late", delay_ms=100)
    tail = driver.record().tail
    driver.later(100)
    assert driver.control(script, request_id="x", **given) == first
    assert driver.record().tail == tail + 1
