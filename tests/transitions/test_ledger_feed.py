"""The feed of a partition: written while somebody watches, without holes, bounded, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl_server.store.feed import FeedEntry, feed_entry
from pawl_server.store.records import ledger_event
from tests.support.driver import TV, Driver
from tests.support.invariants import constants
from tests.support.lua_harness import FailedWrite, for_each_failing_write
from tests.support.redis_server import Control

KEEP_MS = 900_000


def watch(driver: Driver) -> Any:
    """Asks for the feed."""
    return driver.one("watch", keep_ms=KEEP_MS)


def feed(driver: Driver) -> list[FeedEntry]:
    """What is stored."""
    return [feed_entry(fields[b"e"]) for _, fields in driver.state().get("feed", [])]


def after(driver: Driver, place: str, limit: int = 100) -> Any:
    return driver.one("read_feed", after=place, limit=limit)


def real_time(driver: Driver) -> None:
    """Makes the partition's time pass by the clock of Redis; `seen` would be days away."""
    driver.set_meta(virtual=0, seen=0)


@pytest.mark.spec("R-WATCH-8")
def test_nothing_is_written_while_nobody_watches(driver: Driver) -> None:
    driver.count = True
    driver.send()
    driver.take().finish()
    assert "feed" not in driver.state()
    assert not {"xadd", "spublish", "unlink"} & driver.commands.keys()
    assert driver.meta("watch") == 0


@pytest.mark.spec("R-WATCH-8", "R-WATCH-9")
def test_a_script_adds_one_entry_with_all_its_events(driver: Driver) -> None:
    place = watch(driver)
    assert (place.newest, place.begun) == ("1-1", True)
    driver.call("send", items=[driver.message("a"), driver.message("b"), driver.message("a", b"2")])
    first, second = feed(driver)
    assert (str(first.id), first.previous, first.items) == ("1-1", None, [])
    assert second.previous == first.id
    assert [(item.instance_id, item.tv, item.incarnation) for item in second.items] == [
        ("a", TV, 1),
        ("b", TV, 2),
    ]
    assert [[ledger_event(raw).seq for raw in item.events] for item in second.items] == [[1, 2, 3], [1, 2]]
    sizes = [len(item.instance_id + item.tv) + 8 + sum(map(len, item.events)) for item in second.items]
    assert second.id.offset - first.id.offset == sum(sizes)


