"""expire: what happens when time runs out, and that it happens once."""

from __future__ import annotations

import pytest

from tests.support.driver import TV, Driver
from tests.support.lua_harness import changes


@pytest.mark.spec("R-EXPIRE-1")
def test_an_expired_lease_is_a_failed_attempt(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.later(59_999)
    with driver.unchanged():
        assert driver.expire() == []
    driver.later(1)
    before = driver.state()
    [reply] = driver.expire()
    assert (reply.word, *reply) == (
        "FIRED", "lease", "a", 1, 1, held.fence, driver.conn, "expired", "expired",
    )  # fmt: skip
    assert set(changes(before, driver.state())) == {
        "i:a r", "i:a 1.f", "e:a", "due lease:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert driver.events()[-1] == ("ATTEMPT_EXPIRED", 1, 1, "QUEUED", 2, "ATTEMPT_EXPIRED")
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.attempt, failure.reason) == (1, "ATTEMPT_EXPIRED")
    assert driver.take().view.attempt == 2


@pytest.mark.spec("R-EXPIRE-1")
def test_the_last_attempt_that_expires_blocks_the_inbox(driver: Driver) -> None:
    driver.put_type(max_attempts=2, lease_ms=1_000)
    driver.send()
    for outcome in ("expired", "failed"):
        driver.take()
        driver.later(1_000)
        assert [reply.outcome for reply in driver.expire()] == [outcome]
    assert driver.events()[-2:] == [
        ("ATTEMPT_EXPIRED", 1, 2, "FAILED", 2, "ATTEMPT_EXPIRED"),
        ("TURN_FAILED", 1, 2, "FAILED", 3, "ATTEMPT_EXPIRED"),
    ]
    assert (driver.due(), driver.ready()) == ({}, [])


@pytest.mark.spec("R-EXPIRE-1", "R-LEASE-4")
def test_the_attempt_timeout_names_its_reason(driver: Driver) -> None:
    driver.put_type(attempt_timeout_ms=10_000)
    driver.send()
    held = driver.take()
    driver.later(9_999)
    assert held.renew().remaining_ms == 1
    driver.later(1)
    driver.expire()
    failure = driver.turn(1).failure
    assert failure is not None
    assert failure.reason == "ATTEMPT_TIMEOUT"


@pytest.mark.spec("R-EXPIRE-2", "R-FAIL-4")
def test_a_turn_nobody_received_goes_back_without_an_attempt(driver: Driver) -> None:
    driver.send()
    driver.lease()
    driver.later(5_000)
    before = driver.state()
    assert [reply.outcome for reply in driver.expire()] == ["returned"]
    assert set(changes(before, driver.state())) == {
        "i:a r", "due lease:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    record = driver.record()
    assert (record.deliveries, record.failures, record.attempt) == (1, 0, 0)
    assert driver.lease().view.attempt == 1


@pytest.mark.spec("R-EXPIRE-2")
def test_above_ten_such_deliveries_each_further_one_is_a_failed_attempt(driver: Driver) -> None:
    driver.send()
    outcomes = []
    for _ in range(13):
        driver.lease()
        driver.later(5_000)
        outcomes += [reply.outcome for reply in driver.expire()]
    assert outcomes == ["returned"] * 10 + ["expired", "expired", "failed"]
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.reason, failure.attempt) == ("UNDELIVERABLE", 3)
    expired = [event for event in driver.events() if event.name == "ATTEMPT_EXPIRED"]
    assert [(event.attempt, event.detail) for event in expired] == [
        (1, "UNDELIVERABLE"), (2, "UNDELIVERABLE"), (3, "UNDELIVERABLE"),
    ]  # fmt: skip
    assert driver.event_names()[-1] == "TURN_FAILED"


@pytest.mark.spec("R-EXPIRE-3", "R-FAIL-4")
def test_an_orphaned_attempt_is_lost_and_not_failed(driver: Driver) -> None:
    driver.send()
    driver.take().orphan()
    driver.later(300)
    assert [reply.outcome for reply in driver.expire()] == ["lost"]
    record = driver.record()
    assert (record.lost, record.failures) == (1, 0)
    assert driver.events()[-1] == ("ATTEMPT_LOST", 1, 1, "QUEUED", 2, "WORKER_LOST")
    assert driver.take().view.attempt == 2


@pytest.mark.spec("R-EXPIRE-3")
def test_the_tenth_loss_fails_the_turn(driver: Driver) -> None:
    driver.put_type(max_attempts=2)
    driver.send()
    outcomes = []
    for _ in range(10):
        driver.take().orphan()
        driver.later(300)
        outcomes += [reply.outcome for reply in driver.expire()]
    assert outcomes == ["lost"] * 9 + ["failed"]
    assert driver.events()[-2:] == [
        ("ATTEMPT_LOST", 1, 10, "FAILED", 2, "WORKER_LOST"),
        ("TURN_FAILED", 1, 10, "FAILED", 3, "WORKER_LOST"),
    ]
    failure = driver.turn(1).failure
    assert failure is not None
    assert (failure.reason, failure.attempt) == ("WORKER_LOST", 10)


@pytest.mark.spec("R-EXPIRE-3", "R-EXPIRE-1")
def test_losses_and_failures_have_limits_of_their_own(driver: Driver) -> None:
    driver.put_type(max_attempts=2)
    driver.send()
    for _ in range(9):
        driver.take().orphan()
        driver.later(300)
        driver.expire()
    held = driver.take()
    assert (held.view.attempt, held.fail(delay_ms=0).word) == (10, "OK")
    assert driver.head() == "QUEUED"
    assert driver.take().view.attempt == 11


@pytest.mark.spec("R-EXPIRE-1")
def test_the_limit_bounds_one_call_and_next_says_when_to_come_again(driver: Driver) -> None:
    for number in range(5):
        driver.send(f"i{number}")
        driver.later(10)
    start = driver.now
    driver.claim(5)
    driver.later(2_000)
    driver.send("late")
    driver.lease("late")
    driver.later(3_000)
    first = driver.call("expire", limit=3)
    assert len(first.replies) == 4
    assert first.replies[-1].due_ms <= driver.now, "there is more to do now"
    second = driver.call("expire", limit=3)
    assert (len(second.replies), second.replies[-1].due_ms) == (3, start + 7_000)
    driver.later(10_000)
    assert driver.call("expire", limit=3).replies[-1].due_ms == 0
    assert driver.due() == {}


@pytest.mark.spec("R-EXPIRE-1")
def test_next_counts_the_timers_that_this_call_sets(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for name in ("a", "b"):
        driver.send(name)
    first, second = driver.claim(2)
    first.finish()
    second.renew()
    driver.later(1_000)
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now, "lease:b")
    replies = driver.call("expire", limit=9).replies
    assert [reply.word for reply in replies] == ["FIRED", "STALE", "NEXT"]
    assert replies[-1].due_ms == driver.now + 59_000 == min(driver.due().values())


@pytest.mark.parametrize(
    "member",
    ["lease:absent", "backoff:absent", "gc:absent", "lease:a", "backoff:a", "gc:a", "odd:a", "bogus"],
)
@pytest.mark.spec("R-EXPIRE-1")
def test_a_stale_entry_is_a_counted_no_op_and_goes(driver: Driver, member: str) -> None:
    """C-45: a timer for a turn that does not exist, or is not in that state, must not stop the others."""
    driver.send("a")
    driver.take("a").finish()
    driver.send("b")
    driver.lease("b")
    driver.redis.call("ZADD", f"{driver.tag}due", 1, member)
    driver.later(5_000)
    before = driver.state()
    first, second = driver.expire()
    assert first.word == ("FIRED" if member == "gc:a" else "STALE")
    assert (second.word, second.id, second.outcome) == ("FIRED", "b", "returned")
    assert not [key for key in changes(before, driver.state()) if key.startswith(("i:a", "e:a"))]
    assert driver.due() == {}


@pytest.mark.spec("R-LEASE-5")
def test_an_entry_before_the_deadline_moves_and_fires_nothing(driver: Driver) -> None:
    driver.send()
    driver.take()
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now, "lease:a")
    assert [reply.word for reply in driver.expire()] == ["STALE"]
    assert driver.due() == {"lease:a": driver.now + 60_000}


