"""Events of one instance: read from its ledger, and made into messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pawl.v1.event_pb2 import Actor, Event, EventType
from pawl.v1.event_service_pb2 import Cursor
from pawl_server.domain.errors import NotFound, Reason, Refused
from pawl_server.domain.times import duration, timestamp
from pawl_server.store import scripts_gen
from pawl_server.store.client import PartitionHandle
from pawl_server.store.records import LedgerEvent, ledger_event
from pawl_server.store.scripts_gen import ListEventsCompacted, ListEventsOk, ListEventsRewound

FROM_NOW = Cursor(seq=-1)
"""Place behind the newest event."""

WHOLE = 1_000
"""More events than a ledger keeps."""


class Page(NamedTuple):
    """Part of a ledger: `events` after the place asked for, and the ledger's ends."""

    incarnation: int
    events: list[LedgerEvent]
    last_seq: int
    last_gen: int
    """Generation of the newest event."""
    oldest_seq: int
    status: int
    """Status of the instance; the newest event says the same."""


class Compacted(Refused):
    """Events after the place were trimmed; `incarnation` is the present life."""

    def __init__(self, instance_id: str, oldest_seq: int, incarnation: int) -> None:
        super().__init__(
            Reason.COMPACTED,
            f"events of {instance_id} before {oldest_seq} were trimmed",
            {"oldest_seq": str(oldest_seq)},
        )
        self.incarnation = incarnation


async def read(
    partition: PartitionHandle,
    instance_id: str,
    after: Cursor,
    *,
    limit: int = WHOLE,
    followed: bool = False,
    now_ms: int = 0,
) -> Page:
    """Reads events after a place.

    `followed` says that the instance was followed up to there until now: one that is gone by then was either
    deleted, or lost with a generation. Raises NotFound, Compacted, Refused(REWOUND), StoreError.
    """
    result = await scripts_gen.list_events(
        partition,
        now_ms=now_ms,
        id=instance_id,
        incarnation=after.incarnation,
        seq=after.seq,
        gen=after.gen,
        limit=limit,
        followed=followed,
    )
    match result.replies[0]:
        case ListEventsOk() as ok:
            events = [ledger_event(raw) for raw in ok.events]
            return Page(ok.incarnation, events, ok.last_seq, ok.last_gen, ok.oldest_seq, ok.status)
        case ListEventsCompacted(oldest_seq=oldest, incarnation=life):
            raise Compacted(instance_id, oldest, life)
        case ListEventsRewound(last_seq=last, gen=gen):
            raise Refused(
                Reason.REWOUND,
                f"the store lost event {after.seq} of {instance_id}; its ledger ends at {last}",
                {"last_seq": str(last), "gen": str(gen)},
            )
    raise NotFound("instance", instance_id)


def event_message(instance_id: str, incarnation: int, record: LedgerEvent) -> Event:
    """The message of an event. A type that this server does not know has no detail."""
    event = Event(
        instance_id=instance_id,
        incarnation=incarnation,
        seq=record.seq,
        gen=record.gen,
        time=timestamp(record.time_ms),
        turn=record.turn,
        attempt=record.attempt,
        turn_state=record.state,  # pyright: ignore[reportArgumentType]
        status=record.status,  # pyright: ignore[reportArgumentType]
    )
    kind = _KINDS.get(record.type)
    if kind is not None:
        event.actor = kind.actor
        detail = getattr(event, kind.field)
        detail.SetInParent()
        if kind.fill is _comment and record.detail == _BY_POLICY:
            event.actor = Actor.ACTOR_SERVER
        elif kind.fill is not None and record.detail:
            kind.fill(detail, record.detail)
        elif record.type == EventType.EVENT_TYPE_TURN_ADMITTED and record.detail:
            event.actor = _ADMITTED_BY.get(record.detail, kind.actor)
    return event


_BY_POLICY = 1
"""Detail, in place of a comment, of what the policy of a type decided; see lib/retry.lua."""


class _Kind(NamedTuple):
    field: str
    actor: Actor.ValueType
    fill: Callable[[Any, Any], None] | None


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _reason(detail: Any, raw: Any) -> None:
    detail.reason = _text(raw)


def _comment(detail: Any, raw: Any) -> None:
    detail.comment = _text(raw)


def _step(detail: Event.StepSaved, raw: Any) -> None:
    detail.key, detail.position = _text(raw[0]), raw[1]


