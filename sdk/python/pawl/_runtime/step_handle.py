"""What a step's function gets."""

from __future__ import annotations

import time
from typing import Any

from pawl._runtime.attempt import Attempt
from pawl._runtime.operation import Operation
from pawl._runtime.options import Options
from pawl._unset import UNSET
from pawl.context import Step
from pawl.effects import effect_id


class StepHandle(Step):
    """One run of one step."""

    __slots__ = ("_attempt", "_end", "_key", "_options", "_position")

    def __init__(self, attempt: Attempt, key: str, position: int, options: Options) -> None:
        self._attempt = attempt
        self._key = key
        self._position = position
        self._options = options
        self._end = time.monotonic() + options.timeout

    @property
    def key(self) -> str:
        return self._key

    @property
    def effect_id(self) -> str:
        turn = self._attempt.turn
        return effect_id(turn.namespace, turn.incarnation, turn.instance_id, turn.message_id, self._key)

    @property
    def attempt(self) -> int:
        return self._attempt.turn.attempt

    @property
    def fence(self) -> int:
        return self._attempt.turn.fence

    @property
    def cancelled(self) -> bool:
        attempt = self._attempt
        return attempt.ended is not None or attempt.cancelling or time.monotonic() > self._end

    @property
    def checkpoint(self) -> Any:
        return self._operation().checkpoint

    def heartbeat(self, details: Any = None, *, checkpoint: Any = UNSET) -> None:
        self._operation().heartbeat(details, checkpoint)

    def progress(self, phase: str, done: int = 0, total: int | None = None, *, unit: str = "") -> None:
        self._operation().progress(phase, done, total, unit)

    def _operation(self) -> Operation:
        return self._attempt.begin_step(self._key, self._position, self._options)
