"""Queue timeout and total deadline of a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from pawl_server.engine import views
from pawl_server.store import records
from tests.support.driver import TV, Driver, Held
from tests.support.listener import listening

BLOCK, SKIP, PARK = 1, 2, 3
YEAR_MS = 365 * 86_400_000
TOTAL = 10_000


def expiry(driver: Driver, turn: int) -> int:
    """When a turn expires; 0 for never."""
    message = driver.turn(turn).message
    assert message is not None
    return message.expire_ms


# Queue timeout.


@pytest.mark.parametrize(
    ("queue_ms", "ttl_ms", "after"),
    [
        (5_000, 0, 5_000), (5_000, 5_001, 5_000), (5_000, 4_999, 4_999), (1, 0, 1), (1, 1_000, 1),
        (YEAR_MS, 0, YEAR_MS), (YEAR_MS, 1, 1), (0, 0, 0), (0, 7, 7),
    ],
)  # fmt: skip
@pytest.mark.spec("R-TTL-3", "R-TTL-1")
def test_the_shorter_of_queue_timeout_and_time_to_live(
    driver: Driver, queue_ms: int, ttl_ms: int, after: int
) -> None:
    driver.put_type(queue_timeout_ms=queue_ms)
    driver.send("a", b"1", ttl_ms=ttl_ms)
    assert expiry(driver, 1) == (driver.now + after if after else 0)
    assert driver.due() == ({"expiry:a": driver.now + after} if after else {})
    if after:
        driver.elapse(after - 1)
        assert driver.head() == "QUEUED"
        [fired] = driver.elapse(1)
        assert (fired.kind, fired.outcome, driver.head()) == ("expiry", "expired", "")
        assert driver.receipt(1).state == TurnState.EXPIRED


@pytest.mark.spec("R-TTL-3", "R-TTL-2")
def test_it_ends_with_the_first_attempt(driver: Driver) -> None:
    driver.put_type(queue_timeout_ms=1_000)
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.elapse(1_000)
    assert (driver.head(), driver.receipt(2).state) == ("RUNNING", TurnState.EXPIRED)
    held.fail(delay_ms=5_000)
    driver.elapse(5_000)
    assert driver.take().finish().word == "OK"


@pytest.mark.spec("R-TTL-3", "R-DELAY-1")
def test_it_counts_from_the_admission_of_a_delayed_message(driver: Driver) -> None:
    driver.put_type(queue_timeout_ms=1_000)
    driver.send("a", b"1", delay_ms=60_000)
    assert driver.due() == {"delayed:a": driver.now + 60_000}
    driver.elapse(60_000)
    assert expiry(driver, 1) == driver.due()["expiry:a"] == driver.now + 1_000


@pytest.mark.spec("R-TTL-3", "R-PARK-2")
def test_continuations_and_redriven_messages_have_none(driver: Driver) -> None:
    driver.put_type(queue_timeout_ms=1_000)
    driver.send("a", b"1")
    driver.take().finish(onward=b"more")
    assert (expiry(driver, 2), driver.due()) == (0, {})
    driver.take().fail(final=True)
    driver.park(2)
    driver.redrive(2)
    assert (expiry(driver, 3), driver.due()) == (0, {})


@pytest.mark.spec("R-TTL-3")
def test_the_settings_at_the_admission_count(driver: Driver) -> None:
    driver.put_type(queue_timeout_ms=1_000)
    driver.send("a", b"1")
    driver.put_type("other", queue_timeout_ms=5)
    driver.put_type(queue_timeout_ms=2_000)
    driver.send("a", b"2")
    driver.put_type()
    driver.send("a", b"3")
    assert [expiry(driver, turn) - driver.now for turn in (1, 2)] == [1_000, 2_000]
    assert expiry(driver, 3) == 0


@pytest.mark.spec("R-TOTAL-4", "R-TYPE-1")
def test_the_partition_knows_which_types_have_deadlines(driver: Driver) -> None:
    def timed() -> bytes | None:
        return driver.redis.call("HGET", f"{driver.tag}meta", "timed")

    driver.put_type("plain")
    assert timed() is None
    driver.put_type("t.a", queue_timeout_ms=1)
    driver.put_type("t-a", total_timeout_ms=1)
    driver.put_type("t.a", queue_timeout_ms=1, total_timeout_ms=2)
    assert timed() == b",t-a,t.a,"
    copy = records.pack_type({"total_timeout_ms": 5})
    driver.one("put_type", name="copied", settings=copy, revision=7, digest=b"")
    assert timed() == b",t-a,t.a,copied,"
    driver.one("put_type", name="copied", settings=records.pack_type({}), revision=6, digest=b"")
    assert timed() == b",t-a,t.a,copied,", "an older copy changes nothing"
    for name in ("t.a", "copied", "t-a"):
        driver.put_type(name)
    assert timed() == b""


@pytest.mark.spec("R-TOTAL-4")
def test_other_types_cost_nothing(driver: Driver) -> None:
    """Neither without such types nor beside one."""

    def commands() -> list[dict[str, int]]:
        driver.count = True
        found = []
        driver.send("a", b"1")
        found.append(driver.commands)
        held = driver.lease()
        found.append(driver.commands)
        held.checkpoint()
        found.append(driver.commands)
        held.finish()
        found.append(driver.commands)
        driver.count = False
        return found

    driver.create("a")
    driver.send("a", b"0")
    driver.take().finish()
    before = commands()
    driver.delete("a")
    driver.put_type("timed", queue_timeout_ms=1_000, total_timeout_ms=1_000)
    driver.create("a")
    driver.send("a", b"0")
    driver.take().finish()
    assert commands() == before


# Total deadline.


def queued(held: Held) -> None:
    held.release()


def asleep(held: Held) -> None:
    held.sleep(ms=60_000)


def backoff(held: Held) -> None:
    held.fail(delay_ms=60_000)


def deferred(held: Held) -> None:
    held.defer(60_000)


def running(held: Held) -> None:
    held.renew()


def waiting(held: Held) -> None:
    held.do("wait_signal", key="w", name="go", callback="", ms=0)


STATES: dict[TurnState, Callable[[Held], None]] = {
    TurnState.QUEUED: queued,
    TurnState.RUNNING: running,
    TurnState.SLEEPING: asleep,
    TurnState.WAITING: waiting,
    TurnState.BACKOFF: backoff,
    TurnState.DEFERRED: deferred,
}


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("policy", [BLOCK, SKIP, PARK])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
@pytest.mark.spec("R-TOTAL-1", "R-TOTAL-2", "R-POLICY-1", "R-WAKE-1")
def test_a_turn_that_is_out_of_time_fails_in_every_state(
    driver: Driver, state: TurnState, policy: int, paused: bool
) -> None:
    driver.put_type(total_timeout_ms=TOTAL, on_exhausted=policy)
    driver.create(state=b"json\0kept")
    driver.send("a", b"1")
    deadline = driver.now + TOTAL
    driver.later(10)
    driver.send("a", b"2")
    STATES[state](driver.take())
    before = driver.record()
    assert (before.state, before.total_at_ms, driver.due()["total:a"]) == (state, deadline, deadline)
    if paused:
        driver.pause()
    driver.elapse(TOTAL - 11)
    assert driver.record().state == state
    fired = driver.elapse(1)
    assert [(one.word, one.kind, one.outcome) for one in fired if one.word == "FIRED"] == [
        ("FIRED", "total", "failed")
    ]
    view = driver.turn(1)
    assert view.failure is not None
    assert (view.failure.reason, view.failure.failed_ms) == ("TOTAL_DEADLINE", deadline)
    names = driver.event_names()
    assert ("ATTEMPT_EXPIRED" in names) == (state == TurnState.RUNNING)
    if policy == BLOCK:
        assert (driver.head(), driver.due(), driver.ready()) == ("FAILED", {}, [])
        failures = (state in (TurnState.RUNNING, TurnState.BACKOFF)) + 0
        assert (driver.record().failures, driver.record().total_at_ms) == (failures, 0)
        return
    ended = TurnState.SKIPPED if policy == SKIP else TurnState.PARKED
    assert (driver.receipt(1).state, driver.receipt(1).attempts) == (ended, 1)
    assert (driver.head(), driver.ready()) == ("QUEUED", [] if paused else ["a"])
    assert driver.due() == {"total:a": deadline + 10}, "that of the next turn counts from its admission"
    assert driver.record().parked_turns == (policy == PARK)


@pytest.mark.spec("R-TOTAL-2", "R-DELIVER-2", "R-FENCE-1")
def test_the_worker_is_told_and_fenced_off(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    with listening(driver, "server01", "server03") as (stream, other):
        held = driver.take()
        driver.one("await", id="a", turn=1, server="server03")
        stream.heard()
        driver.elapse(TOTAL)
        assert stream.heard() == [f"ended {driver.conn} 1 1 {held.fence} expired a"]
        assert other.heard() == ["done 1 a"]
    with driver.unchanged():
        assert held.checkpoint().how == held.finish().how == held.renew().how == "expired"


@pytest.mark.spec("R-TOTAL-2", "R-LEASE-4")
def test_no_lease_outlasts_it(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    held = driver.take()
    assert driver.record().deadline_ms == driver.now + TOTAL
    driver.later(TOTAL - 1)
    assert (held.renew().remaining_ms, held.adopt("s.9.9").remaining_ms) == (1, 1)
    assert held.checkpoint().word == "OK"
    driver.later(1)
    assert held.renew().how == "expired"
    assert driver.head() == "FAILED"


@pytest.mark.spec("R-TOTAL-2")
def test_one_that_nobody_has_received_costs_no_attempt(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=1_000)
    driver.send()
    held = driver.lease()
    assert held.view.total_ms == 1_000
    driver.elapse(1_000)
    record = driver.record()
    assert (driver.head(), record.attempt, record.failures, record.lost) == ("FAILED", 0, 0, 0)
    assert held.renew().how == "returned"


@pytest.mark.spec("R-TOTAL-3", "R-RETRY-1")
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_a_retry_grants_the_time_anew(driver: Driver, state: TurnState) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    STATES[state](driver.take())
    driver.elapse(TOTAL)
    driver.later(60_000)
    assert (driver.head(), driver.expire()) == ("FAILED", [])
    driver.retry()
    assert driver.due() == {"total:a": driver.now + TOTAL}
    driver.later(500)
    held = driver.take()
    assert held.view.total_ms == TOTAL - 500
    failed = state in (TurnState.RUNNING, TurnState.BACKOFF)
    assert (held.view.failure is not None) == failed
    assert held.finish().word == "OK"
    assert driver.due() == {}


@pytest.mark.spec("R-TOTAL-1", "R-TOTAL-3")
def test_settings_that_change_meanwhile(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.put_type(total_timeout_ms=3_000)
    held.renew()
    assert driver.record().total_at_ms == driver.now + TOTAL
    held.finish()
    assert driver.record().total_at_ms == driver.now + 3_000
    driver.elapse(3_000)
    driver.put_type()
    driver.retry(2)
    assert (driver.record().total_at_ms, driver.due()) == (0, {})


@pytest.mark.parametrize("by", ["timer", "claim", "finish", "sweep"])
@pytest.mark.spec("R-TOTAL-1", "R-SETTLE-1")
def test_turns_that_were_out_of_time_in_the_queue(driver: Driver, by: str) -> None:
    """Each fails when it gets to the head, before any attempt, however many there are."""
    driver.put_type(total_timeout_ms=TOTAL, on_exhausted=SKIP)
    driver.create("b", kind="u")
    driver.send("b", b"0", create=False)
    other = driver.take("b", tv="u:v1")
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, 41)])
    driver.later(5_000)
    driver.send("a", b"last")
    driver.later(TOTAL - 5_000)
    if by == "claim":
        assert driver.take().view.turn == 41
    elif by == "finish":
        [view] = other.finish(tv=TV, conn=driver.conn).turns
        assert view[2] == 41
    elif by == "sweep":
        for _ in range(3):
            driver.sweep()
        assert driver.head() == "QUEUED"
    else:
        while driver.expire():
            pass
    assert driver.record().head == 41
    assert {driver.receipt(turn).state for turn in range(1, 41)} == {TurnState.SKIPPED}
    assert driver.record().total_at_ms == driver.now + 5_000


@pytest.mark.parametrize("expires", [TOTAL - 1, TOTAL, TOTAL + 1])
@pytest.mark.spec("R-TOTAL-1", "R-TTL-3")
def test_the_earlier_of_expiry_and_total_deadline_counts(driver: Driver, expires: int) -> None:
    driver.put_type(total_timeout_ms=TOTAL, queue_timeout_ms=expires, on_exhausted=SKIP)
    driver.send()
    driver.later(60_000)
    driver.one("settle", id="a")
    state = TurnState.EXPIRED if expires <= TOTAL else TurnState.SKIPPED
    assert (driver.receipt(1).state, driver.due()) == (state, {})


@pytest.mark.parametrize("ms", [TOTAL - 1, TOTAL, TOTAL + 1])
@pytest.mark.spec("R-TOTAL-1", "R-SLEEP-1")
def test_the_earlier_of_sleep_and_total_deadline_is_told_first(driver: Driver, ms: int) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    driver.take().sleep(ms=ms)
    driver.later(60_000)
    driver.one("settle", id="a")
    assert driver.event_names()[-1] == "TURN_FAILED"
    assert ("TURN_READY" in driver.event_names()) == (ms < TOTAL)


@pytest.mark.parametrize(
    ("timeout_ms", "first"), [(TOTAL, "OPERATION_TIMEOUT"), (TOTAL + 1, "TOTAL_DEADLINE")]
)
@pytest.mark.parametrize("on_restart", [1, 2])
@pytest.mark.spec("R-TOTAL-1", "R-TOTAL-3", "R-UNCERTAIN-1")
def test_a_registered_step(driver: Driver, timeout_ms: int, first: str, on_restart: int) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    held = driver.take()
    held.start("one", timeout_ms=timeout_ms, on_restart=on_restart)
    driver.elapse(60_000)
    reasons = [event.detail for event in driver.events() if event.name == "ATTEMPT_EXPIRED"]
    assert reasons == [first]
    assert driver.head() == ("UNCERTAIN" if on_restart == 2 else "FAILED")
    assert (driver.due(), driver.record().total_at_ms, driver.record().failures) == ({}, 0, 1)


@pytest.mark.spec("R-TOTAL-3", "R-CANCEL-5")
def test_a_turn_that_is_to_be_cancelled_is_left_alone(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=1_000)
    driver.send()
    held = driver.take()
    driver.cancel()
    assert "total:a" not in driver.due()
    driver.elapse(500)
    held.renew()
    driver.elapse(1_000)
    assert driver.head() == "CANCELLING"
    assert held.release().word == "OK"


@pytest.mark.spec("R-TOTAL-1", "R-READ-1", "R-READ-4")
def test_reads_show_it(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send("a", b"1")
    driver.send("a", b"2")
    for turn, shown_ms in ((1, driver.now + TOTAL), (2, 0)):
        shown = views.turn("a", driver.record(), driver.turn(turn))
        assert shown.total_deadline.ToMilliseconds() == shown_ms
    driver.later(TOTAL)
    with driver.unchanged():
        for raw in (
            driver.get().record,
            driver.one("list_instances", by="ids", type="t", limit=10).entries[0][1],
        ):
            record = records.instance_record(raw)
            assert (record.state, record.total_at_ms) == (TurnState.FAILED, 0)


@pytest.mark.spec("R-TOTAL-1", "R-DELETE-1")
def test_deletion_takes_the_timer(driver: Driver) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    driver.delete()
    assert driver.due() == {}


@pytest.mark.parametrize("lost", ["total:a", "cancel:a"])
@pytest.mark.parametrize("by", ["sweep", "fsck"])
@pytest.mark.spec("R-TOTAL-1", "R-CANCEL-8", "R-SWEEP-1", "R-FSCK-1")
def test_a_lost_timer_is_given_back(driver: Driver, lost: str, by: str) -> None:
    driver.put_type(total_timeout_ms=TOTAL)
    driver.send()
    driver.take()
    if lost == "cancel:a":
        driver.cancel()
    due = driver.due()
    driver.redis.call("ZREM", f"{driver.tag}due", lost)
    if by == "sweep":
        assert driver.sweep() == (1, 0)
    else:
        reply: Any = driver.one("fsck", id="a", repair=True)
        assert len(reply.findings) == 1
    assert driver.due() == due
    driver.redis.call("ZADD", f"{driver.tag}due", 5, f"{lost[:-1]}gone")
    found = driver.one("fsck_index", name="due", cursor="0", limit=100, repair=True)
    assert [finding[1] for finding in found.findings] == [f"{lost[:-1]}gone".encode()]
    assert driver.due() == due
