"""Leases that end by commands or move: the server of their stream is told, unless it is the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.driver import Driver, Held
from tests.support.listener import listening

ENDS: dict[str, tuple[str, Callable[[Held], Any]]] = {
    "finish": ("completed", lambda held: held.finish()),
    "fail": ("failed", lambda held: held.fail()),
    "fail for good": ("failed", lambda held: held.fail(final=True)),
    "release": ("released", lambda held: held.release()),
    "sleep": ("sleeping", lambda held: held.do("sleep", key="nap", ms=1_000)),
    "wait": ("waiting", lambda held: held.wait()),
    "defer": ("deferred", lambda held: held.do("defer", ms=1_000, limits={"max_defers": 10})),
}


@pytest.mark.spec("R-CLAIM-2")
@pytest.mark.parametrize("end", ENDS)
def test_the_server_of_the_stream_is_told_by_every_command_that_ends_a_lease(
    driver: Driver, end: str
) -> None:
    how, command = ENDS[end]
    for name in ("a", "b", "c"):
        driver.send(name)
    elsewhere = driver.take("a", conn="s1.4.7")
    here = driver.take("b", conn=f"{driver.server}.4.7")
    alike = driver.take("c", conn=f"{driver.server}2.4.7")
    with listening(driver, "s1", driver.server, f"{driver.server}2") as (one, own, other):
        assert command(here).word == "OK"
        assert [one.heard(), own.heard(), other.heard()] == [[], [], []]
        assert command(elsewhere).word == "OK"
        assert [one.heard(), own.heard()] == [[f"ended s1.4.7 1 1 1 {how} a"], []]
        assert driver.again().word == "OK"
        assert one.heard() == [], "a repeat ends nothing"
        assert command(alike).word == "OK"
        assert [own.heard(), other.heard()] == [[], [f"ended {driver.server}2.4.7 3 1 3 {how} c"]]


@pytest.mark.spec("R-WORK-5", "R-EXPIRE-5")
@pytest.mark.parametrize("policy", [1, 2, 3])
@pytest.mark.parametrize("how", ["expired", "lost", "returned"])
def test_the_stream_is_told_why_the_lease_ran_out_whatever_becomes_of_the_turn(
    driver: Driver, how: str, policy: int
) -> None:
    """The same word for the stream, the caller and a late command, also if the turn fails for good by it."""
    driver.put_type(max_attempts=1, on_exhausted=policy)
    driver.send()
    rounds = {"expired": 1, "lost": 10, "returned": 11}[how]
    with listening(driver, "s1") as (one,):
        for number in range(1, rounds + 1):
            held = driver.lease(conn="s1.4.7")
            if how != "returned":
                held.renew()
            if how == "lost":
                held.orphan("s1.4.7")
            driver.later(60_000)
            [reply] = driver.expire()
            assert (reply.outcome, reply.how) == ("failed" if number == rounds else how, how)
            assert one.heard() == [f"ended s1.4.7 1 1 {held.fence} {how} a"]
            late = held.checkpoint("late")
            assert (late.word, late.how) == ("LEASE_ENDED", how)


@pytest.mark.spec("R-CLAIM-2")
def test_a_refused_command_tells_nobody(driver: Driver) -> None:
    driver.send()
    held = driver.take(conn="s1.4.7")
    with listening(driver, "s1") as (one,):
        assert held.finish(n=2).word == "GAP"
        assert held.finish(b"x" * 70_000).word == "LIMIT_EXCEEDED"
        assert held.checkpoint().word == "OK"
        assert one.heard() == []


@pytest.mark.spec("R-WORK-5")
def test_the_server_of_the_old_stream_is_told_that_another_one_took_the_lease(driver: Driver) -> None:
    driver.send("a")
    held = driver.take("a", conn="s1.4.7")
    with listening(driver, "s1", "s2", driver.server) as (one, two, own):
        assert held.adopt("s2.5.1").word == "OK"
        assert one.heard() == ["ended s1.4.7 1 1 1 superseded a"]
        assert held.adopt("s2.5.1").word == "OK"
        assert held.adopt("s1.4.7").word == "SUPERSEDED"
        assert [one.heard(), two.heard()] == [[], []]
        assert held.adopt(f"{driver.server}.6.1").word == "OK"
        assert two.heard() == ["ended s2.5.1 1 1 1 superseded a"]
        assert held.adopt(f"{driver.server}.7.2").word == "OK"
        assert own.heard() == [], "the caller learns from its reply"


@pytest.mark.spec("R-POLL-2")
def test_a_lease_without_a_stream_is_nobodys(driver: Driver) -> None:
    driver.send()
    [view] = driver.call("claim", items=[{"tv": "t:v1", "limit": 1, "conn": ""}]).replies[0].turns
    assert driver.record("a").conn == 0
    fence = view[3]
    item = {"id": "a", "inc": 1, "turn": 1, "fence": fence}
    assert driver.one("orphan", **item, conn="", grace_ms=300).word == "SUPERSEDED"
    with listening(driver, "") as (nobody,):
        assert driver.one("release", **item, n=1, digest=b"d").word == "OK"
        assert nobody.heard() == []


@pytest.mark.spec("R-FINISH-2")
def test_a_finish_repeated_without_a_stream_hands_out_nothing(driver: Driver) -> None:
    driver.send("a")
    driver.send("b")
    held = driver.take("a")
    first = held.finish(digest=b"d", tv="t:v1")
    assert len(first.turns) == 1
    with driver.unchanged():
        repeated = held.finish(n=1, digest=b"d", tv="", conn="")
    assert (repeated.word, repeated.turns, repeated.finished_ms) == ("OK", [], first.finished_ms)


@pytest.mark.spec("R-FINISH-2", "R-WORK-5")
def test_the_stream_that_a_repeated_finish_takes_a_turn_from_is_told(driver: Driver) -> None:
    driver.send("a")
    driver.send("b")
    held = driver.take("a", conn="s1.4.7")
    held.finish(digest=b"d", tv="t:v1", conn="s1.4.7")
    with listening(driver, "s1") as (one,):
        assert len(held.finish(n=1, digest=b"d", tv="t:v1", conn="s1.4.7").turns) == 1
        assert one.heard() == []
        assert len(held.finish(n=1, digest=b"d", tv="t:v1", conn="s2.4.8").turns) == 1
        assert one.heard() == ["ended s1.4.7 2 1 2 superseded b"]


@pytest.mark.spec("R-CLAIM-3")
def test_servers_read_how_leases_stand(driver: Driver) -> None:
    for name in ("a", "b", "c", "d", "e"):
        driver.send(name)
    new, held, over, lost, old = driver.claim(5, conn="s1.4.7")
    held.renew()
    over.finish()
    lost.release()
    old.release()
    again = driver.claim(2, conn="s1.4.8")[1]
    again.release()
    driver.claim(2)
    items = [lease.lease for lease in (new, held, over, lost, old, again)]
    absent = {"id": "absent", "inc": 1, "turn": 1, "fence": 1}
    with driver.unchanged():
        replies = driver.call("get_leases", items=[*items, absent]).replies
    assert [reply.word for reply in replies] == [
        "OK", "OK", "LEASE_ENDED", "LEASE_ENDED", "STALE_FENCE", "LEASE_ENDED", "NOT_FOUND",
    ]  # fmt: skip
    assert [(reply.accepted, reply.conn) for reply in replies[:2]] == [(0, "s1.4.7"), (1, "s1.4.7")]
    assert [reply.how for reply in (replies[2], replies[5])] == ["completed", "released"]
    held.detach()
    assert driver.one("get_leases", **held.lease).conn == ""
