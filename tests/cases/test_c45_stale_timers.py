"""C-45: timers that outlive what they were set for.

Given  instances with a retry timer, a sleep, a wait, a deferral, a lease, a registered step, a cancellation
       under way, deadlines of their type, delayed and expiring messages.
Do     cancel or delete what the timers are for, put them back as an older snapshot would, let them all fire;
       fire timers of things that never were; delete 3,000 instances with timers of every kind.
Expect each stale firing changes nothing and is counted, the server lives on, and no timer is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pawl_server.app import Handle
from tests.support.api import Api
from tests.support.driver import TV, Driver, driver
from tests.support.redis_server import RedisServer
from tests.support.stored import Stored
from tests.support.wait import wait_until

__all__ = ["driver"]

DAY_MS = 86_400_000
INSTANCES = 3_000


def retrying(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().fail(delay_ms=1_000)


def asleep(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().sleep(ms=1_000)


def waiting(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().wait(ms=1_000)


def deferred(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().defer(1_000)


def leased(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take()


def delayed(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=1_000)


def expiring(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=1_000)


def at_work(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().start()


def beating(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().start(heartbeat_ms=1_000)


def cancelling(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take()
    driver.cancel()


def limited(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=1_000)
    driver.send("a", b"1")


def limited_at_work(driver: Driver) -> None:
    limited(driver)
    driver.take().start()


def queue_limited(driver: Driver) -> None:
    driver.put_type(queue_timeout_ms=1_000)
    driver.send("a", b"1")


KINDS: dict[str, Callable[[Driver], None]] = {
    "backoff": retrying,
    "sleep": asleep,
    "wait": waiting,
    "defer": deferred,
    "lease": leased,
    "delayed": delayed,
    "expiry": expiring,
    "operation": at_work,
    "operation heartbeat": beating,
    "cancel": cancelling,
    "total": limited,
    "total operation": limited_at_work,
    "expiry queue": queue_limited,
}
"""By the kind of the timer, the first word."""


def cancel(driver: Driver) -> None:
    driver.cancel(force=True) if driver.record().tail else driver.cancel_message("m-1")


def delete(driver: Driver) -> None:
    driver.delete()


def delete_and_live_again(driver: Driver) -> None:
    driver.delete()
    driver.send("a", b"2")


def move_on(driver: Driver) -> None:
    """The turn completes, and another one waits."""
    driver.send("a", b"2")
    driver.pause()
    driver.resume()
    driver.cancel(force=True) if driver.record().tail > 1 else driver.cancel_message("m-1")


ENDS = [cancel, delete, delete_and_live_again, move_on]


def put_back(driver: Driver, due: dict[str, int]) -> None:
    """Timers that should be gone are there again."""
    for member, at in due.items():
        driver.redis.call("ZADD", f"{driver.tag}due", at, member)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.spec("R-SETTLE-2", "R-CANCEL-1", "R-DELETE-1")
def test_a_timer_of_something_that_has_ended_changes_nothing(
    driver: Driver, kind: str, end: Callable[[Driver], None]
) -> None:
    KINDS[kind](driver)
    kind, due = kind.partition(" ")[0], driver.due()
    assert f"{kind}:a" in due
    driver.put_type()  # what comes now has no deadlines of its type
    end(driver)
    # While something else waits, the timer of what could expire stays, and finds nothing.
    lazy = kind == "expiry" and end is move_on
    assert lazy or f"{kind}:a" not in driver.due()
    sound = driver.state()
    put_back(driver, due)
    driver.later(60_000)
    replies = driver.expire()
    assert [(reply.word, f"{reply.kind}:{reply.id}") for reply in replies] == [
        ("STALE", member) for member in sorted(due, key=lambda one: (due[one], one))
    ]
    assert lazy or driver.state() == sound
    assert driver.expire() == []
    assert driver.due() == {}


@pytest.mark.spec("R-SETTLE-2")
def test_timers_of_what_never_was_change_nothing(driver: Driver) -> None:
    driver.send("idle", b"1")
    driver.take("idle").finish()
    driver.send("busy", b"1")
    driver.take("busy")
    sound = driver.state()
    kinds = (
        "lease",
        "backoff",
        "sleep",
        "wait",
        "defer",
        "delayed",
        "expiry",
        "settle",
        "delete",
        "operation",
        "cancel",
        "total",
        "",
    )
    members = [f"{kind}:{name}" for kind in kinds for name in ("ghost", "idle", "")]
    members += [
        "backoff:busy",
        "sleep:busy",
        "wait:busy",
        "delete:busy",
        "settle:busy",
        "delayed:busy",
        "operation:busy",
        "cancel:busy",
        "total:busy",
        "nonsense",
        "::",
    ]
    put_back(driver, dict.fromkeys(members, driver.now - 1))
    replies = driver.expire()
    assert {reply.word for reply in replies} == {"STALE"}
    assert len(replies) == len(set(members))
    assert driver.state() == sound


@pytest.mark.spec("R-SETTLE-2", "R-EXPIRE-1")
def test_a_timer_that_comes_too_early_is_set_anew(driver: Driver) -> None:
    """A lease that was renewed, a sleep of a later turn: the entry there is belongs to something earlier."""
    for name, begin in (
        ("lease", leased),
        ("sleep", asleep),
        ("wait", waiting),
        ("delayed", delayed),
        ("expiry", expiring),
        ("operation", at_work),
        ("operation", beating),
        ("cancel", cancelling),
        ("total", limited),
    ):
        begin(driver)
        sound = driver.state()
        put_back(driver, {f"{name}:a": driver.now})
        assert [reply.word for reply in driver.expire()] == ["STALE"]
        assert driver.state() == sound
        driver.delete(request_id="")
        driver.sweep()
        driver.redis.call("DEL", f"{driver.tag}dead", f"{driver.tag}deadtime")
        driver.put_type()


@pytest.mark.timeout(120)
@pytest.mark.spec("R-DELETE-1", "R-DELETE-2")
def test_three_thousand_deletions_leave_no_timer_behind(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=DAY_MS, queue_timeout_ms=DAY_MS, total_timeout_ms=DAY_MS)
    for number in range(0, INSTANCES, 100):
        names = [f"i{at}" for at in range(number, number + 100)]
        given = [{"delay_ms": 5_000}, {"ttl_ms": 5_000}, {}, {}, {}, {}, {}, {}]
        items = [driver.message(name, b"1", **given[at % 8]) for at, name in enumerate(names)]
        driver.call("send", items=items)
        driver.call("send", items=[driver.message(name, b"2") for name in names[::3]])
        ends = ["sleep", "defer", "fail", "finish", "renew", "wait", "start", "cancel"]
        for at, held in enumerate(driver.claim(50)):
            end = ends[at % len(ends)]
            if end == "wait":
                held.wait(ms=5_000)
            elif end == "cancel":
                held.renew()
                driver.cancel(held.view.turn, held.view.instance_id)
            else:
                getattr(held, end)()
        driver.later(1)
    kinds = {member.partition(":")[0] for member in driver.due()}
    assert kinds == {
        "sleep", "wait", "defer", "backoff", "lease", "delayed", "expiry", "gc",
        "operation", "cancel", "total",
    }  # fmt: skip
    for number in range(INSTANCES):
        assert driver.delete(f"i{number}").deleted
    left = driver.state()
    assert set(left) == {"meta", "type:t", "typeindex", "dead", "deadtime"}
    assert len(left["dead"]) == INSTANCES
    assert driver.claim() == []
    assert driver.elapse(DAY_MS) == []
    for _ in range(INSTANCES // 100):
        driver.sweep()
    assert set(driver.state()) - {f"waiting:{TV}"} == {"meta", "type:t", "typeindex"}


@pytest.mark.spec("R-SETTLE-2")
async def test_a_server_counts_them_and_goes_on(
    api: Api, server: Handle, stored: Stored, redis_server: RedisServer
) -> None:
    timers = server.background.timers
    await api.create("a")
    await api.send("a", "m1")
    record, events = stored.record("a"), stored.events("a")
    stale, tags = timers.stale, [partition.tag for partition in server.engine.store.partitions]
    strangers = [
        f"{kind}:{name}"
        for kind in ("lease", "backoff", "sleep", "wait", "delete", "operation", "cancel", "total")
        for name in ("ghost", "a")
    ]
    for tag in tags:
        redis_server.call("ZADD", f"{tag}due", *(part for member in strangers for part in (1, member)))
    await wait_until(lambda: timers.stale >= stale + len(strangers) * len(tags))
    assert (timers.stale, timers.errors) == (stale + len(strangers) * len(tags), 0)
    assert (stored.record("a"), stored.events("a")) == (record, events)
    assert await asyncio.wait_for(api.send("a", "m2"), 5)
