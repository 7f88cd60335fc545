"""finish: last step, state, reply, inbox, continuation and the next claim, all or nothing."""

from __future__ import annotations

import pytest

from pawl_server.store import records
from tests.support.driver import TV, Driver, Event, Held
from tests.support.lua_harness import changes


def handed_out(reply: object) -> list[tuple[str, int, int]]:
    """(instance, turn, fence) of the turns that a finish claimed."""
    views = [records.claimed_turn(view) for view in reply.turns]  # type: ignore[attr-defined]
    return [(view.instance_id, view.turn, view.fence) for view in views]


@pytest.mark.spec("R-FINISH-1")
def test_a_finish_makes_everything_visible_at_once(driver: Driver) -> None:
    driver.create(state=b"json\0old")
    driver.send("a", b"1")
    held = driver.take()
    held.checkpoint("one", b"1")
    driver.later(7)
    before = driver.state()
    reply = held.finish(b"reply", state=b"new", step=("two", b"2"))
    assert (reply.word, reply.finished_ms, reply.continuation, reply.turns) == ("OK", driver.now, 0, [])
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a s", "i:a k", "i:a 1.h", "e:a", "due lease:a", "busy t:v1:a",
    }  # fmt: skip
    turn = driver.turn(1)
    assert turn.receipt is not None
    assert (turn.receipt.reply, turn.receipt.attempts, turn.receipt.steps) == (b"\0reply", 1, 2)
    assert [(step.key, step.blob) for step in turn.steps] == [("one", b"\0001"), ("two", b"\0002")]
    assert (driver.get().state, driver.head()) == (b"\0new", "")
    assert driver.events()[-1] == Event("TURN_COMPLETED", 1, 1, "COMPLETED", 1, "")


@pytest.mark.spec("R-FINISH-1")
def test_a_finish_without_state_or_reply_keeps_the_state(driver: Driver) -> None:
    driver.create(state=b"json\0old")
    driver.send()
    driver.take().finish()
    assert driver.get().state == b"json\0old"
    assert driver.receipt(1).reply is None


