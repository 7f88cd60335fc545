"""cancel and cancel_message: turns that end before they complete, at the head and in the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from tests.support.driver import TV, Driver, Held
from tests.support.listener import listening
from tests.support.lua_harness import changes


def queued(driver: Driver) -> Held | None:
    return None


def running(driver: Driver) -> Held | None:
    return driver.take()


def delivered(driver: Driver) -> Held | None:
    return driver.lease()


def backoff(driver: Driver) -> Held | None:
    held = driver.take()
    held.fail(delay_ms=60_000)
    return held


def asleep(driver: Driver) -> Held | None:
    held = driver.take()
    held.sleep(ms=60_000)
    return held


def deferred(driver: Driver) -> Held | None:
    held = driver.take()
    held.defer(60_000)
    return held


def failed(driver: Driver) -> Held | None:
    held = driver.take()
    held.fail(final=True)
    return held


STATES: dict[TurnState, tuple[Callable[[Driver], Held | None], str]] = {
    TurnState.QUEUED: (queued, ""),
    TurnState.RUNNING: (running, "cancelled"),
    TurnState.BACKOFF: (backoff, "failed"),
    TurnState.SLEEPING: (asleep, "sleeping"),
    TurnState.DEFERRED: (deferred, "deferred"),
    TurnState.FAILED: (failed, "failed"),
}
"""How the head gets into each state, and how its lease has ended after the cancellation."""


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
@pytest.mark.spec("R-CANCEL-1", "R-WAKE-1", "R-CMD-3")
def test_the_head_is_cancelled_in_every_state(driver: Driver, state: TurnState) -> None:
    enter, how = STATES[state]
    driver.create(state=b"json\0kept")
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = enter(driver)
    attempt = driver.record().attempt
    driver.later(10)
    result = driver.call("cancel", id="a", turn=1, force=True, comment="no", request_id="c", digest=b"d")
    [reply] = result.replies
    assert (reply.word, *reply, result.ready) == ("OK", driver.now, state, TurnState.CANCELLED, 0, [TV])
    assert driver.events()[-1] == ("TURN_CANCELLED", 1, attempt, "CANCELLED", 2, "no")
    receipt = driver.receipt(1)
    assert (receipt.state, receipt.attempts, receipt.reply) == (TurnState.CANCELLED, attempt, None)
    assert (driver.due(), driver.ready(), driver.state().get("failed")) == ({}, ["a"], None)
    view = driver.take().view
    assert (view.turn, view.state, view.attempt, view.steps) == (2, b"json\0kept", 1, [])
    if held is not None:
        with driver.unchanged():
            late = held.finish(b"done", state=b"new")
            assert (late.word, late.how) == ("LEASE_ENDED", how)
            assert (held.renew().how, held.adopt("s.9.9").how, held.orphan().how) == (how, how, how)


@pytest.mark.spec("R-CANCEL-1", "R-DELIVER-2")
def test_the_worker_of_a_running_turn_is_told(driver: Driver) -> None:
    """By the channel of the server that holds its stream, also if that server cancels it."""
    with listening(driver, "server01") as (stream,):
        for turn, canceller in enumerate(("server01", "server02"), start=1):
            driver.server = "server01"
            driver.send("a", b"%d" % turn)
            held = driver.take()
            driver.one("await", id="a", turn=turn)
            stream.heard()
            driver.server = canceller
            driver.cancel(turn, force=True)
            ended = f"ended {driver.conn} 1 {turn} {held.fence} cancelled a"
            assert sorted(stream.heard()) == [f"done {turn} a", ended]
            driver.again()
            assert stream.heard() == []


@pytest.mark.spec("R-CANCEL-1", "R-FENCE-1")
def test_the_only_turn(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.cancel(force=True)
    assert (driver.head(), driver.events()[-1].status, driver.state().get("busy")) == ("", 1, None)
    driver.send("a", b"2")
    assert driver.take().fence > held.fence


@pytest.mark.spec("R-CANCEL-1", "R-CONTROL-2")
def test_what_may_be_cancelled(driver: Driver) -> None:
    driver.put_type(on_exhausted=2)
    for body in (b"1", b"2", b"3"):
        driver.send("a", body)
    driver.take().finish()
    driver.take().fail(final=True)
    driver.cancel(3)
    with driver.unchanged():
        found = [driver.cancel(turn) for turn in (1, 2, 3)]
        assert {(reply.word, reply.attempt) for reply in found} == {("WRONG_STATE", 0)}
        assert [reply.state for reply in found] == [
            TurnState.COMPLETED,
            TurnState.SKIPPED,
            TurnState.CANCELLED,
        ]
        assert [driver.cancel(turn).word for turn in (0, 4)] == ["NOT_FOUND", "NOT_FOUND"]
        assert driver.cancel(1, "nobody").word == "NOT_FOUND"
        assert driver.cancel(1, inc=7).word == "NOT_FOUND"


# The queue.


@pytest.mark.spec("R-CANCEL-2", "R-SEND-1")
def test_a1_a_queued_turn_is_cancelled_before_the_head_finishes(driver: Driver) -> None:
    """Turn 3 ends before turns 1 and 2 do: it stays where it is, and the head passes it later."""
    for body in (b"1", b"2", b"3", b"4"):
        driver.send("a", body)
    head = driver.take()
    driver.later(5)
    before = driver.state()
    reply = driver.cancel(3)
    assert (reply.word, reply.former, reply.finished_ms) == ("OK", TurnState.QUEUED, driver.now)
    assert set(changes(before, driver.state())) == {"i:a r", "i:a c", "i:a 3.m", "i:a 3.h", "e:a"}
    assert driver.events()[-1] == ("TURN_CANCELLED", 3, 0, "CANCELLED", 2, "")
    receipt = driver.receipt(3)
    assert (receipt.state, receipt.attempts, receipt.message_id) == (TurnState.CANCELLED, 0, "m-3")
    assert (driver.record().pending, driver.record().head) == (3, 1)
    assert driver.send("a", b"3").turn == 3, "a repeat of the send"
    driver.later(5)
    head.finish()
    assert driver.take().view.turn == 2
    driver.cancel(2, force=True)
    assert (driver.record().head, driver.ready()) == (4, ["a"])
    assert driver.take().finish().word == "OK"
    assert [driver.receipt(turn).state for turn in (1, 2, 3, 4)] == [
        TurnState.COMPLETED, TurnState.CANCELLED, TurnState.CANCELLED, TurnState.COMPLETED,
    ]  # fmt: skip
    assert [driver.receipt(turn).finished_ms - driver.now for turn in (1, 2, 3, 4)] == [0, 0, -5, 0]


@pytest.mark.spec("R-CANCEL-2")
def test_the_last_turns_of_the_queue(driver: Driver) -> None:
    for body in (b"1", b"2", b"3"):
        driver.send("a", body)
    held = driver.take()
    driver.cancel(3)
    driver.cancel(2)
    reply = held.finish(onward=b"more")
    assert (reply.continuation, driver.record().head, driver.head()) == (4, 4, "QUEUED")
    driver.take().finish()
    assert (driver.head(), driver.record().head) == ("", 5)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 18, 33, 100])
@pytest.mark.parametrize("end", ["finish", "skip", "cancel"])
@pytest.mark.spec("R-CANCEL-2", "R-WAKE-1", "R-SETTLE-1")
def test_many_ended_turns_in_a_row_are_passed(driver: Driver, count: int, end: str) -> None:
    last = count + 2
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, last + 1)])
    held = driver.take()
    for turn in range(last - 1, 1, -1):
        driver.cancel(turn)
    if end == "finish":
        held.finish()
    elif end == "cancel":
        driver.cancel(1, force=True)
    else:
        held.fail(final=True)
        driver.skip()
    behind = count > 16
    assert (driver.head() == "CANCELLED", "settle:a" in driver.due(), driver.ready() == []) == (behind,) * 3
    rounds = 0
    while driver.head() != "QUEUED":
        [fired] = driver.expire()
        assert (fired.word, fired.kind, fired.outcome) == ("FIRED", "settle", "passed")
        rounds += 1
    assert rounds == (count - 1) // 16
    assert driver.take().view.turn == last
    assert driver.due().keys() == {"lease:a"}


@pytest.mark.parametrize(
    "then",
    ["send", "cancel an ended one", "cancel the last", "pause", "wake", "expire later", "get", "delete"],
)
@pytest.mark.spec("R-CANCEL-2", "R-SETTLE-1", "R-WAKE-1")
def test_while_the_head_is_behind(driver: Driver, then: str) -> None:
    """Whatever comes first goes on with passing; nothing depends on the timer."""
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, 31)])
    held = driver.take()
    for turn in range(2, 30):
        driver.cancel(turn)
    held.finish()
    assert (driver.head(), driver.record().head) == ("CANCELLED", 18)
    if then == "cancel the last":
        driver.cancel(30)
        assert (driver.head(), driver.record().head, driver.due()) == ("", 31, {})
        return
    if then == "delete":
        driver.delete()
        assert (driver.due(), driver.state().get("busy")) == ({}, None)
        return
    if then == "send":
        assert driver.send("a", b"31").turn == 31
    elif then == "pause":
        driver.pause()
        assert (driver.head(), driver.ready(), driver.due()) == ("QUEUED", [], {})
        driver.resume()
    elif then == "cancel an ended one":
        assert [driver.cancel(turn).state for turn in (18, 29)] == [TurnState.CANCELLED] * 2
    elif then == "wake":
        assert not driver.wake().woken
    elif then == "expire later":
        driver.elapse(10**7)
    else:
        with driver.unchanged():
            driver.get()
        driver.expire()
    assert (driver.head(), driver.record().head, driver.ready()) == ("QUEUED", 30, ["a"])
    assert driver.take().view.turn == 30


@pytest.mark.spec("R-CANCEL-2", "R-PAUSE-1")
def test_a_paused_instance_passes_them_too(driver: Driver) -> None:
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, 41)])
    held = driver.take()
    for turn in range(2, 40):
        driver.cancel(turn)
    driver.pause()
    held.finish()
    while driver.expire():
        assert driver.ready() == []
    assert (driver.head(), driver.record().head) == ("QUEUED", 40)
    driver.resume()
    assert driver.take().view.turn == 40


@pytest.mark.spec("R-CANCEL-2", "R-LIMIT-1", "R-SEND-4")
def test_how_many_turns_may_lie_between_head_and_tail(driver: Driver) -> None:
    driver.send("a", b"1", max_pending=2)
    driver.take()
    for turn in range(2, 17):
        assert driver.send("a", b"%d" % turn, max_pending=2).turn == turn
        driver.cancel(turn)
    with driver.unchanged():
        reply = driver.send("a", b"17", max_pending=2)
        assert (reply.word, reply.limit, reply.value, reply.max) == (
            "LIMIT_EXCEEDED",
            "pending_messages",
            17,
            16,
        )
    assert driver.send("a", b"17", max_pending=3).word == "OK"


@pytest.mark.spec("R-CANCEL-2", "R-TRIM-1", "R-TRIM-3", "R-SEND-2")
def test_ended_turns_are_trimmed_with_the_others(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=0)
    for body in (b"1", b"2", b"3", b"4"):
        driver.send("a", body)
    held = driver.take()
    driver.cancel(2)
    driver.cancel(3)
    driver.later(10)
    held.finish()
    driver.take().finish()
    driver.trim()
    assert (driver.record().kept, driver.fields() & {"1.m", "2.m", "3.m", "4.m"}) == (4, {"4.m"})
    assert driver.send("a", b"2").turn == 2
    driver.later(900_000)
    driver.trim()
    assert (driver.record().oldest, driver.record().kept_bytes > 0) == (4, True)
    assert not {"2.h", "3.h", "d:m-2", "d:m-3"} & driver.fields()
    assert driver.send("a", b"2").turn == 5


@pytest.mark.spec("R-CANCEL-2", "R-AWAIT-1")
def test_who_waits_for_a_queued_turn_hears_of_its_end(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    pending = driver.one("await", id="a", turn=2)
    assert (pending.word, pending.passed) == ("PENDING", False)
    driver.cancel(2)
    assert "a" not in driver.fields()
    assert driver.one("await", id="a", turn=2).word == "DONE"
    pending = driver.one("await", id="a", turn=1)
    assert (pending.word, pending.passed) == ("PENDING", True), "others ended first"
    view = driver.turn(2)
    assert (view.message, view.steps) == (None, [])
    assert view.receipt is not None
    assert view.receipt.state == TurnState.CANCELLED


# By message.


@pytest.mark.spec("R-CANCEL-3", "R-CANCEL-2")
def test_a_message_is_taken_back(driver: Driver) -> None:
    for body in (b"1", b"2", b"3"):
        driver.send("a", body)
    assert (driver.cancel_message("m-2", comment="typo").word, driver.again().turn) == ("OK", 2)
    assert driver.events()[-1] == ("TURN_CANCELLED", 2, 0, "CANCELLED", 2, "typo")
    result = driver.call("cancel_message", id="a", message_id="m-1")
    assert (result.replies[0].turn, driver.record().head, driver.ready()) == (1, 3, ["a"])
    assert driver.take().view.turn == 3


@pytest.mark.spec("R-CANCEL-3", "R-LEASE-3", "R-DELIVER-2")
def test_a_message_whose_turn_is_on_its_way(driver: Driver) -> None:
    """Nobody has received it: no attempt has begun."""
    driver.send()
    held = driver.lease()
    with listening(driver, "server01") as (stream,):
        assert driver.cancel_message("m-hello").turn == 1
        assert stream.heard() == [f"ended {driver.conn} 1 1 {held.fence} cancelled a"]
    assert (held.renew().word, held.renew().how) == ("LEASE_ENDED", "cancelled")
    assert driver.receipt(1).attempts == 0


@pytest.mark.spec("R-CANCEL-3", "R-LEASE-9")
def test_a_message_that_was_given_back_unreceived_too_often(driver: Driver) -> None:
    driver.send()
    for _ in range(11):
        driver.lease().release()
    assert (driver.head(), driver.record().attempt) == ("BACKOFF", 0)
    assert driver.cancel_message("m-hello").turn == 1
    assert (driver.head(), driver.due()) == ("", {})


@pytest.mark.spec("R-CANCEL-3", "R-CANCEL-4", "R-DELAY-1")
def test_a_delayed_message_becomes_a_cancelled_turn(driver: Driver) -> None:
    driver.create()
    clean = driver.state()
    for delay_ms in (300, 200, 100):
        driver.send("a", b"%d" % delay_ms, delay_ms=delay_ms)
    assert driver.due() == {"delayed:a": driver.now + 100}
    assert (driver.cancel_message("m-100").word, driver.again().turn) == ("OK", 1)
    assert driver.due() == {"delayed:a": driver.now + 200}
    driver.cancel_message("m-300")
    assert driver.due() == {"delayed:a": driver.now + 200}
    result = driver.call("cancel_message", id="a", message_id="m-200", comment="typo")
    assert (result.replies[0].turn, result.ready) == (3, [])
    assert driver.events()[-1] == ("MESSAGE_CANCELLED", 3, 0, "CANCELLED", 1, "m-200 typo")
    turns = {f"i:a {turn}.h" for turn in (1, 2, 3)}
    known = {f"i:a d:m-{number}" for number in (100, 200, 300)}
    assert set(changes(clean, driver.state())) == {"i:a r", "i:a c", "e:a", *turns, *known}
    receipt = driver.receipt(2)
    assert (receipt.message_id, receipt.finished_ms, receipt.attempts) == ("m-300", driver.now, 0)
    with driver.unchanged():
        reply = driver.cancel_message("m-100")
        assert (reply.word, reply.state) == ("WRONG_STATE", TurnState.CANCELLED)
    driver.send("a", b"next")
    assert (driver.head(), driver.take().view.turn) == ("QUEUED", 4)


@pytest.mark.spec("R-CANCEL-4", "R-SEND-2", "R-DELAY-2")
def test_a_late_repeat_of_a_message_that_was_cancelled_in_time(driver: Driver) -> None:
    """A client's hidden retry, after the cancellation: it must not schedule the message again."""
    driver.send("a", b"1", delay_ms=5_000)
    driver.later(10)
    driver.cancel_message("m-1")
    at = driver.now
    for _ in range(2):
        with driver.unchanged():
            reply = driver.send("a", b"1", delay_ms=5_000)
            assert (reply.word, reply.turn, reply.admitted_ms, reply.due_ms) == ("OK", 1, at, 0)
            other = driver.send("a", b"2", message_id="m-1", delay_ms=5_000)
            assert (other.word, other.what) == ("BODY_CONFLICT", "message")
            assert driver.one("find_message", id="a", message_id="m-1").turn == 1
        driver.later(20_000)
        driver.expire()
    assert driver.due() == {}


