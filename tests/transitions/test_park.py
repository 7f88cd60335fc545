"""skip, park, redrive and policies: how an inbox goes on after a turn that failed for good."""

from __future__ import annotations

import pytest

from pawl_server.domain.limits import PARKED_TURNS
from pawl_server.domain.states import TurnState
from pawl_server.store import records
from pawl_server.store.errors import StoreDamaged
from pawl_server.store.records import ParkedRecord
from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes

BLOCK, SKIP, PARK = 1, 2, 3
PARKED_1 = f"{TV}:a:{1:016d}"


def failed(driver: Driver, *more: bytes) -> None:
    """The first turn, of message m-1, has failed for good; its body is 1, and it saved a step."""
    driver.create(state=b"json\0kept")
    for body in (b"1", *more):
        driver.send("a", body)
    held = driver.take()
    held.checkpoint("one")
    held.fail("BROKEN", final=True)


def kept(driver: Driver, turn: int = 1) -> ParkedRecord:
    """What is kept of a parked turn."""
    return records.parked_record(driver.redis.call("HGET", f"{driver.tag}i:a", f"{turn}.p"))


@pytest.mark.spec("R-SKIP-1", "R-AWAIT-1")
def test_skip_ends_the_turn_and_the_inbox_goes_on(driver: Driver) -> None:
    failed(driver, b"2")
    driver.one("await", id="a", turn=2)
    driver.later(10)
    before = driver.state()
    result = driver.call("skip", id="a", turn=1, comment="no use", request_id="s", digest=b"d")
    assert (result.replies[0].finished_ms, result.ready) == (driver.now, [TV])
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a c", "i:a k", "i:a 1.h", "i:a a", "e:a", "failed t:v1:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert driver.events()[-1] == ("TURN_SKIPPED", 1, 1, "SKIPPED", 2, "no use")
    turn = driver.turn(1)
    assert turn.receipt is not None
    assert (turn.receipt.state, turn.receipt.attempts, turn.receipt.reply) == (TurnState.SKIPPED, 1, None)
    assert turn.message is not None
    assert turn.failure is not None
    assert (turn.message.blob, turn.failure.reason) == (b"\0001", "BROKEN")
    assert [step.key for step in turn.steps] == ["one"]
    view = driver.take().view
    assert (view.turn, view.attempt, view.state, view.steps) == (2, 1, b"json\0kept", [])


@pytest.mark.spec("R-SKIP-1", "R-WAKE-1")
def test_skip_of_the_only_turn_leaves_an_idle_instance(driver: Driver) -> None:
    failed(driver)
    driver.skip()
    assert (driver.head(), driver.events()[-1].status, driver.state().get("busy")) == ("", 1, None)
    assert driver.send("a", b"2").turn == 2
    driver.take().finish()


@pytest.mark.spec("R-PARK-1")
def test_park_keeps_the_message_and_the_failure(driver: Driver) -> None:
    failed(driver, b"2")
    driver.later(10)
    before = driver.state()
    reply = driver.park(comment="later")
    assert (reply.word, reply.finished_ms) == ("OK", driver.now)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a c", "i:a k", "i:a 1.h", "i:a 1.p", "e:a", "failed t:v1:a", f"parked {PARKED_1}",
        "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert driver.events()[-1] == ("TURN_PARKED", 1, 1, "PARKED", 2, "later")
    assert driver.receipt(1).state == TurnState.PARKED
    assert (kept(driver).message.blob, kept(driver).parked_ms) == (b"\0001", driver.now)
    assert kept(driver).failure == driver.turn(1).failure
    assert driver.take().view.turn == 2


