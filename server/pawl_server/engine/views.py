"""What is stored, as the messages of pawl.v1: each record is decoded once and each message built once."""

from __future__ import annotations

from pawl.v1.failure_pb2 import Failure
from pawl.v1.instance_pb2 import Instance, InstanceStatus
from pawl.v1.operation_pb2 import Operation, Progress, ProgressView
from pawl.v1.payload_pb2 import Payload
from pawl.v1.signal_pb2 import Signal, SignalWait
from pawl.v1.step_pb2 import Step
from pawl.v1.turn_pb2 import Origin, Turn
from pawl_server.domain.payload import from_blob
from pawl_server.domain.states import TurnState
from pawl_server.domain.times import duration, timestamp
from pawl_server.engine.policies import policy_message
from pawl_server.store.records import (
    Birth,
    DelayedRecord,
    FailureRecord,
    InstanceRecord,
    MessageRecord,
    OperationRecord,
    ParkedRecord,
    ProgressRecord,
    Receipt,
    SignalRecord,
    StepRecord,
    TurnView,
    WaitRecord,
    unpack_policy,
)

_PAUSED, _DELETING = 1, 2
_TIMED = (
    TurnState.RUNNING,
    TurnState.BACKOFF,
    TurnState.SLEEPING,
    TurnState.WAITING,
    TurnState.DEFERRED,
)


def payload(blob: bytes) -> Payload:
    """A stored payload; an empty blob gives an empty one."""
    encoding, data = from_blob(blob)
    return Payload(encoding=encoding, data=data)


def step(position: int, record: StepRecord) -> Step:
    """A saved step; `position` counts from 1."""
    return Step(
        position=position,
        key=record.key,
        kind=record.kind,
        output=payload(record.blob),
        save_time=timestamp(record.saved_ms),
        attempt=record.attempt,
        wait_outcome=record.outcome,  # pyright: ignore[reportArgumentType]
        resolved=record.resolved,
    )


def signal(record: SignalRecord) -> Signal:
    """A signal, or the result of a callback, that a turn has received."""
    shown = Signal(
        signal_id=record.signal_id,
        name=record.name,
        callback_key=record.callback_key,
        rejected=record.rejected,
        receive_time=timestamp(record.received_ms),
        consumed_position=record.position,
    )
    shown.sender.name = record.sender
    setattr(shown.sender, "class", record.principal)
    if not record.position:
        shown.value.CopyFrom(payload(record.value))
    return shown


def wait(record: WaitRecord) -> SignalWait:
    """What a turn waits for."""
    return SignalWait(
        key=record.key,
        name=record.name,
        callback=bool(record.callback_key),
        deadline=timestamp(record.deadline_ms) if record.deadline_ms else None,
        start_time=timestamp(record.began_ms),
    )


def failure(record: FailureRecord) -> Failure:
    """Why an attempt failed."""
    return Failure(
        reason=record.reason,
        message=record.message,
        details=payload(record.details) if record.details else None,
        non_retryable=record.final,
        truncated=record.truncated,
        attempt=record.attempt,
        fail_time=timestamp(record.failed_ms),
        cause=Failure.FromString(record.cause) if record.cause else None,
    )


def operation(record: OperationRecord, *, active: bool, payloads: bool = True) -> Operation:
    """A registered step. `payloads` False leaves out details and resume point."""
    shown = Operation(
        key=record.key,
        kind=record.kind,
        position=record.position,
        attempt=record.attempt,
        active=active,
        start_time=timestamp(record.start_ms),
        sequence=record.sequence,
        on_restart=record.on_restart,  # pyright: ignore[reportArgumentType]
    )
    if active:
        shown.deadline.CopyFrom(timestamp(record.deadline_ms))
        if record.heartbeat_at_ms:
            shown.heartbeat_deadline.CopyFrom(timestamp(record.heartbeat_at_ms))
    if record.sequence:
        shown.report_time.CopyFrom(timestamp(record.report_ms))
    if record.progress is not None:
        shown.progress.CopyFrom(_progress(record.progress))
    if payloads and record.details:
        shown.details.CopyFrom(payload(record.details))
    if payloads and record.resume:
        shown.resume.CopyFrom(payload(record.resume))
    return shown


def _progress(record: ProgressRecord) -> Progress:
    total = record.total if record.total >= 0 else None
    return Progress(phase=record.phase, done=record.done, total=total, unit=record.unit)


def progress(record: OperationRecord) -> ProgressView | None:
    """How far a step that runs has come; None if nothing was reported."""
    if record.progress is None:
        return None
    return ProgressView(
        progress=_progress(record.progress),
        start_time=timestamp(record.start_ms),
        report_time=timestamp(record.report_ms),
    )


def origin(record: MessageRecord) -> Origin | None:
    """How a message came to be; None if its sender said nothing."""
    if record.redriven:
        return Origin(redrive=Origin.Redrive(turn=record.from_turn, message_id=record.from_id))
    if record.from_turn:
        return Origin(continuation=Origin.Continuation(turn=record.from_turn, message_id=record.from_id))
    return Origin(client=record.origin) if record.origin else None


def status(record: InstanceRecord) -> InstanceStatus.ValueType:
    """What an instance is doing, from its record."""
    if record.flags & _DELETING:
        return InstanceStatus.INSTANCE_STATUS_DELETING
    if record.flags & _PAUSED:
        return InstanceStatus.INSTANCE_STATUS_PAUSED
    if record.state in (TurnState.FAILED, TurnState.UNCERTAIN):
        return InstanceStatus.INSTANCE_STATUS_BLOCKED
    if record.pending > 0:
        return InstanceStatus.INSTANCE_STATUS_ACTIVE
    return InstanceStatus.INSTANCE_STATUS_IDLE