@pytest.mark.spec("R-FINISH-1", "R-SEND-1")
def test_the_next_turn_becomes_the_head(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    result = driver.call("finish", items=[held.item("finish")])
    assert result.ready == [TV]
    assert (driver.head(), driver.ready(), driver.record().head) == ("QUEUED", ["a"], 2)
    assert driver.events()[-1].status == 2


@pytest.mark.spec("R-LEASE-3", "R-FINISH-1")
def test_a_finish_may_be_the_first_sign_of_life(driver: Driver) -> None:
    driver.send()
    assert driver.lease().finish().word == "OK"
    assert driver.event_names()[-2:] == ["ATTEMPT_STARTED", "TURN_COMPLETED"]
    assert driver.receipt(1).attempts == 1


@pytest.mark.spec("R-FINISH-3")
def test_a_continuation_goes_to_the_tail_and_names_its_turn(driver: Driver) -> None:
    driver.send("a", b"1", "m1")
    driver.send("a", b"2", "m2")
    reply = driver.take().finish(onward=b"more")
    assert (reply.word, reply.continuation) == ("OK", 3)
    message = driver.turn(3).message
    assert message is not None
    assert (message.message_id, message.blob, message.from_turn, message.from_id) == (
        "continue-1", b"\0more", 1, "m1",
    )  # fmt: skip
    assert driver.receipt(1).continuation == 3
    assert [event[:2] for event in driver.events()[-2:]] == [("TURN_COMPLETED", 1), ("TURN_ADMITTED", 3)]
    assert driver.take().view.turn == 2
    assert driver.record().pending == 2


@pytest.mark.spec("R-FINISH-3")
def test_a_continuation_of_the_only_turn_is_the_new_head(driver: Driver) -> None:
    driver.send("a", b"1")
    held = driver.take()
    result = driver.call("finish", items=[held.item("finish", has_next=True, next_message=b"\0more")])
    assert (result.ready, driver.head()) == ([TV], "QUEUED")
    assert "t:v1:a" in driver.state()["busy"]


@pytest.mark.spec("R-FINISH-3", "R-SEND-4")
def test_a_continuation_is_admitted_however_full_the_inbox_is(driver: Driver) -> None:
    driver.send("a", b"1", max_pending=2)
    driver.send("a", b"2", max_pending=2)
    held = driver.take()
    assert driver.send("a", b"3", max_pending=2).word == "LIMIT_EXCEEDED"
    assert held.finish(onward=b"more").continuation == 3
    assert driver.record().pending == 2
    assert driver.send("a", b"3", max_pending=2).word == "LIMIT_EXCEEDED"


@pytest.mark.parametrize(
    ("body", "limit", "name"),
    [
        ({"state": b"x" * 11}, {"max_state": 10}, "state_bytes"),
        ({"reply": b"x" * 11}, {"max_reply": 10}, "reply_bytes"),
        ({"onward": b"x" * 11}, {"max_message": 10}, "message_bytes"),
    ],
)
@pytest.mark.spec("R-FINISH-4", "R-LIMIT-1", "R-CMD-4")
def test_state_reply_and_continuation_are_limited(
    driver: Driver, body: dict[str, bytes], limit: dict[str, int], name: str
) -> None:
    driver.create(state=b"json\0old")
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    with driver.unchanged():
        reply = held.finish(**body, step=("two", b"2"), limits=limit)
        assert (reply.word, *reply) == ("LIMIT_EXCEEDED", name, 11, 10)
    fits = {key: value[:10] for key, value in body.items()}
    assert held.finish(**fits, step=("two", b"2"), limits=limit).word == "OK"


@pytest.mark.spec("R-FINISH-1", "R-FAIL-3")
def test_the_last_failure_is_forgotten_with_the_finish(driver: Driver) -> None:
    driver.send()
    driver.take().fail(delay_ms=0)
    assert driver.turn(1).failure is not None
    driver.take().finish()
    assert driver.turn(1).failure is None
    assert driver.receipt(1).attempts == 2


# The claim that rides on a finish.


@pytest.mark.spec("R-FINISH-2", "R-DELIVER-1")
def test_a_finish_claims_the_oldest_ready_head(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.later(1)
    driver.send("b")
    driver.later(1)
    driver.send("c")
    driver.later(1)
    reply = held.finish(tv=TV, conn="s.7.7")
    assert handed_out(reply) == [("b", 1, held.fence + 1)]
    receipt = driver.receipt(1)
    assert (receipt.claimed_id, receipt.claimed_turn, receipt.claimed_fence) == ("b", 1, held.fence + 1)
    record = driver.record("b")
    assert (record.conn, record.accepted, driver.due()["lease:b"]) == (b"s.7.7", False, driver.now + 5_000)
    assert driver.ready() == ["c", "a"], "its own next turn queues up behind"


@pytest.mark.spec("R-FINISH-2", "R-FINISH-3")
def test_a_finish_may_claim_its_own_continuation(driver: Driver) -> None:
    driver.send("a", b"1")
    held = driver.take()
    for turn in range(1, 6):
        reply = held.finish(onward=b"more", tv=TV)
        [view] = [records.claimed_turn(view) for view in reply.turns]
        assert (view.turn, view.message.from_turn, view.message.message_id) == (
            turn + 1, turn, f"continue-{turn}",
        )  # fmt: skip
        held = Held(driver, view)
    assert "types" not in driver.state()


@pytest.mark.spec("R-FINISH-2", "R-DELIVER-2")
def test_a_finish_that_claims_nothing_registers_the_server(driver: Driver) -> None:
    driver.send()
    assert driver.take().finish(tv=TV).turns == []
    assert driver.state()[f"waiting:{TV}"] == {driver.server: driver.now + 5_000}


@pytest.mark.spec("R-FINISH-2")
def test_a_list_of_finishes_claims_one_head_for_each(driver: Driver) -> None:
    for name in ("a", "b", "c", "d"):
        driver.send(name)
        driver.later(1)
    first, second = driver.claim(2)
    items = [first.item("finish", tv=TV), second.item("finish", tv=TV), first.item("finish", tv=TV)]
    replies = driver.call("finish", items=items).replies
    assert [[view[0] for view in reply.turns] for reply in replies] == [[b"c"], [b"d"], []]
    assert replies[2][:2] == replies[0][:2]
    assert driver.record("a").head == 2


@pytest.mark.spec("R-FINISH-2")
def test_a_repeat_hands_out_the_claimed_turn_again_while_nobody_received_it(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("b", b"1", state=b"json\0b")
    driver.send("c", b"1")
    first = driver.lease("a")
    reply = first.finish(b"reply", tv=TV, conn="s.1.1")
    driver.later(100)
    again = driver.again()
    assert (again[:2], again.turns) == (reply[:2], reply.turns)
    assert driver.ready() == ["c"], "nothing was claimed anew"
    [view] = [records.claimed_turn(view) for view in again.turns]
    assert Held(driver, view).renew().word == "OK"
    with driver.unchanged():
        reply = first.finish(b"reply", tv=TV, conn="s.1.1", n=1)
        assert (reply[:2], reply.turns) == (again[:2], [])


@pytest.mark.spec("R-FINISH-2", "R-LEASE-2")
def test_a_turn_handed_out_again_belongs_to_the_new_stream_for_a_whole_delivery(driver: Driver) -> None:
    driver.send("a")
    driver.send("b")
    first = driver.lease("a")
    given = {"tv": TV, "digest": b"d"}
    first.finish(conn="s1.1.1", **given)
    driver.one("orphan", id="b", inc=2, turn=1, fence=2, conn="s1.1.1", grace_ms=300)
    driver.later(200)
    reply = first.finish(n=1, conn="s2.2.1", **given)
    assert handed_out(reply) == [("b", 1, 2)]
    record = driver.record("b")
    assert (record.conn, record.orphaned, record.accepted) == (b"s2.2.1", False, False)
    assert driver.due()["lease:b"] == driver.now + 5_000


@pytest.mark.parametrize("meanwhile", ["returned", "finished", "claimed again"])
@pytest.mark.spec("R-FINISH-2")
def test_a_repeat_hands_out_nothing_once_the_claimed_lease_is_over(driver: Driver, meanwhile: str) -> None:
    driver.send("a")
    driver.send("b")
    first = driver.lease("a")
    given = {"tv": TV, "digest": b"d"}
    [view] = [records.claimed_turn(view) for view in first.finish(**given).turns]
    if meanwhile == "finished":
        Held(driver, view).finish()
    else:
        driver.later(5_000)
        driver.expire()
        if meanwhile == "claimed again":
            driver.take("b")
    with driver.unchanged():
        reply = first.finish(n=1, **given)
    assert (reply.word, reply.turns) == ("OK", [])


@pytest.mark.spec("R-CMD-1", "R-CMD-2", "R-FINISH-2")
def test_after_the_finish_the_receipt_answers_every_number(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    first = held.finish(b"reply", onward=b"more")
    driver.later(1_000)
    with driver.unchanged():
        assert held.finish(b"reply", onward=b"more", n=2) == first
        assert held.finish(b"other", n=2).word == "BODY_CONFLICT"
        assert held.checkpoint("one", n=1).word == "ALREADY"
        reply = held.checkpoint("late", n=3)
        assert (reply.word, reply.how) == ("LEASE_ENDED", "completed")


@pytest.mark.spec("R-CMD-5")
def test_a_finish_whose_checkpoint_did_not_apply_is_a_gap(driver: Driver) -> None:
    """A8: NOSCRIPT on the first of two commands in a pipeline."""
    driver.send()
    held = driver.take()
    with driver.unchanged():
        reply = held.finish(n=2)
    assert (reply.word, reply.last) == ("GAP", 0)
    assert held.checkpoint(n=1).word == "OK"
    assert held.finish(n=2).word == "OK"


@pytest.mark.spec("R-FINISH-1", "R-STEP-1")
def test_two_pending_turns_the_first_with_checkpoints(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one", b"1")
    held.checkpoint("two", b"2")
    held.fail(delay_ms=0)
    held = driver.take()
    held.finish(b"reply", state=b"s1", step=("three", b"3"))
    record = driver.record()
    assert (record.head, record.steps, record.failures, record.attempt, record.fence) == (2, 0, 0, 0, 0)
    second = driver.take()
    assert (second.view.attempt, second.view.state, second.view.steps) == (1, b"\0s1", [])
    second.finish(step=("one", b"x"))
    assert [len(driver.turn(turn).steps) for turn in (1, 2)] == [3, 1]


@pytest.mark.spec("R-LIMIT-1")
def test_of_several_limits_the_first_one_is_named(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    limits = {"max_steps": 0, "max_state": 1, "max_reply": 1, "max_message": 1}
    big = b"x" * 2
    given = {"step": ("one", b""), "state": big, "reply": big, "onward": big}
    for name in ("steps_per_turn", "state_bytes", "reply_bytes", "message_bytes"):
        assert held.finish(limits=limits, **given).limit == name
        given.pop(next(iter(given)))


@pytest.mark.spec("R-FINISH-1")
def test_what_a_finish_does_not_claim_to_carry_is_not_looked_at(driver: Driver) -> None:
    driver.create(state=b"json\0{}")
    driver.send()
    held = driver.take()
    big = {"state": b"\0" + b"x" * 9, "result": b"\0" + b"x" * 9, "output": b"\0" + b"x" * 9}
    big["next_message"] = big["state"]
    limits = {"max_state": 1, "max_reply": 1, "max_message": 1, "max_step": 1}
    assert held.do("finish", limits=limits, **big).word == "OK"
    assert (driver.get().state, driver.head()) == (b"json\0{}", "")
