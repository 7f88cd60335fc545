"""The ledger of an instance: what is on record, reading it from a place on, and what folding a part tells."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pawl_server.store import records
from pawl_server.store.records import LedgerEvent
from tests.support.driver import Driver, Held
from tests.support.ledgers import fold
from tests.support.redis_server import RedisServer

WHOLE = 1_000
WEEK_MS = 604_800_000


def read(driver: Driver, name: str = "a", seq: int = 0, **place: int) -> Any:
    """Reads the ledger after a place."""
    return driver.one("list_events", id=name, seq=seq, limit=place.pop("limit", WHOLE), **place)


def events(reply: Any) -> list[LedgerEvent]:
    return [records.ledger_event(raw) for raw in reply.events]


def turn(driver: Driver, number: int, name: str = "a") -> None:
    """One turn: three events, and the first one of an instance."""
    driver.send(name, b"%d" % number)
    driver.take(name).finish(b"done")


@pytest.mark.spec("R-EVENT-1")
def test_events_are_numbered_without_gaps_and_stamped(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.later(10)
    held = driver.take()
    driver.later(10)
    held.checkpoint("one")
    held.finish(step=("two", b"x"))
    found = events(read(driver))
    assert [event.seq for event in found] == [1, 2, 3, 4, 5, 6]
    assert [event.time_ms - found[0].time_ms for event in found] == [0, 0, 10, 20, 20, 20]
    assert {event.gen for event in found} == {1}
    assert [found[3].detail, found[4].detail] == [[b"one", 1], [b"two", 2]]
    assert [event.attempt for event in found] == [0, 0, 1, 1, 1, 1]


@pytest.mark.spec("R-EVENT-1")
def test_a_new_life_goes_on_counting(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.one("delete", id="a", max_turns=1_000)
    driver.create("a")
    reply = read(driver)
    assert (reply.incarnation, reply.last_seq, reply.oldest_seq) == (2, 4, 4)
    assert read(driver, seq=3).word == "OK", "behind the end of the former life"
    compacted = read(driver, seq=2, incarnation=1)
    assert (compacted.word, compacted.oldest_seq, compacted.incarnation) == ("COMPACTED", 4, 2)
    assert read(driver, seq=3, incarnation=1).word == "COMPACTED"
    assert read(driver, seq=0, incarnation=1).word == "OK"
    assert read(driver, seq=4, incarnation=3).word == "REWOUND"


@pytest.mark.spec("R-EVENT-3")
def test_reading_from_a_place_on(driver: Driver) -> None:
    turn(driver, 1)
    for seq in range(5):
        reply = read(driver, seq=seq)
        assert [event.seq for event in events(reply)] == list(range(seq + 1, 5))
        assert (reply.incarnation, reply.last_seq, reply.last_gen, reply.oldest_seq) == (1, 4, 1, 1)
        assert reply.status == 1
    assert [event.seq for event in events(read(driver, seq=1, limit=2))] == [2, 3]
    assert [event.seq for event in events(read(driver, seq=1, gen=1, incarnation=1))] == [2, 3, 4]
    end = read(driver, seq=-1)
    assert (end.events, end.last_seq, end.last_gen) == ([], 4, 1)


@pytest.mark.spec("R-EVENT-3", "R-DAMAGE-1")
def test_what_has_no_ledger(driver: Driver) -> None:
    assert read(driver, "absent").word == "NOT_FOUND"
    turn(driver, 1)
    with driver.unchanged():
        read(driver)


@pytest.mark.spec("R-EVENT-4")
def test_the_newest_two_hundred_are_kept(driver: Driver) -> None:
    for number in range(100):
        turn(driver, number)
    reply = read(driver)
    kept = events(reply)
    assert reply.last_seq == 301
    assert 200 <= len(kept) < 264
    oldest = kept[0].seq
    assert reply.oldest_seq == oldest > 1
    assert read(driver, seq=oldest - 1).word == "OK", "nothing after it was trimmed"
    assert read(driver, seq=oldest - 1, gen=9).word == "OK", "nobody knows"
    compacted = read(driver, seq=oldest - 2)
    assert (compacted.word, compacted.oldest_seq, compacted.incarnation) == ("COMPACTED", oldest, 1)
    assert read(driver, seq=1).word == "COMPACTED"
    assert [event.seq for event in events(read(driver, seq=0, limit=2))] == [oldest, oldest + 1]


@pytest.mark.parametrize("trim", ["trim", "timer"])
@pytest.mark.spec("R-EVENT-6")
def test_events_of_more_than_seven_days_go(driver: Driver, trim: str) -> None:
    driver.put_type(min_turns=0, max_age_ms=WEEK_MS)
    turn(driver, 1)
    driver.later(1_000)
    turn(driver, 2)
    driver.later(WEEK_MS - 1_001)
    assert driver.trim().word == "OK"
    assert read(driver).oldest_seq == 1
    driver.later(1)
    if trim == "trim":
        driver.trim()
    else:
        driver.expire()
    reply = read(driver)
    assert (reply.oldest_seq, reply.last_seq, len(reply.events)) == (5, 7, 3)
    assert read(driver, seq=4).word == "OK", "nothing after it was trimmed"
    compacted = read(driver, seq=3)
    assert (compacted.word, compacted.oldest_seq, compacted.incarnation) == ("COMPACTED", 5, 1)


@pytest.mark.spec("R-EVENT-6", "R-EVENT-2")
def test_the_newest_event_stays_however_old_it_is(driver: Driver) -> None:
    turn(driver, 1)
    driver.later(100 * WEEK_MS)
    driver.trim()
    reply = read(driver)
    assert (reply.oldest_seq, reply.last_seq, len(reply.events)) == (4, 4, 1)
    with driver.unchanged():
        driver.trim()
    turn(driver, 2)
    assert [event.seq for event in events(read(driver))] == [4, 5, 6, 7]
    driver.trim()
    assert read(driver).oldest_seq == 5


@pytest.mark.spec("R-EVENT-6", "R-DAMAGE-1")
def test_an_event_that_cannot_be_read_stays_with_those_behind_it(driver: Driver) -> None:
    turn(driver, 1)
    ledger = f"{driver.tag}e:a"
    kept = driver.redis.call("LRANGE", ledger, 0, -1)
    driver.later(WEEK_MS)
    for at, raw in ((1, b"\xc1"), (1, b"\x01"), (1, b"\x91\x01"), (0, b"\xc1")):
        driver.redis.call("LSET", ledger, at, raw)
        driver.trim()
        assert driver.redis.call("LLEN", ledger) == 4 - at
        driver.redis.call("DEL", ledger)
        driver.redis.call("RPUSH", ledger, *kept)


@pytest.mark.spec("R-EVENT-6")
def test_what_a_script_adds_is_behind_what_it_trims(driver: Driver) -> None:
    """The trim settles: the end of the sleep is an event."""
    driver.send("a", b"1")
    driver.take().do("sleep", key="nap", ms=WEEK_MS)
    driver.later(WEEK_MS)
    driver.trim()
    assert driver.event_names()[-2:] == ["TURN_SLEEPING", "TURN_READY"]
    assert read(driver).oldest_seq == driver.record().seq - 1


@pytest.mark.spec("R-EVENT-5")
def test_a_place_that_the_store_has_lost(driver: Driver) -> None:
    turn(driver, 1)
    dump = driver.dump()
    turn(driver, 2)
    driver.restore(dump)
    driver.hello("run-2")
    assert read(driver, seq=8) == read(driver, seq=5)
    assert (read(driver, seq=5).word, read(driver, seq=5).last_seq, read(driver, seq=5).gen) == (
        "REWOUND",
        4,
        1,
    )
    assert read(driver, seq=4, gen=1).word == "OK"
    turn(driver, 3)
    assert (read(driver, seq=5, gen=1).word, read(driver, seq=5, gen=1).gen) == ("REWOUND", 2)
    assert read(driver, seq=5, gen=2).word == "OK"
    assert read(driver, seq=5).word == "OK", "any generation"
    assert [event.gen for event in events(read(driver))] == [1, 1, 1, 1, 2, 2, 2]


class Story:
    """Random things that happen to one instance, each possible at any time."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.held: Held | None = None
        self.sent = 0

    def send(self) -> None:
        self.sent += 1
        self.driver.send("a", b"%d" % self.sent)

    def later(self) -> None:
        self.driver.later(20_000)

    def expire(self) -> None:
        self.driver.later(60_000)
        self.driver.expire()

    def claim(self) -> None:
        for held in self.driver.claim():
            self.held = held

    def receive(self) -> None:
        if self.held:
            self.held.renew()

    def checkpoint(self) -> None:
        if self.held:
            self.held.checkpoint(f"s{self.held.n}")

    def finish(self) -> None:
        if self.held:
            self.held.finish(onward=b"more" if self.sent % 3 == 0 else None)

    def fail(self) -> None:
        if self.held:
            self.held.fail()

    def fail_for_good(self) -> None:
        if self.held:
            self.held.fail(final=True)

    def release(self) -> None:
        if self.held:
            self.held.release()

    def sleep(self) -> None:
        if self.held:
            self.held.do("sleep", key=f"z{self.held.n}", ms=30_000)

    def defer(self) -> None:
        if self.held:
            self.held.do("defer", reason="LATER", ms=30_000)

    def orphan(self) -> None:
        if self.held:
            self.held.orphan()

    def pause(self) -> None:
        self.driver.one("pause", id="a", comment="why")

    def resume(self) -> None:
        self.driver.one("resume", id="a", comment="why")

    def wake(self) -> None:
        self.driver.one("wake", id="a", comment="why")

    def _head(self, script: str, **args: Any) -> None:
        self.driver.one(script, id="a", turn=self.driver.record().head, comment="why", **args)

    def retry(self) -> None:
        self._head("retry")

    def skip(self) -> None:
        self._head("skip")

    def park(self) -> None:
        self._head("park")

    def cancel(self) -> None:
        self._head("cancel", grace_ms=200)

    def cancel_at_once(self) -> None:
        self._head("cancel", force=True)

    def cancel_last(self) -> None:
        self.driver.one("cancel", id="a", turn=self.driver.record().tail)


THINGS = sorted(name for name in vars(Story) if not name.startswith("_"))


@pytest.mark.spec("R-EVENT-1", "R-EVENT-2")
@settings(max_examples=60)
@given(things=st.lists(st.sampled_from([*THINGS, "send", "claim", "receive", "finish"]), max_size=40))
def test_folding_any_part_up_to_the_end_tells_how_things_stand(
    redis_server: RedisServer, things: list[str]
) -> None:
    """The invariants compare the fold of the whole ledger with what is stored, after every single thing."""
    redis_server.flush()
    driver = Driver(redis_server)
    driver.one("watch", keep_ms=1)
    driver.put_type(max_attempts=2)
    driver.create("a")
    story = Story(driver)
    for thing in things:
        getattr(story, thing)()
        assert driver.violations() == [], thing
    raw = read(driver).events
    whole = fold(raw)
    for at in range(len(raw)):
        part = fold(raw[at:])
        assert part.status == whole.status == read(driver).status
        assert part.turns.items() <= whole.turns.items()
