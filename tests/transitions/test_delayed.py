"""Delayed messages and messages with a time to live."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes

DAY_MS = 86_400_000


def bodies(driver: Driver) -> list[bytes]:
    """The bodies of all unfinished turns, in order."""
    record = driver.record()
    found = [driver.turn(turn) for turn in range(record.head, record.tail + 1)]
    return [turn.message.blob[1:] for turn in found if turn.message and not turn.receipt]


@pytest.mark.spec("R-DELAY-1")
def test_a_delayed_message_has_no_turn(driver: Driver) -> None:
    driver.create()
    before = driver.state()
    reply = driver.send("a", b"1", delay_ms=5_000)
    assert (reply.word, *reply) == ("OK", 0, 1, 0, False, driver.now + 5_000)
    arrival = f"{2:016d}m-1"
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a q:m-1", "i:a d:m-1", f"l:a {arrival}", "e:a", "due delayed:a", f"busy ~{TV}:a",
    }  # fmt: skip
    assert driver.events()[-1] == ("MESSAGE_SCHEDULED", 0, 0, "", 1, "m-1 5000")
    assert (driver.head(), driver.record().tail, driver.record().delayed) == ("", 0, 1)
    assert driver.sweep() == (0, 0)


@pytest.mark.spec("R-DELAY-1", "R-SEND-3")
def test_it_may_create_its_instance(driver: Driver) -> None:
    reply = driver.send("a", b"1", delay_ms=1)
    assert (reply.turn, reply.incarnation, reply.due_ms) == (0, 1, driver.now + 1)
    assert driver.event_names() == ["CREATED", "MESSAGE_SCHEDULED"]
    driver.elapse(1)
    assert driver.take().view.turn == 1


@pytest.mark.spec("R-DELAY-1", "R-SEND-1")
def test_it_becomes_a_turn_when_it_is_due(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=365 * DAY_MS, origin=b"origin")
    driver.later(365 * DAY_MS - 1)
    assert (driver.expire(), driver.claim()) == ([], [])
    driver.later(1)
    result = driver.call("expire", limit=10)
    [fired, _] = result.replies
    assert (fired.word, fired.kind, fired.id, fired.outcome) == ("FIRED", "delayed", "a", "admitted")
    assert result.ready == [TV]
    assert driver.events()[-1] == ("TURN_ADMITTED", 1, 0, "QUEUED", 2, "")
    assert set(driver.state()["busy"]) == {f"{TV}:a"}
    assert (driver.due(), "l:a" in driver.state()) == ({}, False)
    message = driver.take().view.message
    assert (message.message_id, message.blob, message.origin) == ("m-1", b"\0001", b"origin")
    assert (message.admitted_ms, message.from_turn, message.expire_ms) == (driver.now, 0, 0)


@pytest.mark.spec("R-DELAY-1")
def test_it_holds_nothing_up(driver: Driver) -> None:
    driver.send("a", b"late", delay_ms=5_000)
    for body in (b"1", b"2"):
        driver.send("a", body)
    driver.take().finish()
    assert driver.take().finish().word == "OK"
    driver.elapse(5_000)
    assert driver.take().view.turn == 3


@pytest.mark.spec("R-DELAY-1")
def test_in_order_of_due_time_and_of_arrival_among_the_same(driver: Driver) -> None:
    for body, delay_ms in ((b"e", 30), (b"c", 20), (b"a", 10), (b"d", 20), (b"b", 10)):
        driver.send("a", body, delay_ms=delay_ms)
    driver.later(5)
    driver.send("a", b"c2", delay_ms=15)
    driver.elapse(15)
    assert bodies(driver) == [b"a", b"b", b"c", b"d", b"c2"]
    assert driver.due() == {"delayed:a": driver.now + 10}
    driver.elapse(10)
    assert bodies(driver)[-1] == b"e"


@pytest.mark.parametrize("count", [15, 16, 17, 40])
@pytest.mark.parametrize("then", ["send", "delayed send", "finish", "timer", "redrive"])
@pytest.mark.spec("R-DELAY-1", "R-SETTLE-1")
def test_a20_what_is_due_comes_before_any_other_message(driver: Driver, count: int, then: str) -> None:
    """No timer has fired, and there are more of them than one look admits."""
    held = None
    driver.put_type(on_exhausted=3)
    if then in ("finish", "redrive"):
        driver.send("a", b"first")
        held = driver.take()
    if then == "redrive":
        assert held is not None
        held.fail(final=True)
    items = [driver.message("a", b"%d" % number, delay_ms=100) for number in range(count)]
    driver.call("send", items=items)
    driver.later(150)
    wanted = [b"%d" % number for number in range(count)]
    if then == "send":
        driver.send("a", b"new")
        assert bodies(driver) == [*wanted, b"new"]
    elif then == "delayed send":
        driver.call("send", items=[driver.message("a", b"new", delay_ms=1), driver.message("a", b"newer")])
        assert bodies(driver) == [*wanted, b"newer"]
        assert driver.record().delayed_at_ms == driver.now + 1
    elif then == "finish":
        assert held is not None
        held.finish(onward=b"new")
        assert bodies(driver) == [*wanted, b"new"]
    elif then == "redrive":
        driver.redrive(1)
        assert bodies(driver) == [*wanted, b"first"]
    else:
        rounds = [driver.expire() for _ in range(5)]
        assert [len(replies) for replies in rounds] == [1] * (1 + (count - 1) // 16) + [0] * (
            4 - (count - 1) // 16
        )
        assert bodies(driver) == wanted


@pytest.mark.spec("R-DELAY-2", "R-SEND-2")
def test_the_send_repeated(driver: Driver) -> None:
    first = driver.send("a", b"1", delay_ms=5_000)
    driver.later(10)
    item = driver.message("a", b"1", delay_ms=5_000)
    with driver.unchanged():
        assert driver.send("a", b"1", delay_ms=5_000) == first
        assert driver.send("a", b"1") == first, "the delay is not part of the body"
        reply = driver.one("send", **{**item, "digest": b"other"})
        assert (reply.word, reply.what, reply.tv) == ("BODY_CONFLICT", "message", TV)
    driver.elapse(5_000)
    admitted = driver.now
    driver.later(1)
    with driver.unchanged():
        reply = driver.send("a", b"1", delay_ms=5_000)
        assert (reply.word, *reply) == ("OK", 1, 1, admitted, False, 0)
    driver.take().finish()
    with driver.unchanged():
        assert driver.send("a", b"1", delay_ms=5_000).turn == 1


@pytest.mark.spec("R-DELAY-2", "R-SEND-4", "R-LIMIT-1", "R-LIMIT-3")
def test_it_counts_as_pending(driver: Driver) -> None:
    driver.send("a", b"1", max_pending=3)
    driver.send("a", b"2", delay_ms=10, max_pending=3)
    driver.send("a", b"3", delay_ms=20, max_pending=3)
    for delay_ms in (0, 10):
        with driver.unchanged():
            reply = driver.send("a", b"4", delay_ms=delay_ms, max_pending=3)
            assert (reply.word, reply.limit, reply.value, reply.max) == (
                "LIMIT_EXCEEDED",
                "pending_messages",
                4,
                3,
            )
    driver.elapse(15)
    with driver.unchanged():
        assert driver.send("a", b"4", max_pending=3).word == "LIMIT_EXCEEDED"
    driver.cancel_message("m-3")
    assert driver.send("a", b"4", max_pending=3).word == "OK"


@pytest.mark.spec("R-DELAY-1", "R-DAMAGE-1")
def test_one_that_cannot_be_read_holds_up_no_other(driver: Driver) -> None:
    for body in (b"1", b"2", b"3"):
        driver.send("a", body, delay_ms=10)
    driver.redis.call("HSET", f"{driver.tag}i:a", "q:m-2", "not packed")
    driver.elapse(10)
    assert bodies(driver) == [b"1", b"3"]
    assert driver.state()["damaged"] == {"q:a:m-2": driver.now}
    assert (driver.record().delayed, driver.due()) == (0, {})
    driver.redis.call("HDEL", f"{driver.tag}i:a", "q:m-2", "d:m-2")


@pytest.mark.spec("R-SWEEP-1", "R-SETTLE-2")
def test_list_entries_that_lead_nowhere_are_dropped(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=10)
    driver.redis.call("ZADD", f"{driver.tag}l:a", driver.now + 5, f"{1:016}gone")
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now + 5, "delayed:a")
    assert [reply.word for reply in driver.elapse(5)] == ["STALE"]
    assert driver.due() == {"delayed:a": driver.now + 5}
    driver.elapse(5)
    assert (bodies(driver), driver.record().delayed, driver.state().get("damaged")) == ([b"1"], 0, None)


@pytest.mark.parametrize("kind", ["delayed", "expiry"])
@pytest.mark.spec("R-SWEEP-1")
def test_c11_a_lost_timer_comes_back(driver: Driver, kind: str) -> None:
    driver.send("a", b"0")
    driver.take()
    given: dict[str, Any] = {"delay_ms": 100} if kind == "delayed" else {"ttl_ms": 100}
    driver.send("a", b"1", **given)
    due = driver.due()
    driver.redis.call("ZREM", f"{driver.tag}due", f"{kind}:a")
    assert driver.sweep() == (1, 0)
    assert driver.due() == due
    driver.redis.call("ZREM", f"{driver.tag}due", f"{kind}:a")
    driver.later(100)
    driver.sweep()
    assert (driver.record().delayed, driver.record().pending) == (0, 2 if kind == "delayed" else 1)


@pytest.mark.spec("R-SWEEP-1")
def test_c11_a_lost_timer_of_an_idle_instance_comes_back(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=100)
    driver.redis.call("ZREM", f"{driver.tag}due", "delayed:a")
    assert driver.sweep() == (1, 0)
    driver.elapse(100)
    assert driver.take().view.turn == 1


# Time to live.


@pytest.mark.spec("R-TTL-1", "R-WAKE-1")
def test_a_queued_head_expires(driver: Driver) -> None:
    driver.create(state=b"json\0kept")
    driver.send("a", b"1", ttl_ms=1_000)
    driver.send("a", b"2")
    assert driver.turn(1).message.expire_ms == driver.now + 1_000  # type: ignore[union-attr]
    assert driver.due() == {"expiry:a": driver.now + 1_000}
    assert driver.elapse(999) == []
    driver.later(1)
    result = driver.call("expire", limit=10)
    assert (result.replies[0].word, result.replies[0].outcome, result.ready) == ("FIRED", "expired", [TV])
    assert driver.events()[-1] == ("TURN_EXPIRED", 1, 0, "EXPIRED", 2, "")
    receipt = driver.receipt(1)
    assert (receipt.state, receipt.attempts, receipt.finished_ms) == (TurnState.EXPIRED, 0, driver.now)
    assert (driver.turn(1).message is not None, driver.due(), "x:a" in driver.state()) == (True, {}, False)
    view = driver.take().view
    assert (view.turn, view.state) == (2, b"json\0kept")


@pytest.mark.spec("R-TTL-1", "R-CANCEL-2", "R-AWAIT-1")
def test_one_in_the_queue_expires(driver: Driver) -> None:
    driver.send("a", b"1")
    held = driver.take()
    driver.send("a", b"2", ttl_ms=1_000)
    driver.send("a", b"3")
    driver.one("await", id="a", turn=2)
    assert [reply.outcome for reply in driver.elapse(1_000)] == ["expired"]
    assert driver.events()[-1] == ("TURN_EXPIRED", 2, 0, "EXPIRED", 2, "")
    assert (driver.receipt(2).state, driver.record().pending, driver.fields() & {"2.m", "a"}) == (
        TurnState.EXPIRED, 2, set(),
    )  # fmt: skip
    assert driver.send("a", b"2", ttl_ms=1_000).turn == 2
    held.finish()
    assert driver.take().view.turn == 3


@pytest.mark.spec("R-TTL-2", "R-EXPIRE-2")
def test_a_head_on_its_way_expires_when_the_delivery_comes_back(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    driver.send("a", b"2")
    held = driver.lease()
    assert [reply.word for reply in driver.elapse(1_000)] == ["STALE"]
    assert (driver.head(), driver.due()) == (
        "RUNNING",
        {"lease:a": driver.now + 4_000, "expiry:a": driver.now + 4_001},
    )
    assert [reply.outcome for reply in driver.elapse(4_000)] == ["returned"]
    assert (driver.head(), driver.record().head) == ("QUEUED", 1)
    assert driver.claim()[0].view.turn == 2, "whoever comes first sees that its time is over"
    assert driver.receipt(1).state == TurnState.EXPIRED
    assert held.renew().how == "returned"


@pytest.mark.spec("R-TTL-2", "R-EXPIRE-2")
def test_a_head_that_came_back_expires_by_its_timer(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    driver.lease()
    driver.elapse(1_000)
    driver.elapse(4_000)
    assert [(reply.kind, reply.outcome) for reply in driver.elapse(1)] == [("expiry", "expired")]
    assert (driver.head(), driver.due()) == ("", {})


@pytest.mark.parametrize(
    "accept", ["renew", "checkpoint", "finish", "fail", "sleep", "defer", "adopt", "orphan"]
)
@pytest.mark.spec("R-TTL-2", "R-LEASE-3")
def test_a_head_on_its_way_that_is_received_goes_on(driver: Driver, accept: str) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    held = driver.lease()
    driver.elapse(1_000)
    given = {"adopt": {"conn": "s.9.9"}, "orphan": {"accepted": True}}.get(accept, {})
    reply = getattr(held, accept)(**given)
    assert reply.word == "OK"
    assert driver.record().attempt == (0 if accept == "finish" else 1)
    driver.elapse(5_000)
    driver.elapse(60_000)
    assert driver.head() in ("QUEUED", "")
    assert driver.event_names().count("TURN_EXPIRED") == 0
    assert "expiry:a" not in driver.due()


@pytest.mark.parametrize("end", ["release", "fail", "sleep", "defer"])
@pytest.mark.spec("R-TTL-1")
def test_a_turn_that_has_begun_expires_no_more(driver: Driver, end: str) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    getattr(driver.take(), end)()
    driver.later(1_000)
    replies = {reply.kind: reply.word for reply in driver.expire()}
    assert replies["expiry"] == "STALE"
    assert (driver.head(), driver.due(), "x:a" in driver.state()) == ("QUEUED", {}, False)
    assert driver.take().finish().word == "OK"


@pytest.mark.spec("R-TTL-2", "R-LEASE-9")
def test_a_head_that_was_given_back_unreceived_too_often_expires(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=100)
    for _ in range(11):
        driver.lease().release()
    assert (driver.head(), driver.record().attempt) == ("BACKOFF", 0)
    assert [reply.word for reply in driver.elapse(100)] == ["STALE"]
    assert driver.head() == "BACKOFF"
    driver.later(900)
    driver.expire()
    driver.elapse(1)
    assert driver.receipt(1).state == TurnState.EXPIRED


@pytest.mark.spec("R-TTL-1", "R-SETTLE-1", "R-DELIVER-1")
def test_no_attempt_begins_although_no_timer_has_fired(driver: Driver) -> None:
    """More of them than one look ends, and the head is the last of them to expire."""
    items = [driver.message("a", b"%d" % number, ttl_ms=1_000 - number) for number in range(40)]
    driver.call("send", items=[*items, driver.message("a", b"alive")])
    driver.later(1_000)
    assert driver.claim() == []
    assert (driver.head(), driver.record().head) == ("CANCELLED", 18), "behind turns that have ended"
    while not driver.ready():
        assert [reply.kind for reply in driver.expire()] == ["settle"]
    assert driver.take().view.message.blob == b"\0alive"
    assert {driver.receipt(turn).state for turn in range(1, 41)} == {TurnState.EXPIRED}
    assert driver.due().keys() == {"lease:a"}


@pytest.mark.parametrize("count", [15, 16, 17, 50])
@pytest.mark.spec("R-TTL-1", "R-WAKE-1")
def test_many_expire_some_at_a_time(driver: Driver, count: int) -> None:
    items = [driver.message("a", b"%d" % number, ttl_ms=100) for number in range(count)]
    driver.call("send", items=items)
    driver.later(100)
    rounds = 0
    while driver.expire():
        rounds += 1
    assert rounds == 1 + (count - 1) // 16
    assert (driver.head(), driver.record().head, driver.due()) == ("", count + 1, {})


@pytest.mark.spec("R-TTL-1", "R-SETTLE-1")
def test_a_finish_that_claims_passes_over_what_has_expired(driver: Driver) -> None:
    driver.send("a", b"1")
    held = driver.take()
    driver.send("a", b"2", ttl_ms=10)
    driver.send("a", b"3")
    driver.later(10)
    reply = held.finish(tv=TV)
    assert [view[2] for view in reply.turns] == [3]


@pytest.mark.spec("R-TTL-1", "R-DELAY-1")
def test_the_time_counts_from_admission(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=1_000, ttl_ms=500)
    driver.elapse(1_000)
    assert driver.due() == {"expiry:a": driver.now + 500}
    assert driver.elapse(499) == []
    driver.elapse(1)
    assert driver.receipt(1).state == TurnState.EXPIRED


@pytest.mark.spec("R-TTL-1", "R-CANCEL-1", "R-SETTLE-2")
def test_no_timer_is_left_of_turns_that_ended_otherwise(driver: Driver) -> None:
    for body in (b"1", b"2", b"3", b"4"):
        driver.send("a", body, ttl_ms=365 * DAY_MS)
    driver.cancel(3)
    driver.take().finish()
    driver.take().fail(final=True)
    driver.skip(2)
    driver.cancel(4)
    assert ("x:a" in driver.state(), driver.due()) == (False, {})


@pytest.mark.spec("R-TTL-1", "R-CMD-3")
def test_a_lease_of_a_turn_that_expired_later(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    held = driver.lease()
    driver.elapse(5_000)
    driver.elapse(1)
    assert driver.receipt(1).state == TurnState.EXPIRED
    with driver.unchanged():
        for reply in (
            held.renew(),
            held.finish(),
            held.checkpoint(),
            held.sleep(),
            held.defer(),
            held.fail(),
        ):
            assert (reply.word, reply.how) == ("LEASE_ENDED", "returned")


@pytest.mark.spec("R-SETTLE-2")
def test_an_entry_whose_message_is_gone_is_looked_at_once(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=10)
    driver.redis.call("HDEL", f"{driver.tag}i:a", "q:m-1")
    driver.elapse(10)
    assert (driver.record().delayed_at_ms, driver.due(), driver.state().get("l:a")) == (0, {}, None)
    driver.redis.call("FLUSHALL")


@pytest.mark.spec("R-DELAY-1")
def test_messages_that_are_not_due_cost_a_sender_nothing(driver: Driver) -> None:
    for body in (b"1", b"2", b"3"):
        driver.send("a", body, delay_ms=1_000)
    driver.count = True
    driver.send("a", b"now")
    assert "zrange" not in driver.commands


@pytest.mark.spec("R-DELAY-1")
def test_those_that_are_due_are_taken_some_at_a_time_until_none_is_left(driver: Driver) -> None:
    driver.call("send", items=[driver.message("a", b"%d" % number, delay_ms=10) for number in range(34)])
    driver.later(10)
    driver.count = True
    assert driver.send("a", b"now").turn == 35
    assert driver.commands["zrange"] == 3


@pytest.mark.spec("R-TTL-1", "R-WAKE-1")
def test_a_message_that_a_finish_admits_keeps_its_own_time_to_live(driver: Driver) -> None:
    """The finish admits it, then passes over heads whose time is over, and so looks at the list once more."""
    driver.send("a", b"1")
    held = driver.take()
    driver.call("send", items=[driver.message("a", b"x%d" % number, ttl_ms=10) for number in range(20)])
    driver.send("a", b"late", delay_ms=10, ttl_ms=500)
    driver.later(10)
    assert [view[2] for view in held.finish(tv=TV, conn=driver.conn).turns] == [22]
    assert (driver.due()["expiry:a"], driver.record().expires_at_ms) == (driver.now + 500,) * 2


@pytest.mark.spec("R-TTL-1")
def test_what_has_begun_leaves_the_list_at_once_and_its_timer_when_that_fires(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    held = driver.take()
    assert "x:a" not in driver.state()
    driver.elapse(1_000)
    assert (driver.record().expires_at_ms, driver.due().keys()) == (0, {"lease:a"})
    assert held.finish().word == "OK"


@pytest.mark.spec("R-TTL-1")
def test_a_delivery_that_is_received_late_leaves_no_timer(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=10)
    held = driver.lease()
    driver.elapse(10)
    assert driver.due().keys() == {"lease:a", "expiry:a"}
    assert held.renew().word == "OK"
    assert (driver.record().expires_at_ms, driver.due().keys()) == (0, {"lease:a"})
