"""What counts as a step of Redis' clock, as a server sees it."""

from __future__ import annotations

import pytest

from pawl_server.background.beats import ClockWatch

REDIS_MS = 1_800_000_000_000


def answer(
    watch: ClockWatch, at: float, *, took: float = 0.001, redis_ms: float = 0.0, shift: int = 0
) -> bool:
    """An answer heard `took` s after a beat sent at `at` s, from a clock moved by `redis_ms`."""
    return watch.compare(round(REDIS_MS + (at + took) * 1000 + redis_ms), shift, at, at + took)


@pytest.mark.spec("R-CLOCK-4")
@pytest.mark.parametrize("stall", [0.25, 2.8, 60.0])
def test_a_stall_is_no_step(stall: float) -> None:
    watch = ClockWatch()
    assert not answer(watch, 0.0)
    assert not answer(watch, 1.0, took=stall)
    assert not answer(watch, 2.0 + stall)
    assert watch.step_ms == 0


@pytest.mark.spec("R-CLOCK-2", "R-CLOCK-4")
@pytest.mark.parametrize("step", [3_600_000, -3_600_000, 600, -600])
def test_a_step_is_found_by_the_next_quick_answer_and_reported_once(step: int) -> None:
    watch = ClockWatch()
    answer(watch, 0.0, shift=70)
    assert not answer(watch, 1.0, took=3.0, redis_ms=step), "a slow answer tells nothing"
    assert answer(watch, 5.0, redis_ms=step, shift=20)
    assert abs(watch.step_ms - step) <= 2
    assert watch.shift_seen == 70, "the comparison began before the step"
    assert not answer(watch, 5.1, redis_ms=step, shift=70 + step)
    assert (watch.step_ms, watch.shift_seen) == (0, 70 + step)
    assert not answer(watch, 6.1, redis_ms=step, shift=70 + step)


@pytest.mark.spec("R-CLOCK-4")
def test_a_report_whose_answer_is_slow_is_not_repeated() -> None:
    watch = ClockWatch()
    answer(watch, 0.0)
    assert answer(watch, 1.0, redis_ms=5_000)
    assert not answer(watch, 1.1, took=4.0, redis_ms=5_000, shift=5_000)
    assert not answer(watch, 6.0, redis_ms=5_000, shift=5_000)
    assert (watch.step_ms, watch.shift_seen) == (0, 5_000)


@pytest.mark.spec("R-CLOCK-2")
def test_a_clock_that_drifts_slowly_is_followed() -> None:
    watch = ClockWatch()
    assert not any(answer(watch, float(second), redis_ms=400.0 * second) for second in range(20))
