"""create: instances that do not exist yet."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.store import records
from tests.support.driver import TV, Driver, Event
from tests.support.lua_harness import changes


@pytest.mark.spec("R-CREATE-1")
def test_a_new_instance_is_idle_with_state_and_incarnation(driver: Driver) -> None:
    before = driver.state()
    reply = driver.create(state=b"json\0{}")
    assert (reply.word, reply.incarnation, reply.created_ms) == ("OK", 1, driver.now)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a y", "i:a o", "i:a s", "e:a", "ids:t a", "typeindex t", "meta incarnation",
    }  # fmt: skip
    read = driver.get()
    assert (read.tv, read.state) == (TV, b"json\0{}")
    assert records.birth(read.tv, read.birth)[:3] == ("t", "v1", driver.now)
    assert driver.events() == [Event("CREATED", 0, 0, "", 1, "")]


@pytest.mark.spec("R-CREATE-2")
def test_an_exact_repeat_gives_the_first_answer(driver: Driver) -> None:
    first = driver.create(state=b"json\0{}", lease_ms=1_000, max_attempts=7)
    driver.later(60_000)
    with driver.unchanged():
        assert driver.again() == first


@pytest.mark.spec("R-CREATE-2")
def test_the_repeat_holds_after_turns_and_a_new_state(driver: Driver) -> None:
    first = driver.create(state=b"json\0{}")
    driver.send()
    driver.take().finish(state=b"new")
    driver.later(1)
    with driver.unchanged():
        assert driver.create(state=b"json\0{}") == first


@pytest.mark.parametrize(
    "other",
    [{"kind": "t2"}, {"version": "v2"}, {"state": b"json\0[]"}, {"lease_ms": 1_001}, {"max_attempts": 8}],
)
@pytest.mark.spec("R-CREATE-2")
def test_the_same_id_with_another_body_conflicts(driver: Driver, other: dict[str, Any]) -> None:
    driver.create(state=b"json\0{}", lease_ms=1_000, max_attempts=7)
    body = {"state": b"json\0{}", "lease_ms": 1_000, "max_attempts": 7, **other}
    with driver.unchanged():
        reply = driver.create(**body)
    assert (reply.word, reply.tv) == ("BODY_CONFLICT", TV)


@pytest.mark.spec("R-CREATE-2")
def test_one_list_may_name_an_instance_twice(driver: Driver) -> None:
    item = {"id": "a", "type": "t", "version": "v1", "digest": b"d1"}
    other = {**item, "digest": b"d2"}
    replies = driver.call("create", items=[item, {**item, "id": "b"}, item, other]).replies
    assert [reply.word for reply in replies] == ["OK", "OK", "OK", "BODY_CONFLICT"]
    assert replies[0] == replies[2]
    assert driver.meta("incarnation") == 2
    assert driver.event_names() == ["CREATED"]


@pytest.mark.spec("R-LIMIT-1")
def test_the_state_is_limited(driver: Driver) -> None:
    assert driver.create("a", state=b"enc\0" + b"x" * 10, max_state=10).word == "OK"
    with driver.unchanged():
        reply = driver.create("b", state=b"enc\0" + b"x" * 11, max_state=10)
    assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "state_bytes", 11, 10)


@pytest.mark.spec("R-CREATE-1", "R-FENCE-2")
def test_incarnations_rise_over_generations(driver: Driver) -> None:
    driver.create("a")
    driver.hello("run-2")
    reply = driver.create("b")
    assert reply.incarnation == 2**32 + 2


@pytest.mark.spec("R-READ-4")
def test_instances_of_a_type_are_listed_in_order_of_creation(driver: Driver) -> None:
    for name in ("c", "a", "b"):
        driver.create(name)
        driver.later(1)
    driver.create("z", kind="other")
    assert list(driver.state()["ids:t"]) == ["c", "a", "b"]


@pytest.mark.spec("R-SETTLE-1")
def test_a_repeat_settles_what_it_touches(driver: Driver) -> None:
    driver.create()
    driver.send()
    driver.take().fail(delay_ms=1_000)
    driver.later(1_000)
    assert driver.create().word == "OK"
    assert driver.ready() == ["a"]
    assert "backoff:a" not in driver.due()
