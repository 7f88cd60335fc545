"""open_namespace, hello, put_type: what a partition knows about its namespace, its Redis and its types."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.store import records
from tests.support.driver import Driver, digest_of
from tests.support.lua_harness import changes

JUMP = 2**32


@pytest.mark.spec("R-STORE-1")
def test_the_first_caller_decides_on_partitions_and_clock(driver: Driver) -> None:
    driver.redis.call("DEL", f"{driver.tag}meta")
    [first] = driver.call("open_namespace", partitions=4, virtual=True).replies
    assert (first.word, first.partitions, first.virtual, first.created) == ("OK", 4, True, True)
    with driver.unchanged():
        [second] = driver.call("open_namespace", partitions=8, virtual=False).replies
        assert (second.partitions, second.virtual, second.created) == (4, True, False)
    driver.set_meta(partitions=1)


@pytest.mark.spec("R-FENCE-2")
def test_the_same_run_id_raises_nothing(driver: Driver) -> None:
    with driver.unchanged():
        reply = driver.hello("run-1")
        assert (reply.word, reply.gen, reply.changed) == ("OK", 1, False)


@pytest.mark.spec("R-FENCE-2")
def test_another_run_id_begins_a_new_generation(driver: Driver) -> None:
    driver.send()
    driver.take()
    driver.set_meta(outbox=5)
    before = driver.state()
    reply = driver.hello("run-2")
    assert (reply.gen, reply.changed) == (2, True)
    assert changes(before, driver.state()) == {
        "meta run_id": (b"run-1", b"run-2"),
        "meta gen": (b"1", b"2"),
        "meta fence": (b"1", b"%d" % (JUMP + 1)),
        "meta incarnation": (b"1", b"%d" % (JUMP + 1)),
        "meta outbox": (b"5", b"%d" % (JUMP + 5)),
    }
    with driver.unchanged():
        assert not driver.hello("run-2").changed
    assert driver.hello("run-1").gen == 3, "a run that comes back is another one all the same"


@pytest.mark.spec("R-FENCE-2", "R-FENCE-1")
def test_counters_stay_exact_over_many_generations(driver: Driver) -> None:
    for generation in (2_000, 20_000, 200_000, 2_000_000):
        driver.set_meta(fence=generation * JUMP + 1, incarnation=generation * JUMP + 1)
        driver.hello(f"run-{generation}")
        assert driver.meta("fence") == driver.meta("incarnation") == (generation + 1) * JUMP + 1
    driver.send()
    held = driver.take()
    assert held.fence == 2_000_001 * JUMP + 2
    assert held.finish().word == "OK"


@pytest.mark.spec("R-FENCE-2")
def test_a_first_hello_of_a_new_partition_jumps_nowhere(driver: Driver) -> None:
    driver.redis.call("DEL", f"{driver.tag}meta")
    reply = driver.hello("run-9")
    assert (reply.gen, reply.changed, driver.meta("fence")) == (1, True, 0)
    assert driver.state()["meta"] == {
        "run_id": b"run-9", "gen": b"1", "fence": b"0", "incarnation": b"0", "outbox": b"0", "virtual": b"1",
        "partitions": b"1", "min_reader": b"1", "min_writer": b"1",
    }  # fmt: skip


@pytest.mark.spec("R-STORE-1", "R-STORE-2")
def test_the_first_caller_notes_the_schema(driver: Driver) -> None:
    driver.redis.call("DEL", f"{driver.tag}meta")
    driver.call("open_namespace", partitions=3, virtual=False)
    assert driver.state()["meta"] == {"partitions": b"3", "virtual": b"0", "schema": b"1"}


@pytest.mark.spec("R-FENCE-2", "R-LEASE-5")
def test_live_leases_survive_a_new_generation(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.hello("run-2")
    assert held.checkpoint().word == "OK"
    assert held.finish().word == "OK"


@pytest.mark.spec("R-STORE-2")
def test_a_newer_schema_is_refused(driver: Driver) -> None:
    driver.set_meta(min_reader=2, min_writer=3)
    with driver.unchanged():
        for reader, writer in ((1, 3), (2, 2), (1, 1)):
            reply = driver.hello("run-2", reader=reader, writer=writer)
            assert (reply.word, reply.min_reader, reply.min_writer) == ("SCHEMA_NEWER", 2, 3)
    assert driver.hello("run-2", reader=2, writer=3).word == "OK"
    assert driver.hello("run-3", reader=9, writer=9).word == "OK"
    assert (driver.meta("min_reader"), driver.meta("min_writer")) == (2, 3)


@pytest.mark.spec("R-STORE-1")
def test_another_number_of_partitions_is_refused(driver: Driver) -> None:
    with driver.unchanged():
        reply = driver.hello("run-2", partitions=2)
        assert (reply.word, reply.partitions) == ("WRONG_PARTITIONS", 1)


def put(driver: Driver, lease_ms: int, *, request_id: str = "", expected: int = -1, revision: int = 0) -> Any:
    """Stores a lease time for type t."""
    return driver.one(
        "put_type",
        name="t",
        settings=records.pack_type({"lease_ms": lease_ms}),
        digest=digest_of(lease_ms),
        request_id=request_id,
        expected=expected,
        revision=revision,
    )


def stored(driver: Driver) -> tuple[int, float | str | None]:
    """Revision and lease time of type t."""
    reply = driver.one("get_type", name="t")
    return reply.revision, records.unpack_type(reply.settings)[1]["lease_ms"]


@pytest.mark.spec("R-TYPE-2")
def test_a_change_raises_the_revision_and_answers_what_is_stored(driver: Driver) -> None:
    before = driver.state()
    reply = put(driver, 1_000)
    assert (reply.word, reply.revision) == ("OK", 1)
    assert {key.split()[0] for key in changes(before, driver.state())} == {"type:t", "typeindex"}
    assert records.unpack_type(reply.settings)[0] == driver.now
    put(driver, 2_000)
    assert stored(driver) == (2, 2_000)


@pytest.mark.spec("R-TYPE-2")
def test_an_expected_revision_is_compared(driver: Driver) -> None:
    assert put(driver, 1_000, expected=0).word == "OK"
    with driver.unchanged():
        for expected in (0, 2):
            reply = put(driver, 2_000, expected=expected)
            assert (reply.word, reply.revision) == ("REVISION_CONFLICT", 1)
    assert put(driver, 2_000, expected=1).word == "OK"


@pytest.mark.spec("R-TYPE-2")
def test_a_repeated_request_gives_the_first_answer(driver: Driver) -> None:
    first = put(driver, 1_000, request_id="r1", expected=0)
    driver.later(10)
    with driver.unchanged():
        assert put(driver, 1_000, request_id="r1", expected=0) == first
        assert put(driver, 9_000, request_id="r1").word == "BODY_CONFLICT"


@pytest.mark.spec("R-TYPE-2")
def test_a_late_repeat_does_not_undo_later_changes(driver: Driver) -> None:
    answers = [put(driver, lease_ms, request_id=f"r{lease_ms}") for lease_ms in range(1_000, 9_000, 1_000)]
    for number, lease_ms in enumerate(range(1_000, 9_000, 1_000)):
        driver.later(10)
        with driver.unchanged():
            assert put(driver, lease_ms, request_id=f"r{lease_ms}") == answers[number]
            assert put(driver, 1, request_id=f"r{lease_ms}").word == "BODY_CONFLICT"
    assert stored(driver) == (8, 8_000)


@pytest.mark.spec("R-TYPE-2")
def test_a_copy_from_the_home_partition_is_taken_only_if_newer(driver: Driver) -> None:
    assert put(driver, 3_000, revision=3).revision == 3
    with driver.unchanged():
        for revision in (2, 3):
            assert put(driver, 9_000, revision=revision).revision == 3
    assert put(driver, 5_000, revision=5).revision == 5
    assert stored(driver) == (5, 5_000)


@pytest.mark.spec("R-TYPE-2")
def test_the_answers_of_the_newest_eight_requests_are_kept(driver: Driver) -> None:
    for number in range(9):
        put(driver, 1_000 + number, request_id=f"r{number}")
    with driver.unchanged():
        assert put(driver, 1_001, request_id="r1").revision == 2
    assert put(driver, 1_000, request_id="r0").revision == 10, "forgotten, and so a new request"
