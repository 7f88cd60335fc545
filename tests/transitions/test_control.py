"""Control calls in common: the answers that an instance remembers by request id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.store.errors import StoreDamaged, StoreDeleting
from tests.support.driver import Driver

Before = Callable[[Driver], None]
ANSWERS = 8
DAY_MS = 86_400_000


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
@pytest.mark.spec("R-CONTROL-2")
def test_another_life_than_the_one_named(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    with driver.unchanged():
        assert driver.control(script, inc=2, **given).word == "NOT_FOUND"
        assert driver.control(script, "nobody", inc=1, **given).word == "NOT_FOUND"
    first = driver.control(script, inc=1, request_id="x", **given)
    assert first.word == "OK"
    with driver.unchanged():
        assert driver.control(script, inc=1, request_id="x", **given) == first
        assert driver.control(script, inc=2, request_id="x", **given).word == "NOT_FOUND"


@EACH
@pytest.mark.spec("R-CONTROL-3")
@pytest.mark.parametrize("max_turns", [1_000, -1])
def test_a_deleted_instance_gives_its_answers_for_a_day(driver: Driver, script: str, max_turns: int) -> None:
    """Also while the deletion goes on, and to callers that name the life; anything else is refused."""
    before, given = CALLS[script]
    before(driver)
    first = driver.control(script, request_id="x", **given)
    named = driver.control("wake", request_id="named", inc=1)
    driver.control("delete", request_id="gone", max_turns=max_turns)
    with driver.unchanged():
        if max_turns < 0:
            with pytest.raises(StoreDeleting):
                driver.control(script, request_id="y", **given)
    for _ in range(2):
        with driver.unchanged():
            assert driver.control(script, request_id="x", **given) == first
            assert driver.control("wake", request_id="named", inc=1) == named
            other = driver.control(script, request_id="x", **{**given, "comment": "other"})
            assert other.word == "BODY_CONFLICT"
        driver.expire()
    driver.later(DAY_MS - 1)
    with driver.unchanged():
        assert driver.control(script, request_id="x", **given) == first
        for request_id in ("y", "", "gone"):
            assert driver.control(script, request_id=request_id, **given).word == "NOT_FOUND"
    driver.later(1)
    assert driver.control(script, request_id="x", **given).word == "NOT_FOUND"


@EACH
@pytest.mark.spec("R-CONTROL-3")
def test_the_repeat_of_a_former_life_leaves_the_present_one_alone(driver: Driver, script: str) -> None:
    before, given = CALLS[script]
    before(driver)
    first = driver.control(script, request_id="x", **given)
    driver.delete()
    driver.create()
    driver.send("a", b"3")
    with driver.unchanged():
        assert driver.control(script, request_id="x", **given) == first
    own = "pause" if script == "wake" else "wake"
    assert driver.control(own, request_id="own").word == "OK"
    with driver.unchanged():
        assert driver.control(own, request_id="own").word == "OK"
        assert driver.control(script, request_id="own", **given).word == "BODY_CONFLICT"
    driver.later(DAY_MS)
    reply = driver.control(script, request_id="x", **given)
    if script in ("pause", "resume", "wake"):
        assert (reply.word, *reply) == ("OK", script == "pause"), "judged anew"
    else:
        assert reply.word == ("NOT_FOUND" if script == "cancel_message" else "PRUNED")


@pytest.mark.spec("R-CONTROL-1", "R-CONTROL-3")
def test_what_the_present_life_answered_comes_before_what_a_former_one_did(driver: Driver) -> None:
    driver.create()
    driver.pause(request_id="x")
    driver.delete()
    driver.create()
    with driver.unchanged():
        assert driver.resume(request_id="x").word == "BODY_CONFLICT"
    driver.later(DAY_MS)
    assert not driver.resume(request_id="x").changed
    with driver.unchanged():
        assert not driver.resume(request_id="x").changed
        assert driver.pause(request_id="x").word == "BODY_CONFLICT"


@pytest.mark.spec("R-CONTROL-3")
def test_eight_answers_of_an_id_outlive_its_lives(driver: Driver) -> None:
    driver.create()
    for number in range(5):
        assert driver.wake(request_id=f"first-{number}").word == "OK"
    driver.delete()
    driver.create()
    for number in range(4):
        assert driver.pause(request_id=f"second-{number}").word == "OK"
    driver.delete()
    driver.delete(request_id="again")
    with driver.unchanged():
        kept = [driver.wake(request_id=f"first-{number}").word for number in range(5)]
        assert kept == ["NOT_FOUND", "OK", "OK", "OK", "OK"]
        assert [driver.pause(request_id=f"second-{number}").word for number in range(4)] == ["OK"] * 4
        assert [driver.pause(request_id="second-0").changed, driver.again().word] == [True, "OK"]


@pytest.mark.spec("R-CONTROL-3", "R-DELETE-2")
def test_what_is_remembered_of_a_deleted_instance_stays_small(driver: Driver) -> None:
    """Eight answers to requests with the longest ids cost 320 bytes at most."""
    sizes = []
    for name, calls in (("a", 0), ("b", ANSWERS + 4)):
        driver.create(name)
        for number in range(calls):
            driver.control("pause", name, request_id=f"{number:0128}")
        driver.delete(name, request_id="x")
        sizes.append(len(driver.redis.call("HGET", f"{driver.tag}dead", name)))
    assert sizes[1] - sizes[0] <= 320


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
