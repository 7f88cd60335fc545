"""The read-only scripts: what they show, without writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from pawl_server.store import records
from tests.support.driver import TV, Driver


@pytest.mark.spec("R-READ-1")
def test_an_instance_reads_as_the_next_transition_would_find_it(driver: Driver) -> None:
    driver.create(state=b"json\0{}", lease_ms=5_000)
    driver.send()
    driver.take().fail()
    driver.later(999)
    assert records.instance_record(driver.get().record).state == TurnState.BACKOFF
    driver.later(1)
    with driver.unchanged():
        replies = driver.call("get_instance", items=[{"id": "a"}, {"id": "absent"}, {"id": "a"}]).replies
    assert [reply.word for reply in replies] == ["OK", "NOT_FOUND", "OK"]
    assert replies[0] == replies[2]
    record = records.instance_record(replies[0].record)
    assert (record.state, record.deadline_ms) == (TurnState.QUEUED, 0)
    birth = records.birth(replies[0].tv, replies[0].birth)
    assert (birth.type, birth.version, birth.lease_ms, birth.max_attempts) == ("t", "v1", 5_000, 0)
    assert replies[0].state == b"json\0{}"


def asleep(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take().sleep(ms=1_000)


def due(driver: Driver) -> None:
    for number in range(20):
        driver.send("a", b"%d" % number, delay_ms=900)
    driver.send("a", b"later", delay_ms=5_000, ttl_ms=5)


def head_expired(driver: Driver) -> None:
    driver.send("a", b"1", ttl_ms=1_000)
    driver.send("a", b"2")


def queue_expired(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.take()
    driver.send("a", b"2", ttl_ms=1_000)


def all_expired(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    for body in (b"1", b"2"):
        driver.send("a", body, ttl_ms=1_000)


def behind(driver: Driver) -> None:
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, 31)])
    held = driver.take()
    for turn in range(2, 30):
        driver.cancel(turn)
    held.finish()


def reads(driver: Driver) -> list[Any]:
    """Everything that is read of one instance: itself, its turns, its inbox, where its messages are."""
    items = [{"id": "a", "turn": turn, "payloads": True} for turn in range(1, 32)]
    found = [{"id": "a", "message_id": f"m-{body}"} for body in (*range(31), "later")]
    return [
        driver.get(),
        driver.call("get_turn", items=items).replies,
        driver.call("find_message", items=found).replies,
        driver.one("list_turns", id="a", limit=100, payloads=True, max_bytes=10**6),
        driver.one("list_inbox", id="a", limit=100, payloads=True, max_bytes=10**6),
    ]


@pytest.mark.parametrize(
    "before", [asleep, due, head_expired, queue_expired, all_expired, behind], ids=lambda one: one.__name__
)
@pytest.mark.spec("R-READ-1", "R-SETTLE-1")
def test_whatever_time_has_decided_is_read_before_it_is_written(
    driver: Driver, before: Callable[[Driver], None]
) -> None:
    before(driver)
    driver.later(1_000)
    with driver.unchanged():
        seen = reads(driver)
    driver.one("settle", id="a")
    shown = records.instance_record(seen[0].record)
    assert driver.record() == shown._replace(seq=len(driver.events()))
    if before not in (behind, due):  # of those there is more to do, which the next look shows
        assert reads(driver)[1:] == seen[1:]


@pytest.mark.parametrize("what", ["deferred", "delayed", "expired"])
@pytest.mark.spec("R-READ-1", "R-EVENT-5")
def test_the_newest_event_is_one_that_is_recorded(driver: Driver, what: str) -> None:
    """The end of a deferral in a paused instance is recorded by the next transition, whenever that comes."""
    driver.send("a", b"1", ttl_ms=1_000 if what == "expired" else 0)
    if what == "deferred":
        driver.take().defer(1_000)
    elif what == "delayed":
        driver.send("a", b"2", delay_ms=1_000)
    driver.pause()
    newest = len(driver.events())
    driver.later(1_000)
    get = [{"id": "a"}, {"id": "a"}]
    shown = [
        records.instance_record(reply.record) for reply in driver.call("get_instance", items=get).replies
    ]
    assert [record.seq for record in shown] == [newest, newest]
    after = {"id": "a", "incarnation": 1, "seq": newest, "gen": 0, "limit": 10}
    assert driver.one("list_events", **after).word == "OK"


@pytest.mark.spec("R-READ-2")
def test_turns_read_in_every_phase(driver: Driver) -> None:
    for body in (b"1", b"2", b"3"):
        driver.send("a", body)
    held = driver.take()
    held.checkpoint("one", b"1")
    held.finish(b"reply", step=("two", b"2"))
    held = driver.take()
    held.checkpoint("one", b"x")
    held.fail("BROKEN")
    done, failed, queued = (driver.turn(turn) for turn in (1, 2, 3))
    assert done.receipt is not None
    assert ([step.key for step in done.steps], done.receipt.reply) == (["one", "two"], b"\0reply")
    assert failed.failure is not None
    assert ([step.key for step in failed.steps], failed.receipt, failed.failure.reason) == (
        ["one"],
        None,
        "BROKEN",
    )
    assert queued.message is not None
    assert (queued.message.blob, queued.steps, queued.receipt, queued.failure) == (b"\0003", [], None, None)
    items = [{"id": "a", "turn": turn} for turn in (0, 4, -1)] + [{"id": "absent", "turn": 1}]
    with driver.unchanged():
        replies = driver.call("get_turn", items=items).replies
    assert [reply.word for reply in replies] == ["NOT_FOUND"] * 4


@pytest.mark.spec("R-READ-2")
def test_steps_are_read_only_when_asked_for(driver: Driver) -> None:
    driver.send()
    driver.take().checkpoint("one")
    reply = driver.one("get_turn", id="a", turn=1, payloads=False)
    assert records.turn_view(reply.view).steps == []


def listed(driver: Driver, **args: Any) -> tuple[list[int], int]:
    """Turn numbers of one page, and where the next one begins."""
    [reply] = driver.call("list_turns", id="a", **{"limit": 100, **args}).replies
    return [records.turn_view(view).turn for view in reply.turns], reply.next


@pytest.mark.spec("R-READ-3")
def test_turns_are_listed_newest_first_each_once_whatever_finishes_meanwhile(driver: Driver) -> None:
    for number in range(1, 8):
        driver.send("a", b"%d" % number)
    found, before = [], 0
    while True:
        page, before = listed(driver, before=before, limit=2)
        found += page
        driver.take().finish()
        driver.send("a", b"later %d" % len(found))
        if before == 0:
            break
    assert found == [7, 6, 5, 4, 3, 2, 1]


@pytest.mark.spec("R-READ-3")
def test_a_page_of_turns_is_cut_by_bytes_and_ends_at_the_oldest_receipt(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=0)
    for number in range(1, 5):
        driver.send("a", b"%d" % number)
        driver.take().finish(b"x" * 100)
    assert listed(driver, max_bytes=1) == ([4], 4)
    assert listed(driver) == ([4, 3, 2, 1], 0)
    driver.later(900_000)
    driver.trim()
    assert listed(driver) == ([4], 0)
    assert listed(driver, before=4) == ([], 0)
    assert listed(driver, before=99) == ([4], 0)


@pytest.mark.spec("R-READ-3")
def test_a_listing_reads_nothing_below_the_oldest_receipt(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    for number in range(50):
        driver.send("a", b"%d" % number)
        driver.take().finish()
    driver.later(900_000)
    for _ in range(9):
        driver.trim()
    driver.send("a", b"last")
    driver.count = True
    assert listed(driver) == ([51], 0)
    assert driver.commands["hmget"] <= 4


def test_the_turns_of_an_absent_instance_are_not_found(driver: Driver) -> None:
    assert driver.call("list_turns", id="absent", limit=1).replies[0].word == "NOT_FOUND"


def walk(driver: Driver, limit: int) -> list[str]:
    """All instances of type t, page by page."""
    after_ms, after_id, found = 0, "", []
    while True:
        [reply] = driver.call(
            "list_instances", type="t", after_ms=after_ms, after_id=after_id, limit=limit
        ).replies
        if not reply.entries:
            return found
        found += [entry[0].decode() for entry in reply.entries]
        last = reply.entries[-1]
        after_id, after_ms = found[-1], records.birth(last[2].decode(), last[3]).created_ms


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.spec("R-READ-4")
def test_instances_are_listed_once_each_in_order_of_creation(driver: Driver, limit: int) -> None:
    expected = []
    for number in range(4):
        for name in "zay":
            driver.create(f"{name}{number}")
        expected += sorted(f"{name}{number}" for name in "zay")
        driver.later(1)
    driver.create("other", kind="t2")
    assert walk(driver, limit) == expected


@pytest.mark.spec("R-READ-4")
def test_a_page_may_begin_after_an_instance_of_another_partition(driver: Driver) -> None:
    for name in ("b", "d", "f"):
        driver.create(name)
    driver.later(1)
    driver.create("a")
    [reply] = driver.call("list_instances", type="t", after_ms=driver.now - 1, after_id="c", limit=9).replies
    assert [entry[0] for entry in reply.entries] == [b"d", b"f", b"a"]
    [reply] = driver.call("list_instances", type="t", after_ms=driver.now - 2, after_id="z", limit=9).replies
    assert len(reply.entries) == 4


@pytest.mark.spec("R-DELIVER-3")
def test_a_poll_names_what_is_ready_and_the_next_timer(driver: Driver) -> None:
    [reply] = driver.call("poll").replies
    assert (reply.types, reply.due_ms) == ([], 0)
    driver.send("a")
    driver.send("b", version="v2")
    driver.claim()
    with driver.unchanged():
        [reply] = driver.call("poll").replies
    assert (reply.types[::2], reply.due_ms) == ([b"t:v2"], driver.now + 5_000)


@pytest.mark.spec("R-TYPE-1")
def test_types_read_as_stored(driver: Driver) -> None:
    driver.put_type("t", lease_ms=1_000)
    driver.put_type("t", lease_ms=2_000)
    with driver.unchanged():
        replies = driver.call("get_type", items=[{"name": "t"}, {"name": "absent"}]).replies
    assert [reply.word for reply in replies] == ["OK", "NOT_FOUND"]
    assert replies[0].revision == 2
    changed, settings = records.unpack_type(replies[0].settings)
    assert (changed, settings["lease_ms"], settings["max_attempts"]) == (driver.now, 2_000, None)


@pytest.mark.spec("R-TYPE-3")
def test_types_are_listed_by_name_each_once(driver: Driver) -> None:
    for name in ("b", "a.b", "a", "c"):
        driver.put_type(name)
        driver.put_type(name)
    found, after = [], ""
    while True:
        [reply] = driver.call("list_types", after=after, limit=2).replies
        if not reply.entries:
            break
        found += [entry[0].decode() for entry in reply.entries]
        after = found[-1]
    assert found == ["a", "a.b", "b", "c"]


@pytest.mark.spec("R-READ-1", "R-READ-2", "R-READ-3")
def test_no_query_writes(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    driver.later(10**9)
    with driver.unchanged():
        driver.get()
        driver.turn(1)
        listed(driver)
        walk(driver, 10)
        driver.call("poll")
        driver.call("list_types", limit=10)
    assert TV in driver.call("settle", items=[{"id": "a"}]).ready
