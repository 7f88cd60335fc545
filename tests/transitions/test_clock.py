"""Engine time in a real-time namespace: steps of Redis' clock, gaps in the beats, and what may end meanwhile.

Redis' clock can't be moved, but engine time is TIME - `shift`: changing `shift` by hand is as good.
Real milliseconds pass between two calls, so bounds here are wide.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.driver import Driver

SLACK_MS = 400
HOUR_MS = 3_600_000


class RealTime:
    """A partition in real time, watched by beats, whose clock the test moves."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        driver.set_meta(virtual=0)
        self.watched()

    def now(self) -> int:
        """Engine time."""
        return self.driver.call("poll").now_ms

    def step(self, ms: int) -> None:
        """Redis' clock jumps, and nobody has noticed yet."""
        self.driver.set_meta(shift=self.driver.meta("shift") - ms)

    def watched(self) -> None:
        """All the time until now was watched by beats."""
        self.driver.set_meta(seen=self.now())

    def passes(self, ms: int) -> None:
        """Time goes by, watched all along."""
        self.step(ms)
        self.watched()

    def beat(self, server: str = "s1", *, step_ms: int = 0, shift_seen: int | None = None) -> Any:
        """One beat; the comparison began under the present shift unless another is given."""
        shift_seen = self.driver.meta("shift") if shift_seen is None else shift_seen
        return self.driver.one("beat", server=server, name=server, step_ms=step_ms, shift_seen=shift_seen)


@pytest.fixture
def real(driver: Driver) -> RealTime:
    """Real time, without a correction so far."""
    return RealTime(driver)


@pytest.mark.spec("R-CLOCK-1")
def test_the_callers_time_counts_for_nothing(driver: Driver, real: RealTime) -> None:
    before = real.now()
    driver.now = 5
    driver.send()
    message = driver.turn(1).message
    assert message is not None
    assert before <= message.admitted_ms <= before + SLACK_MS
    driver.now = 10**15
    driver.lease()
    assert driver.expire() == []


@pytest.mark.spec("R-CLOCK-1", "R-EXPIRE-1")
def test_watched_time_ends_leases(driver: Driver, real: RealTime) -> None:
    driver.send()
    driver.take()
    real.passes(59_000)
    assert driver.expire() == []
    real.passes(1_000 + SLACK_MS)
    assert [reply.outcome for reply in driver.expire()] == ["expired"]


@pytest.mark.parametrize("seen", ["never", "long ago", "in the future"])
@pytest.mark.spec("R-EXPIRE-4")
def test_no_lease_ends_while_nobody_watched(driver: Driver, real: RealTime, seen: str) -> None:
    driver.send()
    held = driver.take()
    real.passes(100_000)
    now = real.now()
    driver.set_meta(seen={"never": 0, "long ago": now - 5_000, "in the future": now + 5_000}[seen])
    with driver.unchanged("due lease:a"):
        assert [(reply.word, *reply) for reply in driver.expire()] == [("HELD", "a")]
    assert now + 1_000 <= driver.due()["lease:a"] <= now + 1_000 + SLACK_MS
    assert held.finish().word == "OK"


@pytest.mark.parametrize(("lease_ms", "hold_ms"), [(60_000, 10_000), (3_000, 3_000)])
@pytest.mark.spec("R-EXPIRE-4")
def test_after_a_gap_holders_have_time_to_renew_first(
    driver: Driver, real: RealTime, lease_ms: int, hold_ms: int
) -> None:
    """A15: Redis was away for longer than the lease, and every worker is alive."""
    driver.put_type(lease_ms=lease_ms)
    for name in ("a", "b"):
        driver.send(name)
    alive, _ = (driver.take(name) for name in ("a", "b"))
    real.step(70_000)
    assert real.beat().gap_ms >= 70_000
    hold = driver.meta("hold")
    assert {(reply.word, reply.id) for reply in driver.expire()} == {("HELD", "a"), ("HELD", "b")}
    assert driver.due() == {"lease:a": hold + hold_ms, "lease:b": hold + hold_ms}
    assert alive.renew().word == "OK"
    real.passes(hold_ms - SLACK_MS - 500)
    driver.redis.call("ZADD", f"{driver.tag}due", 1, "lease:b")
    assert [reply.word for reply in driver.expire()] == ["HELD"], "an early entry is no reason either"
    assert alive.renew().word == "OK"
    real.passes(SLACK_MS + 700)
    fired = [reply for reply in driver.expire() if reply.word == "FIRED"]
    assert [(reply.id, reply.outcome) for reply in fired] == [("b", "expired")]
    assert driver.record("a").failures == 0


