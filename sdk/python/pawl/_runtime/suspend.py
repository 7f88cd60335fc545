"""A handler that asked its turn to sleep or to wait is unwound by this exception."""

from __future__ import annotations

import math
from datetime import timedelta

from pawl._convert import seconds_of
from pawl.errors import MAX_DELAY, AttemptEnded
from pawl.v1.worker_service_pb2 import Sleep, WaitSignal

SLEEP_KIND, SIGNAL_KIND, CALLBACK_KIND = "sleep", "signal", "callback"
"""Kinds of the steps that are sleeps and waits."""
KINDS = {SLEEP_KIND: "a sleep", SIGNAL_KIND: "a wait for a signal", CALLBACK_KIND: "a wait for a callback"}
_MIN_S = 0.001


class Suspended(AttemptEnded):
    """The turn is to sleep, as the command `sleep` says; or, if that is None, it waits already."""

    def __init__(self, key: str, sleep: Sleep | None = None) -> None:
        super().__init__(f"the turn {'waits' if sleep is None else 'sleeps'}: {key}")
        self.sleep = sleep


def sleep_of(key: str, duration: float | timedelta) -> Sleep:
    """Builds the command. Raises ValueError for a duration out of range."""
    seconds = seconds_of(duration)
    if not 0 <= seconds <= MAX_DELAY or math.isnan(seconds):
        raise ValueError(f"the duration of sleep {key!r} must be 0 s to 365 days, not {duration!r}")
    sleep = Sleep(key=key)
    sleep.duration.FromTimedelta(timedelta(seconds=max(seconds, _MIN_S)))
    return sleep


def wait_of(key: str, timeout: float | timedelta | None, *, name: str = "", callback: str = "") -> WaitSignal:
    """Builds the command. Raises ValueError for a timeout out of range."""
    wait = WaitSignal(key=key, name=name, callback_key=callback)
    if timeout is not None:
        seconds = seconds_of(timeout)
        if not 0 <= seconds <= MAX_DELAY or math.isnan(seconds):
            raise ValueError(f"the timeout of wait {key!r} must be 0 s to 365 days, not {timeout!r}")
        wait.timeout.FromTimedelta(timedelta(seconds=max(seconds, _MIN_S)))
    return wait
