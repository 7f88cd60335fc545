"""sweep: what was lost from an index comes back from the instance's own record."""

from __future__ import annotations

import pytest

from tests.support.driver import DETACHED_MS, TV, Driver


def remove(driver: Driver, key: str, member: str) -> None:
    """Deletes an index entry by hand, as a restore from an older snapshot would."""
    assert driver.redis.call("ZREM", f"{driver.tag}{key}", member) == 1


@pytest.mark.spec("R-SWEEP-1")
def test_a_sweep_of_a_sound_partition_changes_nothing(driver: Driver) -> None:
    for name in ("running", "backoff", "failed", "queued"):
        driver.send(name)
        driver.later(1)
    _, backoff, failed = driver.claim(3)
    backoff.fail()
    failed.fail(final=True)
    states = ["RUNNING", "BACKOFF", "FAILED", "QUEUED"]
    assert [driver.head(name) for name in ("running", "backoff", "failed", "queued")] == states
    with driver.unchanged():
        assert driver.sweep() == (0, 0)


@pytest.mark.spec("R-SWEEP-1", "R-EXPIRE-1")
def test_c11_a_lost_lease_entry_comes_back(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    remove(driver, "due", "lease:a")
    driver.later(70_000)
    assert driver.expire() == []
    assert driver.sweep() == (1, 0)
    assert driver.due() == {"lease:a": driver.now - 10_000}
    assert [reply.outcome for reply in driver.expire()] == ["expired"]
    assert held.renew().word == "LEASE_ENDED"
    assert driver.take().view.attempt == 2


@pytest.mark.spec("R-SWEEP-1")
def test_c11_a_lost_ready_entry_comes_back(driver: Driver) -> None:
    driver.send()
    remove(driver, f"ready:{TV}:0", "a")
    assert driver.claim() == []
    result = driver.call("sweep", limit=10)
    assert (result.replies[0].repaired, result.ready) == (1, [TV])
    assert driver.take().view.turn == 1


@pytest.mark.spec("R-SWEEP-1", "R-DELIVER-1")
def test_c11_a_lost_types_entry_comes_back_and_the_order_stays(driver: Driver) -> None:
    for name in ("c", "a", "b"):
        driver.send(name)
        driver.later(1)
    remove(driver, "types", TV)
    driver.later(1_000)
    repaired, _ = driver.sweep()
    assert repaired > 0
    assert TV in driver.state()["types"]
    assert [held.view.instance_id for held in driver.claim(3)] == ["c", "a", "b"]


@pytest.mark.spec("R-SWEEP-1")
def test_c11_a_lost_backoff_entry_comes_back(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    remove(driver, "due", "backoff:a")
    assert driver.sweep() == (1, 0)
    assert driver.due() == {"backoff:a": driver.now + 1_000}


@pytest.mark.spec("R-SWEEP-1", "R-SETTLE-1")
def test_c11_a_lost_backoff_entry_whose_time_has_come_is_settled(driver: Driver) -> None:
    driver.send()
    driver.take().fail()
    remove(driver, "due", "backoff:a")
    driver.later(1_000)
    driver.sweep()
    assert (driver.ready(), driver.due()) == (["a"], {})


@pytest.mark.spec("R-SWEEP-1", "R-WAKE-1")
def test_c11_a_lost_busy_entry_costs_no_wake_up(driver: Driver) -> None:
    """The sweep can't see it, and nothing else needs it: the turn goes on by its own entry."""
    driver.send("a", b"1")
    driver.send("a", b"2")
    remove(driver, "busy", f"{TV}:a")
    held = driver.take()
    held.fail()
    driver.later(1_000)
    driver.expire()
    driver.take().finish()
    driver.take().finish()
    assert driver.head() == ""


@pytest.mark.spec("R-SWEEP-1")
def test_what_is_wrongly_busy_is_removed(driver: Driver) -> None:
    driver.create("idle")
    for member in (f"{TV}:idle", f"{TV}:absent", "idle", ""):
        driver.redis.call("ZADD", f"{driver.tag}busy", 0, member)
    assert driver.sweep() == (4, 0)
    assert "busy" not in driver.state()


@pytest.mark.spec("R-SWEEP-1")
def test_the_sweep_invents_nothing(driver: Driver) -> None:
    """C-41: a repair that makes up ids or turns forks duplicates for ever."""
    for name in ("a", "b"):
        driver.send(name)
    driver.claim(1)[0].finish()
    for member in ("", "absent", f"{TV}:absent", f"{TV}:", "a", f"{TV}:a", "t:v2:b", "b"):
        driver.redis.call("ZADD", f"{driver.tag}busy", 0, member)
    driver.later(10**9)
    for _ in range(3):
        driver.sweep(dead="server01,")
        driver.expire()
    assert {key for key in driver.state() if key.startswith("i:")} == {"i:a", "i:b"}
    assert [driver.record(name).tail for name in ("a", "b")] == [1, 1]


@pytest.mark.spec("R-SWEEP-1")
def test_the_cursor_walks_everything_within_its_limit(driver: Driver) -> None:
    names = {f"i{number}" for number in range(300)}
    driver.call("send", items=[driver.message(name) for name in sorted(names)])
    for name in names:
        remove(driver, f"ready:{TV}:0", name)
    cursor, calls, repaired = "0", 0, 0
    while True:
        [reply] = driver.call("sweep", cursor=cursor, limit=20).replies
        assert reply.scanned < 200
        cursor, calls, repaired = reply.cursor, calls + 1, repaired + reply.repaired
        if cursor == "0":
            break
    assert calls > 3
    assert repaired == 300
    assert set(driver.ready()) == names


@pytest.mark.spec("R-SWEEP-2")
def test_leases_of_dead_servers_are_orphaned(driver: Driver) -> None:
    for name in ("a", "b", "c", "d"):
        driver.send(name)
    streams = ("dead1.1.1", "alive.1.1", "dead2.4.9", "dead1.1.1")
    first, second, third, fourth = [
        driver.take(name, conn=conn) for name, conn in zip("abcd", streams, strict=True)
    ]
    fourth.detach()
    assert driver.sweep(dead="dead1,dead2,dead", grace_ms=5_000) == (0, 2)
    assert [driver.record(name).orphaned for name in "abcd"] == [True, False, True, True]
    assert driver.record("d").deadline_ms == driver.now + DETACHED_MS, "as it was"
    driver.later(4_999)
    assert first.renew().word == "OK"
    driver.later(1)
    assert [reply.id for reply in driver.expire()] == ["c"]
    assert (second.renew().word, third.renew().how, fourth.renew().word) == ("OK", "lost", "OK")


@pytest.mark.spec("R-SWEEP-2", "R-EXPIRE-2")
def test_a_turn_the_dead_server_never_delivered_costs_no_attempt(driver: Driver) -> None:
    driver.send()
    driver.lease(conn="dead.1.1")
    driver.sweep(dead="dead", grace_ms=100)
    driver.later(100)
    assert [reply.outcome for reply in driver.expire()] == ["returned"]
    assert driver.record().lost == 0


@pytest.mark.spec("R-SWEEP-1")
def test_what_the_sweep_does_otherwise_counts_as_no_repair(driver: Driver) -> None:
    driver.send("a")
    driver.take("a").fail()
    driver.later(1_000)
    driver.send("b")
    assert driver.sweep() == (0, 0), "the delay was over: settling made the head ready"
    assert sorted(driver.ready()) == ["a", "b"]
    driver.claim(2)
    driver.redis.call("ZREM", f"{driver.tag}due", "lease:a")
    assert driver.sweep(dead="server01") == (0, 2), "orphaning gave the entry back"
    assert driver.due()["lease:a"] == driver.now + 300


@pytest.mark.spec("R-SWEEP-1")
def test_what_lists_failed_and_paused_instances_comes_back(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    driver.take("a").fail(final=True)
    driver.pause("b")
    before = driver.state()
    driver.redis.call("DEL", f"{driver.tag}failed", f"{driver.tag}paused")
    assert driver.sweep() == (2, 0)
    assert driver.state() == before


@pytest.mark.parametrize("member", ["~t:v1:idle", "~t:v1:nobody", "~t:v2:later", "~t:v1:queued"])
@pytest.mark.spec("R-SWEEP-1")
def test_what_is_wrongly_busy_for_delayed_messages_is_removed(driver: Driver, member: str) -> None:
    driver.create("idle")
    driver.send("queued")
    driver.send("later", b"1", delay_ms=1_000)
    before = driver.state()
    driver.redis.call("ZADD", f"{driver.tag}busy", 0, member)
    assert driver.sweep() == (1, 0)
    assert driver.state() == before