def instance(instance_id: str, record: InstanceRecord, born: Birth, state: bytes | None = None) -> Instance:
    """An instance; `state` None leaves its state out."""
    return Instance(
        id=instance_id,
        workflow_type=born.type,
        version=born.version,
        incarnation=record.incarnation,
        status=status(record),
        state=None if state is None else payload(state),
        create_time=timestamp(born.created_ms),
        pending_turns=record.pending,
        head_turn=record.head,
        last_turn=record.tail,
        oldest_kept_turn=record.kept,
        lease_timeout=duration(born.lease_ms) if born.lease_ms else None,
        max_attempts=born.max_attempts,
        last_seq=record.seq,
        delayed_messages=record.delayed,
        tags=born.tags,
        correlation_key=born.correlation_key,
        paused=record.paused,
        parked_turns=record.parked_turns,
        retry=policy_message(unpack_policy(born.retry)) if born.retry else None,
    )


def turn(
    instance_id: str,
    record: InstanceRecord,
    view: TurnView,
    *,
    payloads: bool = True,
    steps: bool = True,
) -> Turn:
    """A turn. `payloads` False leaves out message, steps, signals and reply, `steps` False the middle two."""
    shown = Turn(instance_id=instance_id, incarnation=record.incarnation, turn=view.turn)
    if view.receipt is not None:
        _finished(shown, view.receipt, payloads)
    elif view.turn == record.head and record.state < TurnState.COMPLETED:
        _head(shown, record)
    else:
        shown.state = TurnState.QUEUED  # pyright: ignore[reportAttributeAccessIssue]
    if view.message is not None:
        _message(shown, view.message, payloads)
    if payloads and steps:
        shown.steps.extend(step(at, saved) for at, saved in enumerate(view.steps, 1))
        shown.signals.extend(map(signal, view.signals))
    if view.wait is not None:
        shown.wait.CopyFrom(wait(view.wait))
    if view.failure is not None:
        shown.last_failure.CopyFrom(failure(view.failure))
    if view.operation is not None:
        active = view.turn == record.head and view.receipt is None and record.operation_active
        shown.operation.CopyFrom(operation(view.operation, active=active, payloads=payloads))
    return shown


def _finished(shown: Turn, done: Receipt, payloads: bool) -> None:
    shown.state = done.state  # pyright: ignore[reportAttributeAccessIssue]
    shown.attempt = done.attempts
    shown.step_count = done.steps
    shown.continuation_turn = done.continuation
    shown.finish_time.CopyFrom(timestamp(done.finished_ms))
    if done.trimmed:
        shown.trimmed = True
        shown.message_id = done.message_id
        shown.admit_time.CopyFrom(timestamp(done.admitted_ms))
    elif payloads and done.reply is not None:
        shown.reply.CopyFrom(payload(done.reply))


def _head(shown: Turn, record: InstanceRecord) -> None:
    shown.state = record.state  # pyright: ignore[reportAttributeAccessIssue]
    shown.attempt = record.attempt
    shown.step_count = record.steps
    if record.deadline_ms and record.state in _TIMED:
        shown.due_time.CopyFrom(timestamp(record.deadline_ms))
    if record.state == TurnState.DEFERRED and isinstance(record.answer2, bytes):
        shown.defer_reason = record.answer2.decode()
    if record.total_at_ms:
        shown.total_deadline.CopyFrom(timestamp(record.total_at_ms))
    if record.cancel_at_ms:
        shown.cancel_deadline.CopyFrom(timestamp(record.cancel_at_ms))


def _message(shown: Turn, message: MessageRecord, payloads: bool) -> None:
    shown.message_id = message.message_id
    shown.admit_time.CopyFrom(timestamp(message.admitted_ms))
    if message.expire_ms:
        shown.expire_time.CopyFrom(timestamp(message.expire_ms))
    if (source := origin(message)) is not None:
        shown.origin.CopyFrom(source)
    if not message.blob:
        shown.discarded = True
    elif payloads:
        shown.message.CopyFrom(payload(message.blob))


def delayed(instance_id: str, record: InstanceRecord, message: DelayedRecord, *, payloads: bool) -> Turn:
    """A message that has no turn yet."""
    shown = Turn(
        instance_id=instance_id,
        incarnation=record.incarnation,
        state=TurnState.QUEUED,  # pyright: ignore[reportArgumentType]
        message_id=message.message_id,
        due_time=timestamp(message.due_ms),
    )
    if message.origin:
        shown.origin.client = message.origin
    if payloads:
        shown.message.CopyFrom(payload(message.blob))
    return shown


def parked(
    instance_id: str, record: InstanceRecord, turn: int, kept: ParkedRecord, done: Receipt | None
) -> Turn:
    """A parked turn with its message; `done` None if its receipt was trimmed."""
    shown = Turn(instance_id=instance_id, incarnation=record.incarnation, turn=turn)
    if done is not None:
        _finished(shown, done, False)
    shown.trimmed = False
    shown.state = TurnState.PARKED  # pyright: ignore[reportAttributeAccessIssue]
    shown.finish_time.CopyFrom(timestamp(kept.parked_ms))
    _message(shown, kept.message, True)
    if kept.failure is not None:
        shown.last_failure.CopyFrom(failure(kept.failure))
    return shown
