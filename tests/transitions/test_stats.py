"""The query behind the metrics: what waits, counted by type and version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.driver import Driver

Entry = tuple[int, int, int, int, int]
"""Ready heads, age of the oldest in ms, instances with unfinished turns, blocked and paused ones."""


def stats(driver: Driver, limit: int = 100) -> tuple[dict[str, Entry], Any]:
    """Entries by type:version, and the whole reply."""
    with driver.unchanged():
        result = driver.call("stats", limit=limit)
    [reply] = result.replies
    entries = {
        tv.decode(): (ready, result.now_ms - oldest if oldest else -1, busy, blocked, paused)
        for tv, ready, oldest, busy, blocked, paused in reply.types
    }
    return entries, reply


def send(driver: Driver, name: str, kind: str = "t", version: str = "v1") -> None:
    """One message to an instance of a type and version."""
    driver.send(name, type=kind, version=version)


@pytest.mark.spec("R-METRIC-2")
def test_ready_heads_and_their_age(driver: Driver) -> None:
    assert stats(driver)[0] == {}
    send(driver, "a")
    driver.later(1_000)
    send(driver, "b")
    send(driver, "c", version="v10")
    driver.later(500)
    found, reply = stats(driver)
    assert found == {"t:v1": (2, 1_500, 2, 0, 0), "t:v10": (1, 500, 1, 0, 0)}
    assert (reply.more, reply.parked, reply.damaged) == (False, 0, 0)
    driver.take("a")
    assert stats(driver)[0]["t:v1"] == (1, 500, 2, 0, 0), "the age is that of the next one"
    driver.take("b").finish()
    assert stats(driver)[0]["t:v1"] == (0, -1, 1, 0, 0), "unfinished, and nothing ready"


@pytest.mark.spec("R-METRIC-2")
def test_blocked_paused_and_parked(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        send(driver, name)
    driver.take("a").fail(final=True)
    driver.one("pause", id="b", request_id="r1")
    found, _ = stats(driver)
    assert found == {"t:v1": (1, 0, 3, 1, 1)}


def test_timers_and_which_of_them_are_late(driver: Driver) -> None:
    send(driver, "a")
    driver.take("a").fail()
    [due] = [at for name, at in driver.due().items() if name.startswith("backoff:")]
    _, reply = stats(driver)
    assert (reply.timers, reply.late, reply.earliest_ms) == (len(driver.due()), 0, due)
    driver.later(due - driver.now + 1_000)
    assert stats(driver)[1].late == 0
    driver.later(1)
    assert stats(driver)[1].late == 1


@pytest.mark.spec("R-METRIC-3")
def test_at_most_so_many_types_those_that_wait_longest_first(driver: Driver) -> None:
    for kind in ("a", "b", "c", "d"):
        send(driver, f"of-{kind}", kind)
        driver.later(10)
    driver.take("of-a", tv="a:v1")
    send(driver, "also-b", "b")
    assert list(stats(driver, 1)[0]) == ["b:v1"]
    assert list(stats(driver, 3)[0]) == ["b:v1", "c:v1", "d:v1"]
    found, reply = stats(driver, 4)
    assert (sorted(found), found["b:v1"][0], reply.more) == (["a:v1", "b:v1", "c:v1", "d:v1"], 2, True)
    assert stats(driver, 5)[1].more is False
