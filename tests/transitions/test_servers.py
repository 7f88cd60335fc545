"""beat: which servers live, and which are gone."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.store import records
from tests.support.driver import Driver


def beat(driver: Driver, server: str, **args: Any) -> Any:
    """One beat of a server whose name is its run without the number."""
    given = {"name": server.rstrip("0123456789"), "address": f"{server}:1", "build": "1.0", **args}
    return driver.one("beat", server=server, **given)


def gone(driver: Driver, server: str, **args: Any) -> list[str]:
    """The servers that a beat finds gone."""
    return sorted(run.decode() for run in beat(driver, server, **args).dead)


def alive(driver: Driver, server: str, seconds: int) -> None:
    """Beats each second, so that the time is watched."""
    for _ in range(seconds):
        driver.later(1_000)
        beat(driver, server)


@pytest.mark.spec("R-SERVER-1")
def test_a_beat_records_the_server(driver: Driver) -> None:
    reply = beat(driver, "red1", draining=True)
    assert (reply.word, reply.gen, reply.marked, reply.gap_ms, reply.dead) == ("OK", 1, False, 0, [])
    record = records.server_record(driver.state()["servers"]["red1"])
    assert record == ("red", "red1:1", "1.0", driver.now, True, False)
    assert driver.meta("seen") == driver.now


@pytest.mark.spec("R-SERVER-1")
def test_a_server_silent_for_three_seconds_is_gone_until_somebody_swept_its_leases(driver: Driver) -> None:
    beat(driver, "red1")
    alive(driver, "blue1", 3)
    assert gone(driver, "blue1") == []
    driver.later(1)
    assert gone(driver, "blue1") == ["red1"]
    assert gone(driver, "green1") == ["red1"]
    assert gone(driver, "green1", swept="red1") == []
    assert gone(driver, "blue1") == []
    assert records.server_record(driver.state()["servers"]["red1"]).orphaned


@pytest.mark.spec("R-SERVER-1")
def test_a_server_that_finds_its_mark_is_told_once(driver: Driver) -> None:
    beat(driver, "red1")
    alive(driver, "blue1", 4)
    beat(driver, "blue1", swept="red1")
    assert beat(driver, "red1").marked
    assert not beat(driver, "red1").marked
    alive(driver, "blue1", 4)
    assert gone(driver, "blue1") == ["red1"], "and may be found gone again"


@pytest.mark.spec("R-SERVER-1", "R-CLOCK-3")
def test_unwatched_time_makes_nobody_gone(driver: Driver) -> None:
    for server in ("red1", "blue1"):
        beat(driver, server)
    driver.later(60_000)
    assert gone(driver, "blue1") == []
    alive(driver, "blue1", 3)
    assert gone(driver, "blue1") == []
    driver.later(1)
    assert gone(driver, "blue1") == ["red1"]


@pytest.mark.spec("R-SERVER-1")
def test_a_restarted_server_finds_its_former_runs_gone_at_once(driver: Driver) -> None:
    beat(driver, "red1")
    beat(driver, "blue1")
    assert gone(driver, "red2", first=True) == ["red1"]
    assert gone(driver, "red2", swept="red1") == []


@pytest.mark.spec("R-SERVER-1")
def test_a_swept_server_is_forgotten_after_an_hour(driver: Driver) -> None:
    beat(driver, "red1")
    alive(driver, "blue1", 4)
    beat(driver, "blue1", swept="red1,never-heard-of")
    driver.later(3_600_000)
    beat(driver, "blue1")
    assert sorted(driver.state()["servers"]) == ["blue1"]
    assert not beat(driver, "red1").marked


@pytest.mark.spec("R-SERVER-1")
def test_a_part_of_a_run_id_is_another_server(driver: Driver) -> None:
    for server in ("red1", "red11"):
        beat(driver, server)
    alive(driver, "blue1", 4)
    assert gone(driver, "blue1", swept="red11") == ["red1"]


@pytest.mark.spec("R-SERVER-1")
def test_a_beat_names_the_others_that_live_and_do_not_stop(driver: Driver) -> None:
    for server, draining in (("red1", False), ("blue1", True), ("green1", False)):
        beat(driver, server, draining=draining)
    assert beat(driver, "red1").alive == [b"green1", b"green1:1"]
    assert sorted(beat(driver, "blue1").alive[::2]) == [b"green1", b"red1"]
