"""CANCELLING: a turn whose worker was asked to give it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.domain.limits import CANCEL_GRACE_MS
from pawl_server.domain.states import TurnState
from pawl_server.engine import views
from pawl_server.store import records
from tests.support.driver import TV, Driver, Held
from tests.support.listener import listening


def cancelling(driver: Driver) -> Held:
    """An instance with two turns, the first of which is to be cancelled."""
    driver.create(state=b"json\0kept")
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.later(10)
    driver.cancel(comment="why")
    return held


def ended(driver: Driver, held: Held, *, steps: int = 0) -> None:
    """Nothing is left of the first turn but its receipt, and the next one has the state that there was."""
    receipt = driver.receipt(1)
    assert (receipt.state, receipt.attempts, receipt.steps) == (TurnState.CANCELLED, 1, steps)
    assert (driver.head(), driver.ready(), driver.due()) == ("QUEUED", ["a"], {})
    with driver.unchanged():
        assert held.renew().how == held.checkpoint("late", n=9).how == "cancelled"
    following = driver.take().view
    assert (following.turn, following.state, following.attempt) == (2, b"json\0kept", 1)


@pytest.mark.spec("R-CANCEL-5", "R-CONTROL-1")
def test_a_turn_that_runs_is_asked_for(driver: Driver) -> None:
    driver.create(state=b"json\0kept")
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    before = driver.record()
    driver.later(10)
    deadline = driver.now + CANCEL_GRACE_MS
    reply = driver.cancel(comment="why")
    assert (reply.word, *reply) == ("OK", 0, TurnState.RUNNING, TurnState.CANCELLING, deadline)
    assert driver.again() == reply
    assert driver.events()[-1] == ("TURN_CANCELLING", 1, 1, "CANCELLING", 2, "why")
    record = driver.record()
    assert (record.state, record.fence, record.cancel_at_ms) == (TurnState.CANCELLING, held.fence, deadline)
    assert (record.accepted, record.how, record.deadline_ms) == (True, 0, deadline)
    assert before.deadline_ms > deadline
    assert driver.due() == {"lease:a": deadline, "cancel:a": deadline}
    assert (driver.ready(), driver.claim(), driver.sweep()) == ([], [], (0, 0))
    driver.later(100)
    with driver.unchanged("i:a c"):
        again = driver.cancel(comment="another reason")
    assert (again.word, *again) == ("OK", 0, TurnState.CANCELLING, TurnState.CANCELLING, deadline)
    shown = views.turn("a", record, driver.turn(1))
    assert shown.cancel_deadline.ToMilliseconds() == deadline
    assert not shown.HasField("due_time")


@pytest.mark.spec("R-CANCEL-5")
def test_a_shorter_lease_stays_shorter(driver: Driver) -> None:
    driver.put_type(lease_ms=3_000)
    held = cancelling(driver)
    assert driver.record().deadline_ms == driver.now + 2_990
    driver.later(2_000)
    assert held.renew().remaining_ms == 3_000
    driver.later(2_000)
    held.renew()
    driver.later(2_000)
    held.renew()
    driver.later(1_500)
    reply = held.renew()
    assert (reply.remaining_ms, reply.cancel_ms) == (CANCEL_GRACE_MS - 7_500,) * 2
    assert driver.record().deadline_ms == driver.record().cancel_at_ms


@pytest.mark.parametrize("sign", ["renew", "adopt", "detach", "checkpoint", "gap", "orphan"])
@pytest.mark.spec("R-CANCEL-5", "R-CANCEL-6")
def test_no_sign_of_life_reaches_beyond_the_grace(driver: Driver, sign: str) -> None:
    held = cancelling(driver)
    deadline = driver.record().cancel_at_ms
    held.orphan(accepted=True)
    assert (driver.record().orphaned, driver.record().deadline_ms) == (True, driver.now + 300)
    driver.later(200)
    if sign in ("renew", "adopt", "detach"):
        reply = held.adopt("s.9.9") if sign == "adopt" else getattr(held, sign)()
        assert reply.cancel_ms == deadline - driver.now
        assert reply.remaining_ms == (10_000 if sign == "detach" else deadline - driver.now) - (
            200 if sign == "detach" else 0
        )
    elif sign == "checkpoint":
        assert held.checkpoint().word == "OK"
    elif sign == "gap":
        assert held.checkpoint(n=7).word == "GAP"
    else:
        assert held.orphan(accepted=True, grace_ms=60_000).deadline_ms == deadline
    assert driver.record().deadline_ms == driver.due()["lease:a"] == deadline
    assert driver.record().orphaned == (sign in ("detach", "orphan"))
    assert driver.head() == "CANCELLING"


@pytest.mark.spec("R-CANCEL-6", "R-DELIVER-2")
def test_the_server_of_its_stream_hears_of_it(driver: Driver) -> None:
    """Whichever server cancels it; and of the end as well."""
    with listening(driver, "server01") as (stream,):
        for turn, canceller in enumerate(("server01", "server02"), start=1):
            driver.server = "server01"
            driver.send("a", b"%d" % turn)
            held = driver.take()
            stream.heard()
            driver.server = canceller
            driver.cancel(turn, grace_ms=7_000)
            lease = f"{driver.conn} 1 {turn} {held.fence}"
            assert stream.heard() == [f"cancelling {lease} 7000 a"]
            driver.again()
            driver.cancel(turn)
            assert stream.heard() == []
            driver.elapse(7_000)
            assert stream.heard() == [f"ended {lease} cancelled a"]
        driver.send("a", b"3")
        driver.take().detach()
        driver.cancel(3)
        assert stream.heard() == []


@pytest.mark.spec("R-CANCEL-6", "R-CLAIM-3")
def test_servers_read_what_is_left_of_the_grace(driver: Driver) -> None:
    held = cancelling(driver)
    reply = driver.one("get_leases", **held.lease)
    assert (reply.word, *reply) == ("OK", True, driver.conn, CANCEL_GRACE_MS)
    driver.later(CANCEL_GRACE_MS - 1)
    assert driver.one("get_leases", **held.lease).cancel_ms == 1
    driver.later(5)
    assert driver.one("get_leases", **held.lease).cancel_ms == 1, "not ended yet"
    driver.send("b")
    other = driver.lease("b")
    assert (driver.one("get_leases", **other.lease).cancel_ms, other.renew().cancel_ms) == (0, 0)
    assert other.adopt("s.9.9").cancel_ms == 0


@pytest.mark.spec("R-CANCEL-5", "R-CANCEL-7")
def test_one_that_nobody_has_received(driver: Driver) -> None:
    """Whether its worker has it is not known yet: it hears of both."""
    driver.send()
    held = driver.lease()
    driver.cancel()
    assert (driver.head(), driver.record().attempt) == ("CANCELLING", 0)
    reply = held.renew()
    assert (reply.remaining_ms, reply.cancel_ms) == (CANCEL_GRACE_MS,) * 2
    assert driver.events()[-1] == ("ATTEMPT_STARTED", 1, 1, "CANCELLING", 2, "")
    assert held.release().word == "OK"
    assert (driver.head(), driver.receipt(1).attempts) == ("", 1)


@pytest.mark.spec("R-CANCEL-7")
def test_one_that_never_arrives(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    driver.cancel()
    [fired] = [reply for reply in driver.elapse(5_000) if reply.word == "FIRED"]
    assert (fired.kind, fired.turn, fired.fence, fired.outcome, fired.how) == (
        "lease", 1, held.fence, "cancelled", "cancelled",
    )  # fmt: skip
    assert (driver.head(), driver.receipt(1).attempts, driver.due()) == ("", 0, {})


@pytest.mark.spec("R-CANCEL-7", "R-CANCEL-3")
def test_its_message_is_taken_back(driver: Driver) -> None:
    driver.send()
    driver.lease()
    driver.cancel()
    assert driver.cancel_message("m-hello").turn == 1
    assert (driver.head(), driver.due()) == ("", {})
    driver.send("a", b"2")
    driver.take()
    driver.cancel(2)
    refused = driver.cancel_message("m-2")
    assert (refused.word, refused.state) == ("WRONG_STATE", TurnState.CANCELLING)


# What its worker does.


@pytest.mark.spec("R-CANCEL-7", "R-STEP-1", "R-CMD-1")
def test_the_step_that_runs_is_saved(driver: Driver) -> None:
    held = cancelling(driver)
    assert held.checkpoint("one", b"1").position == 1
    assert driver.events()[-1] == ("STEP_SAVED", 1, 1, "CANCELLING", 2, "one 1")
    with driver.unchanged():
        assert held.checkpoint("one", b"1", n=1).position == 1
    assert held.release().word == "OK"
    assert [step.blob for step in driver.turn(1).steps] == [b"\x001"]
    ended(driver, held, steps=1)


GIVING_UP: dict[str, tuple[Callable[[Held], Any], tuple[Any, ...]]] = {
    "release": (lambda held: held.release(n=1), ("OK",)),
    "fail": (lambda held: held.fail("STOPPED", n=1), ("OK", TurnState.CANCELLED, 0)),
    "fail for good": (lambda held: held.fail("STOPPED", final=True, n=1), ("OK", TurnState.CANCELLED, 0)),
    "fail later": (lambda held: held.fail("STOPPED", delay_ms=50, n=1), ("OK", TurnState.CANCELLED, 0)),
    "finish": (lambda held: held.finish(b"r", state=b"new", onward=b"x", n=1), ("LEASE_ENDED", "cancelled")),
    "sleep": (lambda held: held.sleep(n=1), ("LEASE_ENDED", "cancelled")),
    "defer": (lambda held: held.defer(n=1), ("LEASE_ENDED", "cancelled")),
}
"""Commands that end the turn, and their answers."""


@pytest.mark.parametrize("command", GIVING_UP)
@pytest.mark.spec("R-CANCEL-7", "R-CMD-1", "R-CMD-3", "R-WAKE-1")
def test_it_ends_by_whatever_would_end_the_lease(driver: Driver, command: str) -> None:
    send, answer = GIVING_UP[command]
    held = cancelling(driver)
    with listening(driver, "server01", "server02") as (stream, other):
        driver.one("await", id="a", turn=1, server="server02")
        reply = send(held)
        assert (reply.word, *reply) == answer
        assert stream.heard() == [f"ended {driver.conn} 1 1 {held.fence} cancelled a"]
        assert other.heard() == ["done 1 a"]
    assert driver.events()[-1] == ("TURN_CANCELLED", 1, 1, "CANCELLED", 2, "")
    with driver.unchanged():
        assert send(held) == reply
    failure = driver.turn(1).failure
    assert (failure.reason if failure else "") == ("STOPPED" if command.startswith("fail") else "")
    ended(driver, held)


@pytest.mark.spec("R-CANCEL-7")
def test_the_attempt_begins_with_its_only_command(driver: Driver) -> None:
    for turn, command in enumerate(GIVING_UP, start=1):
        driver.send("a", b"%d" % turn)
        held = driver.lease()
        driver.cancel(turn)
        GIVING_UP[command][0](held)
        assert driver.receipt(turn).attempts == (0 if command == "release" else 1)


@pytest.mark.spec("R-CANCEL-7")
def test_the_last_step_of_a_finish_is_saved(driver: Driver) -> None:
    held = cancelling(driver)
    held.checkpoint("one")
    reply = held.finish(state=b"new", step=("two", b"2"))
    assert (reply.word, reply.how) == ("LEASE_ENDED", "cancelled")
    assert driver.again() == reply
    assert [(step.key, step.blob) for step in driver.turn(1).steps] == [("one", b"\0out"), ("two", b"\x002")]
    assert driver.receipt(1).last_step is None
    ended(driver, held, steps=2)


@pytest.mark.parametrize("limits", [{"max_steps": 0}, {"max_step": 1}, {"max_turn": 10}, {}])
@pytest.mark.spec("R-CANCEL-7")
def test_a_last_step_that_can_not_be_saved_changes_nothing(driver: Driver, limits: dict[str, int]) -> None:
    held = cancelling(driver)
    if not limits:
        held.checkpoint("two")
    reply = held.finish(step=("two", b"22"), limits=limits)
    assert (reply.word, reply.how) == ("LEASE_ENDED", "cancelled")
    ended(driver, held, steps=0 if limits else 1)


@pytest.mark.spec("R-CANCEL-7", "R-CMD-1")
def test_numbers_count_as_ever(driver: Driver) -> None:
    held = cancelling(driver)
    held.checkpoint("one")
    assert (held.finish(n=3).word, held.release(n=5).last) == ("GAP", 1)
    assert held.finish(n=1).word == "BODY_CONFLICT"
    assert driver.head() == "CANCELLING"
    held.release()
    assert held.checkpoint("one", n=1).word == "ALREADY"
    ended(driver, held, steps=1)


@pytest.mark.parametrize("first", ["finish", "cancel"])
@pytest.mark.spec("R-CANCEL-5", "R-CANCEL-7")
def test_finish_and_cancel_in_both_orders(driver: Driver, first: str) -> None:
    driver.send("a", b"1")
    held = driver.take()
    if first == "finish":
        assert held.finish(b"done", state=b"new").word == "OK"
        refused = driver.cancel()
        assert (refused.word, refused.state) == ("WRONG_STATE", TurnState.COMPLETED)
    else:
        assert driver.cancel().state == TurnState.CANCELLING
        assert held.finish(b"done", state=b"new").how == "cancelled"
    state = records.instance_record(driver.get().record)
    assert (state.pending, driver.get().state) == (0, b"\0new" if first == "finish" else b"")


# Registered steps.


@pytest.mark.spec("R-CANCEL-7", "R-OP-1", "R-PROGRESS-1")
def test_no_step_starts_and_the_registered_one_goes_on(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    first = held.start("one")
    driver.cancel()
    with driver.unchanged():
        assert held.start("one") == first, "the repeat"
    assert held.report(1, "one", details=b"\0half").word == "OK"
    assert held.checkpoint("one").word == "OK"
    with driver.unchanged():
        refused = held.start("two")
        assert (refused.word, refused.state) == ("WRONG_STATE", "cancelling")
        assert (held.start("two", position=3).word, held.start("one").state) == ("GAP", "step_saved")
    held.release()
    assert (driver.head(), driver.due()) == ("QUEUED", {})


@pytest.mark.parametrize("on_restart", [1, 2])
@pytest.mark.parametrize("end", ["operation", "grace", "lease", "release", "force"])
@pytest.mark.spec("R-CANCEL-7", "R-CANCEL-8", "R-CANCEL-9", "R-OP-3")
def test_a_registered_step_leaves_nothing_uncertain(driver: Driver, on_restart: int, end: str) -> None:
    """Its time is over first, or the turn ends otherwise: it is cancelled, and nobody has to decide."""
    driver.put_type(lease_ms=3_000)
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    times = {"operation": 1_000, "grace": CANCEL_GRACE_MS, "lease": 5_000, "release": 5_000, "force": 5_000}
    held.start("one", timeout_ms=times[end], on_restart=on_restart)
    driver.cancel()
    if end in ("release", "force"):
        held.release() if end == "release" else driver.cancel(force=True)
    elif end == "grace":
        for _ in range(4):
            driver.later(2_000)
            held.renew()
        driver.elapse(2_000)
    else:
        [fired] = [reply for reply in driver.elapse(min(times[end], 3_000)) if reply.word == "FIRED"]
        assert (fired.kind, fired.outcome) == (
            ("operation", "expired") if end == "operation" else ("lease", "cancelled")
        )
    receipt = driver.receipt(1)
    assert (receipt.state, receipt.attempts) == (TurnState.CANCELLED, 1)
    assert (driver.head(), driver.due(), driver.state().get("failed")) == ("QUEUED", {}, None)
    assert held.renew().how == "cancelled"


# The end without the worker.


@pytest.mark.parametrize("by", ["timer", "settle", "late command", "send", "sweep", "force", "claim"])
@pytest.mark.spec("R-CANCEL-8", "R-SETTLE-1", "R-WAKE-1")
def test_it_ends_with_the_grace(driver: Driver, by: str) -> None:
    held = cancelling(driver)
    driver.later(CANCEL_GRACE_MS - 1)
    held.renew()
    driver.expire()
    assert driver.head() == "CANCELLING"
    driver.later(1)
    if by == "timer":
        fired, stale = driver.expire()
        assert (fired.word, fired.kind, fired.outcome) == ("FIRED", "cancel", "cancelled")
        assert (stale.word, stale.kind) == ("STALE", "lease")
    elif by == "settle":
        driver.one("settle", id="a")
    elif by == "late command":
        assert held.checkpoint("late").how == "cancelled"
    elif by == "send":
        driver.send("a", b"3")
    elif by == "sweep":
        assert driver.sweep() == (0, 0)
    elif by == "force":
        assert driver.cancel(force=True).state == TurnState.CANCELLED
    else:
        assert driver.claim() == []
        driver.expire()
    assert driver.events()[-1 if by != "send" else -2].name == "TURN_CANCELLED"
    ended(driver, held)


@pytest.mark.spec("R-CANCEL-8", "R-READ-1", "R-READ-4")
def test_reads_show_the_end_as_the_next_transition_does(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take()
    driver.cancel()
    driver.later(CANCEL_GRACE_MS)
    with driver.unchanged():
        record = records.instance_record(driver.get().record)
        assert (record.pending, record.state, record.head) == (0, 0, 2)
        view = driver.turn(1)
        assert view.receipt is not None
        assert view.receipt.state == TurnState.CANCELLED
        [entry] = driver.one("list_instances", by="ids", type="t", limit=10).entries
        listed = records.instance_record(entry[1])
        assert (listed.pending, listed.seq, record.seq) == (0, 4, 4)


@pytest.mark.parametrize("how", ["lease", "lost", "dead server"])
@pytest.mark.spec("R-CANCEL-8", "R-EXPIRE-1")
def test_it_ends_with_the_lease(driver: Driver, how: str) -> None:
    driver.put_type(lease_ms=3_000)
    held = cancelling(driver)
    if how == "lost":
        held.orphan(accepted=True)
    elif how == "dead server":
        assert driver.sweep(dead="server01", grace_ms=300) == (0, 1)
    left = 2_990 if how == "lease" else 300
    driver.later(left - 1)
    assert (driver.expire(), driver.head()) == ([], "CANCELLING")
    with listening(driver, "server02") as (holder,):
        driver.later(1)
        [fired] = driver.expire()
        assert holder.heard() == []
    assert (fired.word, fired.kind, fired.turn, fired.fence) == ("FIRED", "lease", 1, held.fence)
    assert (fired.conn, fired.outcome, fired.how) == (driver.conn, "cancelled", "cancelled")
    record = driver.record()
    assert (record.failures, record.lost) == (0, 0)
    assert driver.turn(1).failure is None
    ended(driver, held)


@pytest.mark.spec("R-CANCEL-8", "R-EXPIRE-4")
def test_the_grace_is_not_held_back_by_the_clock(driver: Driver) -> None:
    """A lease outlasts a gap that nobody watched, the grace does not."""
    held = cancelling(driver)
    driver.set_meta(virtual=0, seen=driver.now - 60_000)
    driver.later(CANCEL_GRACE_MS)
    driver.set_meta(virtual=1)
    driver.one("settle", id="a")
    ended(driver, held)


@pytest.mark.parametrize("then", ["orphaned", "detached", "renewed", "checkpoint"])
@pytest.mark.spec("R-CANCEL-9", "R-CANCEL-5")
def test_force_ends_it_at_once(driver: Driver, then: str) -> None:
    held = cancelling(driver)
    steps = 0
    if then == "orphaned":
        held.orphan(accepted=True)
    elif then == "checkpoint":
        steps = held.checkpoint().position
    else:
        getattr(held, "detach" if then == "detached" else "renew")()
    with listening(driver, "server01") as (stream,):
        result = driver.call(
            "cancel", id="a", turn=1, force=True, grace_ms=CANCEL_GRACE_MS, request_id="f", digest=b"f"
        )
        told = [] if then == "detached" else [f"ended {driver.conn} 1 1 {held.fence} cancelled a"]
        assert stream.heard() == told
    [reply] = result.replies
    answer = ("OK", driver.now, TurnState.CANCELLING, TurnState.CANCELLED, 0)
    assert ((reply.word, *reply), result.ready) == (answer, [TV])
    assert driver.again() == reply
    ended(driver, held, steps=steps)


@pytest.mark.spec("R-CANCEL-5", "R-CONTROL-1")
def test_force_is_part_of_the_request(driver: Driver) -> None:
    cancelling(driver)
    first = driver.cancel(request_id="x", digest=b"cancel")
    assert driver.cancel(request_id="x", digest=b"force", force=True).word == "BODY_CONFLICT"
    driver.cancel(force=True)
    assert driver.cancel(request_id="x", digest=b"cancel") == first, "the first answer, also after the end"


# Others.


@pytest.mark.spec("R-CANCEL-5", "R-CONTROL-2")
def test_nobody_decides_about_a_failure(driver: Driver) -> None:
    cancelling(driver)
    with driver.unchanged():
        for call in (driver.retry, driver.skip, driver.park, driver.redrive):
            reply = call(1)
            assert (reply.word, reply.state) == ("WRONG_STATE", TurnState.CANCELLING)
    with driver.unchanged("i:a c"):
        assert not driver.wake().woken


@pytest.mark.parametrize("end", ["release", "grace", "force"])
@pytest.mark.spec("R-CANCEL-5", "R-PAUSE-1", "R-PAUSE-2")
def test_a_paused_instance(driver: Driver, end: str) -> None:
    held = cancelling(driver)
    due = driver.due()
    driver.pause()
    assert (driver.due(), driver.events()[-1].status) == (due, 4)
    driver.resume()
    driver.pause()
    assert held.checkpoint().word == "OK"
    if end == "release":
        held.release()
    elif end == "force":
        driver.cancel(force=True)
    else:
        driver.elapse(CANCEL_GRACE_MS)
    assert (driver.head(), driver.ready(), driver.due()) == ("QUEUED", [], {})
    driver.resume()
    ended(driver, held, steps=1)


@pytest.mark.parametrize("max_turns", [1_000, 0])
@pytest.mark.spec("R-CANCEL-5", "R-DELETE-1")
def test_deletion(driver: Driver, max_turns: int) -> None:
    held = cancelling(driver)
    with listening(driver, "server01") as (stream,):
        driver.delete(max_turns=max_turns)
        assert stream.heard() == [f"ended {driver.conn} 1 1 {held.fence} deleted a"]
    assert set(driver.due()) <= {"delete:a"}
    driver.elapse(CANCEL_GRACE_MS)


@pytest.mark.parametrize("ttl_ms", [1_000, 60_000])
@pytest.mark.spec("R-CANCEL-5", "R-TTL-2")
def test_its_time_to_live_is_over(driver: Driver, ttl_ms: int) -> None:
    """It ends as cancelled, if its worker has not received it as well."""
    driver.send("a", ttl_ms=ttl_ms)
    driver.lease()
    driver.cancel()
    driver.elapse(2_000)
    assert driver.head() == "CANCELLING"
    driver.elapse(5_000)
    assert driver.receipt(1).state == TurnState.CANCELLED
    assert driver.due() == {}


@pytest.mark.spec("R-CANCEL-5", "R-FINISH-4")
def test_a_repeated_finish_does_not_hand_it_out_again(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("b", b"2")
    held = driver.take()
    args = {"has_reply": True, "tv": TV, "conn": driver.conn, "n": 1}
    [view] = held.do("finish", **args).turns
    assert held.do("finish", **args).turns == [view]
    driver.cancel(1, "b")
    with driver.unchanged():
        assert held.do("finish", **args).turns == []


@pytest.mark.spec("R-CANCEL-5", "R-CANCEL-2")
def test_a_turn_behind_it_is_cancelled_in_its_place(driver: Driver) -> None:
    held = cancelling(driver)
    assert driver.cancel(2).state == TurnState.CANCELLED
    assert driver.head() == "CANCELLING"
    held.release()
    assert (driver.head(), driver.record().head) == ("", 3)
