"""What unfinished turns do and wait for, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pawl.payloads import Payload, decode

if TYPE_CHECKING:
    from pawl.errors import ServerError
    from pawl.models import Failure


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who acts, as stated by the caller: nothing checks it. Maps to Principal."""

    name: str = ""
    """At most 128 bytes of printable text; may be empty."""
    kind: str = "SERVICE"
    """"PERSON", "SERVICE" or "WORKER"; may grow. Empty if not stated."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is. Maps to Progress."""

    phase: str
    """What it does now, in plain words of 1 to 80 characters."""
    done: int
    """Units done in this phase."""
    total: int | None
    """Units of the phase in all; None if that is not known."""
    unit: str
    """What is counted, for example "pages"; may be empty."""


@dataclass(frozen=True, slots=True)
class ProgressView:
    """Progress of the turn that runs, and when it was made. Maps to ProgressView."""

    progress: Progress
    start_time: datetime | None
    """When the step was registered."""
    report_time: datetime | None
    """When it reported this."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A step that is registered with the server while it runs. Maps to Operation."""

    key: str
    kind: str
    """What it does: "model", "tool", "step" or another word."""
    position: int
    """Place that it will have in the turn, from 1."""
    attempt: int
    """Attempt that runs it, or ran it last."""
    active: bool
    """True while it runs; False once its attempt has ended."""
    start_time: datetime | None
    deadline: datetime | None
    """When the attempt fails unless the step is saved; only while active."""
    heartbeat_deadline: datetime | None
    """When the attempt fails unless it reports again; only while active, and if it has to."""
    sequence: int
    """Number of the newest report; 0 before the first."""
    report_time: datetime | None
    progress: Progress | None
    on_restart: str
    """"RETRY", or "PARK" if a lost attempt leaves the turn UNCERTAIN; may grow."""
    details_payload: Payload | None = field(repr=False)
    checkpoint_payload: Payload | None = field(repr=False)

    @property
    def details(self) -> Any:
        """Newest details for people, or None. Raises PayloadError if they can't be decoded."""
        return None if self.details_payload is None else decode(self.details_payload)

    @property
    def checkpoint(self) -> Any:
        """Where the next attempt can go on, or None. Raises PayloadError if it can't be decoded."""
        return None if self.checkpoint_payload is None else decode(self.checkpoint_payload)


@dataclass(frozen=True, slots=True)
class SignalWait:
    """What a turn waits for. Maps to SignalWait."""

    key: str
    """Key of the step that waits."""
    name: str
    """Name of the signal; empty for a callback."""
    callback: bool
    """True if it waits for a callback."""
    deadline: datetime | None
    """When the wait is over without a signal; None for never."""
    start_time: datetime | None
    callback_token: str = ""
    """What `resolve_callback` takes; only for a callback, and only by `Client.get_turn`."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal, or the result of a callback, that a turn received. Maps to Signal."""

    signal_id: str
    """Id given by the sender; empty for a callback."""
    name: str
    """Empty for a callback."""
    callback_key: str
    """Empty for a signal."""
    rejected: bool
    """True for a callback that was rejected."""
    receive_time: datetime | None
    sender: Principal
    consumed_position: int
    """Place of the step that consumed it, from 1; 0 while it is buffered."""
    failure: Failure | None
    """What the callback was rejected with, while it is buffered."""
    value_payload: Payload | None = field(repr=False)

    @property
    def value(self) -> Any:
        """What was sent, while it is buffered. Raises PayloadError if it can't be decoded."""
        return None if self.value_payload is None or self.rejected else decode(self.value_payload)


@dataclass(frozen=True, slots=True)
class Signalled:
    """Answer to a signal. Maps to SignalTurnResponse and SignalInstanceResponse."""

    instance_id: str
    turn: int
    """Turn that got it; one above the newest if the inbox was empty."""
    signal_id: str
    receive_time: datetime | None
    consumed_position: int
    """Place of the step that consumed it, from 1; 0 if it was buffered. As of the first execution."""


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """Answer to the result of a callback. Maps to ResolveCallbackResponse."""

    instance_id: str
    """Instance whose turn got it."""
    turn: int
    receive_time: datetime | None


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """How far `redrive_all_parked` has come, in totals. Maps to RedriveAllParkedResponse."""

    seen: int
    """Parked turns looked at."""
    redriven: int
    """Turns redriven or discarded."""
    skipped: int
    """Turns that the filter left out."""
    refused: int
    """Turns that could not be redriven now."""
    last_refusal: ServerError | None
    """Why the last of them was refused."""
    done: bool
    """True in the last one."""
