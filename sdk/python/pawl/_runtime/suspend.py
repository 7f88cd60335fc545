"""A handler that asked its turn to sleep is unwound by this exception."""

from __future__ import annotations

import math
from datetime import timedelta

from pawl._convert import seconds_of
from pawl.errors import MAX_DELAY, AttemptEnded
from pawl.v1.worker_service_pb2 import Sleep

SLEEP_KIND = "sleep"
"""Kind of the steps that are sleeps."""
_MIN_S = 0.001


class Suspended(AttemptEnded):
    """The turn is to sleep; `sleep` is the command that says so."""

    def __init__(self, sleep: Sleep) -> None:
        super().__init__(f"the turn sleeps: {sleep.key}")
        self.sleep = sleep


def sleep_of(key: str, duration: float | timedelta) -> Sleep:
    """Builds the command. Raises ValueError for a duration out of range."""
    seconds = seconds_of(duration)
    if not 0 <= seconds <= MAX_DELAY or math.isnan(seconds):
        raise ValueError(f"the duration of sleep {key!r} must be 0 s to 365 days, not {duration!r}")
    sleep = Sleep(key=key)
    sleep.duration.FromTimedelta(timedelta(seconds=max(seconds, _MIN_S)))
    return sleep
