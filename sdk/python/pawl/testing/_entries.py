"""Saved steps, and what waits receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pawl._convert import REJECTION
from pawl._runtime.suspend import CALLBACK_KIND, SIGNAL_KIND, SLEEP_KIND
from pawl.context import Received
from pawl.errors import CallbackRejected
from pawl.models import Failure, SavedStep
from pawl.payloads import Payload, encode
from pawl.v1.failure_pb2 import Failure as FailureMessage
from pawl.v1.step_pb2 import Step, WaitOutcome

RECEIVED: Final = WaitOutcome.WAIT_OUTCOME_RECEIVED
TIME_OVER: Final = WaitOutcome.WAIT_OUTCOME_TIMED_OUT
REJECTED: Final = WaitOutcome.WAIT_OUTCOME_REJECTED
_OUTCOMES: Final = {"RECEIVED": RECEIVED, "TIMED_OUT": TIME_OVER, "REJECTED": REJECTED}

STEP_KIND: Final = "step"
WAIT_KIND: Final = "wait"
"""Of a wait that was given by key: whether it is for a signal or a callback, the handler says."""


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


SLEPT: Final[Any] = _Marker("SLEPT")
"""Stands among the values of saved steps for a sleep that is over."""
TIMED_OUT: Final[Any] = _Marker("TIMED_OUT")
"""Stands for a wait whose time was over before anything was received."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A saved step."""

    key: str
    output: Payload | None
    """None for a sleep, and for a wait whose time was over."""
    kind: str = STEP_KIND
    """"step", "sleep", "signal", "callback" or WAIT_KIND."""
    outcome: WaitOutcome.ValueType = WaitOutcome.WAIT_OUTCOME_UNSPECIFIED
    """Of waits."""

    @property
    def is_wait(self) -> bool:
        """True for a wait, of whatever kind."""
        return self.kind in (WAIT_KIND, SIGNAL_KIND, CALLBACK_KIND)

    def step(self, position: int) -> Step:
        """The step as a server hands it out."""
        return Step(
            position=position,
            key=self.key,
            kind=SIGNAL_KIND if self.kind == WAIT_KIND else self.kind,
            output=self.output,
            attempt=1,
            wait_outcome=self.outcome,
        )


def payload_of(value: Any) -> Payload:
    """A value as it is stored; a Payload is taken as it is."""
    return value if isinstance(value, Payload) else encode(value)


def wait_entry(key: str, given: Any) -> Entry:
    """How a wait of this key ended, from what `waits` or `steps` say."""
    if isinstance(given, Received):
        given = given.value if given.received else TIMED_OUT
    if given is TIMED_OUT:
        return Entry(key, None, WAIT_KIND, TIME_OVER)
    if isinstance(given, CallbackRejected):
        given = given.failure
    if isinstance(given, Failure):
        return Entry(key, _rejection(given), WAIT_KIND, REJECTED)
    return Entry(key, payload_of(given), WAIT_KIND, RECEIVED)


def _rejection(failure: Failure) -> Payload:
    message = FailureMessage(reason=failure.reason, message=failure.message)
    if failure.details_payload is not None:
        message.details.CopyFrom(failure.details_payload)
    return Payload(encoding=REJECTION, data=message.SerializeToString())


def entries_of(steps: Mapping[str, Any] | Iterable[SavedStep] | None) -> Iterable[Entry]:
    """The saved steps that a test gave."""
    if steps is None:
        return
    if isinstance(steps, Mapping):
        values: Mapping[Any, Any] = steps
        for key, value in values.items():
            if value is SLEPT:
                yield Entry(key, None, SLEEP_KIND)
            elif value is TIMED_OUT or isinstance(value, Received | CallbackRejected | Failure):
                yield wait_entry(key, value)
            else:
                yield Entry(key, payload_of(value))
        return
    for step in steps:
        if step.kind == SLEEP_KIND:
            yield Entry(step.key, None, SLEEP_KIND)
        elif step.kind in (SIGNAL_KIND, CALLBACK_KIND):
            unknown = WaitOutcome.WAIT_OUTCOME_UNSPECIFIED
            yield Entry(step.key, step.output_payload, step.kind, _OUTCOMES.get(step.wait_outcome, unknown))
        else:
            yield Entry(step.key, step.output_payload)
