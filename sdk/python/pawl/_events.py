"""What happened to instances, as values, and how it is read off the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pawl._convert import principal_of, time_of
from pawl._running import Principal
from pawl.v1 import event_pb2, event_service_pb2, instance_pb2, step_pb2, turn_pb2


@dataclass(frozen=True, slots=True)
class EventCursor:
    """A place in the ledger of an instance: behind an event. Maps to Cursor."""

    seq: int
    """Number of the event; 0 is in front of the oldest one that is kept."""
    gen: int = 0
    """Generation of the store in which it was written; 0 takes any."""
    incarnation: int = 0
    """Life of the instance id; 0 takes any."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to an instance. Order by `seq`, never by `time`. Maps to Event."""

    instance_id: str
    incarnation: int
    seq: int
    """Number of the event, from 1 without gaps."""
    gen: int
    time: datetime | None
    type: str
    """For example "TURN_ADMITTED", "STEP_SAVED" or "TURN_COMPLETED"; empty if newer than this SDK."""
    actor: str
    """Who caused it: "CLIENT", "WORKER", "OPERATOR" or "SERVER"; may grow."""
    turn: int
    """Turn that it is about; 0 for none."""
    attempt: int
    turn_state: str
    """State of the turn after it; empty without a turn."""
    status: str
    """Status of the instance after it."""
    reason: str = ""
    """Why, of what failed, was lost or put off."""
    comment: str = ""
    """Text of a control call."""
    key: str = ""
    """Key of the step that was saved, sleeps, waits, was registered, may have happened or was resolved."""
    position: int = 0
    """Of STEP_SAVED: place of the step in the turn, from 1."""
    delay: timedelta | None = None
    """Of TURN_SLEEPING, TURN_DEFERRED and MESSAGE_SCHEDULED: how long."""
    message_id: str = ""
    """Of MESSAGE_SCHEDULED and MESSAGE_CANCELLED."""
    new_turn: int = 0
    """Of TURN_REDRIVEN: the turn that the message became; 0 if it was dropped."""
    name: str = ""
    """Of TURN_WAITING and SIGNAL_RECEIVED: name of the signal; empty for a callback."""
    signal_id: str = ""
    """Of SIGNAL_RECEIVED: id given by the sender; empty for a callback."""
    callback_key: str = ""
    """Of SIGNAL_RECEIVED: key of the callback; empty for a signal."""
    sender: Principal | None = None
    """Of SIGNAL_RECEIVED: who sent it."""
    timeout: timedelta | None = None
    """Of TURN_WAITING: how long at most; None for any time."""
    kind: str = ""
    """Of OPERATION_STARTED: what the step does."""
    decision: str = ""
    """Of STEP_RESOLVED: "SAVE", "RETRY" or "FAIL"; may grow."""

    @property
    def cursor(self) -> EventCursor:
        """The place behind this event."""
        return EventCursor(self.seq, self.gen, self.incarnation)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Part of a ledger. Maps to ListEventsResponse."""

    items: list[Event]
    next: EventCursor
    """Behind everything that was looked at: where the next page begins."""
    last_seq: int
    """Number of the newest event."""
    oldest_seq: int
    """Number of the oldest event that is kept."""


@dataclass(frozen=True, slots=True)
class NamespaceEvent:
    """An event of any instance. Maps to NamespaceEvent."""

    event: Event
    workflow_type: str
    cursor: str
    """Where to go on behind it. Empty while others follow that came together with it."""


def event_of(message: event_pb2.Event) -> Event:
    """Converts an event."""
    kind = message.WhichOneof("detail")
    return Event(
        instance_id=message.instance_id,
        incarnation=message.incarnation,
        seq=message.seq,
        gen=message.gen,
        time=time_of(message.time),
        type=kind.upper() if kind else "",
        actor=_word(event_pb2.Actor, message.actor, "ACTOR_"),
        turn=message.turn,
        attempt=message.attempt,
        turn_state=_word(turn_pb2.TurnState, message.turn_state, "TURN_STATE_"),
        status=_word(instance_pb2.InstanceStatus, message.status, "INSTANCE_STATUS_"),
        **(_details(getattr(message, kind)) if kind else {}),
    )


def _details(detail: Any) -> dict[str, Any]:
    """Gives the fields of an event's detail that this SDK knows, as values."""
    given: dict[str, Any] = {}
    for name in detail.DESCRIPTOR.fields_by_name:
        if name in _SPANS:
            if detail.HasField(name) or name != "timeout":
                given[_SPANS[name]] = getattr(detail, name).ToTimedelta()
        elif name == "sender":
            given[name] = principal_of(detail.sender)
        elif name == "decision":
            given[name] = _word(step_pb2.StepDecision, detail.decision, "STEP_DECISION_")
        elif name in _PLAIN:
            given[name] = getattr(detail, name)
    return given


_SPANS = {"delay": "delay", "duration": "delay", "timeout": "timeout"}
_PLAIN = frozenset(
    (
        *("reason", "comment", "key", "position", "message_id", "new_turn"),
        *("name", "signal_id", "callback_key", "kind"),
    )
)


def _word(enum: Any, value: int, prefix: str) -> str:
    if not value:
        return ""
    return enum.Name(value).removeprefix(prefix) if value in enum.values() else str(value)


def cursor_of(message: event_service_pb2.Cursor) -> EventCursor:
    """Converts a place."""
    return EventCursor(message.seq, message.gen, message.incarnation)


def cursor_message(cursor: EventCursor | None) -> event_service_pb2.Cursor | None:
    """Converts a place to its message."""
    if cursor is None:
        return None
    return event_service_pb2.Cursor(seq=cursor.seq, gen=cursor.gen, incarnation=cursor.incarnation)


def page_of(message: event_service_pb2.ListEventsResponse) -> EventPage:
    """Converts a part of a ledger."""
    return EventPage(
        [event_of(item) for item in message.events],
        cursor_of(message.next),
        message.last_seq,
        message.oldest_seq,
    )


def types_of(names: Iterable[str]) -> list[event_pb2.EventType.ValueType]:
    """Converts names of event types. Raises ValueError for one that this SDK does not know."""
    known = dict(event_pb2.EventType.items())
    numbers: list[event_pb2.EventType.ValueType] = []
    for name in names:
        if not (number := known.get(f"EVENT_TYPE_{name}")):
            raise ValueError(f"{name!r} is no type of event")
        numbers.append(number)
    return numbers