@pytest.mark.spec("R-EXPIRE-1", "R-WAKE-1")
def test_an_early_backoff_entry_moves_and_fires_nothing(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now, "backoff:a")
    assert [reply.word for reply in driver.expire()] == ["STALE"]
    assert driver.due() == {"backoff:a": driver.now + 1_000}


@pytest.mark.spec("R-EXPIRE-1")
def test_everything_of_one_instance_may_be_due_at_once(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().finish()
    driver.take()
    driver.later(1_000_000)
    words = sorted((reply.word, reply.kind) for reply in driver.expire())
    assert words == [("FIRED", "gc"), ("FIRED", "lease")]
    assert (driver.ready(), driver.due()) == (["a"], {})


# C-13: two recoverers list the same expired task and both act.


@pytest.mark.spec("R-EXPIRE-1")
def test_c13_twenty_calls_end_a_lease_once(driver: Driver) -> None:
    driver.send()
    driver.take()
    driver.later(60_000)
    fired = [reply for number in range(20) for reply in expire_as(driver, f"server{number:02}")]
    assert_expired_once(driver, fired)


@pytest.mark.spec("R-EXPIRE-1")
def test_c13_twenty_connections_end_a_lease_once(driver: Driver) -> None:
    driver.send()
    driver.take()
    driver.later(60_000)
    with driver.redis.connections(20) as connections:
        argv = [driver.argv("expire", server=f"server{number:02}") for number in range(20)]
        for connection, one in zip(connections, argv, strict=True):
            connection.send(*driver.evalsha("expire", one))
        raw = [connection.receive() for connection in connections]
    fired = [reply for one in raw for reply in driver.decode("expire", one).replies[:-1]]
    assert_expired_once(driver, fired)


def expire_as(driver: Driver, server: str) -> list[object]:
    driver.server = server
    return driver.expire()


def assert_expired_once(driver: Driver, fired: list[object]) -> None:
    """One attempt counted, one ready entry, one ledger event."""
    assert [reply.outcome for reply in fired] == ["expired"]  # type: ignore[attr-defined]
    assert (driver.record().failures, driver.ready(TV)) == (1, ["a"])
    assert driver.event_names().count("ATTEMPT_EXPIRED") == 1


@pytest.mark.parametrize("kind", ["expiry", "delayed"])
@pytest.mark.spec("R-EXPIRE-4")
def test_an_early_entry_of_a_message_moves_and_fires_nothing(driver: Driver, kind: str) -> None:
    driver.send("a", b"1", ttl_ms=1_000) if kind == "expiry" else driver.send("a", b"1", delay_ms=1_000)
    due = driver.due()
    assert due == {f"{kind}:a": driver.now + 1_000}
    driver.redis.call("ZADD", f"{driver.tag}due", driver.now, f"{kind}:a")
    assert [(reply.word, reply.kind) for reply in driver.expire()] == [("STALE", kind)]
    assert driver.due() == due
