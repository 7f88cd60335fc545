"""renew, adopt, orphan, release: who holds the head, and until when."""

from __future__ import annotations

import pytest

from tests.support.driver import DETACHED_MS, Driver
from tests.support.lua_harness import changes

LEASE_MS = 60_000


def left(driver: Driver, name: str = "a") -> int:
    """Milliseconds until the lease runs out."""
    return driver.record(name).deadline_ms - driver.now


@pytest.mark.spec("R-LEASE-3")
def test_the_first_renewal_accepts_and_starts_the_attempt(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    before = driver.state()
    reply = held.renew()
    assert (reply.word, reply.remaining_ms) == ("OK", LEASE_MS)
    assert set(changes(before, driver.state())) == {"i:a r", "e:a", "due lease:a"}
    record = driver.record()
    assert (record.accepted, record.attempt) == (True, 1)
    assert driver.events()[-1][:4] == ("ATTEMPT_STARTED", 1, 1, "RUNNING")


@pytest.mark.spec("R-LEASE-4")
def test_a_renewal_writes_only_when_less_than_two_thirds_are_left(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    driver.later(LEASE_MS // 3)
    with driver.unchanged():
        assert held.renew().remaining_ms == LEASE_MS * 2 // 3
    driver.later(1)
    assert held.renew().remaining_ms == LEASE_MS
    assert driver.due()["lease:a"] == driver.now + LEASE_MS


@pytest.mark.spec("R-LEASE-4")
def test_no_sign_of_life_goes_beyond_the_attempt_timeout(driver: Driver) -> None:
    driver.put_type(lease_ms=60_000, attempt_timeout_ms=90_000)
    driver.send()
    held = driver.take()
    driver.later(50_000)
    assert held.renew().remaining_ms == 40_000
    driver.later(40_000)
    assert held.renew().remaining_ms == 0
    assert held.checkpoint().word == "OK", "valid until something ends it"
    driver.later(60_000)
    assert held.renew().remaining_ms == 0
    assert [reply.outcome for reply in driver.expire()] == ["expired"]
    assert driver.events()[-1].detail == "ATTEMPT_TIMEOUT"


@pytest.mark.spec("R-LEASE-5")
def test_a_deadline_is_not_an_end(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("b", b"1")
    driver.send("c", b"1")
    first, second, third = driver.claim(3)
    driver.later(24 * 3_600_000)
    assert first.finish().word == "OK"
    assert second.renew().word == "OK"
    assert third.fail().word == "OK"


@pytest.mark.spec("R-LEASE-6")
def test_renewals_are_judged_one_by_one(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    first, second, third = driver.claim(3)
    second.release()
    third.finish()
    absent = {**first.lease, "id": "absent"}
    stale = {**first.lease, "fence": 99}
    other_life = {**first.lease, "inc": 99}
    ahead = {**first.lease, "turn": 2}
    leases = [first.lease, second.lease, third.lease, absent, stale, other_life, ahead, first.lease]
    replies = driver.call("renew", items=leases).replies
    assert [(reply.word, *reply) for reply in replies] == [
        ("OK", LEASE_MS, 0), ("LEASE_ENDED", "released"), ("LEASE_ENDED", "completed"), ("NOT_FOUND",),
        ("STALE_FENCE",), ("STALE_FENCE",), ("STALE_FENCE",), ("OK", LEASE_MS, 0),
    ]  # fmt: skip
    assert driver.event_names().count("ATTEMPT_STARTED") == 1


@pytest.mark.parametrize(
    ("end", "how"),
    [("fail", "failed"), ("release", "released"), ("finish", "completed"), ("time", "expired")],
)
@pytest.mark.spec("R-LEASE-6")
def test_no_renewal_brings_back_a_lease_that_ended(driver: Driver, end: str, how: str) -> None:
    driver.send()
    held = driver.take()
    if end == "time":
        driver.later(LEASE_MS)
        driver.expire()
    else:
        getattr(held, end)()
    with driver.unchanged():
        for reply in (held.renew(), held.detach(), held.adopt("s.9.9"), held.orphan()):
            assert (reply.word, reply.how) == ("LEASE_ENDED", how)


@pytest.mark.spec("R-LEASE-6")
def test_the_end_of_the_lease_before_is_still_known(driver: Driver) -> None:
    driver.send()
    first = driver.take()
    first.release()
    second = driver.take()
    with driver.unchanged():
        assert first.renew().how == "released"
    second.release()
    driver.take()
    with driver.unchanged():
        assert first.renew().word == "STALE_FENCE"


@pytest.mark.spec("R-LEASE-6", "R-LEASE-8")
def test_a_detached_lease_survives_the_end_of_its_stream(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    assert held.detach().word == "OK"
    assert driver.record().conn == 0
    with driver.unchanged():
        assert held.orphan().word == "SUPERSEDED"
        assert held.detach().word == "OK"
    assert held.adopt("s.1.1").word == "OK"
    assert (left(driver), driver.record().orphaned) == (LEASE_MS, False)


@pytest.mark.spec("R-LEASE-10", "R-EXPIRE-3")
def test_a_detached_lease_that_runs_out_is_lost(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    assert held.detach().remaining_ms == DETACHED_MS
    driver.later(DETACHED_MS - 1)
    assert held.detach().remaining_ms == DETACHED_MS, "and lasts while its worker says so"
    driver.later(DETACHED_MS)
    assert [reply.outcome for reply in driver.expire()] == ["lost"]
    assert (driver.record().failures, driver.record().lost) == (0, 1)


@pytest.mark.spec("R-LEASE-10")
def test_detaching_never_lengthens_a_lease(driver: Driver) -> None:
    driver.put_type(lease_ms=1_000, attempt_timeout_ms=5_000)
    driver.send()
    held = driver.take()
    assert held.detach().remaining_ms == 1_000
    driver.later(4_500)
    assert held.detach().remaining_ms == 500, "nor beyond the attempt timeout"


@pytest.mark.spec("R-LEASE-3", "R-LEASE-10")
def test_detaching_receives_and_starts_the_attempt(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    before = driver.state()
    assert held.detach().word == "OK"
    assert set(changes(before, driver.state())) == {"i:a r", "e:a", "due lease:a"}
    record = driver.record()
    assert (record.accepted, record.orphaned, record.attempt) == (True, True, 1)


@pytest.mark.spec("R-LEASE-10")
@pytest.mark.parametrize(("ordinal", "detached"), [(0, True), (4, True), (3, True), (2, False)])
def test_a_detach_parts_no_lease_from_a_later_decision(driver: Driver, ordinal: int, detached: bool) -> None:
    driver.send()
    held = driver.take(conn="s.3.7")
    driver.later(LEASE_MS // 2)
    reply = held.detach(ordinal)
    assert reply.word == "OK"
    if detached:
        assert (driver.record().conn, reply.remaining_ms) == (0, DETACHED_MS)
    else:
        assert (driver.record().conn, reply.remaining_ms) == (b"s.3.7", LEASE_MS), "it is a sign of life"
    held.detach(ordinal)
    assert driver.record().orphaned is detached


@pytest.mark.spec("R-LEASE-7")
def test_adoption_moves_to_the_highest_ordinal(driver: Driver) -> None:
    driver.send()
    held = driver.take(conn="s1.3.7")
    with driver.unchanged():
        assert held.adopt("s2.2.1").word == "SUPERSEDED"
    assert held.adopt("s2.3.1").word == "OK"
    assert held.adopt("s3.10.1").word == "OK"
    assert driver.record().conn == b"s3.10.1"
    with driver.unchanged():
        assert held.adopt("s2.3.1").word == "SUPERSEDED"
        assert held.adopt("s3.10.1").word == "OK"


@pytest.mark.spec("R-LEASE-3", "R-LEASE-7")
def test_adoption_receives_and_renews(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    reply = held.adopt("s.2.1")
    assert (reply.word, reply.remaining_ms) == ("OK", LEASE_MS)
    assert driver.event_names()[-1] == "ATTEMPT_STARTED"
    driver.later(30_000)
    assert held.adopt("s.3.1").remaining_ms == LEASE_MS


def test_a_lease_that_is_not_there_cannot_be_moved_or_shortened(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    stale = {**held.lease, "fence": held.fence + 1}
    absent = {**held.lease, "id": "absent"}
    with driver.unchanged():
        for script in ("adopt", "orphan"):
            assert driver.one(script, **stale).word == "STALE_FENCE"
            assert driver.one(script, **absent).word == "NOT_FOUND"


@pytest.mark.spec("R-LEASE-8")
def test_orphaning_shortens_the_deadline_to_the_grace(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    reply = held.orphan(grace_ms=700)
    assert (reply.word, reply.deadline_ms) == ("OK", driver.now + 700)
    assert driver.due()["lease:a"] == driver.now + 700
    assert driver.record().orphaned
    driver.later(100)
    with driver.unchanged():
        assert held.orphan(grace_ms=700).deadline_ms == driver.now + 600, "never later"


@pytest.mark.spec("R-LEASE-8")
def test_orphaning_never_lengthens(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    driver.later(4_900)
    assert held.orphan(grace_ms=5_000).deadline_ms == driver.now + 100


@pytest.mark.spec("R-LEASE-3", "R-LEASE-8")
def test_orphaning_carries_what_the_stream_had_received(driver: Driver) -> None:
    driver.send("a")
    driver.send("b")
    received, lost = driver.claim(2)
    assert received.orphan(accepted=True).word == "OK"
    assert lost.orphan(accepted=False).word == "OK"
    assert (driver.record("a").attempt, driver.record("b").attempt) == (1, 0)
    driver.later(300)
    assert [(reply.id, reply.outcome) for reply in driver.expire()] == [("a", "lost"), ("b", "returned")]
    assert (driver.record("a").lost, driver.record("b").lost) == (1, 0)


@pytest.mark.parametrize("sign", ["renew", "adopt", "checkpoint"])
@pytest.mark.spec("R-LEASE-8", "R-FAIL-4")
def test_any_sign_of_life_restores_an_orphaned_lease(driver: Driver, sign: str) -> None:
    driver.send()
    held = driver.take()
    held.orphan()
    driver.later(299)
    signs = {
        "renew": held.renew,
        "adopt": lambda: held.adopt("s.2.1"),
        "checkpoint": held.checkpoint,
    }
    assert signs[sign]().word == "OK"
    assert not driver.record().orphaned
    assert left(driver) == LEASE_MS
    driver.later(1_000)
    assert driver.expire() == []
    assert driver.event_names().count("ATTEMPT_STARTED") == 1


@pytest.mark.parametrize("refused", ["repeat", "old", "gap", "conflict", "limit", "saved", "finish_limit"])
@pytest.mark.spec("R-LEASE-4", "R-LEASE-8")
def test_a_refused_or_repeated_command_is_a_sign_of_life_too(driver: Driver, refused: str) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    held.checkpoint("two")
    held.orphan()
    driver.later(200)
    calls = {
        "repeat": (lambda: held.checkpoint("two", n=2), "OK"),
        "old": (lambda: held.checkpoint("one", n=1), "ALREADY"),
        "gap": (lambda: held.checkpoint("four", n=4), "GAP"),
        "conflict": (lambda: held.checkpoint("2", n=2), "BODY_CONFLICT"),
        "limit": (lambda: held.checkpoint("three", b"123", limits={"max_step": 2}), "LIMIT_EXCEEDED"),
        "saved": (lambda: held.checkpoint("one"), "WRONG_STATE"),
        "finish_limit": (lambda: held.finish(b"123", limits={"max_reply": 2}), "LIMIT_EXCEEDED"),
    }
    call, word = calls[refused]
    assert call().word == word
    assert (driver.record().orphaned, left(driver)) == (False, LEASE_MS)


@pytest.mark.parametrize("refused", ["gap", "limit", "finish_limit"])
@pytest.mark.spec("R-LEASE-3")
def test_a_refused_first_command_receives_the_delivery(driver: Driver, refused: str) -> None:
    driver.send()
    held = driver.lease()
    calls = {
        "gap": lambda: held.checkpoint("two", n=2),
        "limit": lambda: held.checkpoint("one", b"123", limits={"max_step": 2}),
        "finish_limit": lambda: held.finish(b"123", limits={"max_reply": 2}),
    }
    assert calls[refused]().word in ("GAP", "LIMIT_EXCEEDED")
    assert (driver.record().accepted, left(driver)) == (True, LEASE_MS)
    driver.later(5_000)
    assert driver.expire() == []


@pytest.mark.spec("R-LEASE-9", "R-FAIL-4")
def test_a_release_gives_the_turn_back_without_an_attempt(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.checkpoint("one")
    driver.later(10)
    before = driver.state()
    assert held.release().word == "OK"
    assert set(changes(before, driver.state())) == {
        "i:a r", "e:a", "due lease:a", "ready:t:v1:0 a", "types t:v1",
    }  # fmt: skip
    assert driver.events()[-1][:4] == ("TURN_RELEASED", 1, 1, "QUEUED")
    again = driver.take()
    assert (again.view.attempt, [step.key for step in again.view.steps]) == (1, ["one"])
    assert driver.event_names().count("ATTEMPT_STARTED") == 1, "the attempt goes on"
    assert driver.record().attempt == 1


# A5: every order in which a lost stream, its worker and the timers can meet.


@pytest.mark.spec("R-LEASE-7", "R-LEASE-8")
def test_a5_adopted_elsewhere_before_the_old_server_notices(driver: Driver) -> None:
    driver.send()
    held = driver.take(conn="s1.1.1")
    assert held.adopt("s2.2.1").word == "OK"
    with driver.unchanged():
        assert held.orphan("s1.1.1", accepted=True).word == "SUPERSEDED"


@pytest.mark.spec("R-LEASE-7", "R-LEASE-8")
def test_a5_orphaned_then_adopted_within_the_grace(driver: Driver) -> None:
    driver.send()
    held = driver.take(conn="s1.1.1")
    held.orphan("s1.1.1")
    driver.later(299)
    assert held.adopt("s2.2.1").word == "OK"
    driver.later(1)
    assert driver.expire() == []
    with driver.unchanged():
        assert held.orphan("s1.1.1").word == "SUPERSEDED"


@pytest.mark.spec("R-LEASE-7", "R-EXPIRE-3")
def test_a5_expired_then_adopted_is_too_late(driver: Driver) -> None:
    driver.send()
    held = driver.take(conn="s1.1.1")
    held.orphan("s1.1.1")
    driver.later(300)
    driver.expire()
    reply = held.adopt("s2.2.1")
    assert (reply.word, reply.how) == ("LEASE_ENDED", "lost")


@pytest.mark.spec("R-LEASE-8")
def test_a5_the_finish_was_under_way_when_the_stream_closed(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.finish()
    reply = held.orphan()
    assert (reply.word, reply.how) == ("LEASE_ENDED", "completed")


@pytest.mark.spec("R-LEASE-8")
def test_a5_the_finish_comes_after_the_orphaning(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    held.orphan()
    driver.later(10_000)
    assert held.finish().word == "OK", "the lease was shortened, not ended"


@pytest.mark.spec("R-LEASE-8")
def test_a5_the_server_dies_in_the_grace_and_another_fires_the_timer(driver: Driver) -> None:
    driver.send()
    driver.take().orphan()
    driver.later(300)
    driver.server = "server02"
    assert [reply.outcome for reply in driver.expire()] == ["lost"]


@pytest.mark.spec("R-LEASE-6", "R-LEASE-8")
def test_detach_and_orphan_in_both_orders(driver: Driver) -> None:
    driver.send("a")
    driver.send("b")
    first, second = driver.claim(2)
    first.detach()
    assert first.orphan(accepted=True).word == "SUPERSEDED"
    second.orphan(accepted=True)
    assert second.detach().remaining_ms == DETACHED_MS, "longer than the grace of its stream"
    driver.later(DETACHED_MS - 1)
    assert driver.expire() == []
    assert [driver.record(name).lost for name in ("a", "b")] == [0, 0]
