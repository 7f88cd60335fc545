"""start_operation and report_progress: the step that runs is registered, and the server keeps its time."""

from __future__ import annotations

from typing import Any

import pytest

from pawl_server.domain.states import TurnState
from pawl_server.store import records
from pawl_server.store.records import OperationRecord, ProgressRecord
from tests.support.driver import Driver, Held, digest_of
from tests.support.listener import listening
from tests.support.lua_harness import changes

FETCH = records.pack_progress(ProgressRecord("fetching", 3, 10, "pages"))


def operation(driver: Driver, turn: int = 1, name: str = "a") -> OperationRecord:
    """The registered step, as a read of its turn shows it."""
    found = driver.turn(turn, name).operation
    assert found is not None
    return found


def begun(driver: Driver, **given: Any) -> Held:
    """A turn whose first step is registered."""
    driver.send()
    held = driver.take()
    assert held.start(**given).word == "OK"
    return held


@pytest.mark.spec("R-OP-1")
def test_a_step_is_registered(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    before = driver.state()
    reply = held.start("fetch", kind="tool", timeout_ms=5_000)
    assert (reply.word, reply.remaining_ms) == ("OK", 5_000)
    assert set(changes(before, driver.state())) == {"i:a r", "i:a 1.o", "e:a", "due operation:a"}
    at = driver.now
    assert operation(driver) == OperationRecord(
        "fetch", "tool", 1, 1, at, at + 5_000, 0, 0, 0, b"", 0, None, b"", b"", 1
    )
    assert driver.due() == {"lease:a": at + 60_000, "operation:a": at + 5_000}
    assert driver.events()[-1] == ("OPERATION_STARTED", 1, 1, "RUNNING", 2, "fetch tool")
    assert driver.record().operation_active


@pytest.mark.spec("R-OP-1")
def test_a_repeat_extends_nothing(driver: Driver) -> None:
    held = begun(driver, heartbeat_ms=3_000)
    driver.later(1_000)
    with driver.unchanged():
        assert driver.again().remaining_ms == 4_000
        assert held.start(heartbeat_ms=4_000, timeout_ms=9_000, kind="tool").remaining_ms == 4_000


@pytest.mark.spec("R-OP-1")
def test_what_can_not_be_registered(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    with driver.unchanged():
        assert held.start("two", position=1).state == "step_saved"
        assert held.start("one", position=2).state == "step_saved"
        reply = held.start("two", position=3)
        assert (reply.word, reply.last) == ("GAP", 1)
    assert held.start("two", position=2).word == "OK"
    with driver.unchanged():
        refused = held.start("three", position=2)
        assert (refused.word, refused.state) == ("WRONG_STATE", "operation")
    held.checkpoint("two")
    with driver.unchanged():
        assert held.start("two", position=2).state == "step_saved"


@pytest.mark.spec("R-OP-1", "R-PROGRESS-1", "R-FENCE-3")
def test_words_that_refuse_it(driver: Driver) -> None:
    held = begun(driver)
    step = {"position": 1, "key": "step", "kind": "step", "timeout_ms": 5_000, "on_restart": 1}
    report = {"position": 1, "key": "step", "sequence": 1}
    with driver.unchanged():
        for script, given in (("start_operation", step), ("report_progress", report)):
            assert driver.one(script, **{**held.item(script, **given), "id": "nobody"}).word == "NOT_FOUND"
            assert driver.one(script, **{**held.item(script, **given), "fence": 99}).word == "STALE_FENCE"
    held.release()
    with driver.unchanged():
        assert (held.start().word, held.start().how) == ("LEASE_ENDED", "released")
        assert (held.report(1).word, held.report(1).how) == ("LEASE_ENDED", "released")


@pytest.mark.spec("R-OP-1", "R-LEASE-3", "R-LEASE-4")
def test_both_are_signs_of_life(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    assert held.start(timeout_ms=80_000).word == "OK"
    assert driver.event_names()[-2:] == ["ATTEMPT_STARTED", "OPERATION_STARTED"]
    driver.later(30_000)
    held.report(1)
    assert driver.due()["lease:a"] == driver.now + 60_000
    driver.later(30_000)
    assert held.start("another").word == "WRONG_STATE"
    assert driver.due()["lease:a"] == driver.now + 60_000
    driver.later(15_000)
    assert held.report(1, "another").word == "WRONG_STATE"
    assert driver.due()["lease:a"] == driver.now + 45_000, "more than two thirds are left"
    driver.later(5_000)
    assert driver.expire()[0].kind == "operation"


@pytest.mark.spec("R-PROGRESS-1")
def test_a_report_replaces_the_one_before(driver: Driver) -> None:
    held = begun(driver)
    driver.later(10)
    before = driver.state()
    reply = held.report(1, progress=FETCH, details=b"\0d", resume=b"\0r")
    assert (reply.word, reply.heartbeat_ms) == ("OK", -1)
    assert set(changes(before, driver.state())) == {"i:a 1.o"}
    shown = operation(driver)
    assert (shown.sequence, shown.report_ms) == (1, driver.now)
    assert shown.progress == ProgressRecord("fetching", 3, 10, "pages")
    assert (shown.details, shown.resume) == (b"\0d", b"\0r")
    held.report(5)
    shown = operation(driver)
    assert (shown.sequence, shown.progress, shown.details) == (5, None, b"")
    assert shown.resume == b"\0r", "only a report with a resume point replaces it"
    held.report(6, resume=b"\0s")
    assert operation(driver).resume == b"\0s"


@pytest.mark.spec("R-PROGRESS-1", "R-PROGRESS-2")
def test_only_a_new_report_counts(driver: Driver) -> None:
    held = begun(driver, heartbeat_ms=1_000)
    due = driver.due()
    assert due["operation:a"] == driver.now + 1_000
    driver.later(400)
    assert held.report(3, details=b"\0x").heartbeat_ms == 1_000
    assert driver.due() == {**due, "operation:a": driver.now + 1_000}
    driver.later(400)
    with driver.unchanged():
        assert driver.again().heartbeat_ms == 600
        assert held.report(2, details=b"\0older").heartbeat_ms == 600
        assert held.report(3, details=b"\0other").word == "BODY_CONFLICT"
        assert held.start(heartbeat_ms=1_000).remaining_ms == 4_200
        assert held.renew().word == "OK"
    assert operation(driver).details == b"\0x"


@pytest.mark.spec("R-PROGRESS-1")
def test_a_report_of_another_step_is_refused(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    with driver.unchanged():
        assert held.report(1).state == "operation", "none is registered"
    held.start()
    with driver.unchanged():
        assert held.report(1, "other").state == "operation"
        assert held.report(1, position=2).state == "operation"
    held.checkpoint()
    with driver.unchanged():
        assert held.report(1, position=1).state == "operation", "it is saved"


@pytest.mark.spec("R-OP-2")
def test_the_deadline_is_strict(driver: Driver) -> None:
    held = begun(driver, timeout_ms=2_000)
    driver.later(1_999)
    assert held.checkpoint().word == "OK"
    assert driver.due() == {"lease:a": driver.now - 1_999 + 60_000}
    held.start("two", timeout_ms=2_000)
    driver.later(2_000)
    reply = held.checkpoint("two")
    assert (reply.word, reply.how) == ("LEASE_ENDED", "expired")
    assert (driver.head(), driver.record().failures, driver.record().steps) == ("BACKOFF", 1, 1)


@pytest.mark.spec("R-OP-2", "R-FAIL-1")
def test_a_step_that_hangs_is_out_of_time_while_its_worker_renews(driver: Driver) -> None:
    held = begun(driver, timeout_ms=90_000)
    for _ in range(4):
        driver.later(20_000)
        assert held.renew().word == "OK"
        assert held.report(driver.now).word == "OK", "reports do not extend it either"
    driver.later(10_000)
    [fired] = driver.expire()
    assert (fired.word, fired.kind, fired.outcome) == ("FIRED", "operation", "expired")
    assert driver.head() == "BACKOFF"
    assert driver.due() == {"backoff:a": driver.now + 1_000}
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.reason, failure.attempt) == ("OPERATION_TIMEOUT", 1)
    assert failure.message == "step step ran for 90000 ms"
    assert driver.events()[-1] == ("ATTEMPT_EXPIRED", 1, 1, "BACKOFF", 2, "OPERATION_TIMEOUT")
    with driver.unchanged():
        assert (held.renew().word, held.renew().how) == ("LEASE_ENDED", "expired")


@pytest.mark.spec("R-OP-2", "R-PROGRESS-2")
def test_a_step_without_a_sign_of_progress_is_out_of_time(driver: Driver) -> None:
    held = begun(driver, heartbeat_ms=1_000)
    driver.later(999)
    assert held.report(1).word == "OK"
    driver.later(999)
    assert held.renew().word == "OK"
    driver.later(1)
    [fired] = driver.expire()
    assert (fired.word, fired.kind) == ("FIRED", "operation")
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.reason, failure.message) == (
        "HEARTBEAT_TIMEOUT",
        "step step reported nothing for 1000 ms",
    )


@pytest.mark.spec("R-OP-2")
def test_both_times_at_once_are_the_timeout(driver: Driver) -> None:
    begun(driver, heartbeat_ms=5_000, timeout_ms=5_000)
    driver.elapse(5_000)
    failure = driver.turn(1).failure
    assert failure is not None
    assert failure.reason == "OPERATION_TIMEOUT"


@pytest.mark.spec("R-OP-2", "R-FAIL-1", "R-FAIL-2", "R-POLICY-1")
@pytest.mark.parametrize(("policy", "state"), [(1, "FAILED"), (2, "SKIPPED"), (3, "PARKED")])
def test_timeouts_back_off_and_use_up_the_attempts(driver: Driver, policy: int, state: str) -> None:
    driver.put_type(max_attempts=3, on_exhausted=policy)
    driver.send("a", b"1")
    driver.send("a", b"2")
    for attempt, delay in ((1, 1_000), (2, 2_000)):
        held = driver.take()
        assert held.view.attempt == attempt
        held.start()
        driver.elapse(5_000)
        assert driver.due() == {"backoff:a": driver.now + delay}
        driver.elapse(delay)
    driver.take().start()
    driver.elapse(5_000)
    if state == "FAILED":
        assert (driver.head(), driver.due()) == ("FAILED", {})
        assert driver.events()[-1].name == "TURN_FAILED"
    else:
        assert TurnState(driver.receipt(1).state).name == state
        assert driver.ready() == ["a"]


@pytest.mark.spec("R-OP-2", "R-SETTLE-1")
def test_whoever_touches_the_instance_first_applies_it(driver: Driver) -> None:
    held = begun(driver)
    driver.pause()
    driver.later(5_000)
    assert records.instance_record(driver.get().record).state == TurnState.BACKOFF
    listed = driver.one("list_instances", by="ids", type="t", limit=10).entries
    assert records.instance_record(listed[0][1]).state == TurnState.BACKOFF
    driver.send("a", b"more")
    assert (driver.head(), driver.due()) == ("BACKOFF", {})
    assert held.finish().how == "expired"
    driver.resume()
    assert driver.due() == {"backoff:a": driver.now + 1_000}


@pytest.mark.spec("R-OP-2", "R-EXPIRE-5")
def test_the_holder_is_told(driver: Driver) -> None:
    """Also by the very server that finds it out, in whatever script that is: no reply of it says so."""
    driver.send()
    held = driver.take(conn="s1.4.7")
    held.start()
    driver.later(5_000)
    with listening(driver, "s1") as (one,):
        driver.call("send", items=[driver.message("a", b"more")], server="s1")
        assert one.heard() == [f"ended s1.4.7 1 1 {held.fence} expired a"]


@pytest.mark.spec("R-OP-3")
@pytest.mark.parametrize("end", ["checkpoint", "last step", "finish"])
def test_a_saved_step_is_registered_no_more(driver: Driver, end: str) -> None:
    held = begun(driver, heartbeat_ms=1_000)
    held.report(1, progress=FETCH)
    if end == "checkpoint":
        held.checkpoint()
    else:
        held.finish(step=("step", b"out") if end == "last step" else None)
    assert driver.turn(1).operation is None
    assert "1.o" not in driver.fields()
    assert (driver.record().operation, driver.record().operation_at_ms) == (0, 0)
    assert "operation:a" not in driver.due()


@pytest.mark.spec("R-OP-3")
@pytest.mark.parametrize("how", ["failed", "released", "expired", "lost"])
def test_the_next_attempt_gets_the_last_step_and_where_to_go_on(driver: Driver, how: str) -> None:
    driver.put_type(backoff_initial_ms=1)
    held = begun(driver, timeout_ms=600_000)
    held.report(7, progress=FETCH, details=b"\0d", resume=b"\0r")
    held.end(how)
    shown = operation(driver)
    assert (shown.key, shown.attempt, shown.sequence, shown.resume) == ("step", 1, 7, b"\0r")
    assert (driver.record().operation, driver.record().operation_at_ms) == (1, 0)
    assert "operation:a" not in driver.due()
    driver.elapse(1)
    held = driver.take()
    assert held.view.operation == shown
    assert driver.turn(1).operation == shown
    held.start(kind="tool")
    started = operation(driver)
    assert (started.kind, started.sequence, started.progress, started.details) == ("tool", 0, None, b"")
    assert started.resume == b"\0r", "until a report replaces it"
    assert started.attempt == held.view.attempt
    held.report(1)
    assert operation(driver).resume == b"\0r"


@pytest.mark.spec("R-OP-3")
def test_another_step_begins_without_a_resume_point(driver: Driver) -> None:
    held = begun(driver)
    held.report(1, resume=b"\0r")
    held.fail(delay_ms=0)
    held = driver.take()
    held.start("other")
    assert (operation(driver).key, operation(driver).resume) == ("other", b"")


@pytest.mark.spec("R-OP-3")
def test_a_step_left_by_an_attempt_is_over_once_its_place_is_taken(driver: Driver) -> None:
    held = begun(driver)
    held.report(1, resume=b"\0r")
    held.release()
    held = driver.take()
    assert held.view.operation is not None
    assert held.sleep(ms=1_000).word == "OK"
    assert driver.turn(1).operation is None
    driver.elapse(1_000)
    assert driver.take().view.operation is None


@pytest.mark.spec("R-OP-3")
@pytest.mark.parametrize("end", ["cancel", "skip", "park"])
def test_a_turn_that_did_not_complete_keeps_its_step_until_it_is_trimmed(driver: Driver, end: str) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    held = begun(driver)
    held.report(1, progress=FETCH, resume=b"\0" + 100 * b"r")
    if end != "cancel":
        held.fail(final=True)
    getattr(driver, end)(**({"force": True} if end == "cancel" else {}))
    shown = operation(driver)
    assert (shown.key, shown.progress) == ("step", ProgressRecord("fetching", 3, 10, "pages"))
    assert driver.due().keys() == {"gc:a"}
    assert driver.record().operation == 0
    driver.elapse(1_000)
    assert "1.o" not in driver.fields()
    assert driver.record().kept_bytes == 0


@pytest.mark.spec("R-OP-4")
def test_the_turn_is_not_put_off_while_a_step_runs(driver: Driver) -> None:
    held = begun(driver)
    with driver.unchanged():
        assert held.sleep().state == "operation"
        assert held.defer().state == "operation"
    held.checkpoint()
    assert held.defer().word == "OK"


@pytest.mark.spec("R-OP-3", "R-DELETE-1")
def test_nothing_is_left_of_a_deleted_instance(driver: Driver) -> None:
    begun(driver)
    driver.delete()
    assert driver.due() == {}


@pytest.mark.spec("R-OP-2", "R-LEASE-7")
def test_a_lease_that_moves_keeps_its_step(driver: Driver) -> None:
    held = begun(driver, timeout_ms=5_000)
    before = operation(driver)
    held.detach()
    driver.later(1_000)
    assert held.adopt("other.2.1").word == "OK"
    assert held.start().remaining_ms == 4_000
    assert operation(driver) == before


@pytest.mark.spec("R-OP-5")
def test_a_step_that_was_not_registered_costs_nothing_more(driver: Driver) -> None:
    counts = []
    driver.count = True
    for registers in (False, True):
        driver.send("a", b"%d" % registers)
        held = driver.take()
        if registers:
            held.start()
        held.checkpoint()
        counts.append(driver.commands)
        held.finish()
        counts.append(driver.commands)
    plain, registered = counts[0], counts[2]
    assert registered == {**plain, "hdel": 1, "zrem": 1}
    assert counts[1] == counts[3]


@pytest.mark.spec("R-FSCK-1")
def test_what_fsck_and_sweep_mend(driver: Driver) -> None:
    held = begun(driver)
    driver.redis.call("ZREM", f"{driver.tag}due", "operation:a")
    assert driver.sweep() == (1, 0)
    assert driver.due()["operation:a"] == driver.now + 5_000
    driver.redis.call("ZREM", f"{driver.tag}due", "operation:a")
    assert driver.one("fsck", id="a", repair=True).findings == [
        b"an entry that wakes it or lists it was missing"
    ]
    assert driver.due()["operation:a"] == driver.now + 5_000
    driver.redis.call("HDEL", f"{driver.tag}i:a", "1.o")
    assert driver.one("fsck", id="a", repair=True).findings == [b"the registered step of the head is lost"]
    assert driver.one("fsck", id="a").findings == []
    held.checkpoint()
    driver.redis.call("HSET", f"{driver.tag}i:a", "1.o", b"x")
    assert driver.one("fsck", id="a", repair=True).findings == [b"field 1.o is left of a step that is over"]
    assert driver.one("fsck", id="a").findings == []


def last(sequence: int = 1, key: str = "step", position: int = 1, **given: Any) -> dict[str, Any]:
    """What a failure says of a report that was not made yet."""
    fields = {f"op_{name}": value for name, value in given.items()}
    digest = digest_of(sorted(given.items()))
    return {
        "op_position": position, "op_key": key, "op_sequence": sequence, "op_digest": digest, **fields,
    }  # fmt: skip


@pytest.mark.spec("R-OP-6")
def test_the_last_report_travels_with_the_failure(driver: Driver) -> None:
    held = begun(driver, heartbeat_ms=1_000)
    held.report(1, resume=b"\0one")
    driver.later(900)
    given = last(2, progress=FETCH, resume=b"\0two")
    assert held.fail(delay_ms=0, **given).word == "OK"
    shown = operation(driver)
    assert (shown.sequence, shown.resume, shown.report_ms) == (2, b"\0two", driver.now)
    assert shown.progress == ProgressRecord("fetching", 3, 10, "pages")
    assert driver.due() == {}
    with driver.unchanged():
        assert held.fail(delay_ms=0, n=1, **given).word == "OK"
    assert driver.take().view.operation == shown


@pytest.mark.spec("R-OP-6")
def test_a_failure_registers_a_step_that_was_not(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    assert held.fail(delay_ms=0, **last(4, details=b"\0d", resume=b"\0r")).word == "OK"
    assert driver.event_names()[-3:] == ["ATTEMPT_STARTED", "OPERATION_STARTED", "ATTEMPT_FAILED"]
    shown = operation(driver)
    assert (shown.key, shown.kind, shown.position, shown.attempt, shown.sequence) == ("step", "step", 1, 1, 4)
    assert (shown.details, shown.resume, shown.on_restart) == (b"\0d", b"\0r", 1)
    assert (driver.record().operation, driver.record().operation_at_ms, driver.due()) == (1, 0, {})
    held = driver.take()
    assert held.view.operation == shown
    assert held.fail(delay_ms=0, **last(1, progress=FETCH)).word == "OK"
    assert (operation(driver).sequence, operation(driver).resume) == (1, b"\0r"), "the resume point stays"


@pytest.mark.spec("R-OP-6")
def test_an_old_report_is_passed_over_and_a_wrong_one_refused(driver: Driver) -> None:
    held = begun(driver, timeout_ms=100_000)
    held.report(5, resume=b"\0five")
    driver.later(30_000)
    for given in (last(6, "other"), last(6, position=2)):
        refused = held.fail(**given)
        assert (refused.word, refused.state) == ("WRONG_STATE", "operation")
        assert driver.head() == "RUNNING"
        assert driver.due()["lease:a"] == driver.now + 60_000, "a sign of life all the same"
    assert held.fail(**last(5, resume=b"\0other")).word == "OK"
    assert operation(driver).resume == b"\0five"


@pytest.mark.spec("R-OP-6")
def test_a_failure_above_the_saved_steps_is_not_of_the_next_one(driver: Driver) -> None:
    held = begun(driver)
    held.checkpoint()
    with driver.unchanged():
        assert held.fail(**last(1)).state == "operation"
    assert held.fail(**last(1, "two", 2)).word == "OK"
