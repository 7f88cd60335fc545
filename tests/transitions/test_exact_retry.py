"""Exact retry: whatever is called twice gives the first answer and changes nothing more (G7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.domain.limits import CANCEL_GRACE_MS
from pawl_server.domain.states import TurnState
from tests.support.driver import TV, Driver, Held
from tests.support.lua_harness import State

BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "checkpoint": ({"key": "one", "output": b"\0one"}, {"key": "one", "output": b"\0other"}),
    "finish": (
        {"has_reply": True, "result": b"\0reply", "has_next": True},
        {"has_reply": True, "result": b""},
    ),
    "fail": ({"reason": "ERROR", "delay_ms": 0}, {"reason": "ERROR", "delay_ms": 5}),
    "release": ({"digest": b"body"}, {"digest": b"other"}),
    "sleep": ({"key": "nap", "ms": 60_000}, {"key": "nap", "ms": 60_001}),
    "defer": ({"ms": 60_000, "reason": "budget"}, {"ms": 60_000, "reason": "other"}),
    "wait_signal": ({"key": "k", "name": "go", "ms": 60_000}, {"key": "k", "name": "stop", "ms": 60_000}),
}
"""Two bodies of each command."""


def first_of(driver: Driver, script: str) -> tuple[Held, dict[str, Any], Any]:
    """A lease whose first command was `script`, that command, and the answer."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    item = held.item(script, **BODIES[script][0])
    return held, item, driver.call(script, items=[item]).replies[0]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same word."""
    return one.word == other.word and one == other


@pytest.mark.parametrize("script", BODIES)
@pytest.mark.spec("R-CMD-1")
def test_a_command_repeated_at_once(driver: Driver, script: str) -> None:
    held, item, answer = first_of(driver, script)
    assert answer.word == "OK"
    other = held.item(script, n=1, **BODIES[script][1])
    driver.later(1_000)
    with driver.unchanged():
        assert same(driver.call(script, items=[item]).replies[0], answer)
        assert driver.call(script, items=[other]).replies[0].word == "BODY_CONFLICT"


@pytest.mark.parametrize("script", BODIES)
@pytest.mark.spec("R-CMD-1")
def test_a_command_twice_in_one_list(driver: Driver, script: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    item = held.item(script, **BODIES[script][0])
    other = held.item(script, **BODIES[script][1])
    first, second, third = driver.call(script, items=[item, item, other]).replies
    assert first.word == "OK"
    assert same(first, second)
    assert third.word == "BODY_CONFLICT"
    assert driver.record().n in (0, 1)


@pytest.mark.parametrize("script", ["fail", "release", "sleep", "defer", "wait_signal"])
@pytest.mark.spec("R-CMD-2")
def test_a_command_that_ended_its_lease_repeated_after_the_next_claim(driver: Driver, script: str) -> None:
    held, item, answer = first_of(driver, script)
    other = held.item(script, n=1, **BODIES[script][1])
    driver.elapse(60_000)
    driver.take().checkpoint("of the next lease")
    with driver.unchanged():
        assert same(driver.call(script, items=[item]).replies[0], answer)
        assert driver.call(script, items=[other]).replies[0].word == "BODY_CONFLICT"
        assert held.do(script, n=2).word == "LEASE_ENDED"


COMMANDS_THAT_END = ("failed", "released", "sleeping", "deferred", "waiting")


@pytest.mark.parametrize("how", [*COMMANDS_THAT_END, "expired", "lost"])
@pytest.mark.spec("R-CMD-2", "R-CMD-3")
def test_a_checkpoint_repeated_after_the_end_of_its_lease(driver: Driver, how: str) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    answer = held.checkpoint("two")
    held.end(how)

    def check() -> None:
        with driver.unchanged():
            reply = held.checkpoint("two", n=2)
            assert (reply.word == "ALREADY") if how in COMMANDS_THAT_END else same(reply, answer)
            assert held.checkpoint("one", n=1).word == "ALREADY"
            late = held.checkpoint("late", n=4)
            assert (late.word, late.how) == ("LEASE_ENDED", how)

    check()
    driver.elapse(1)
    driver.take()
    check()


def cancel(driver: Driver, held: Held) -> str:
    driver.cancel(force=True)
    return "cancelled"


def cancel_in_time(driver: Driver, held: Held) -> str:
    driver.cancel()
    driver.elapse(CANCEL_GRACE_MS)
    return "cancelled"


def cancel_failed(driver: Driver, held: Held) -> str:
    held.fail("ERROR", final=True)
    driver.cancel()
    return "failed"


def skip(driver: Driver, held: Held) -> str:
    held.fail("ERROR", final=True)
    driver.skip()
    return "failed"


def park_expired(driver: Driver, held: Held) -> str:
    driver.put_type(max_attempts=1, on_exhausted=3)
    driver.elapse(60_000)
    return "expired"


def skip_lost(driver: Driver, held: Held) -> str:
    driver.put_type(on_exhausted=2)
    held.orphan()
    driver.elapse(300)
    return "lost"


@pytest.mark.parametrize(
    "end",
    [cancel, cancel_in_time, cancel_failed, skip, park_expired, skip_lost],
    ids=lambda end: end.__name__,
)
@pytest.mark.parametrize("later", ["at once", "next turn runs", "trimmed"])
@pytest.mark.spec("R-CMD-2", "R-CMD-3", "R-TRIM-2")
def test_commands_repeated_after_their_turn_ended_otherwise(
    driver: Driver, end: Callable[[Driver, Held], str], later: str
) -> None:
    """The last command answers as before, one before it `already`, a later one how the lease ended."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    for _ in range(9 if end is skip_lost else 0):
        driver.take().orphan()
        driver.elapse(300)
    held = driver.take()
    held.checkpoint("one")
    last = held.item("checkpoint", key="two", output=b"\0out")
    answer = driver.one("checkpoint", **last)
    held.n = 2
    how = end(driver, held)
    assert driver.receipt(1).fence == held.fence
    if later != "at once":
        driver.take().checkpoint("of the next turn")
    if later == "trimmed":
        driver.put_type(min_turns=0, max_age_ms=0)
        driver.trim()
        assert driver.record().kept == 2
    with driver.unchanged():
        if how == "failed":
            assert driver.one("checkpoint", **last).word == "ALREADY"
            assert held.do("fail", n=3, reason="ERROR", delay_ms=-1, final=True).state == TurnState.FAILED
        else:
            assert same(driver.one("checkpoint", **last), answer)
        late = held.finish(n=9)
        assert (late.word, late.how, held.renew().how) == ("LEASE_ENDED", how, how)
        assert held.sleep("early", n=1).word == "ALREADY"