@pytest.mark.spec("R-EXPIRE-4")
def test_timers_and_claims_do_not_pause(driver: Driver, real: RealTime) -> None:
    driver.send("a")
    driver.take("a").fail(delay_ms=10_000)
    driver.send("b")
    real.step(70_000)
    real.beat()
    assert [(reply.kind, reply.outcome) for reply in driver.expire()] == [("backoff", "ready")]
    assert {held.view.instance_id for held in driver.claim(2)} == {"a", "b"}


@pytest.mark.spec("R-CLOCK-3")
def test_a_gap_of_up_to_two_seconds_begins_no_hold(driver: Driver, real: RealTime) -> None:
    for ms in (0, 500, 2_000 - SLACK_MS):
        real.step(ms)
        real.beat()
        assert driver.meta("hold") == 0
    real.step(2_100)
    reply = real.beat()
    assert reply.gap_ms > 2_000
    assert driver.meta("hold") == driver.meta("seen") > 0


@pytest.mark.parametrize("step", [HOUR_MS, -HOUR_MS, 900, -900], ids=["+1h", "-1h", "+0.9s", "-0.9s"])
@pytest.mark.spec("R-CLOCK-2")
def test_a_step_is_taken_out_of_engine_time(driver: Driver, real: RealTime, step: int) -> None:
    driver.send()
    held = driver.take()
    deadline = driver.due()["lease:a"]
    shift, expect = driver.meta("shift"), real.now()
    real.step(step)
    reply = real.beat(step_ms=step)
    assert abs(reply.stepped - step) <= SLACK_MS
    assert abs(real.now() - expect) <= SLACK_MS
    assert abs(driver.meta("shift") - shift) <= SLACK_MS, "as it was before the hand moved it"
    assert driver.meta("hold") == 0, "no gap: the time in between was watched"
    assert driver.expire() == []
    assert driver.due() == {"lease:a": deadline}
    assert held.finish().word == "OK"


@pytest.mark.parametrize("step", [HOUR_MS, -HOUR_MS])
@pytest.mark.spec("R-CLOCK-2", "R-EXPIRE-4")
def test_between_a_step_and_its_correction_no_lease_ends(driver: Driver, real: RealTime, step: int) -> None:
    driver.send()
    driver.take()
    driver.redis.call("ZADD", f"{driver.tag}due", 1, "lease:a")
    real.step(step)
    assert {reply.word for reply in driver.expire()} <= {"HELD", "STALE"}
    assert driver.head() == "RUNNING"


@pytest.mark.parametrize("step", [500, -500])
@pytest.mark.spec("R-CLOCK-2")
def test_a_small_difference_is_no_step(driver: Driver, real: RealTime, step: int) -> None:
    real.step(step)
    shift = driver.meta("shift")
    assert real.beat(step_ms=step).stepped == 0
    assert abs(driver.meta("shift")) <= abs(shift)


@pytest.mark.spec("R-CLOCK-2")
def test_two_servers_correct_one_step_once(driver: Driver, real: RealTime) -> None:
    shift = driver.meta("shift")
    real.step(HOUR_MS)
    seen = driver.meta("shift")
    assert real.beat("s1", step_ms=HOUR_MS, shift_seen=seen).stepped
    assert not real.beat("s2", step_ms=HOUR_MS, shift_seen=seen).stepped
    assert abs(driver.meta("shift") - shift) <= SLACK_MS


@pytest.mark.spec("R-CLOCK-2", "R-CLOCK-3")
def test_a_beat_between_a_step_and_its_report_does_no_lasting_harm(driver: Driver, real: RealTime) -> None:
    """The beat that finds a step has written `seen` and `hold` by the stepped clock."""
    for step in (HOUR_MS, -HOUR_MS):
        driver.set_meta(hold=0)
        expect = real.now()
        real.step(step)
        assert abs(real.beat().gap_ms) > HOUR_MS - SLACK_MS
        assert real.beat(step_ms=step).stepped == step
        assert abs(real.now() - expect) <= SLACK_MS
        assert abs(driver.meta("hold") - real.now()) <= SLACK_MS, "no lease ends, but not for an hour"
        assert abs(driver.meta("seen") - real.now()) <= SLACK_MS


@pytest.mark.spec("R-CLOCK-2")
def test_a_second_step_behind_a_corrected_one_is_taken_out_alone(driver: Driver, real: RealTime) -> None:
    shift = driver.meta("shift")
    real.step(HOUR_MS)
    seen = driver.meta("shift")
    real.beat("s1", step_ms=HOUR_MS, shift_seen=seen)
    real.step(2 * HOUR_MS)
    reply = real.beat("s2", step_ms=3 * HOUR_MS, shift_seen=seen - 2 * HOUR_MS)
    assert abs(reply.stepped - 2 * HOUR_MS) <= SLACK_MS
    assert abs(driver.meta("shift") - shift) <= SLACK_MS


