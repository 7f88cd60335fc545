"""send: admission of messages to inboxes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.driver import TV, Driver, Event
from tests.support.lua_harness import changes


@pytest.mark.spec("R-SEND-1")
def test_the_first_message_makes_the_head_ready(driver: Driver) -> None:
    driver.create()
    before = driver.state()
    driver.later(5)
    reply = driver.send("a", b"hello", "m1")
    assert (reply.word, *reply) == ("OK", 1, 1, driver.now, False, 0)
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a 1.m", "i:a d:m1", "e:a", "ready:t:v1:0 a", "types t:v1",
        "busy t:v1:a",
    }  # fmt: skip
    assert driver.head() == "QUEUED"
    assert driver.events()[-1] == Event("TURN_ADMITTED", 1, 0, "QUEUED", 2, "")
    message = driver.turn(1).message
    assert message is not None
    assert (message.message_id, message.blob, message.admitted_ms) == ("m1", b"\0hello", driver.now)


@pytest.mark.spec("R-SEND-1")
def test_a_reply_says_what_became_ready(driver: Driver) -> None:
    result = driver.call("send", items=[driver.message("a"), driver.message("b"), driver.message("a", b"2")])
    assert result.ready == [TV]
    assert driver.call("send", items=[driver.message("a", b"3")]).ready == []


@pytest.mark.spec("R-SEND-3")
def test_create_if_absent_creates_and_admits_in_one_transition(driver: Driver) -> None:
    reply = driver.send("a", create_digest=b"birth", state=b"json\0{}", lease_ms=1_000, max_attempts=5)
    assert (reply.word, reply.turn, reply.incarnation) == ("OK", 1, 1)
    assert driver.event_names() == ["CREATED", "TURN_ADMITTED"]
    held = driver.take()
    assert (held.view.state, held.view.lease_ms, held.view.max_attempts) == (b"json\0{}", 1_000, 5)
    assert driver.one("create", id="a", type="t", version="v1", digest=b"birth").word == "OK"


@pytest.mark.spec("R-SEND-3")
def test_an_absent_instance_is_not_found(driver: Driver) -> None:
    with driver.unchanged():
        assert driver.send("a", create=False).word == "NOT_FOUND"


@pytest.mark.parametrize("other", [{"type": "t2"}, {"version": "v2"}])
@pytest.mark.spec("R-SEND-3")
def test_an_instance_of_another_type_or_version_conflicts(driver: Driver, other: dict[str, Any]) -> None:
    driver.create()
    with driver.unchanged():
        reply = driver.send("a", **other)
    assert (reply.word, reply.what, reply.tv) == ("BODY_CONFLICT", "create_if_absent", TV)
    assert driver.send("a", create=False, **other).word == "OK"


@pytest.mark.spec("R-SEND-3")
def test_an_existing_instance_stays_as_it_is(driver: Driver) -> None:
    driver.create(state=b"json\0{}", lease_ms=1_000)
    driver.send("a", state=b"other", lease_ms=9_000, create_digest=b"else")
    held = driver.take()
    assert (held.view.state, held.view.lease_ms) == (b"json\0{}", 1_000)


@pytest.mark.spec("R-SEND-2")
def test_an_exact_repeat_gives_the_first_answer(driver: Driver) -> None:
    first = driver.send()
    driver.later(1_000)
    with driver.unchanged():
        assert driver.again() == first


@pytest.mark.spec("R-SEND-2")
def test_the_repeat_holds_while_running_after_the_finish_and_after_the_payload_is_trimmed(
    driver: Driver,
) -> None:
    driver.put_type(min_turns=0, max_age_ms=60_000)
    first = driver.send()
    held = driver.take()
    with driver.unchanged():
        assert driver.send() == first
    held.finish()
    driver.later(59_000)
    with driver.unchanged():
        assert driver.send() == first
    driver.later(1_000)
    assert driver.trim().trimmed == 1
    assert "1.m" not in driver.fields()
    with driver.unchanged():
        assert driver.send() == first
        assert (driver.send("a", b"else", "m-hello").word) == "BODY_CONFLICT"


@pytest.mark.spec("R-SEND-2", "R-TRIM-3")
def test_after_the_receipt_the_id_is_forgotten(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send()
    driver.take().finish()
    driver.later(900_000)
    driver.trim()
    assert driver.send().turn == 2


@pytest.mark.spec("R-SEND-2")
def test_another_body_under_the_same_id_conflicts(driver: Driver) -> None:
    driver.send("a", b"one", "m1")
    with driver.unchanged():
        reply = driver.send("a", b"two", "m1")
    assert (reply.word, reply.what) == ("BODY_CONFLICT", "message")


@pytest.mark.spec("R-SEND-2")
def test_the_origin_is_not_part_of_the_body(driver: Driver) -> None:
    first = driver.send("a", origin=b"span-1")
    with driver.unchanged():
        assert driver.send("a", origin=b"span-2") == first
    message = driver.turn(1).message
    assert message is not None
    assert message.origin == b"span-1"


@pytest.mark.spec("R-SEND-5")
def test_the_same_message_twice_in_one_list_admits_one_turn(driver: Driver) -> None:
    one = driver.message("a", b"one")
    replies = driver.call("send", items=[one, one, driver.message("a", b"two"), one]).replies
    assert [reply.turn for reply in replies] == [1, 1, 2, 1]
    assert driver.record().pending == 2
    assert driver.event_names() == ["CREATED", "TURN_ADMITTED", "TURN_ADMITTED"]


@pytest.mark.spec("R-SEND-5")
def test_messages_of_a_list_are_judged_one_by_one_and_in_order(driver: Driver) -> None:
    driver.create("b", kind="other")
    items = [
        driver.message("a", b"1"),
        driver.message("b", b"1"),
        driver.message("a", b"1-changed", "m-1"),
        driver.message("a", b"x" * 33),
        driver.message("absent", create=False),
        driver.message("a", b"2"),
    ]
    replies = driver.call("send", items=items, max_message=32).replies
    words = ["OK", "BODY_CONFLICT", "BODY_CONFLICT", "LIMIT_EXCEEDED", "NOT_FOUND", "OK"]
    assert [reply.word for reply in replies] == words
    assert [driver.turn(turn).message.blob for turn in (1, 2)] == [b"\0001", b"\0002"]  # type: ignore[union-attr]


@pytest.mark.spec("R-LIMIT-1")
def test_the_message_is_limited(driver: Driver) -> None:
    assert driver.send("a", b"x" * 10, max_message=10).word == "OK"
    with driver.unchanged():
        reply = driver.send("a", b"x" * 11, max_message=10)
    assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "message_bytes", 11, 10)


@pytest.mark.spec("R-LIMIT-1", "R-SEND-3")
def test_the_state_of_an_absent_instance_is_limited(driver: Driver) -> None:
    assert driver.send("a", state=b"enc\0" + b"x" * 10, max_state=10).word == "OK"
    with driver.unchanged():
        reply = driver.send("b", state=b"enc\0" + b"x" * 11, max_state=10)
    assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "state_bytes", 11, 10)


@pytest.mark.spec("R-SEND-4", "R-LIMIT-1", "R-LIMIT-3")
def test_pending_turns_are_limited_and_the_running_one_counts(driver: Driver) -> None:
    driver.send("a", b"1", max_pending=2)
    held = driver.take()
    assert driver.send("a", b"2", max_pending=2).word == "OK"
    with driver.unchanged():
        reply = driver.send("a", b"3", max_pending=2)
        assert driver.send("a", b"2", max_pending=2).turn == 2, "a repeat is still answered"
    assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "pending_messages", 3, 2)
    held.finish()
    assert driver.send("a", b"3", max_pending=2).turn == 3


@pytest.mark.spec("R-SEND-4")
def test_the_limit_holds_inside_a_list(driver: Driver) -> None:
    items = [driver.message("a", b"%d" % number) for number in range(3)]
    replies = driver.call("send", items=items, max_pending=2).replies
    assert [reply.word for reply in replies] == ["OK", "OK", "LIMIT_EXCEEDED"]


@pytest.mark.spec("R-FAIL-2")
def test_a_blocked_instance_still_admits(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().fail(final=True)
    assert driver.send("a", b"2").turn == 2
    assert (driver.head(), driver.claim()) == ("FAILED", [])
    assert driver.events()[-1] == Event("TURN_ADMITTED", 2, 0, "QUEUED", 3, "")


@pytest.mark.spec("R-SETTLE-1")
def test_a_send_settles_an_ended_backoff(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().fail(delay_ms=1_000)
    driver.later(1_000)
    assert driver.call("send", items=[driver.message("a", b"2")]).ready == [TV]
    assert driver.head() == "QUEUED"


@pytest.mark.spec("R-ID-3")
def test_payloads_are_opaque(driver: Driver) -> None:
    blob = bytes(range(256)) * 4
    driver.send("a", blob, "m1", origin=blob)
    assert driver.lease().view.message.blob == b"\0" + blob
    assert driver.record().bytes > 2_048


@pytest.mark.spec("R-SEND-3")
def test_the_state_for_an_absent_instance_does_not_matter_to_one_that_is_there(driver: Driver) -> None:
    driver.send("a", b"1")
    assert driver.send("a", b"2", state=b"\0" + b"x" * 9, max_state=8).turn == 2