@pytest.mark.parametrize("script", ["sleep", "defer"])
@pytest.mark.parametrize("later", ["at once", "over", "next turn runs", "trimmed"])
@pytest.mark.spec("R-CMD-2", "R-CMD-3", "R-SLEEP-1", "R-DEFER-1")
def test_a_sleep_repeated_after_its_turn_was_cancelled(driver: Driver, script: str, later: str) -> None:
    held, item, answer = first_of(driver, script)
    if later == "over":
        driver.elapse(60_000)
    driver.cancel()
    if later in ("next turn runs", "trimmed"):
        driver.take().checkpoint("of the next turn")
    if later == "trimmed":
        driver.put_type(min_turns=0, max_age_ms=0)
        driver.trim()
    with driver.unchanged():
        assert same(driver.one(script, **item), answer)
        assert driver.one(script, **{**item, "digest": b"other"}).word == "BODY_CONFLICT"
        reply = held.finish(n=2)
        assert (reply.word, reply.how) == ("LEASE_ENDED", "sleeping" if script == "sleep" else "deferred")


@pytest.mark.parametrize("script", ["checkpoint", "finish"])
@pytest.mark.spec("R-CMD-2", "R-TRIM-2")
def test_a_command_repeated_after_the_turn_became_history(driver: Driver, script: str) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    held, item, answer = first_of(driver, script)
    if script == "checkpoint":
        held.n = 1
        held.finish()
    for body in (b"3", b"4"):
        driver.send("a", body)
        driver.take().finish()
    driver.later(899_999)
    with driver.unchanged():
        reply = driver.call(script, items=[item]).replies[0]
        assert reply.word == ("ALREADY" if script == "checkpoint" else "OK")
        assert script == "checkpoint" or same(reply, answer)
    driver.later(1)
    driver.trim()
    with driver.unchanged():
        assert driver.call(script, items=[item]).replies[0].word == "STALE_FENCE"


@pytest.mark.spec("R-CMD-2")
def test_of_a_finished_turn_only_the_last_lease_is_on_record(driver: Driver) -> None:
    driver.send()
    first = driver.take()
    failed = first.item("fail", reason="ERROR", delay_ms=0)
    driver.call("fail", items=[failed])
    driver.take().finish()
    with driver.unchanged():
        assert driver.call("fail", items=[failed]).replies[0].word == "STALE_FENCE"


