"""What the queries behind lists and checks read."""

from __future__ import annotations

import pytest

from pawl_server.store import records
from tests.support.driver import TV, Driver


def _fail(driver: Driver, name: str) -> None:
    driver.create(name, max_attempts=1)
    driver.send(name)
    driver.take(name).fail()


@pytest.mark.spec("R-READ-5", "R-READ-7")
def test_marked_instances_come_by_version_and_id(driver: Driver) -> None:
    for name in ("c", "a", "b"):
        _fail(driver, name)
    page = driver.one("list_marked", set="failed", prefix="t:", after="", limit=2)
    assert ([entry[0] for entry in page.entries], page.last) == ([b"t:v1:a", b"t:v1:b"], "t:v1:b")
    rest = driver.one("list_marked", set="failed", prefix="t:v1:", after=page.last, limit=2)
    assert ([entry[1] for entry in rest.entries], rest.last) == ([b"c"], "")
    head = records.turn_view(rest.entries[0][5])
    assert (head.turn, head.failure is not None) == (1, True)
    assert driver.one("list_marked", set="paused", prefix="t:", after="", limit=2).entries == []
    assert len(driver.one("list_marked", set="busy", prefix="t:", after="", limit=9).entries) == 3
    assert driver.one("list_marked", set="busy", prefix="u:", after="", limit=9).entries == []


@pytest.mark.spec("R-READ-8")
def test_parked_turns_come_with_what_is_kept_of_them(driver: Driver) -> None:
    for name in ("b", "a"):
        _fail(driver, name)
        driver.one("park", id=name, turn=1)
    page = driver.one("list_parked", prefix="t:", after="", limit=1, max_bytes=1 << 20)
    assert (page.entries[0][1], page.last) == (b"a", "t:v1:a:0000000000000001")
    assert records.parked_record(page.entries[0][4]).message.blob == b"\0hello"
    rest = driver.one("list_parked", prefix="t:", after=page.last, limit=9, max_bytes=1 << 20)
    assert ([entry[1] for entry in rest.entries], rest.last) == ([b"b"], "")
    one = driver.one("list_parked", prefix="t:v1:b:", after="", limit=9, max_bytes=1 << 20)
    assert [entry[2] for entry in one.entries] == [1]


@pytest.mark.spec("R-READ-6")
def test_the_inbox_of_nobody(driver: Driver) -> None:
    reply = driver.one("list_inbox", id="nobody", limit=9, max_bytes=1 << 20)
    assert reply.word == "NOT_FOUND"


@pytest.mark.spec("R-FSCK-1")
def test_every_key_of_the_partition_is_named(driver: Driver) -> None:
    for number in range(30):
        driver.create(f"i{number}")
    cursor, names = "0", set[bytes]()
    for _ in range(1_000):
        page = driver.one("scan_keys", cursor=cursor, limit=5)
        names |= set(page.names)
        cursor = page.cursor
        if cursor == "0":
            break
    assert {f"i:i{number}".encode() for number in range(30)} <= names
    assert {b"meta", b"ids:t"} <= names


@pytest.mark.spec("R-READ-9")
def test_who_is_there_for_a_type(driver: Driver) -> None:
    driver.send("a")
    assert driver.one("starved", tv=TV, limit=10)[:] == (False, False)
    driver.take("a")
    assert driver.one("starved", tv=TV, limit=10)[:] == (False, True)
    driver.claim(tv="u:v1")
    assert driver.one("starved", tv="u:v1", limit=10)[:] == (True, False)
