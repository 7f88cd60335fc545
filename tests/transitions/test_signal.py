"""signal: who gets what is sent, what repeats are answered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.store.errors import StoreDamaged
from tests.support.driver import Driver
from tests.support.lua_harness import changes

KIB = 1024


@pytest.mark.spec("R-SIGNAL-1", "R-SIGNAL-8")
def test_it_is_kept_with_who_sent_it(driver: Driver) -> None:
    driver.send()
    before = driver.state()
    reply = driver.signal("s1", "go", b"x", sender="ann", principal=1)
    assert (reply.word, reply.turn, reply.received_ms, reply.position) == ("OK", 1, driver.now, 0)
    assert set(changes(before, driver.state())) == {"i:a r", "i:a 1.g", "i:a 1.g.1", "e:a"}
    assert driver.events()[-1] == ("SIGNAL_RECEIVED", 1, 0, "QUEUED", 2, "s1 go  ann 1")
    assert driver.turn(1).signals == [("s1", "go", "", driver.now, 0, False, "ann", 1, b"\0x")]
    assert driver.record().signalled == 1


@pytest.mark.spec("R-SIGNAL-1")
@pytest.mark.parametrize(
    "state", ["QUEUED", "RUNNING", "SLEEPING", "DEFERRED", "BACKOFF", "FAILED", "PAUSED"]
)
def test_it_is_kept_whatever_the_turn_does(driver: Driver, state: str) -> None:
    driver.put_type(max_attempts=2)
    driver.send()
    held = None
    if state != "QUEUED":
        held = driver.take()
        if state == "SLEEPING":
            held.sleep()
        elif state == "DEFERRED":
            held.defer()
        elif state in ("BACKOFF", "FAILED"):
            held.do("fail", reason="ERROR", delay_ms=1_000, final=state == "FAILED")
        elif state == "PAUSED":
            held.release()
            driver.pause()
    head, due = driver.head(), driver.due()
    assert driver.signal().position == 0
    assert (driver.head(), driver.due()) == (head, due)
    if state == "FAILED":
        driver.retry()
    if state == "PAUSED":
        driver.resume()
    if state != "RUNNING":
        driver.elapse(1_000)
        held = driver.take()
    assert held
    assert held.wait().value == b"\0v"


@pytest.mark.spec("R-SIGNAL-1", "R-EVENT-2")
def test_a_turn_on_its_way_to_a_worker_is_told_as_queued(driver: Driver) -> None:
    driver.send()
    driver.lease()
    driver.signal("s1")
    assert driver.events()[-1].state == "QUEUED"
    driver.elapse(5_000)
    assert (driver.head(), driver.violations()) == ("QUEUED", [])
    held = driver.take()
    driver.signal("s2")
    assert driver.events()[-1].state == "RUNNING"
    assert held.wait().value == b"\0v"


@pytest.mark.spec("R-SIGNAL-1")
def test_it_never_goes_to_another_turn(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.signal("s1", "go", b"second", turn=2)
    assert driver.events()[-1] == ("SIGNAL_RECEIVED", 2, 0, "QUEUED", 2, "s1 go   0")
    held = driver.take()
    assert held.wait(ms=1).suspended
    driver.elapse(1)
    driver.take().finish()
    assert driver.take().wait().value == b"\0second"


@pytest.mark.spec("R-SIGNAL-1", "R-SEND-1")
def test_null_is_a_value(driver: Driver) -> None:
    driver.send()
    driver.take().wait()
    assert driver.signal("s1", "go", b"").position == 1
    assert driver.take().view.steps[0].blob == b"\0"


def test_an_empty_blob_is_a_value_too(driver: Driver) -> None:
    driver.send()
    driver.one("signal", id="a", turn=1, signal_id="s1", name="go", value=b"", digest=b"d")
    reply = driver.take().wait()
    assert (reply.position, reply.suspended, reply.value) == (1, False, b"")


@pytest.mark.spec("R-SIGNAL-4")
def test_a_repeat_gets_the_first_answer_and_changes_nothing(driver: Driver) -> None:
    driver.send()
    first = driver.signal()
    driver.later(5)
    with driver.unchanged():
        assert driver.again() == first
    held = driver.take()
    held.wait("one")
    with driver.unchanged():
        assert driver.signal() == first, "it was buffered as it came"
    held.wait("two", "more")
    second = driver.signal("s2", "more")
    assert second.position == 2
    driver.take()
    with driver.unchanged():
        assert driver.again().word == "OK"
        assert driver.signal("s2", "more") == second
        assert driver.signal("s2", "more", sender="another") == second, "who sends it is no part of the body"


@pytest.mark.spec("R-SIGNAL-4")
def test_repeats_are_answered_while_the_receipt_is_kept(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=0)
    for number in range(3):
        driver.send("a", b"%d" % number)
    used, left = driver.signal("s1"), driver.signal("s2", "other", b"x" * 100)
    held = driver.take()
    held.wait()
    held.finish()
    assert driver.receipt(1).bytes == driver.bytes_of(1) > 100
    with driver.unchanged():
        assert (driver.signal("s1"), driver.signal("s2", "other", b"x" * 100)) == (used, left)
        assert driver.turn(1).signals[1].value == b"\0" + b"x" * 100
        assert driver.signal("s2", "other", b"y").word == "BODY_CONFLICT"
    driver.take().finish()
    driver.take().finish()
    driver.trim()
    assert driver.turn(1).message is None
    assert driver.fields() >= {"1.g"}
    assert not driver.fields() & {"1.g.1", "1.g.2"}
    with driver.unchanged():
        assert driver.turn(1).signals == []
        assert (driver.signal("s1"), driver.signal("s2", "other", b"x" * 100)) == (used, left)
        assert (driver.signal("s3").word, driver.signal("s3").state) == ("WRONG_STATE", 11)
    driver.later(900_000)
    driver.trim()
    assert driver.record().signalled == 0
    assert not any(field.startswith(("1.", "g:")) for field in driver.fields())
    with driver.unchanged():
        assert driver.signal("s1").word == "PRUNED"


@pytest.mark.spec("R-SIGNAL-4", "R-SIGNAL-5")
def test_a_used_id_with_another_body_conflicts(driver: Driver) -> None:
    driver.send()
    driver.signal("s1", "go", b"v")
    with driver.unchanged():
        assert driver.signal("s1", "go", b"w").word == "BODY_CONFLICT"
        assert driver.signal("s1", "other", b"v").word == "BODY_CONFLICT"
    driver.send("a", b"2")
    assert driver.signal("s1", "other", b"w", turn=2).word == "OK", "an id is unique in its turn"


@pytest.mark.spec("R-SIGNAL-5")
def test_words_that_refuse_it(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().finish()
    driver.signal("s1", turn=0)
    with driver.unchanged():
        assert driver.signal(on="nobody").word == "NOT_FOUND"
        assert driver.signal(turn=3).word == "NOT_FOUND"
        assert driver.signal(turn=2, inc=2).word == "NOT_FOUND"
        assert driver.signal(turn=0, inc=2).word == "NOT_FOUND"
        reply = driver.signal(turn=1)
        assert (reply.word, reply.state) == ("WRONG_STATE", 11)
    assert driver.signal("s2", turn=2, inc=1).word == "OK"
    driver.take().finish()
    driver.signal("s3", turn=0)
    with driver.unchanged():
        assert driver.signal("s3", turn=3).word == "NOT_FOUND", "the turn is still to come"


@pytest.mark.spec("R-SIGNAL-5")
@pytest.mark.parametrize("how", ["cancelled", "expired", "skipped", "parked"])
def test_a_turn_that_ended_otherwise_takes_no_more(driver: Driver, how: str) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    driver.signal("s1", value=b"x" * 50)
    if how == "expired":
        driver.elapse(1_000)
    elif how == "cancelled":
        driver.cancel()
    else:
        driver.take().do("fail", reason="ERROR", final=True)
        driver.skip() if how == "skipped" else driver.park()
    with driver.unchanged():
        assert driver.signal("s2").word == "WRONG_STATE"
        assert driver.signal("s1", value=b"x" * 50).word == "OK"
        assert driver.turn(1).signals[0].value == b"\0" + b"x" * 50
    assert driver.receipt(1).bytes == driver.record().kept_bytes


@pytest.mark.spec("R-SIGNAL-5", "R-CANCEL-2")
def test_a_turn_that_ends_in_the_queue_keeps_only_what_answers_repeats(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    first = driver.signal(turn=2)
    driver.cancel(2)
    assert "2.g.1" not in driver.fields()
    with driver.unchanged():
        assert driver.signal(turn=2) == first
        assert driver.signal("s2", turn=2).word == "WRONG_STATE"
        assert driver.turn(2).signals == []
    driver.take().finish()
    assert driver.record().kept_bytes == driver.receipt(1).bytes


@pytest.mark.spec("R-SIGNAL-6", "R-LIMIT-1")
def test_64_signals_and_no_more(driver: Driver) -> None:
    driver.send()
    items = [driver.signal_item(f"s{number}", value=b"") for number in range(64)]
    assert {reply.word for reply in driver.call("signal", items=items).replies} == {"OK"}
    with driver.unchanged():
        reply = driver.signal("s64")
        assert (reply.word, reply.limit, reply.value, reply.max) == (
            "LIMIT_EXCEEDED",
            "signals_per_turn",
            65,
            64,
        )
        assert driver.answer("call").limit == "signals_per_turn"
        assert driver.signal("s63", value=b"").word == "OK"
    held = driver.take()
    held.wait()
    assert driver.signal("s64").limit == "signals_per_turn", "consumed ones count"
    driver.send("a", b"2")
    assert driver.signal("s64", turn=2).word == "OK"


@pytest.mark.spec("R-SIGNAL-6", "R-LIMIT-1")
def test_32_kib_and_no_more(driver: Driver) -> None:
    driver.send()
    assert driver.signal("s1", "go", b"x" * 32 * KIB).word == "OK"
    with driver.unchanged():
        reply = driver.signal("s2", "go", b"x" * (32 * KIB + 1))
        assert (reply.word, reply.limit, reply.value) == ("LIMIT_EXCEEDED", "signal_bytes", 32 * KIB + 1)
    assert driver.take().wait().value == b"\0" + b"x" * 32 * KIB
    encoded = {**driver.signal_item("s2"), "value": b"encoding\0" + b"x" * 32 * KIB}
    assert driver.one("signal", **encoded).word == "OK", "only the data counts"


@pytest.mark.spec("R-SIGNAL-6", "R-LIMIT-1", "R-LIMIT-3")
@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "WAITING", "behind", "in one list"])
def test_all_values_count_towards_the_bytes_of_the_turn(driver: Driver, state: str) -> None:
    turn = 1
    if state == "in one list":
        items = [driver.signal_item(f"s{number}", value=b"x" * 9) for number in range(3)]
        driver.send()
        size = driver.bytes_of(1)
        replies = driver.call("signal", items=items, max_turn=size + 20).replies
        assert [reply.word for reply in replies] == ["OK", "OK", "LIMIT_EXCEEDED"]
        assert replies[2].value == size + 30
        return
    driver.send("a", b"1")
    if state == "behind":
        driver.send("a", b"2")
        turn = 2
    elif state != "QUEUED":
        held = driver.take()
        held.checkpoint("one", b"x" * 100)
        if state == "WAITING":
            held.wait()
    driver.signal("s1", "other", b"x" * 9, turn=turn)
    size = driver.bytes_of(turn)
    with driver.unchanged():
        reply = driver.signal("s2", "go", b"y" * 9, turn=turn, max_turn=size + 9)
        assert (reply.word, reply.limit, reply.value) == ("LIMIT_EXCEEDED", "turn_bytes", size + 10)
    assert driver.signal("s2", "go", b"y" * 9, turn=turn, max_turn=size + 10).word == "OK"
    assert driver.bytes_of(turn) == size + 10
    if turn == 2:
        driver.take().finish()
    if state in ("QUEUED", "behind", "WAITING"):
        held = driver.take()
    assert driver.record().bytes == size + 10


@pytest.mark.spec("R-SIGNAL-6")
def test_a_turn_that_is_full_of_signals_can_still_consume_them(driver: Driver) -> None:
    driver.send()
    size = driver.bytes_of(1)
    driver.signal("s1", "go", b"x" * 9, max_turn=size + 10)
    held = driver.take()
    assert held.wait("one", limits={"max_turn": size + 10}).value == b"\0" + b"x" * 9
    assert held.wait("two", limits={"max_turn": size + 10}).suspended


@pytest.mark.spec("R-SIGNAL-7")
def test_a_signal_to_the_instance_goes_to_the_unfinished_head(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().wait()
    reply = driver.signal("s1", turn=0)
    assert (reply.turn, reply.position) == (1, 1)
    assert "g:s1" in driver.fields()
    driver.take().finish()
    with driver.unchanged():
        assert driver.signal("s1", turn=0) == reply, "a repeat goes where the first went"
        assert driver.signal("s1", "go", b"other", turn=0).word == "BODY_CONFLICT"
    assert driver.signal("s2", turn=0).turn == 2
    assert driver.signal("s1", turn=2).position == 0, "a signal to the turn has ids of its own"
    with driver.unchanged():
        assert driver.signal("s1", turn=0) == reply


@pytest.mark.spec("R-SIGNAL-7")
@pytest.mark.parametrize("failed", [False, True])
def test_a_head_that_does_not_run_gets_it_too(driver: Driver, failed: bool) -> None:
    driver.send()
    if failed:
        driver.take().do("fail", reason="ERROR", final=True)
    assert driver.signal(turn=0).turn == 1


@pytest.mark.spec("R-SIGNAL-7")
def test_without_a_turn_it_waits_for_the_next_one(driver: Driver) -> None:
    driver.create()
    reply = driver.signal("s1", "go", b"early", turn=0)
    assert (reply.turn, reply.position) == (1, 0)
    assert driver.events()[-1] == ("SIGNAL_RECEIVED", 0, 0, "", 1, "s1 go   0")
    assert driver.record().signalled == 1
    with driver.unchanged():
        assert driver.again() == reply
    driver.send()
    with driver.unchanged():
        assert driver.signal("s1", "go", b"early", turn=1) == reply
        assert driver.signal("s1", "go", b"early", turn=0) == reply
    held = driver.take()
    assert driver.record().bytes == driver.bytes_of(1)
    assert held.wait().value == b"\0early"


@pytest.mark.spec("R-SIGNAL-7", "R-SIGNAL-6", "R-LIMIT-1")
def test_what_comes_before_the_message_leaves_room_for_it(driver: Driver) -> None:
    driver.create()
    limits: dict[str, Any] = {"reserve": 100, "max_turn": 120}
    assert driver.signal("s1", "go", b"x" * 9, turn=0, **limits).word == "OK"
    with driver.unchanged():
        reply = driver.signal("s2", "go", b"x" * 10, turn=0, **limits)
        assert (reply.word, reply.limit, reply.value) == ("LIMIT_EXCEEDED", "turn_bytes", 121)
    assert driver.signal("s2", "go", b"x" * 9, turn=0, **limits).word == "OK"


@pytest.mark.spec("R-SIGNAL-7", "R-CANCEL-2")
@pytest.mark.parametrize("count", [1, 16, 17, 40])
@pytest.mark.parametrize("follows", [False, True])
def test_all_that_have_ended_are_passed_first(driver: Driver, count: int, follows: bool) -> None:
    for number in range(count + 1 + follows):
        driver.send("a", b"%d" % number)
    for turn in range(2, count + 2):
        driver.cancel(turn)
    driver.take().finish()
    reply = driver.signal(turn=0)
    assert reply.turn == count + 2
    assert driver.record().head == count + 2
    assert driver.due() == {}
    if not follows:
        driver.send("a", b"more")
    assert driver.take().wait().value == b"\0v"


@pytest.mark.spec("R-SIGNAL-7", "R-TTL-1")
def test_heads_whose_time_is_over_do_not_get_it(driver: Driver) -> None:
    for number in range(20):
        driver.send("a", b"%d" % number, ttl_ms=1_000 + number)
    driver.later(5_000)
    assert driver.signal(turn=0).turn == 21
    driver.send("a", b"more")
    assert driver.take().view.turn == 21


@pytest.mark.spec("R-SIGNAL-7", "R-DELAY-1")
def test_it_goes_to_a_delayed_message_that_is_due(driver: Driver) -> None:
    driver.create()
    driver.send("a", b"later", delay_ms=1_000)
    driver.later(1_000)
    assert driver.signal(turn=0).turn == 1
    assert driver.take().wait().value == b"\0v"


@pytest.mark.spec("R-SIGNAL-7", "R-CANCEL-3")
def test_it_is_kept_for_the_turn_after_a_message_that_never_ran(driver: Driver) -> None:
    driver.create()
    driver.send("a", b"later", "m", delay_ms=1_000)
    driver.signal("s1", "go", b"one", turn=0)
    driver.signal("s2", "go", b"two", turn=0)
    driver.cancel_message("m")
    assert driver.record().tail == 1
    with driver.unchanged():
        assert driver.signal("s1", "go", b"one", turn=0).turn == 2
    assert driver.signal("s1", turn=1).word == "WRONG_STATE"
    driver.send("a", b"now")
    held = driver.take()
    assert (held.view.turn, held.wait("one").value, held.wait("two").value) == (2, b"\0one", b"\0two")


@pytest.mark.spec("R-SIGNAL-7", "R-SIGNAL-4")
def test_an_id_that_named_the_turn_first_belongs_to_the_instance_from_then_on(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    first = driver.signal("s1")
    before = driver.state()
    assert driver.signal("s1", turn=0) == first
    assert set(changes(before, driver.state())) == {"i:a 1.g", "i:a g:s1"}
    assert driver.signal("s1", "go", b"other", turn=0).word == "BODY_CONFLICT"
    driver.take().finish()
    with driver.unchanged():
        assert driver.signal("s1", turn=0) == first


@pytest.mark.spec("R-SIGNAL-7", "R-TRIM-2")
def test_what_answers_repeats_goes_with_the_receipt(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send("a", b"1")
    driver.signal("s1", turn=0)
    driver.signal("s2")
    driver.take().finish()
    driver.later(900_000)
    driver.expire()
    assert driver.record().signalled == 0
    assert not any(field.startswith(("1.", "g:")) for field in driver.fields())
    assert driver.signal("s1", turn=0).turn == 2


@pytest.mark.spec("R-CALLBACK-2")
def test_only_the_first_result_of_a_callback_counts(driver: Driver) -> None:
    driver.send()
    first = driver.answer("call", b"one")
    with driver.unchanged():
        assert driver.answer("call", b"one") == first
        assert driver.answer("call", b"two").word == "BODY_CONFLICT"
        assert driver.answer("call", b"one", rejected=True).word == "BODY_CONFLICT"
    assert driver.answer("another", b"two").word == "OK"
    held = driver.take()
    held.wait("one", callback="call")
    with driver.unchanged():
        assert driver.answer("call", b"one") == first
    assert held.wait("two", callback="call").suspended, "there is no second one"


@pytest.mark.spec("R-DELETE-1", "R-SIGNAL-9")
@pytest.mark.parametrize("state", ["WAITING", "QUEUED", "IDLE", "background"])
def test_deletion_leaves_nothing(driver: Driver, state: str) -> None:
    driver.create()
    driver.signal("s1", turn=0)
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.signal("s2", turn=2)
    if state == "WAITING":
        driver.take().wait("one", "other", ms=1_000)
    elif state == "IDLE":
        for _ in range(2):
            driver.take().finish()
        driver.signal("s3", turn=0)
    assert driver.delete(max_turns=1 if state == "background" else 1_000).deleted
    if state == "background":
        driver.expire()
    assert driver.state().keys() <= {"meta", "dead", "deadtime", "types", "typeindex"}


def test_signals_that_can_not_be_read_are_not_written_over(driver: Driver) -> None:
    driver.send()
    driver.signal()
    kept = driver.redis.call("HGET", f"{driver.tag}i:a", "1.g")
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.g", b"\xc1")
    with driver.unchanged(), pytest.raises(StoreDamaged):
        driver.signal("s2")
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.g", kept)


@pytest.mark.spec("R-WAKE-1")
def test_who_waits_for_turns_is_told(driver: Driver) -> None:
    driver.send()
    driver.take().wait()
    driver.claim(server="server02")
    result = driver.call("signal", items=[driver.signal_item()])
    assert result.ready == ["t:v1"]


def test_turns_without_signals_pay_nothing(driver: Driver) -> None:
    """Commands of Redis for a turn: none more than before there were signals."""
    driver.count = True

    def commands_of(body: bytes) -> list[int]:
        counts = []
        driver.send("a", body)
        counts.append(sum(driver.commands.values()))
        held = driver.lease()
        counts.append(sum(driver.commands.values()))
        held.checkpoint()
        counts.append(sum(driver.commands.values()))
        held.finish()
        counts.append(sum(driver.commands.values()))
        return counts

    commands_of(b"1")
    assert commands_of(b"2") == [8, 11, 6, 8]
    driver.send("b")
    driver.signal(on="b")
    driver.cancel(1, "b")
    assert commands_of(b"3") == [8, 11, 6, 8]