@pytest.mark.parametrize("script", BODIES)
@pytest.mark.spec("R-CMD-2")
def test_a_repeat_on_another_server_and_connection(driver: Driver, script: str) -> None:
    _, item, answer = first_of(driver, script)
    driver.server = "server02"
    driver.hello("run-2")
    with driver.unchanged():
        item = {**item, "conn": "server02.9.9"} if script == "finish" else item
        assert same(driver.call(script, items=[item]).replies[0], answer)


@pytest.mark.spec("R-CMD-1")
def test_numbers_begin_at_one_and_leave_no_gap(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    with driver.unchanged():
        for n in (2, 3, 10**12):
            reply = held.checkpoint(n=n)
            assert (reply.word, reply.last) == ("GAP", 0)
        zero = {**held.item("checkpoint", key="x", output=b"\0"), "n": 0}
        assert driver.call("checkpoint", items=[zero]).replies[0].word == "GAP"
        assert driver.call("checkpoint", items=[{**zero, "n": -1}]).replies[0].word == "ALREADY"


@pytest.mark.parametrize("script", BODIES)
@pytest.mark.spec("R-CMD-1", "R-CMD-4")
def test_every_command_is_judged_by_its_number(driver: Driver, script: str) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("x")
    held.checkpoint("y")
    item = held.item(script, **BODIES[script][0])
    with driver.unchanged():
        replies = driver.call(script, items=[{**item, "n": n} for n in (1, 4, 2)]).replies
    assert [(reply.word, *reply) for reply in replies] == [("ALREADY",), ("GAP", 2), ("BODY_CONFLICT",)]
    assert driver.call(script, items=[item]).replies[0].word == "OK"


# Whole lists, as a lane repeats them when the reply was lost.


def lists(driver: Driver) -> dict[str, Callable[[], Any]]:
    """A list of several items for each script that takes one, on a partition where all of them apply."""
    for number, name in enumerate(("f1", "f2", "x1", "x2", "r1", "r2", "c1", "c2", "s1", "s2", "d1", "d2")):
        driver.send(name, b"%d" % number)
    held = {one.view.instance_id: one for one in driver.claim(12)}
    for one in held.values():
        one.renew()

    def each(script: str, *names: str, **given: Any) -> Callable[[], Any]:
        items = [held[name].item(script, n=1, **given) for name in names]
        return lambda: driver.call(script, items=items)

    births = [{"id": name, "type": "t", "version": "v1", "digest": b"d"} for name in ("n1", "n2")]
    return {
        "create": lambda: driver.call("create", items=births),
        "send": lambda: driver.call("send", items=[driver.message("c1", b"new"), driver.message("n3")]),
        "checkpoint": each("checkpoint", "c1", "c2", key="one", output=b"\0"),
        "finish": each("finish", "f1", "f2", has_state=True, state=b"\0new", has_next=True),
        "fail": each("fail", "x1", "x2", reason="ERROR", delay_ms=-1),
        "release": each("release", "r1", "r2"),
        "sleep": each("sleep", "s1", "s2", key="nap", ms=500),
        "defer": each("defer", "d1", "d2", ms=500),
        "wait_signal": each("wait_signal", "d1", "d2", key="k", name="go", ms=500),
        "signal": lambda: driver.call("signal", items=[driver.signal_item(on=name) for name in ("c1", "d1")]),
        "renew": each("renew", "c1", "c2"),
        "adopt": each("adopt", "c1", "c2", conn="s.5.5"),
        "await": lambda: driver.call("await", items=[{"id": "c1", "turn": 1}, {"id": "c2", "turn": 1}]),
        "settle": lambda: driver.call("settle", items=[{"id": "c1"}, {"id": "x1"}]),
        "trim": lambda: driver.call("trim", items=[{"id": "f1"}, {"id": "f2"}], limit=9),
    }


@pytest.mark.parametrize(
    "script",
    [
        "create",
        "send",
        "checkpoint",
        "finish",
        "fail",
        "release",
        "sleep",
        "defer",
        "wait_signal",
        "signal",
        "renew",
        "adopt",
        "await",
        "settle",
        "trim",
    ],
)
@pytest.mark.spec("R-STORE-4", "R-CMD-1")
def test_the_same_list_twice(driver: Driver, script: str) -> None:
    """C-19: the script committed, its reply was lost, and the call is made once more."""
    call = lists(driver)[script]
    first = call()
    driver.later(10)
    with driver.unchanged():
        second = call()
    if script in ("renew", "adopt"):
        assert [reply.word for reply in second.replies] == ["OK", "OK"]
    else:
        assert second.replies == first.replies
    assert second.ready == []


@pytest.mark.spec("R-STORE-4")
def test_a_claim_repeated_after_a_lost_reply_costs_a_delivery_and_no_attempt(driver: Driver) -> None:
    """C-33: nobody has the turns of the first answer; they come back by themselves."""
    for name in ("a", "b"):
        driver.send(name)
    lost = driver.claim(1)
    assert [held.view.instance_id for held in driver.claim(1)] == ["b"]
    driver.later(5_000)
    driver.expire()
    again = driver.lease("a")
    assert (again.view.attempt, lost[0].renew().how) == (1, "returned")


@pytest.mark.spec("R-STORE-5", "R-STORE-4")
def test_c17_a_pipeline_with_one_script_flushed_has_the_effects_of_one_execution(driver: Driver) -> None:
    """Of three commands in one pipeline the middle one meets NOSCRIPT; the others have run by then."""

    def pipeline() -> list[Any]:
        held = driver.take()
        steps = [held.item("checkpoint", n=n, key=f"k{n}", kind="step", output=b"\0") for n in (1, 2)]
        finish = held.item("finish", n=3)
        return [("checkpoint", steps[0]), ("checkpoint", steps[1]), ("finish", finish)]

    def run(calls: list[Any]) -> list[str]:
        return [driver.call(script, items=[item]).replies[0].word for script, item in calls]

    driver.send("a", b"1")
    calls = pipeline()
    assert run([calls[0], calls[2]]) == ["OK", "GAP"], "the second was never run"
    assert run(calls) == ["OK", "OK", "OK"], "all once more, in order"
    driver.send("a", b"2")
    calls = pipeline()
    assert run([*calls, *calls]) == ["OK", "OK", "OK", "ALREADY", "ALREADY", "OK"]
    assert [len(driver.turn(turn).steps) for turn in (1, 2)] == [2, 2]


@pytest.mark.spec("R-CMD-2", "R-FINISH-2")
def test_c19_a_finish_whose_reply_was_lost(driver: Driver) -> None:
    """The caller is not told "already completed" for its own success, and the turn advances by one."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    item = held.item("finish", has_reply=True, result=b"\0r", tv=TV)
    first = driver.call("finish", items=[item]).replies[0]
    second = driver.call("finish", items=[item]).replies[0]
    assert (first.word, second.word) == ("OK", "OK")
    assert first[:2] == second[:2]
    assert driver.record().head == 2


@pytest.mark.spec("R-CMD-3")
def test_c1_a_finish_after_the_handler_gave_the_turn_back(driver: Driver) -> None:
    """The handler failed its attempt with a delay and then returned; the SDK also completes the turn."""
    driver.create(state=b"json\0old")
    driver.send()
    held = driver.take()
    held.fail(delay_ms=1_000)
    with driver.unchanged():
        reply = held.finish(b"done", state=b"new")
    assert (reply.word, reply.how) == ("LEASE_ENDED", "failed")
    driver.later(1_000)
    driver.expire()
    again = driver.take()
    assert (again.view.attempt, again.view.state, driver.record().failures) == (2, b"json\0old", 1)


@pytest.mark.parametrize("first", ["fail", "renew"])
@pytest.mark.spec("R-LEASE-6", "R-FAIL-1")
def test_c3_fail_and_renew_in_both_orders(driver: Driver, first: str) -> None:
    driver.send()
    held = driver.take()
    driver.later(30_000)
    if first == "renew":
        assert held.renew().word == "OK"
    assert held.fail().word == "OK"
    state: State = driver.state()
    reply = held.renew()
    assert (reply.word, reply.how, driver.state()) == ("LEASE_ENDED", "failed", state)
    assert driver.due() == {"backoff:a": driver.now + 1_000}
    driver.later(1_000)
    driver.expire()
    assert driver.ready() == ["a"]


@pytest.mark.spec("R-CMD-2")
def test_a_failure_with_a_delay_repeated_after_the_next_claim(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    reply = held.fail(delay_ms=1_000)
    driver.later(1_000)
    driver.expire()
    driver.lease()
    with driver.unchanged():
        assert held.fail(n=1, delay_ms=1_000) == reply
    assert reply.delay_ms == 1_000


@pytest.mark.parametrize("script", BODIES)
@pytest.mark.spec("R-CMD-3")
def test_number_zero_is_no_command_of_any_lease(driver: Driver, script: str) -> None:
    driver.send()
    held = driver.lease()
    item = {**held.item(script, **BODIES[script][0]), "n": 0}
    assert driver.call(script, items=[item]).replies[0].last == 0
    driver.later(60_000)
    driver.expire()
    driver.take()
    with driver.unchanged():
        assert driver.call(script, items=[item]).replies[0].word == "LEASE_ENDED"
