"""delete: the end of an instance, at once or in the background, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.store.errors import StoreDamaged, StoreDeleting
from tests.support.driver import TV, Driver
from tests.support.listener import listening
from tests.support.lua_harness import State

DAY_MS = 86_400_000


def traces(driver: Driver, name: str = "a") -> list[str]:
    """Every key, and member of a key, that names the instance, but for what is remembered of the dead."""
    found: list[str] = []
    for key, value in driver.state().items():
        if key in ("dead", "deadtime"):
            continue
        members = value if isinstance(value, dict) else ()
        found += [f"{key} {one}" for one in members if name in one.split(":")]
        if name in key.split(":"):
            found.append(key)
    return found


def idle(driver: Driver) -> None:
    driver.create(words=b"key\0one\0two\0")


def queued(driver: Driver) -> None:
    driver.send()


def running(driver: Driver) -> None:
    driver.send()
    driver.take().checkpoint()


def backoff(driver: Driver) -> None:
    driver.send()
    driver.take().fail()


def asleep(driver: Driver) -> None:
    driver.send()
    driver.take().sleep()


def deferred(driver: Driver) -> None:
    driver.send()
    driver.take().defer()


def failed(driver: Driver) -> None:
    driver.send()
    driver.take().fail(final=True)


def paused(driver: Driver) -> None:
    driver.send()
    driver.pause()


def parked(driver: Driver) -> None:
    failed(driver)
    driver.park()


def delayed(driver: Driver) -> None:
    driver.send("a", b"1", delay_ms=5_000)


def expiring(driver: Driver) -> None:
    driver.send("a", b"0")
    driver.take()
    driver.send("a", b"1", ttl_ms=5_000)


def trimming(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for body in (b"1", b"2"):
        driver.send("a", body)
        driver.take().finish()


def behind(driver: Driver) -> None:
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, 31)])
    held = driver.take()
    for turn in range(2, 30):
        driver.cancel(turn)
    held.finish()


def awaited(driver: Driver) -> None:
    driver.send()
    driver.one("await", id="a", turn=1)


STATES = [
    idle, queued, running, backoff, asleep, deferred, failed, paused, parked, delayed, expiring, trimming,
    behind, awaited,
]  # fmt: skip
BY_STATE = pytest.mark.parametrize("state", STATES, ids=lambda one: one.__name__)


@BY_STATE
@pytest.mark.spec("R-DELETE-1")
def test_nothing_of_it_is_left(driver: Driver, state: Callable[[Driver], None]) -> None:
    driver.send("b", b"1", create_digest=b"other")
    driver.take("b")
    neighbour = {key: value for key, value in driver.state().items() if "b" in key.split(":")}
    state(driver)
    assert len(traces(driver)) > 2
    reply = driver.delete()
    assert (reply.word, reply.deleted, reply.background) == ("OK", True, False)
    assert traces(driver) == []
    assert {key: value for key, value in driver.state().items() if "b" in key.split(":")} == neighbour
    assert driver.get().word == "NOT_FOUND"
    assert driver.elapse(10**9) is not None
    assert driver.sweep() == (0, 0)


@BY_STATE
@pytest.mark.spec("R-DELETE-1", "R-SWEEP-1")
def test_in_the_background(driver: Driver, state: Callable[[Driver], None]) -> None:
    state(driver)
    reply = driver.delete(max_turns=-1)
    assert (reply.deleted, reply.background) == (True, True)
    assert set(traces(driver)) == {"i:a", "due delete:a", f"busy ~{TV}:a"}
    assert driver.record().deleting
    assert (driver.claim(), driver.sweep()) == ([], (0, 0))
    [fired] = driver.expire()
    assert (fired.word, fired.kind, fired.id, fired.outcome) == ("FIRED", "delete", "a", "deleted")
    assert traces(driver) == []


@pytest.mark.spec("R-DELETE-1", "R-CMD-3", "R-DELIVER-2")
def test_the_lease_ends_at_once_and_the_worker_is_told(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.one("await", id="a", turn=1)
    with listening(driver, driver.server) as (stream,):
        driver.delete()
        ended = f"ended {driver.conn} 1 1 {held.fence} deleted a"
        assert sorted(stream.heard()) == ["done 1 a", ended]
    for reply in (held.renew(), held.finish(), held.checkpoint(), held.sleep(), held.orphan()):
        assert reply.word == "NOT_FOUND"
    driver.send("a", b"new life")
    with driver.unchanged():
        for reply in (held.renew(), held.finish(), held.checkpoint(), held.sleep(), held.orphan()):
            assert reply.word == "STALE_FENCE"


def many_turns(driver: Driver, turns: int) -> None:
    """An instance with so many finished turns."""
    driver.put_type(min_turns=2_000)
    for _ in range(0, turns, 100):
        tail = driver.record().tail if "i:a" in driver.state() else 0
        items = [
            driver.message("a", b"%d" % (tail + number)) for number in range(1, min(100, turns - tail) + 1)
        ]
        driver.call("send", items=items)
        for _ in items:
            [held] = driver.claim()
            held.finish(b"reply", step=("one", b"1"))


def reads(driver: Driver) -> list[Callable[[], object]]:
    """Reads of what belongs to the instance; of a turn whose receipt goes first they would be wrong."""
    page: dict[str, Any] = {"id": "a", "limit": 100, "payloads": True, "max_bytes": 1 << 20}
    return [
        lambda: driver.turn(1),
        lambda: driver.one("list_turns", before=0, **page),
        lambda: driver.one("list_inbox", after=0, after_due="", **page),
        lambda: driver.one("find_message", id="a", message_id="m-1"),
        lambda: driver.one("list_events", id="a", incarnation=0, seq=0, gen=0, limit=10),
    ]


@pytest.mark.spec("R-DELETE-1", "R-LIMIT-1")
def test_a_thousand_turns_at_once_and_one_more_in_the_background(driver: Driver) -> None:
    many_turns(driver, 1_000)
    driver.send("a", b"last")
    held = driver.take()
    reply = driver.delete()
    assert (reply.deleted, reply.background) == (True, True)
    with driver.unchanged():
        assert driver.delete(request_id="").background, "as good as the same request"
        assert driver.delete(inc=99).word == "NOT_FOUND"
        assert driver.delete(request_id="", inc=1).background
    calls: list[Callable[[], object]] = [
        driver.create, driver.send, driver.pause, driver.cancel, held.renew, held.finish, driver.trim,
        *reads(driver),
    ]  # fmt: skip
    with driver.unchanged():
        for call in calls:
            with pytest.raises(StoreDeleting):
                call()
        assert driver.get().word == "OK"
    rounds = 0
    while driver.expire():
        rounds += 1
        for call in reads(driver) if rounds < 4 else ():
            with pytest.raises(StoreDeleting):
                call()
        assert rounds < 10
    assert rounds == 4, "three fields a turn, 1,000 fields each time"
    assert traces(driver) == []
    assert driver.create().first_turn == 1_002


@pytest.mark.spec("R-DELETE-1", "R-LIMIT-1")
def test_exactly_a_thousand_turns(driver: Driver) -> None:
    many_turns(driver, 1_000)
    reply = driver.delete()
    assert (reply.deleted, reply.background, traces(driver)) == (True, False, [])


@pytest.mark.spec("R-DELETE-1", "R-SWEEP-1")
def test_c11_a_lost_entry_of_a_deletion_comes_back(driver: Driver) -> None:
    driver.send()
    driver.delete(max_turns=-1)
    driver.redis.call("ZREM", f"{driver.tag}due", "delete:a")
    assert driver.sweep() == (1, 0)
    assert [reply.outcome for reply in driver.expire()] == ["deleted"]


# The same request again.


@pytest.mark.spec("R-DELETE-2", "R-CONTROL-1")
def test_a_delete_repeated(driver: Driver) -> None:
    driver.send()
    first = driver.delete(request_id="once")
    assert first.deleted
    driver.later(DAY_MS - 1)
    with driver.unchanged():
        assert driver.delete(request_id="once") == first
        assert not driver.delete(request_id="other").deleted
        assert not driver.delete(request_id="").deleted
        assert not driver.delete("nobody").deleted
    driver.later(1)
    with driver.unchanged():
        assert not driver.delete(request_id="once").deleted, "forgotten after a day"
    driver.sweep()
    assert ("dead" in driver.state(), "deadtime" in driver.state()) == (False, False)


@pytest.mark.spec("R-DELETE-2")
def test_a12_a_late_repeat_leaves_the_next_life_alone(driver: Driver) -> None:
    driver.send()
    first = driver.delete(request_id="once")
    driver.send("a", b"new life")
    with driver.unchanged():
        assert driver.delete(request_id="once") == first
        assert driver.delete(inc=1).word == "NOT_FOUND"
    assert driver.delete(request_id="twice", inc=2).deleted
    with driver.unchanged():
        assert driver.delete(request_id="twice").deleted
        assert driver.delete(request_id="once") == first
    driver.send("a", b"one more life")
    with driver.unchanged():
        assert driver.delete(request_id="once") == first
        assert driver.delete(request_id="twice").deleted


@pytest.mark.spec("R-DELETE-2", "R-DELETE-3")
def test_requests_of_the_last_nine_lives_are_remembered(driver: Driver) -> None:
    for life in range(1, 11):
        driver.create(request_id=f"born-{life}")
        assert driver.delete(request_id=f"dead-{life}", max_turns=-1 if life == 3 else 1_000).deleted
        driver.expire()
    with driver.unchanged():
        for life in range(2, 11):
            assert driver.create(request_id=f"born-{life}").word == "INSTANCE_DELETED"
            reply = driver.delete(request_id=f"dead-{life}")
            assert (reply.deleted, reply.background) == (True, life == 3)
    assert driver.create(request_id="born-1").word == "OK"
    with driver.unchanged():
        for life in range(2, 11):
            assert driver.delete(request_id=f"dead-{life}").deleted
    assert driver.delete(request_id="dead-1").deleted
    assert driver.get().word == "NOT_FOUND"


@pytest.mark.spec("R-DELETE-2")
def test_a_deletion_without_a_request_id_takes_no_place(driver: Driver) -> None:
    driver.create()
    driver.delete(request_id="once")
    for _ in range(10):
        driver.create()
        assert driver.delete(request_id="").deleted
    driver.create()
    with driver.unchanged():
        assert driver.delete(request_id="once").deleted


@pytest.mark.spec("R-DELETE-2")
def test_a_second_deletion_while_the_first_goes_on(driver: Driver) -> None:
    driver.send()
    driver.delete(request_id="once", max_turns=-1)
    second = driver.delete(request_id="twice")
    assert (second.deleted, second.background) == (True, True)
    with driver.unchanged():
        assert driver.delete(request_id="twice") == second
    driver.expire()
    driver.send("a", b"new life")
    with driver.unchanged():
        assert driver.delete(request_id="twice") == second
        assert driver.delete(request_id="once") == second


@pytest.mark.spec("R-DELETE-2")
def test_a_deletion_in_the_background_repeated(driver: Driver) -> None:
    driver.send()
    first = driver.delete(request_id="once", max_turns=-1)
    with driver.unchanged():
        assert driver.delete(request_id="once", max_turns=-1) == first
    driver.expire()
    with driver.unchanged():
        assert driver.delete(request_id="once", max_turns=-1) == first


@pytest.mark.spec("R-DELETE-2")
def test_without_a_request_id_nothing_is_remembered_of_it(driver: Driver) -> None:
    driver.send()
    assert driver.delete(request_id="").deleted
    driver.send("a", b"new life")
    assert driver.delete(request_id="").deleted


# The next life.


@pytest.mark.spec("R-DELETE-3", "R-CREATE-1", "R-FENCE-1")
def test_a12_numbers_go_on(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.finish()
    seq = driver.record().seq
    driver.delete()
    reply = driver.create()
    assert (reply.word, reply.incarnation, reply.first_turn, reply.first_seq) == ("OK", 2, 3, seq + 2)
    with driver.unchanged():
        assert driver.create() == reply
    assert [event.name for event in driver.events()] == ["CREATED"]
    assert driver.record().seq == seq + 2
    assert driver.send("a", b"3").turn == 3
    again = driver.take()
    assert (again.view.turn, again.view.incarnation) == (3, 2)
    assert again.fence > held.fence
    with driver.unchanged():
        assert [driver.one("get_turn", id="a", turn=turn).word for turn in (1, 2)] == ["PRUNED", "PRUNED"]
        assert [driver.one("await", id="a", turn=turn).word for turn in (1, 2)] == ["DONE", "DONE"]
        assert driver.cancel(1).word == driver.retry(1).word == "PRUNED"
        assert driver.cancel(3, inc=1).word == "NOT_FOUND"
    again.finish()
    for _ in range(3):
        driver.delete()
        assert driver.create().first_turn == 4


@pytest.mark.spec("R-DELETE-3")
def test_after_a_day_numbers_begin_anew(driver: Driver) -> None:
    driver.send()
    driver.delete()
    driver.later(DAY_MS)
    reply = driver.create()
    assert (reply.incarnation, reply.first_turn, reply.first_seq) == (2, 1, 1)


@pytest.mark.spec("R-DELETE-3", "R-CREATE-2")
def test_a12_a_late_duplicate_of_the_creation_makes_no_new_life(driver: Driver) -> None:
    driver.create(request_id="born")
    driver.delete()
    with driver.unchanged():
        assert driver.create(request_id="born").word == "INSTANCE_DELETED"
    assert driver.create(request_id="again").word == "OK"
    driver.delete()
    with driver.unchanged():
        assert driver.create(request_id="born").word == "INSTANCE_DELETED", "an earlier life"


@pytest.mark.spec("R-DELETE-3", "R-SEND-3")
def test_a12_a_late_duplicate_of_a_message_makes_no_new_life(driver: Driver) -> None:
    driver.send("a", b"queued")
    driver.send("a", b"cancelled")
    driver.cancel(2)
    driver.send("a", b"delayed", delay_ms=5_000)
    driver.take().finish()
    driver.delete()
    driver.later(DAY_MS - 1)
    with driver.unchanged():
        for body in (b"queued", b"cancelled", b"delayed"):
            assert driver.send("a", body).word == "INSTANCE_DELETED"
        assert driver.send("a", b"new", create=False).word == "NOT_FOUND"
    assert driver.send("a", b"new").turn == 3
    assert driver.send("a", b"queued").turn == 4, "a new life knows nothing of it"


@pytest.mark.spec("R-DELETE-3", "R-LIMIT-1")
def test_the_last_256_messages_are_remembered(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    for number in range(257):
        driver.send("a", b"%d" % number)
        driver.lease().finish()
    driver.delete()
    with driver.unchanged():
        assert {driver.send("a", b"%d" % number).word for number in range(1, 257)} == {"INSTANCE_DELETED"}
    assert driver.send("a", b"0").word == "OK"


@pytest.mark.spec("R-DELETE-3", "R-SEND-5")
def test_a_list_with_messages_of_both_lives(driver: Driver) -> None:
    driver.send("a", b"old")
    driver.delete()
    items = [driver.message("a", body) for body in (b"old", b"new", b"old")]
    replies = driver.call("send", items=items).replies
    assert [reply.word for reply in replies] == ["INSTANCE_DELETED", "OK", "OK"]
    assert [reply.turn for reply in replies[1:]] == [2, 3]


@pytest.mark.spec("R-DAMAGE-1", "R-DELETE-1")
def test_one_that_cannot_be_read(driver: Driver) -> None:
    driver.send()
    key = f"{driver.tag}i:a"
    good = driver.redis.call("HGET", key, "r")
    driver.redis.call("HSET", key, "r", "not packed")
    before: State = driver.state()
    with pytest.raises(StoreDamaged):
        driver.delete()
    assert driver.state() == before
    driver.redis.call("HSET", key, "r", good)
    driver.redis.call("HSET", key, "o", "not packed")
    assert driver.delete().deleted
    assert traces(driver) == []


@pytest.mark.spec("R-DELETE-1", "R-EXPIRE-1")
def test_a_deletion_goes_on_at_once(driver: Driver) -> None:
    many_turns(driver, 700)
    driver.delete(max_turns=-1)
    driver.later(5)
    *fired, then = driver.call("expire", limit=16).replies
    assert ([reply.outcome for reply in fired], then.due_ms) == (["deleting"], driver.now)
    assert driver.due() == {"delete:a": driver.now}
