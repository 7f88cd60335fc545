"""wait_signal: a turn gets what was sent to it, or waits for it."""

from __future__ import annotations

import pytest

from pawl.v1.step_pb2 import WaitOutcome
from pawl_server.store import records
from pawl_server.store.errors import StoreDamaged
from tests.support.driver import Driver
from tests.support.lua_harness import changes

RECEIVED, TIMED_OUT, REJECTED = (
    WaitOutcome.WAIT_OUTCOME_RECEIVED, WaitOutcome.WAIT_OUTCOME_TIMED_OUT, WaitOutcome.WAIT_OUTCOME_REJECTED,
)  # fmt: skip


@pytest.mark.spec("R-WAIT-1", "R-WAKE-1")
def test_a_wait_for_what_has_not_come_ends_the_lease(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    driver.later(5)
    before = driver.state()
    reply = held.wait("answer", "go", 90_000)
    assert (reply.word, reply.position, reply.suspended, reply.deadline_ms) == (
        "OK",
        2,
        True,
        driver.now + 90_000,
    )
    assert (reply.outcome, reply.value) == (0, b"")
    assert set(changes(before, driver.state())) == {"i:a r", "i:a w", "e:a", "due lease:a", "due wait:a"}
    assert (driver.head(), driver.due()) == ("WAITING", {"wait:a": reply.deadline_ms})
    record = driver.record()
    assert (record.conn, record.attempt, record.steps, record.signalled) == (0, 1, 1, 0)
    wait = driver.turn(1).wait
    assert wait == ("answer", "go", "", driver.now, reply.deadline_ms)
    assert driver.events()[-1] == ("TURN_WAITING", 1, 1, "WAITING", 2, "answer go 90000")


@pytest.mark.spec("R-WAIT-1", "R-WAKE-1")
def test_a_wait_without_end_has_no_timer(driver: Driver) -> None:
    driver.send()
    assert driver.take().wait().deadline_ms == 0
    assert (driver.due(), driver.ready()) == ({}, [])
    driver.later(10**9)
    assert (driver.expire(), driver.claim(), driver.sweep()) == ([], [], (0, 0))
    assert driver.head() == "WAITING"
    wait = driver.turn(1).wait
    assert wait is not None
    assert wait.deadline_ms == 0
    driver.pause()
    driver.resume()
    assert (driver.head(), driver.due()) == ("WAITING", {})
    assert driver.signal().position == 1


@pytest.mark.spec("R-SIGNAL-2", "R-SIGNAL-1", "R-WAIT-1", "R-FAIL-4")
def test_a_signal_ends_the_wait_and_the_turn_goes_on_in_the_same_attempt(driver: Driver) -> None:
    driver.send()
    driver.take().wait("answer", "go", 1_000)
    driver.later(999)
    before = driver.state()
    reply = driver.signal("s1", "go", b"yes", sender="ann", principal=1)
    assert (reply.word, reply.turn, reply.received_ms, reply.position) == ("OK", 1, driver.now, 1)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a w", "i:a k", "i:a 1.1", "i:a 1.g", "e:a", "due wait:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert (driver.head(), driver.due(), driver.ready()) == ("QUEUED", {}, ["a"])
    assert driver.events()[-3:] == [
        ("SIGNAL_RECEIVED", 1, 1, "WAITING", 2, "s1 go  ann 1"),
        ("STEP_SAVED", 1, 1, "WAITING", 2, "answer 1"),
        ("TURN_READY", 1, 1, "QUEUED", 2, ""),
    ]
    held = driver.take()
    [step] = held.view.steps
    assert (step.key, step.kind, step.blob, step.outcome) == ("answer", "signal", b"\0yes", RECEIVED)
    assert (step.saved_ms, step.attempt, held.view.attempt) == (driver.now, 1, 1)
    assert driver.event_names().count("ATTEMPT_STARTED") == 1
    assert held.checkpoint("after").position == 2
    held.finish()
    assert (driver.receipt(1).attempts, driver.receipt(1).steps) == (1, 2)


@pytest.mark.spec("R-SIGNAL-1", "R-SIGNAL-2")
def test_an_early_signal_is_kept_and_consumed_at_once(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    size = driver.record().bytes
    assert driver.signal("s1", "go", b"early").position == 0
    assert (driver.head(), driver.record().bytes, driver.record().signalled) == ("RUNNING", size + 6, 1)
    driver.later(3)
    reply = held.wait("answer")
    assert reply == ("OK", 1, False, 0, RECEIVED, b"\0early")[1:]
    assert (driver.head(), driver.record().bytes) == ("RUNNING", size + 6)
    assert driver.fields() >= {"1.g", "1.1"}
    assert "1.g.1" not in driver.fields()
    [signal] = driver.turn(1).signals
    assert (signal.position, signal.value, signal.received_ms) == (1, b"", driver.now - 3)
    assert driver.events()[-1] == ("STEP_SAVED", 1, 1, "RUNNING", 2, "answer 1")
    assert held.wait("more", ms=5).suspended


@pytest.mark.spec("R-SIGNAL-2")
def test_the_oldest_of_a_name_comes_first_and_each_once(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    for number in range(3):
        driver.signal(f"s{number}", "go", b"%d" % number)
        driver.signal(f"o{number}", "other", b"o%d" % number)
    got = [held.wait(f"w{number}").value for number in range(2)]
    got += [held.wait("w2", "other").value, held.wait("w3").value, held.wait("w4", "other").value]
    assert got == [b"\x000", b"\x001", b"\0o0", b"\x002", b"\0o1"]
    assert held.wait("w5").suspended
    assert [signal.position for signal in driver.turn(1).signals] == [1, 3, 2, 5, 4, 0]


@pytest.mark.spec("R-SIGNAL-1")
def test_a_signal_of_another_name_does_not_end_the_wait(driver: Driver) -> None:
    driver.send()
    driver.take().wait("answer", "go", 1_000)
    assert driver.signal("s1", "other").position == 0
    assert driver.answer("go").position == 0
    assert (driver.head(), driver.due()) == ("WAITING", {"wait:a": driver.now + 1_000})
    assert driver.signal("s2", "go", b"this").position == 1
    held = driver.take()
    assert held.wait("next", "other").value == b"\0v"


@pytest.mark.spec("R-SIGNAL-3")
def test_at_the_deadline_the_wait_is_over_and_the_signal_stays_for_a_later_one(driver: Driver) -> None:
    driver.send()
    driver.take().wait("answer", "go", 1_000)
    deadline = driver.now + 1_000
    driver.later(1_000)
    reply = driver.signal("s1", "go", b"late")
    assert (reply.position, reply.received_ms) == (0, deadline)
    assert driver.event_names()[-3:] == ["STEP_SAVED", "TURN_READY", "SIGNAL_RECEIVED"]
    assert (driver.head(), driver.due()) == ("QUEUED", {})
    held = driver.take()
    [step] = held.view.steps
    assert (step.key, step.kind, step.blob, step.outcome) == ("answer", "signal", b"", TIMED_OUT)
    assert (step.saved_ms, held.view.attempt) == (deadline, 1)
    assert held.wait("again").value == b"\0late"


@pytest.mark.spec("R-SIGNAL-3", "R-SETTLE-1")
@pytest.mark.parametrize("settles", ["expire", "settle", "sweep", "claim", "pause", "send", "delete"])
def test_whatever_touches_the_instance_ends_a_wait_that_is_over(driver: Driver, settles: str) -> None:
    driver.send()
    driver.take().wait("answer", "go", 1_000)
    driver.later(5_000)
    if settles == "expire":
        [fired] = driver.expire()
        assert (fired.word, fired.kind, fired.id, fired.outcome) == ("FIRED", "wait", "a", "ready")
    elif settles == "settle":
        assert driver.call("settle", items=[{"id": "a"}]).replies[0].state == 1
    elif settles == "sweep":
        driver.sweep()
    elif settles == "claim":
        driver.expire()
        assert driver.claim()[0].view.steps[0].outcome == TIMED_OUT
    elif settles == "pause":
        driver.pause()
        assert driver.ready() == []
    elif settles == "send":
        driver.send("a", b"more")
    else:
        assert driver.delete().deleted
        assert driver.state().keys() <= {"meta", "dead", "deadtime", "types", "typeindex"}
        return
    [step] = driver.turn(1).steps
    assert (step.outcome, step.saved_ms) == (TIMED_OUT, driver.now - 4_000)
    assert driver.event_names().count("TURN_READY") == 1
    assert "w" not in driver.fields()


@pytest.mark.spec("R-SIGNAL-3", "R-READ-1", "R-READ-2")
def test_reads_show_the_outcome_that_the_next_transition_writes(driver: Driver) -> None:
    driver.send()
    driver.take().wait("answer", "go", 1_000)
    driver.later(1_000)
    with driver.unchanged():
        shown = driver.turn(1)
        assert (shown.wait, [step.outcome for step in shown.steps]) == (None, [TIMED_OUT])
        assert records.instance_record(driver.get().record).state == 1
        reply = driver.one("list_marked", set="busy", prefix="t:", limit=10)
        listed = records.instance_record(reply.entries[0][2])
        assert (listed.state, listed.steps, reply.entries[0][5][8]) == (1, 1, b"")
        inbox = driver.one("list_inbox", id="a", limit=10)
        assert inbox.turns[0][0][8] == b""
    driver.expire()
    assert driver.turn(1) == shown


@pytest.mark.spec("R-READ-6", "R-WAIT-1")
def test_lists_show_what_the_head_waits_for(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().wait("answer", "go", 1_000)
    with driver.unchanged():
        turns = driver.one("list_inbox", id="a", limit=10).turns
        wait = records.turn_view(turns[0][0]).wait
        assert wait is not None
        assert wait.key == "answer"
        assert records.turn_view(turns[1][0]).wait is None
        reply = driver.one("list_marked", set="busy", prefix="t:", limit=10)
        assert records.turn_view(reply.entries[0][5]).wait == wait
        assert driver.turn(2).wait is None


@pytest.mark.spec("R-SIGNAL-3", "R-PAUSE-1", "R-PAUSE-2")
@pytest.mark.parametrize("late", [False, True])
def test_the_outcome_is_decided_also_while_paused(driver: Driver, late: bool) -> None:
    driver.send()
    driver.take().wait("answer", "go", 1_000)
    driver.pause()
    assert driver.due() == {}
    driver.later(1_000 if late else 999)
    assert driver.signal("s1", "go", b"x").position == (0 if late else 1)
    assert (driver.head(), driver.ready(), driver.due()) == ("QUEUED", [], {})
    driver.resume()
    held = driver.take()
    assert [step.outcome for step in held.view.steps] == [TIMED_OUT if late else RECEIVED]


@pytest.mark.spec("R-PAUSE-2")
def test_resume_sets_the_timer_anew(driver: Driver) -> None:
    driver.send()
    driver.take().wait(ms=1_000)
    due = driver.due()
    driver.pause()
    driver.resume()
    assert (driver.head(), driver.due()) == ("WAITING", due)


@pytest.mark.spec("R-SIGNAL-3", "R-SETTLE-2")
def test_signals_and_timeouts_in_one_list(driver: Driver) -> None:
    for name, ms in (("a", 1_000), ("b", 1_001), ("c", 1_000)):
        driver.send(name)
        driver.take(name).wait("answer", "go", ms)
    driver.later(1_000)
    items = [driver.signal_item("s1", on=name) for name in ("a", "b", "c")]
    items += [driver.signal_item("s2", on="b"), driver.signal_item("s1", on="b")]
    replies = driver.call("signal", items=items).replies
    assert [reply.position for reply in replies] == [0, 1, 0, 0, 1]
    outcomes = [driver.turn(1, name).steps[0].outcome for name in ("a", "b", "c")]
    assert outcomes == [TIMED_OUT, RECEIVED, TIMED_OUT]
    assert (driver.due(), sorted(driver.ready())) == ({}, ["a", "b", "c"])


@pytest.mark.spec("R-WAIT-2", "R-STEP-2", "R-CMD-4")
def test_a_key_that_is_saved_is_refused(driver: Driver) -> None:
    driver.send()
    driver.signal()
    held = driver.take()
    held.checkpoint("one")
    with driver.unchanged():
        reply = held.wait("one")
        assert (reply.word, reply.state) == ("WRONG_STATE", "step_saved")
    assert held.wait("two").value == b"\0v"
    assert held.wait("two").word == held.checkpoint("two").word == held.sleep("two").word == "WRONG_STATE"
    held.wait("three", ms=1)
    driver.elapse(1)
    assert driver.take().checkpoint("three").word == "WRONG_STATE"


@pytest.mark.spec("R-WAIT-2", "R-OP-4", "R-CMD-4")
def test_not_while_a_step_runs_that_was_registered(driver: Driver) -> None:
    driver.send()
    driver.signal()
    held = driver.take()
    held.start("one")
    with driver.unchanged():
        reply = held.wait("two")
        assert (reply.word, reply.state) == ("WRONG_STATE", "operation")
    held.checkpoint("one")
    assert held.wait("two").value == b"\0v"


@pytest.mark.spec("R-WAIT-2", "R-STEP-3", "R-LIMIT-1")
def test_it_counts_as_a_step(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    limits = {"max_steps": 2}
    held.checkpoint("one", limits=limits)
    assert held.wait("two", ms=1, limits=limits).suspended
    driver.elapse(1)
    held = driver.take()
    driver.signal()
    with driver.unchanged():
        reply = held.wait("three", limits=limits)
        assert (reply.word, reply.limit, reply.value, reply.max) == ("LIMIT_EXCEEDED", "steps_per_turn", 3, 2)
    size = driver.record().bytes
    with driver.unchanged():
        reply = held.wait("three", limits={"max_turn": size - 1})
        assert (reply.word, reply.limit, reply.value) == ("LIMIT_EXCEEDED", "turn_bytes", size)
    assert held.wait("three", limits={"max_turn": size, "max_steps": 3}).value == b"\0v"


@pytest.mark.spec("R-LEASE-3", "R-CMD-4")
def test_a_refused_wait_is_a_sign_of_life(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    assert held.wait(limits={"max_steps": 0}).word == "LIMIT_EXCEEDED"
    assert driver.record().accepted
    assert driver.due() == {"lease:a": driver.now + 60_000}
    assert driver.event_names()[-1] == "ATTEMPT_STARTED"


@pytest.mark.spec("R-WAIT-1", "R-LEASE-3")
def test_a_wait_may_be_the_first_sign_of_life(driver: Driver) -> None:
    driver.send()
    assert driver.lease().wait().suspended
    assert driver.event_names()[-2:] == ["ATTEMPT_STARTED", "TURN_WAITING"]


@pytest.mark.spec("R-FENCE-3", "R-CMD-1", "R-CMD-3")
def test_words_that_refuse_it(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    item = held.item("wait_signal", key="k", name="go", callback="", ms=1)
    with driver.unchanged():
        assert driver.one("wait_signal", **{**item, "id": "nobody"}).word == "NOT_FOUND"
        assert driver.one("wait_signal", **{**item, "fence": 99}).word == "STALE_FENCE"
        assert (held.wait(n=2).word, held.wait(n=2).last) == ("GAP", 0)
    held.checkpoint("one")
    held.checkpoint("two")
    with driver.unchanged():
        assert held.wait(n=1).word == "ALREADY"
        assert held.wait(n=2).word == "BODY_CONFLICT"
    held.release()
    with driver.unchanged():
        reply = held.wait()
        assert (reply.word, reply.how) == ("LEASE_ENDED", "released")


@pytest.mark.spec("R-WAIT-1", "R-CMD-2", "R-CMD-3")
def test_what_comes_after_it_under_the_old_lease(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.wait(ms=1_000)
    for _ in range(2):
        with driver.unchanged():
            for reply in (held.renew(), held.finish(), held.adopt("server02.9.9"), held.orphan()):
                assert (reply.word, reply.how) == ("LEASE_ENDED", "waiting")
        driver.elapse(1_000)
        driver.claim()


@pytest.mark.spec("R-WAIT-4", "R-CMD-1", "R-CMD-2")
def test_a_repeat_gets_the_first_answer(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.signal("s1", "go", b"got")
    first = held.wait("one")
    assert first.value == b"\0got"
    with driver.unchanged():
        assert driver.again() == held.wait("one", n=1) == first
        assert held.wait("one", "other", n=1).word == "BODY_CONFLICT"
    second = held.wait("two", ms=10)
    assert second.suspended
    for _ in range(3):
        with driver.unchanged():
            assert held.wait("two", ms=10, n=2) == second
        driver.elapse(10)
        driver.claim()
    assert driver.head() == "RUNNING"


@pytest.mark.spec("R-WAIT-4", "R-TRIM-1")
def test_a_repeat_after_the_end_of_the_turn_has_the_value_while_the_step_is_kept(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=0)
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.signal("s1", "go", b"got")
    first = held.wait("one")
    driver.cancel(force=True)
    with driver.unchanged():
        assert held.wait("one", n=1) == first
    driver.cancel(2)
    driver.trim()
    assert driver.turn(1).message is None
    with driver.unchanged():
        assert held.wait("one", n=1).word == "ALREADY"


@pytest.mark.spec("R-WAIT-3", "R-WAKE-2")
def test_wake_leaves_a_wait_alone(driver: Driver) -> None:
    driver.send()
    driver.take().wait(ms=1_000)
    assert driver.wake().woken is False
    assert (driver.head(), driver.due()) == ("WAITING", {"wait:a": driver.now + 1_000})


@pytest.mark.spec("R-WAIT-3", "R-CANCEL-1")
def test_a_turn_that_waits_can_be_cancelled(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.wait(ms=1_000)
    reply = driver.cancel()
    assert (reply.word, reply.former) == ("OK", 4)
    assert (driver.due(), driver.head(), driver.record().head) == ({}, "QUEUED", 2)
    assert "w" not in driver.fields()
    with driver.unchanged():
        assert (held.finish().word, held.finish().how) == ("LEASE_ENDED", "waiting")
        assert held.wait(ms=1_000, n=1).suspended


@pytest.mark.spec("R-WAIT-1")
def test_nothing_behind_it_runs_meanwhile(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().wait()
    assert (driver.expire(), driver.claim(), driver.ready()) == ([], [], [])
    assert driver.send("a", b"3").turn == 3
    driver.signal()
    assert driver.take().view.turn == 1


@pytest.mark.spec("R-CALLBACK-1", "R-CALLBACK-2")
def test_a_callback_is_resolved_early_or_while_it_is_waited_for(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.answer("one", b"early")
    reply = held.wait("first", callback="one")
    assert (reply.outcome, reply.value) == (RECEIVED, b"\0early")
    assert held.wait("second", callback="two", ms=50).suspended
    assert driver.turn(1).wait == ("second", "", "two", driver.now, driver.now + 50)
    assert driver.events()[-1].detail == "second  50"
    driver.signal("s1", "two", b"no callback")
    assert driver.head() == "WAITING"
    assert driver.answer("two", b"late", sender="ann", principal=2).position == 2
    assert driver.events()[-3].detail == "  two ann 2"
    held = driver.take()
    assert [(step.key, step.kind, step.blob) for step in held.view.steps] == [
        ("first", "callback", b"\0early"),
        ("second", "callback", b"\0late"),
    ]


@pytest.mark.spec("R-CALLBACK-1")
@pytest.mark.parametrize("early", [False, True])
def test_a_callback_may_be_rejected(driver: Driver, early: bool) -> None:
    driver.send()
    held = driver.take()
    if early:
        driver.answer("call", b"why", rejected=True)
        assert held.wait(callback="call").outcome == REJECTED
    else:
        held.wait(callback="call")
        driver.answer("call", b"why", rejected=True)
    step = driver.turn(1).steps[0]
    assert (step.kind, step.blob, step.outcome) == ("callback", b"\0why", REJECTED)
    assert driver.turn(1).signals[0].rejected


@pytest.mark.spec("R-CALLBACK-1", "R-SIGNAL-3")
def test_a_callback_times_out(driver: Driver) -> None:
    driver.send()
    driver.take().wait(callback="call", ms=10)
    driver.elapse(10)
    [step] = driver.turn(1).steps
    assert (step.kind, step.blob, step.outcome) == ("callback", b"", TIMED_OUT)
    assert driver.answer("call").position == 0


def test_a_wait_that_can_not_be_read_is_begun_anew(driver: Driver) -> None:
    driver.send()
    driver.take().wait("answer", ms=1_000)
    driver.redis.call("HSET", f"{driver.tag}i:a", "w", b"\xc1")
    assert driver.signal("s1", "go", b"kept").position == 0
    driver.elapse(1_000)
    held = driver.take()
    assert held.view.steps == []
    assert held.wait("answer").value == b"\0kept"


def test_a_value_that_is_lost_is_no_empty_one(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.signal()
    driver.redis.call("HDEL", f"{driver.tag}i:a", "1.g.1")
    with driver.unchanged(), pytest.raises(StoreDamaged):
        held.wait()
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.g.1", b"\0v")


@pytest.mark.spec("R-WAIT-1")
def test_several_in_one_list(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    driver.signal("s1", "go", b"for b", on="b")
    held = driver.claim(3)
    items = [
        one.item("wait_signal", key="w", name="go", callback="", ms=ms)
        for one, ms in zip(held, (1, 2, 3), strict=True)
    ]
    replies = driver.call("wait_signal", items=items).replies
    assert [(reply.suspended, reply.value) for reply in replies] == [
        (True, b""),
        (False, b"\0for b"),
        (True, b""),
    ]
    driver.later(2)
    assert [reply.id for reply in driver.expire()] == ["a"]