def _sleep(detail: Event.TurnSleeping, raw: Any) -> None:
    detail.key = _text(raw[0])
    detail.duration.CopyFrom(duration(raw[1]))


def _defer(detail: Event.TurnDeferred, raw: Any) -> None:
    detail.reason = _text(raw[0])
    detail.delay.CopyFrom(duration(raw[1]))


def _scheduled(detail: Event.MessageScheduled, raw: Any) -> None:
    detail.message_id = _text(raw[0])
    detail.delay.CopyFrom(duration(raw[1]))


def _message(detail: Event.MessageCancelled, raw: Any) -> None:
    detail.message_id, detail.comment = _text(raw[0]), _text(raw[1])


def _redriven(detail: Event.TurnRedriven, raw: Any) -> None:
    detail.new_turn = int(raw)


def _waiting(detail: Event.TurnWaiting, raw: Any) -> None:
    detail.key, detail.name = _text(raw[0]), _text(raw[1])
    if raw[2]:
        detail.timeout.CopyFrom(duration(raw[2]))


def _signal(detail: Event.SignalReceived, raw: Any) -> None:
    detail.signal_id, detail.name, detail.callback_key = map(_text, raw[:3])
    detail.sender.name = _text(raw[3])
    setattr(detail.sender, "class", raw[4])


def _operation(detail: Event.OperationStarted, raw: Any) -> None:
    detail.key, detail.kind = map(_text, raw)


def _key(detail: Event.TurnUncertain, raw: Any) -> None:
    detail.key = _text(raw)


def _resolved(detail: Event.StepResolved, raw: Any) -> None:
    detail.key, detail.decision, detail.comment = _text(raw[0]), raw[1], _text(raw[2])


_CLIENT, _WORKER = Actor.ACTOR_CLIENT, Actor.ACTOR_WORKER
_OPERATOR, _SERVER = Actor.ACTOR_OPERATOR, Actor.ACTOR_SERVER

_ADMITTED_BY = {b"continuation": _WORKER, b"redrive": _OPERATOR}
"""Who admitted a message that nobody sent, by the detail of the event."""

_TABLE: tuple[tuple[str, Actor.ValueType, Callable[[Any, Any], None] | None], ...] = (
    ("CREATED", _CLIENT, None),
    ("TURN_ADMITTED", _CLIENT, None),
    ("ATTEMPT_STARTED", _WORKER, None),
    ("TURN_COMPLETED", _WORKER, None),
    ("ATTEMPT_FAILED", _WORKER, _reason),
    ("ATTEMPT_EXPIRED", _SERVER, _reason),
    ("ATTEMPT_LOST", _SERVER, _reason),
    ("TURN_RELEASED", _WORKER, None),
    ("TURN_FAILED", _SERVER, _reason),
    ("STEP_SAVED", _WORKER, _step),
    ("TURN_SLEEPING", _WORKER, _sleep),
    ("TURN_DEFERRED", _WORKER, _defer),
    ("TURN_READY", _SERVER, None),
    ("PAUSED", _OPERATOR, _comment),
    ("RESUMED", _OPERATOR, _comment),
    ("TURN_RETRIED", _OPERATOR, _comment),
    ("TURN_SKIPPED", _OPERATOR, _comment),
    ("TURN_PARKED", _OPERATOR, _comment),
    ("TURN_CANCELLED", _OPERATOR, _comment),
    ("TURN_EXPIRED", _SERVER, None),
    ("MESSAGE_SCHEDULED", _CLIENT, _scheduled),
    ("MESSAGE_CANCELLED", _OPERATOR, _message),
    ("TURN_REDRIVEN", _OPERATOR, _redriven),
    ("TURN_WOKEN", _OPERATOR, _comment),
    ("DELETED", _OPERATOR, None),
    ("TURN_WAITING", _WORKER, _waiting),
    ("SIGNAL_RECEIVED", _CLIENT, _signal),
    ("OPERATION_STARTED", _WORKER, _operation),
    ("TURN_CANCELLING", _OPERATOR, _comment),
    ("TURN_UNCERTAIN", _SERVER, _key),
    ("STEP_RESOLVED", _OPERATOR, _resolved),
)
_KINDS: dict[int, _Kind] = {
    EventType.Value(f"EVENT_TYPE_{name}"): _Kind(name.lower(), actor, fill) for name, actor, fill in _TABLE
}

DELETED = EventType.EVENT_TYPE_DELETED