@pytest.mark.spec("R-CLOCK-2")
def test_a_step_is_noticed_while_servers_give_another_one_back(driver: Driver, real: RealTime) -> None:
    """Each server changes `shift` between two beats of the other."""
    driver.set_meta(shift=HOUR_MS)
    known: dict[str, int] = {}
    for server in ("s1", "s2", "s1", "s2"):
        driver.set_meta(seen=real.now() - 1_000)
        reply = real.beat(server)
        known[server] = reply.shift
    seen = known["s1"]
    shift = driver.meta("shift")
    assert shift < seen < HOUR_MS
    real.step(HOUR_MS)
    reply = real.beat("s1", step_ms=HOUR_MS, shift_seen=seen - HOUR_MS)
    assert abs(reply.stepped - HOUR_MS) <= SLACK_MS
    assert abs(driver.meta("shift") - shift) <= SLACK_MS


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.spec("R-CLOCK-2")
def test_a_correction_is_given_back_slowly(driver: Driver, real: RealTime, sign: int) -> None:
    driver.set_meta(shift=sign * 120)
    given = []
    for _ in range(4):
        driver.set_meta(seen=real.now() - 1_200)
        shift = driver.meta("shift")
        reply = real.beat()
        assert reply.stepped == 0
        given.append(sign * (shift - driver.meta("shift")))
    assert given == [50, 50, 20, 0]


@pytest.mark.spec("R-CLOCK-2")
def test_many_beats_give_back_no_more_than_few(driver: Driver, real: RealTime) -> None:
    driver.set_meta(shift=10_000)
    start = real.now()
    driver.set_meta(seen=start)
    for number in range(50):
        real.beat(f"s{number}")
    elapsed = real.now() - start
    assert 0 <= 10_000 - driver.meta("shift") <= elapsed / 20


@pytest.mark.parametrize("cause", ["giving back", "a small step"])
@pytest.mark.spec("R-CLOCK-2", "R-DELIVER-1")
def test_engine_time_never_goes_back_by_a_little(driver: Driver, real: RealTime, cause: str) -> None:
    """Heads stay in the order in which they became ready."""
    driver.set_meta(shift=driver.meta("shift") - 10_000)
    driver.set_meta(seen=real.now() - 1_000)
    driver.send("z")
    real.step(5)
    real.beat()
    if cause == "a small step":
        real.step(-400)
    driver.send("a")
    assert [held.view.instance_id for held in driver.claim(2)] == ["z", "a"]


@pytest.mark.spec("R-CLOCK-2", "R-CLOCK-3")
def test_seen_never_goes_back_by_a_little(driver: Driver, real: RealTime) -> None:
    real.step(10)
    real.beat()
    seen = driver.meta("seen")
    real.step(-300)
    reply = real.beat("s2")
    assert driver.meta("seen") >= seen
    assert (reply.gap_ms >= 0, driver.meta("hold")) == (True, 0)


@pytest.mark.spec("R-CLOCK-2", "R-CLOCK-3")
def test_a_step_that_never_was_takes_seen_back_by_nothing(driver: Driver, real: RealTime) -> None:
    real.beat()
    seen = driver.meta("seen")
    assert real.beat("s2", step_ms=1_500).stepped == 1_500
    assert driver.meta("seen") >= seen


@pytest.mark.spec("R-CLOCK-2")
def test_a_step_that_was_taken_out_and_partly_given_back_is_no_step(driver: Driver, real: RealTime) -> None:
    real.step(HOUR_MS)
    seen = driver.meta("shift")
    real.beat("s1", step_ms=HOUR_MS, shift_seen=seen)
    driver.set_meta(shift=driver.meta("shift") - 100)
    assert real.beat("s2", step_ms=HOUR_MS, shift_seen=seen).stepped == 0


@pytest.mark.spec("R-CLOCK-1")
def test_virtual_time_is_never_corrected(driver: Driver) -> None:
    assert driver.one("beat", server="s1", name="n").word == "OK"
    driver.later(HOUR_MS)
    reply = driver.one("beat", server="s1", name="n", step_ms=HOUR_MS)
    assert (reply.stepped, reply.shift, driver.meta("seen")) == (0, 0, driver.now)


@pytest.mark.spec("R-CLOCK-1")
def test_virtual_time_goes_where_the_caller_says(driver: Driver) -> None:
    driver.one("beat", name="a")
    assert driver.meta("seen") == driver.now
    driver.later(-1_000)
    assert driver.call("claim", items=[{"tv": "t:v1", "limit": 1}]).now_ms == driver.now