@pytest.mark.spec("R-CANCEL-4", "R-TRIM-2", "R-TRIM-3")
def test_the_receipt_of_a_cancelled_delayed_message_goes_like_any_other(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.create()
    clean = driver.fields()
    driver.send("a", b"1", delay_ms=5_000)
    driver.cancel_message("m-1")
    assert driver.due() == {"gc:a": driver.now + 900_000}
    driver.later(899_999)
    assert driver.send("a", b"1", delay_ms=5_000).turn == 1
    driver.later(1)
    driver.expire()
    assert (driver.fields() - {"c"}, driver.due()) == (clean, {})
    assert driver.send("a", b"1", delay_ms=5_000).due_ms == driver.now + 5_000


@pytest.mark.spec("R-CANCEL-4", "R-CANCEL-2", "R-SEND-1", "R-WAKE-1")
@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "FAILED"])
def test_a_delayed_message_that_is_cancelled_behind_a_turn(driver: Driver, state: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2", delay_ms=5_000)
    held = None if state == "QUEUED" else driver.take()
    if held and state == "FAILED":
        held.fail(final=True)
    before = driver.record()
    assert driver.cancel_message("m-2").turn == 2
    record = driver.record()
    assert (driver.head(), record.head, record.tail, record.pending, record.delayed) == (state, 1, 2, 1, 0)
    assert (record.deadline_ms, record.fence) == (before.deadline_ms, before.fence)
    driver.send("a", b"3")
    if state == "FAILED":
        driver.skip(1)
    else:
        (held or driver.take()).finish()
    assert driver.take().view.turn == 3


@pytest.mark.spec("R-CANCEL-4", "R-CANCEL-2")
def test_delayed_messages_that_are_cancelled_behind_tombstones(driver: Driver) -> None:
    """While the head has still to pass turns that have ended."""
    for number in range(40):
        driver.send("a", b"%d" % number)
    driver.send("a", b"late", delay_ms=60_000)
    held = driver.take()
    for turn in range(2, 40):
        driver.cancel(turn)
    held.finish()
    assert driver.head() == "CANCELLED", "it is passed in parts"
    assert driver.cancel_message("m-late").turn == 41
    driver.send("a", b"last")
    for turn in (40, 42):
        driver.expire()
        driver.expire()
        held = driver.take()
        assert held.view.turn == turn
        held.finish()
    assert (driver.record().head, driver.record().tail, driver.due()) == (43, 42, {})


@pytest.mark.spec("R-CANCEL-3", "R-SETTLE-1", "R-DELAY-1")
def test_a_delayed_message_that_is_due_is_admitted_first(driver: Driver) -> None:
    driver.create()
    for number in range(20):
        driver.send("a", b"%d" % number, delay_ms=100)
    driver.send("a", b"later", delay_ms=200)
    driver.later(100)
    assert driver.cancel_message("m-19").turn == 20
    assert (driver.record().pending, driver.record().delayed, driver.record().tail) == (19, 1, 20)
    assert driver.due() == {"delayed:a": driver.now + 100}


@pytest.mark.spec("R-CANCEL-3", "R-CONTROL-1")
def test_words_that_refuse_it(driver: Driver) -> None:
    for body in (b"1", b"2", b"3"):
        driver.send("a", body)
    driver.take().finish()
    held = driver.take()
    driver.cancel(3)

    def found() -> list[Any]:
        with driver.unchanged():
            replies = [driver.cancel_message(f"m-{number}") for number in (1, 2, 3)]
        assert {reply.word for reply in replies} == {"WRONG_STATE"}
        return [reply.state for reply in replies]

    done = (TurnState.COMPLETED, TurnState.CANCELLED)
    assert found() == [done[0], TurnState.RUNNING, done[1]]
    held.release()
    assert found() == [done[0], TurnState.QUEUED, done[1]], "an attempt has begun"
    with driver.unchanged():
        assert driver.cancel_message("m-9").word == driver.cancel_message("m-1", "nobody").word == "NOT_FOUND"
    driver.send("a", b"4")
    driver.cancel_message("m-4", request_id="c")
    with driver.unchanged():
        assert driver.cancel_message("m-4", request_id="c").turn == 4
        assert driver.cancel_message("m-2", request_id="c").word == "BODY_CONFLICT"


@pytest.mark.spec("R-CANCEL-2", "R-WAKE-1")
def test_the_last_turn_is_cancelled_while_the_head_stays_behind(driver: Driver) -> None:
    driver.call("send", items=[driver.message("a", b"%d" % turn, ttl_ms=1) for turn in range(1, 61)])
    driver.send("a", b"61")
    held = driver.take()
    driver.later(1)
    while driver.expire():
        pass
    held.finish()
    assert driver.record().head == 18
    reply = driver.cancel(34)
    assert (reply.word, reply.state) == ("WRONG_STATE", TurnState.EXPIRED)
    assert (driver.head(), driver.record().head) == ("CANCELLED", 34)
    assert driver.cancel(61).word == "OK"
    assert (driver.head(), driver.record().head, driver.due(), driver.state().get("busy")) == (
        "",
        62,
        {},
        None,
    )


@pytest.mark.parametrize("script", ["checkpoint", "finish", "fail", "release", "sleep", "defer", "renew"])
@pytest.mark.spec("R-FENCE-1", "R-CANCEL-1")
def test_a_turn_that_ended_before_any_lease_has_no_fence(driver: Driver, script: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.cancel(2)
    driver.take().finish()
    item = {"id": "a", "inc": 1, "turn": 2, "fence": 0}
    if script != "renew":
        item |= {"n": 1, "digest": b"d"}
    with driver.unchanged():
        assert driver.call(script, items=[item]).replies[0].word == "STALE_FENCE"