@pytest.mark.spec("R-PARK-1", "R-TRIM-3")
def test_what_is_parked_is_kept_whatever_the_retention(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    failed(driver)
    driver.park()
    driver.send("a", b"2")
    driver.take().finish()
    driver.later(900_000)
    driver.trim()
    assert driver.record().oldest == 3
    assert driver.fields() >= {"1.p"}
    assert driver.one("get_turn", id="a", turn=1).word == "PRUNED"
    assert driver.redrive().turn == 3
    view = driver.take().view
    assert (view.message.blob, view.message.from_turn, view.message.redriven) == (b"\0001", 1, True)


@pytest.mark.spec("R-PARK-2")
def test_redrive_sends_the_message_once_more(driver: Driver) -> None:
    failed(driver, b"2")
    driver.park()
    driver.later(10)
    before = driver.state()
    reply = driver.redrive(comment="again")
    assert (reply.word, reply.turn) == ("OK", 3)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a c", "i:a 1.h", "i:a 1.p", "i:a 3.m", "i:a d:pawl-redrive-1", "e:a",
        f"parked {PARKED_1}",
    }  # fmt: skip
    assert driver.events()[-2:] == [
        ("TURN_ADMITTED", 3, 0, "QUEUED", 2, "redrive"),
        ("TURN_REDRIVEN", 1, 0, "PARKED", 2, "3"),
    ]
    assert (driver.receipt(1).state, driver.receipt(1).continuation) == (TurnState.PARKED, 3)
    driver.take().finish()
    view = driver.take().view
    message = view.message
    assert (view.turn, view.attempt, view.steps, message.blob) == (3, 1, [], b"\0001")
    assert (message.message_id, message.from_turn, message.from_id) == ("pawl-redrive-1", 1, "m-1")
    assert (message.redriven, message.admitted_ms) == (True, driver.now)


@pytest.mark.spec("R-PARK-2", "R-CONTROL-1")
def test_redrive_happens_once(driver: Driver) -> None:
    failed(driver)
    driver.park()
    assert driver.redrive(request_id="one").turn == 2
    with driver.unchanged():
        assert driver.redrive(request_id="one").turn == 2
        reply = driver.redrive(request_id="two")
        assert (reply.word, reply.state) == ("WRONG_STATE", TurnState.PARKED)
    driver.take().fail(final=True)
    driver.park(2)
    assert driver.redrive(2).turn == 3
    assert driver.take().view.message.message_id == "pawl-redrive-2"


@pytest.mark.spec("R-PARK-2")
def test_redrive_may_drop_the_message(driver: Driver) -> None:
    failed(driver)
    driver.park()
    reply = driver.redrive(discard=True, max_pending=0)
    assert (reply.word, reply.turn) == ("OK", 0)
    assert ("1.p" in driver.fields(), driver.state().get("parked"), driver.head()) == (False, None, "")
    assert driver.events()[-1] == ("TURN_REDRIVEN", 1, 0, "PARKED", 1, "0")
    with driver.unchanged():
        assert driver.redrive().word == "WRONG_STATE"


@pytest.mark.spec("R-PARK-3")
def test_a_dropped_message_is_nowhere_any_more(driver: Driver) -> None:
    failed(driver, b"2")
    driver.park()
    before, bytes_before = driver.state(), driver.record().kept_bytes
    assert driver.redrive(discard=True).word == "OK"
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a c", "i:a 1.h", "i:a 1.m", "i:a 1.p", "e:a", f"parked {PARKED_1}",
    }  # fmt: skip
    turn = driver.turn(1)
    assert turn.message is not None
    assert turn.receipt is not None
    assert turn.failure is not None
    assert (turn.message.message_id, turn.message.blob) == ("m-1", b"")
    assert (turn.receipt.state, turn.receipt.continuation) == (TurnState.PARKED, 0)
    assert (turn.failure.reason, [step.key for step in turn.steps]) == ("BROKEN", ["one"])
    assert driver.record().kept_bytes == bytes_before - len(b"\0001")
    assert driver.one("list_parked", prefix=f"{TV}:").entries == []
    assert driver.send("a", b"1", message_id="m-1").turn == 1, "a repeat is known as before"
    assert driver.send("a", b"9", message_id="m-1").word == "BODY_CONFLICT"
    assert driver.take().view.turn == 2


@pytest.mark.spec("R-PARK-3", "R-PARK-2")
def test_a_message_that_is_sent_again_is_shown_on(driver: Driver) -> None:
    failed(driver)
    driver.park()
    driver.redrive()
    message = driver.turn(1).message
    assert message is not None
    assert message.blob == b"\0001"