@pytest.mark.spec("R-WATCH-8")
def test_scripts_without_events_add_nothing(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    watch(driver)
    with driver.unchanged("due lease:a", "i:a r"):
        driver.later(30_000)
        held.renew()
    assert len(feed(driver)) == 1


@pytest.mark.spec("R-WATCH-9")
def test_entries_are_published_as_they_are_stored(driver: Driver) -> None:
    with driver.redis.connections(1) as (control,):
        control.send("SSUBSCRIBE", f"{driver.tag}ch:feed")
        control.receive()
        watch(driver)
        driver.send()
        driver.take().finish(onward=b"more")
        driver.one("delete", id="a", max_turns=1_000)
        heard = [feed_entry(raw) for raw in messages(control)]
    assert heard == feed(driver)
    assert [ledger_event(raw).seq for entry in heard for item in entry.items for raw in item.events] == list(
        range(1, 7)
    )
    last = ledger_event(heard[-1].items[0].events[-1])
    assert (last.type, last.status) == (constants("ledger")["DELETED"], 5)


def messages(control: Control) -> list[bytes]:
    control.send("PING")
    found: list[bytes] = []
    while (message := control.receive())[0] == b"smessage":
        found.append(message[2])
    return found


@pytest.mark.parametrize("clock", ["virtual", "real"])
@pytest.mark.spec("R-WATCH-8")
def test_watching_again_goes_on(driver: Driver, clock: str) -> None:
    if clock == "real":
        real_time(driver)
    place = watch(driver)
    driver.send()
    newest = feed(driver)[-1].id
    again = watch(driver)
    assert (again.newest, again.begun) == (str(newest), False)
    assert again.newest != place.newest
    assert len(feed(driver)) == 2


@pytest.mark.spec("R-WATCH-8")
def test_a_watch_lasts_as_long_as_asked_for(driver: Driver) -> None:
    watch(driver)
    until = driver.meta("watch")
    assert until == driver.now + KEEP_MS
    driver.one("watch", keep_ms=10)
    assert driver.meta("watch") == until, "never shortened"
    driver.later(1_000)
    watch(driver)
    assert driver.meta("watch") == until + 1_000


@pytest.mark.spec("R-WATCH-8")
def test_a_watch_that_lapsed_ends_the_feed_and_leaves_no_hole(driver: Driver) -> None:
    real_time(driver)
    old = watch(driver).newest
    driver.send("a", b"1")
    driver.set_meta(watch=1)
    driver.one("get_instance", id="a")
    assert len(feed(driver)) == 2, "queries leave it alone"
    driver.send("a", b"2")
    assert feed(driver) == []
    assert driver.meta("watch") == 0
    driver.send("a", b"3")
    assert feed(driver) == []
    assert after(driver, old).word == "COMPACTED"
    new = watch(driver)
    assert new.begun
    assert int(new.newest.partition("-")[0]) > int(old.partition("-")[0])
    assert after(driver, old).word == "COMPACTED", "what happened in between is in no feed"


@pytest.mark.spec("R-WATCH-8")
def test_a_lapsed_watch_is_not_taken_up_again(driver: Driver) -> None:
    real_time(driver)
    old = watch(driver).newest
    driver.set_meta(watch=1)
    assert watch(driver).begun
    assert after(driver, old).word == "COMPACTED"


@pytest.mark.spec("R-WATCH-8", "R-CLOCK-1")
def test_virtual_time_may_jump(driver: Driver) -> None:
    watch(driver)
    driver.later(10 * KEEP_MS)
    driver.send()
    assert len(feed(driver)) == 2
    assert not watch(driver).begun


@pytest.mark.spec("R-WATCH-8")
def test_bytes_are_bounded_and_what_was_trimmed_is_known(driver: Driver) -> None:
    place = watch(driver).newest
    limit = constants("feed")["FEED_BYTES"]
    driver.create()
    assert after(driver, place).word == "OK"
    for _ in range(120):
        for script in ("pause", "resume"):
            driver.one(script, id="a", comment="x" * 40_000)
    kept = feed(driver)
    size = kept[-1].id.offset - kept[0].id.offset
    assert 0.9 * limit < size <= limit
    assert driver.redis.call("MEMORY", "USAGE", f"{driver.tag}feed") < 1.1 * limit
    assert after(driver, place).word == "COMPACTED"
    assert after(driver, str(kept[0].id), 1).word == "OK"


@pytest.mark.spec("R-WATCH-9")
def test_reading_on_in_pages(driver: Driver) -> None:
    place = watch(driver).newest
    for at in range(5):
        driver.send("a", b"%d" % at)
    found: list[FeedEntry] = []
    while page := after(driver, place, 2).entries:
        found += map(feed_entry, page)
        place = str(found[-1].id)
    assert found == feed(driver)[1:]
    assert [entry.previous for entry in found[1:]] == [entry.id for entry in found[:-1]]


@pytest.mark.spec("R-WATCH-9")
def test_a_place_that_was_lost_is_told_from_one_that_was_trimmed(driver: Driver) -> None:
    watch(driver)
    driver.send("a", b"1")
    dump = driver.dump()
    kept = str(feed(driver)[-1].id)
    driver.send("a", b"2")
    lost = str(feed(driver)[-1].id)
    driver.restore(dump)
    driver.hello("run-2")
    assert after(driver, lost).word == "REWOUND"
    assert after(driver, kept).entries == []
    driver.send("a", b"3")
    assert after(driver, lost).word == "REWOUND", "although as many bytes were written since"
    [raw] = after(driver, kept).entries
    assert feed_entry(raw).id.gen == 2
    assert not watch(driver).begun, "the feed goes on behind the loss"


@pytest.mark.parametrize("damage", ["gone", "trimmed", "longer", "shorter"])
@pytest.mark.spec("R-WATCH-8")
def test_a_feed_that_does_not_end_where_it_should_begins_anew(driver: Driver, damage: str) -> None:
    place = watch(driver).newest
    driver.send()
    key, newest = f"{driver.tag}feed", str(feed(driver)[-1].id)
    if damage == "gone":
        driver.redis.call("UNLINK", key)
    elif damage == "trimmed":
        driver.redis.call("XTRIM", key, "MAXLEN", 0)
    elif damage == "longer":
        driver.redis.call("XADD", key, "999999-1", "e", "what is this")
    else:
        driver.redis.call("XDEL", key, newest)
    again = watch(driver)
    assert again.begun
    assert int(again.newest.partition("-")[0]) > int(newest.partition("-")[0])
    assert after(driver, place).word == "COMPACTED"
    driver.send("b")
    assert driver.violations() == []


@pytest.mark.spec("R-STORE-3", "R-WATCH-8")
def test_watching_mends_itself_whichever_write_fails(driver: Driver) -> None:
    def check(_: FailedWrite) -> None:
        watch(driver)
        driver.send("b")
        assert driver.violations() == []

    assert for_each_failing_write(driver, lambda: watch(driver), check) == 4


@pytest.mark.parametrize("prepare", ["send", "finish"])
@pytest.mark.spec("R-STORE-3", "R-WATCH-8")
def test_an_event_that_the_feed_lacks_is_noticed(driver: Driver, prepare: str) -> None:
    """Whichever write of a script fails: a reader gets the events, or learns that it did not."""
    driver.send("a", b"1")
    held = driver.take()
    start = watch(driver).newest
    call: Callable[[], object] = driver.send if prepare == "send" else lambda: held.finish(n=1)

    def check(failed: FailedWrite) -> None:
        watch(driver)
        driver.send("b", b"x")
        reply = after(driver, start)
        if reply.word == "COMPACTED":
            return
        previous = start
        for entry in map(feed_entry, reply.entries):
            if str(entry.previous) != previous:
                return
            previous = str(entry.id)
        told = [raw for raw in reply.entries if b"\xa1a\xa4t:v1" in raw]
        stored = driver.state()["e:a"] != failed.before["e:a"]
        assert bool(told) >= stored, failed

    for_each_failing_write(driver, call, check)
