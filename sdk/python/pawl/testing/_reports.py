"""What steps report while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pawl._runtime.attempt import Attempt
from pawl._runtime.operation import Operation
from pawl._unset import UNSET


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A call of `step.progress`."""

    key: str
    """Key of the step."""
    phase: str
    done: int
    total: int | None
    unit: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A call of `step.heartbeat`."""

    key: str
    """Key of the step."""
    details: Any
    """The object that was given, or None."""
    checkpoint: Any
    """What `step.checkpoint` gives from then on."""


class RecordingOperation(Operation):
    """Keeps every report that is in range, also those that newer ones replace before they are sent."""

    def heartbeat(self, details: Any, checkpoint: Any = UNSET) -> None:
        super().heartbeat(details, checkpoint)
        self._keep(Heartbeat(self.key, details, self.checkpoint))

    def progress(self, phase: Any, done: Any, total: Any, unit: Any) -> None:
        super().progress(phase, done, total, unit)
        self._keep(ProgressReport(self.key, phase, done, total, unit))

    def _keep(self, report: ProgressReport | Heartbeat) -> None:
        host: Any = self.attempt.host
        host.played.reports.append(report)


class RecordingAttempt(Attempt):
    """An attempt whose steps report to its host's `played`."""

    __slots__ = ()
    operations = RecordingOperation
