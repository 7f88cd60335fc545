"""The clock of a virtual-time namespace, as servers use it: they name no time."""

from __future__ import annotations

import pytest

from pawl_server.store import scripts_gen as scripts
from tests.support.driver import Driver
from tests.support.lua_harness import START_MS

HOUR_MS = 3_600_000


def advance(driver: Driver, to_ms: int = 0) -> tuple[int, int]:
    """Moves the clock; what it shows then, and the earliest due time."""
    result = driver.call("advance", to_ms=to_ms)
    [reply] = result.replies
    assert isinstance(reply, scripts.AdvanceOk)
    return result.now_ms, reply.next_ms


@pytest.fixture
def standing(driver: Driver) -> Driver:
    """A partition whose callers leave the time to it."""
    driver.now = 0
    return driver


@pytest.mark.spec("R-VIRTUAL-1")
def test_the_clock_stands_until_it_is_moved_and_never_goes_back(standing: Driver) -> None:
    assert advance(standing) == (START_MS, 0)
    assert standing.call("poll").now_ms == START_MS
    assert advance(standing, START_MS + HOUR_MS) == (START_MS + HOUR_MS, 0)
    assert standing.call("poll").now_ms == START_MS + HOUR_MS
    assert advance(standing, START_MS) == (START_MS + HOUR_MS, 0)
    assert standing.call("poll").now_ms == START_MS + HOUR_MS


@pytest.mark.spec("R-VIRTUAL-1")
def test_what_is_due_next_is_said_and_becomes_due_only_by_the_clock(standing: Driver) -> None:
    standing.send("a")
    standing.take("a")
    _, due_ms = advance(standing)
    assert due_ms == START_MS + 60_000
    [reply] = standing.call("expire").replies
    assert reply == scripts.ExpireNext(due_ms)
    advance(standing, due_ms)
    fired, _ = standing.call("expire").replies
    assert (fired.kind, fired.outcome) == ("lease", "expired")


def test_a_real_clock_is_not_moved(standing: Driver) -> None:
    standing.set_meta(virtual=0)
    before = standing.call("poll").now_ms
    assert standing.one("advance", to_ms=before + HOUR_MS) == scripts.AdvanceWrongState("real_time")
    assert standing.call("poll").now_ms < before + HOUR_MS


@pytest.mark.spec("R-VIRTUAL-2")
def test_servers_live_in_real_time(standing: Driver) -> None:
    for server in ("one", "two"):
        standing.one("beat", server=server, name=server)
    advance(standing, START_MS + HOUR_MS)
    for server in ("one", "two"):
        result = standing.call("beat", server=server, name=server)
        assert result.now_ms == START_MS + HOUR_MS
        assert (result.replies[0].dead, result.replies[0].marked) == ([], 0)