@pytest.mark.spec("R-PARK-3", "R-TRIM-3")
def test_a_turn_is_trimmed_before_and_after_its_message_is_dropped(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=0)
    failed(driver)
    driver.park()
    assert driver.redrive(discard=True).word == "OK"
    driver.send("a", b"2")
    driver.take().fail(final=True)
    driver.park(2)
    driver.trim()
    assert (driver.receipt(1).trimmed, driver.receipt(1).message_id) == (True, "m-1")
    driver.send("a", b"3")
    driver.take().finish()
    driver.trim()
    assert driver.receipt(2).trimmed
    kept_bytes = driver.record().kept_bytes
    assert driver.redrive(2, discard=True).word == "OK"
    assert (driver.record().kept_bytes, driver.turn(2).message) == (kept_bytes, None)


@pytest.mark.spec("R-PARK-2")
def test_what_may_be_redriven(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().finish()
    with driver.unchanged():
        found = [driver.redrive(turn) for turn in (1, 2)]
        assert [(reply.word, reply.state) for reply in found] == [
            ("WRONG_STATE", TurnState.COMPLETED), ("WRONG_STATE", TurnState.QUEUED),
        ]  # fmt: skip
        assert driver.redrive(3).word == driver.redrive(1, "nobody").word == "NOT_FOUND"
        assert driver.redrive(1, inc=99).word == "NOT_FOUND"


@pytest.mark.spec("R-PARK-2", "R-LIMIT-1")
def test_redrive_into_a_full_inbox(driver: Driver) -> None:
    failed(driver)
    driver.park()
    for body in (b"2", b"3"):
        driver.send("a", body)
    with driver.unchanged():
        reply = driver.redrive(max_pending=2)
        assert (reply.word, reply.limit, reply.value, reply.max) == (
            "LIMIT_EXCEEDED",
            "pending_messages",
            3,
            2,
        )
    assert driver.redrive(max_pending=3).turn == 4


@pytest.mark.spec("R-CANCEL-2", "R-PARK-2")
def test_redrive_into_an_inbox_that_is_full_of_ended_turns(driver: Driver) -> None:
    failed(driver)
    driver.park()
    for body in (b"2", b"3", b"4"):
        driver.send("a", body)
    driver.cancel(3)
    driver.cancel(4)
    with driver.unchanged():
        reply = driver.redrive(max_pending=3)
        assert (reply.word, reply.limit, reply.value, reply.max) == (
            "LIMIT_EXCEEDED",
            "pending_messages",
            4,
            3,
        )
    assert driver.redrive(max_pending=4).turn == 5


@pytest.mark.spec("R-PARK-2", "R-DAMAGE-1")
def test_redrive_of_a_message_that_cannot_be_read(driver: Driver) -> None:
    failed(driver)
    driver.park()
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.p", b"\x94\x01\xa0\xa0\x01")
    with driver.unchanged(), pytest.raises(StoreDamaged):
        driver.redrive()
    assert driver.redrive(discard=True).word == "OK"


@pytest.mark.spec("R-PARK-1", "R-POLICY-1", "R-LIMIT-1")
def test_how_many_messages_may_be_parked(driver: Driver) -> None:
    driver.put_type(on_exhausted=PARK)
    driver.send("a", b"0")
    items = [driver.message("a", b"%d" % number) for number in range(1, PARKED_TURNS + 1)]
    driver.call("send", items=items, max_pending=PARKED_TURNS + 1)
    for _ in range(PARKED_TURNS):
        assert driver.lease().fail(final=True).state == TurnState.PARKED
    assert driver.record().parked_turns == len(driver.state()["parked"]) == PARKED_TURNS
    reply = driver.take().fail(final=True)
    assert (reply.state, driver.head()) == (TurnState.FAILED, "FAILED")
    with driver.unchanged():
        reply = driver.park(PARKED_TURNS + 1)
        assert (reply.word, reply.limit, reply.value, reply.max) == (
            "LIMIT_EXCEEDED",
            "parked_turns",
            PARKED_TURNS + 1,
            PARKED_TURNS,
        )
    driver.redrive(1, discard=True)
    assert driver.park(PARKED_TURNS + 1).word == "OK"


# What a type does by itself.

POLICIES: dict[int, tuple[str, TurnState]] = {
    BLOCK: ("", TurnState.FAILED),
    SKIP: ("TURN_SKIPPED", TurnState.SKIPPED),
    PARK: ("TURN_PARKED", TurnState.PARKED),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cause", ["fail", "final", "expired", "lost", "undeliverable"])
@pytest.mark.spec("R-POLICY-1", "R-EXPIRE-1", "R-EXPIRE-2", "R-EXPIRE-3", "R-FAIL-2")
def test_a_turn_that_fails_for_good(driver: Driver, policy: int, cause: str) -> None:
    event, state = POLICIES[policy]
    driver.put_type(max_attempts=1, on_exhausted=policy)
    driver.send("a", b"1")
    driver.send("a", b"2")
    result = None
    if cause in ("fail", "final"):
        item = driver.take().item("fail", reason="BROKEN", final=cause == "final", delay_ms=-1)
        result = driver.call("fail", items=[item])
        assert (result.replies[0].state, result.replies[0].delay_ms) == (state, 0)
    elif cause == "expired":
        driver.take()
        driver.later(60_000)
        result = driver.call("expire")
    for _ in range({"lost": 10, "undeliverable": 11}.get(cause, 0)):
        held = driver.lease()
        if cause == "lost":
            held.orphan(accepted=True)
        driver.later(5_000)
        result = driver.call("expire")
    assert result is not None
    assert result.ready == ([] if policy == BLOCK else [TV])
    names = driver.event_names()
    assert names[-1] == (event or "TURN_FAILED")
    assert "TURN_FAILED" in names[-2:]
    assert ("failed" in driver.state(), "parked" in driver.state()) == (policy == BLOCK, policy == PARK)
    assert driver.events()[-1].status == (3 if policy == BLOCK else 2)
    if policy == BLOCK:
        assert (driver.head(), driver.ready()) == ("FAILED", [])
        return
    assert (driver.receipt(1).state, driver.receipt(1).attempts) == (state, 10 if cause == "lost" else 1)
    assert driver.turn(1).failure is not None
    assert driver.take().view.turn == 2


@pytest.mark.parametrize("policy", [SKIP, PARK])
@pytest.mark.spec("R-POLICY-1", "R-CMD-2", "R-CMD-3")
def test_the_last_fail_repeated(driver: Driver, policy: int) -> None:
    driver.put_type(max_attempts=1, on_exhausted=policy)
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one")
    item = held.item("fail", reason="BROKEN", delay_ms=5)
    answer = driver.one("fail", **item)

    def check() -> None:
        driver.later(1)
        with driver.unchanged():
            assert driver.one("fail", **item) == answer
            assert driver.one("fail", **{**item, "digest": b"other"}).word == "BODY_CONFLICT"
            assert held.checkpoint("one", n=1).word == "ALREADY"
            reply = held.finish(n=3)
            assert (reply.word, reply.how, held.renew().how) == ("LEASE_ENDED", "failed", "failed")

    check()
    driver.take().finish()
    check()


@pytest.mark.spec("R-POLICY-1", "R-TYPE-1")
def test_the_policy_in_force_when_it_fails_counts(driver: Driver) -> None:
    driver.put_type(on_exhausted=SKIP)
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    driver.put_type(on_exhausted=BLOCK)
    assert held.fail(final=True).state == TurnState.FAILED
    driver.put_type(on_exhausted=PARK)
    assert driver.head() == "FAILED", "what has failed stays"
    driver.park()
    assert driver.take().fail(final=True).state == TurnState.PARKED


@pytest.mark.spec("R-POLICY-1", "R-AWAIT-1")
def test_who_waits_for_a_turn_that_is_skipped_hears_of_it(driver: Driver) -> None:
    driver.put_type(max_attempts=1, on_exhausted=SKIP)
    driver.send()
    driver.one("await", id="a", turn=1)
    driver.take().fail()
    assert "a" not in driver.fields()
    assert driver.one("await", id="a", turn=1).word == "DONE"
