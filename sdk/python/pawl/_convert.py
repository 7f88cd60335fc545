"""Between the messages of the wire and the values of `pawl.models`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from pawl._reasons import refusal_error
from pawl._running import (
    Operation,
    Principal,
    Progress,
    ProgressView,
    RedriveProgress,
    Signal,
    SignalWait,
)
from pawl.models import (
    BacklogEntry,
    Cancellation,
    CheckPage,
    Failure,
    Finding,
    InboxEntry,
    InboxPage,
    Instance,
    Origin,
    Retention,
    RetryPolicy,
    SavedStep,
    ServerInfo,
    Turn,
    TypeWorkload,
    WorkflowType,
    Workload,
)
from pawl.payloads import Payload
from pawl.v1 import (
    admin_service_pb2,
    failure_pb2,
    instance_pb2,
    message_service_pb2,
    operation_pb2,
    signal_pb2,
    step_pb2,
    turn_pb2,
    turn_service_pb2,
    workflow_type_pb2,
)

REJECTION = "pawl/failure"
"""Encoding of what a callback was rejected with: the bytes of a Failure."""


def time_of(stamp: Timestamp) -> datetime | None:
    """Converts a timestamp; None for one that was not set."""
    if not stamp.seconds and not stamp.nanos:
        return None
    return stamp.ToDatetime(tzinfo=UTC)


def span_of(duration: Duration) -> timedelta | None:
    """Converts a duration; None for one that was not set."""
    if not duration.seconds and not duration.nanos:
        return None
    return duration.ToTimedelta()


def _payload(message: Any, name: str) -> Payload | None:
    return getattr(message, name) if message.HasField(name) else None


def _word(enum: Any, value: int, prefix: str) -> str:
    known = enum.values()
    return enum.Name(value).removeprefix(prefix) if value in known else str(value)


def failure_of(message: failure_pb2.Failure) -> Failure:
    """Converts a failure."""
    return Failure(
        reason=message.reason,
        message=message.message,
        non_retryable=message.non_retryable,
        attempt=message.attempt,
        fail_time=time_of(message.fail_time),
        truncated=message.truncated,
        details_payload=_payload(message, "details"),
        cause=failure_of(message.cause) if message.HasField("cause") else None,
    )


def origin_of(message: turn_pb2.Origin) -> Origin:
    """Converts an origin. A kind newer than this SDK counts as "client"."""
    kind = message.WhichOneof("source")
    if kind in ("continuation", "redrive"):
        source = getattr(message, kind)
        return Origin(kind, turn=source.turn, message_id=source.message_id)
    return Origin("client", client=message.client)


def step_of(message: step_pb2.Step) -> SavedStep:
    """Converts a saved step."""
    return SavedStep(
        position=message.position,
        key=message.key,
        kind=message.kind or "step",
        save_time=time_of(message.save_time),
        attempt=message.attempt,
        output_payload=message.output,
        wait_outcome=_word(step_pb2.WaitOutcome, message.wait_outcome, "WAIT_OUTCOME_")
        if message.wait_outcome
        else "",
        resolved=message.resolved,
        failure=_rejection(message.output),
    )


def _rejection(payload: Payload) -> Failure | None:
    """Reads what a callback was rejected with; None for any other value."""
    if payload.encoding != REJECTION:
        return None
    try:
        return failure_of(failure_pb2.Failure.FromString(payload.data))
    except DecodeError:
        return None


def principal_of(message: signal_pb2.Principal) -> Principal:
    """Converts who did something."""
    known = getattr(message, "class")
    return Principal(
        message.name, _word(signal_pb2.PrincipalClass, known, "PRINCIPAL_CLASS_") if known else ""
    )


def signal_of(message: signal_pb2.Signal) -> Signal:
    """Converts a signal, or the result of a callback."""
    return Signal(
        signal_id=message.signal_id,
        name=message.name,
        callback_key=message.callback_key,
        rejected=message.rejected,
        receive_time=time_of(message.receive_time),
        sender=principal_of(message.sender),
        consumed_position=message.consumed_position,
        failure=_rejection(message.value),
        value_payload=_payload(message, "value"),
    )


def wait_of(message: signal_pb2.SignalWait) -> SignalWait:
    """Converts what a turn waits for."""
    return SignalWait(
        key=message.key,
        name=message.name,
        callback=message.callback,
        deadline=time_of(message.deadline),
        start_time=time_of(message.start_time),
        callback_token=message.callback_token,
    )


def progress_of(message: operation_pb2.Progress) -> Progress:
    """Converts progress."""
    total = message.total if message.HasField("total") else None
    return Progress(message.phase, message.done, total, message.unit)


def operation_of(message: operation_pb2.Operation) -> Operation:
    """Converts a registered step."""
    return Operation(
        key=message.key,
        kind=message.kind,
        position=message.position,
        attempt=message.attempt,
        active=message.active,
        start_time=time_of(message.start_time),
        deadline=time_of(message.deadline),
        heartbeat_deadline=time_of(message.heartbeat_deadline),
        sequence=message.sequence,
        report_time=time_of(message.report_time),
        progress=progress_of(message.progress) if message.HasField("progress") else None,
        on_restart=_word(operation_pb2.OnRestart, message.on_restart, "ON_RESTART_")
        if message.on_restart
        else "RETRY",
        details_payload=_payload(message, "details"),
        checkpoint_payload=_payload(message, "resume"),
    )


def turn_state_of(value: int) -> str:
    """Converts a turn state to its name; one newer than this SDK to its number."""
    return _word(turn_pb2.TurnState, value, "TURN_STATE_")


def cancellation_of(answer: turn_service_pb2.CancelTurnResponse) -> Cancellation:
    """Converts the answer to a cancellation."""
    return Cancellation(
        state=turn_state_of(answer.state),
        former_state=turn_state_of(answer.former_state),
        finish_time=time_of(answer.finish_time),
        cancel_deadline=time_of(answer.cancel_deadline),
    )


def turn_of(message: turn_pb2.Turn) -> Turn:
    """Converts a turn."""
    return Turn(
        instance_id=message.instance_id,
        incarnation=message.incarnation,
        turn=message.turn,
        state=turn_state_of(message.state),
        message_id=message.message_id,
        origin=origin_of(message.origin),
        attempt=message.attempt,
        step_count=message.step_count,
        steps=tuple(step_of(step) for step in message.steps),
        last_failure=failure_of(message.last_failure) if message.HasField("last_failure") else None,
        admit_time=time_of(message.admit_time),
        finish_time=time_of(message.finish_time),
        due_time=time_of(message.due_time),
        trimmed=message.trimmed,
        continuation_turn=message.continuation_turn,
        expire_time=time_of(message.expire_time),
        defer_reason=message.defer_reason,
        discarded=message.discarded,
        operation=operation_of(message.operation) if message.HasField("operation") else None,
        wait=wait_of(message.wait) if message.HasField("wait") else None,
        signals=tuple(signal_of(signal) for signal in message.signals),
        total_deadline=time_of(message.total_deadline),
        cancel_deadline=time_of(message.cancel_deadline),
        message_payload=_payload(message, "message"),
        reply_payload=_payload(message, "reply"),
    )


def redriven_of(message: turn_service_pb2.RedriveAllParkedResponse, before: int) -> RedriveProgress:
    """Converts how far a redrive is; `before` turns were redriven by streams that broke."""
    refused = message.HasField("last_refusal")
    return RedriveProgress(
        seen=before + message.seen,
        redriven=before + message.redriven,
        skipped=message.skipped,
        refused=message.refused,
        last_refusal=refusal_error(message.last_refusal) if refused else None,
        done=message.done,
    )


def status_value(name: str) -> instance_pb2.InstanceStatus.ValueType:
    """Converts the name of a status, "" to none. Raises ValueError."""
    word = f"INSTANCE_STATUS_{name or 'UNSPECIFIED'}"
    try:
        return instance_pb2.InstanceStatus.Value(word)
    except ValueError:
        raise ValueError(f"{name!r} is no status of an instance") from None


def instance_of(message: instance_pb2.Instance) -> Instance:
    """Converts an instance."""
    return Instance(
        id=message.id,
        workflow_type=message.workflow_type,
        version=message.version,
        incarnation=message.incarnation,
        status=_word(instance_pb2.InstanceStatus, message.status, "INSTANCE_STATUS_"),
        create_time=time_of(message.create_time),
        pending_turns=message.pending_turns,
        head_turn=message.head_turn,
        last_turn=message.last_turn,
        oldest_kept_turn=message.oldest_kept_turn,
        lease_timeout=span_of(message.lease_timeout),
        max_attempts=message.max_attempts,
        last_seq=message.last_seq,
        delayed_messages=message.delayed_messages,
        tags=tuple(message.tags),
        correlation_key=message.correlation_key,
        paused=message.paused,
        parked_turns=message.parked_turns,
        retry=retry_of(message.retry) if message.HasField("retry") else None,
        progress=ProgressView(
            progress_of(message.progress.progress),
            time_of(message.progress.start_time),
            time_of(message.progress.report_time),
        )
        if message.HasField("progress")
        else None,
        state_payload=_payload(message, "state"),
    )


def info_of(message: admin_service_pb2.GetServerInfoResponse) -> ServerInfo:
    """Converts a server's description."""
    return ServerInfo(
        version=message.version,
        server_name=message.server_name,
        server_run=message.server_run,
        namespace=message.namespace,
        partitions=message.partitions,
        durability=_word(admin_service_pb2.Durability, message.durability, "DURABILITY_"),
        durability_assumed=message.durability_assumed,
        store=message.store,
        limits=dict(message.limits),
        beat_interval=span_of(message.beat_interval),
        capabilities=tuple(message.capabilities),
        engine_time=time_of(message.engine_time),
        start_time=time_of(message.start_time),
        virtual_time=message.virtual_time,
        store_reachable=message.store_reachable,
        own_address=message.address,
        servers={one.server_run: one.address for one in message.fleet.servers},
    )


def type_of(message: workflow_type_pb2.WorkflowType) -> WorkflowType:
    """Converts a workflow type."""
    keep = message.retention
    return WorkflowType(
        name=message.name,
        lease_timeout=span_of(message.lease_timeout),
        max_attempts=message.max_attempts or None,
        retry=retry_of(message.retry) if message.HasField("retry") else None,
        attempt_timeout=span_of(message.attempt_timeout),
        retention=Retention(
            min_turns=keep.min_turns or None,
            max_age=keep.max_age.ToTimedelta() if keep.HasField("max_age") else None,
            max_turns=keep.max_turns or None,
            max_bytes=keep.max_bytes or None,
            keep_none=keep.keep_none,
        )
        if message.HasField("retention")
        else None,
        on_exhausted=_word(workflow_type_pb2.ExhaustionPolicy, message.on_exhausted, "EXHAUSTION_POLICY_")
        if message.on_exhausted
        else None,
        queue_timeout=span_of(message.queue_timeout) if message.HasField("queue_timeout") else None,
        total_timeout=span_of(message.total_timeout) if message.HasField("total_timeout") else None,
        revision=message.revision,
        update_time=time_of(message.update_time),
    )


def retry_of(message: workflow_type_pb2.RetryPolicy) -> RetryPolicy:
    """Converts a retry policy."""
    return RetryPolicy(
        initial_delay=span_of(message.initial_delay),
        max_delay=span_of(message.max_delay),
        factor=message.factor or None,
        jitter=message.jitter if message.HasField("jitter") else None,
        max_elapsed=span_of(message.max_elapsed),
        non_retryable_reasons=tuple(message.non_retryable_reasons),
        max_attempts=message.max_attempts or None,
    )


def set_policy(target: workflow_type_pb2.RetryPolicy, policy: RetryPolicy) -> None:
    """Sets a retry policy, leaving out what is None."""
    target.SetInParent()
    target.factor = policy.factor or 0
    target.max_attempts = policy.max_attempts or 0
    target.non_retryable_reasons.extend(policy.non_retryable_reasons)
    if policy.jitter is not None:
        target.jitter = policy.jitter
    set_span(target.initial_delay, policy.initial_delay)
    set_span(target.max_delay, policy.max_delay)
    set_span(target.max_elapsed, policy.max_elapsed)


def type_message(settings: WorkflowType) -> workflow_type_pb2.WorkflowType:
    """Converts a workflow type to its message, leaving out what is None."""
    message = workflow_type_pb2.WorkflowType(name=settings.name, max_attempts=settings.max_attempts or 0)
    if settings.on_exhausted is not None:
        message.on_exhausted = policy_of(settings.on_exhausted)
    set_span(message.lease_timeout, settings.lease_timeout)
    set_span(message.attempt_timeout, settings.attempt_timeout)
    set_span(message.queue_timeout, settings.queue_timeout)
    set_span(message.total_timeout, settings.total_timeout)
    if settings.retry:
        set_policy(message.retry, settings.retry)
    if settings.retention:
        keep = settings.retention
        message.retention.min_turns = keep.min_turns or 0
        message.retention.max_turns = keep.max_turns or 0
        message.retention.max_bytes = keep.max_bytes or 0
        message.retention.keep_none = keep.keep_none
        set_span(message.retention.max_age, keep.max_age)
    return message


def policy_of(name: str) -> workflow_type_pb2.ExhaustionPolicy.ValueType:
    """Converts "BLOCK", "SKIP" or "PARK". Raises ValueError."""
    if name not in ("BLOCK", "SKIP", "PARK"):
        raise ValueError(f"on_exhausted must be BLOCK, SKIP or PARK, not {name!r}")
    return workflow_type_pb2.ExhaustionPolicy.Value(f"EXHAUSTION_POLICY_{name}")


def inbox_of(message: message_service_pb2.ListInboxResponse) -> InboxPage:
    """Converts a page of an inbox."""
    return InboxPage(
        items=[InboxEntry(turn_of(item.turn), item.message_bytes) for item in message.entries],
        next_page_token=message.next_page_token,
        pending_turns=message.pending_turns,
        delayed_messages=message.delayed_messages,
        oldest_admit_time=time_of(message.oldest_admit_time),
        newest_admit_time=time_of(message.newest_admit_time),
    )


def backlog_of(message: message_service_pb2.BacklogEntry) -> BacklogEntry:
    """Converts an instance with unfinished turns."""
    head = turn_of(message.head) if message.HasField("head") else None
    return BacklogEntry(instance_of(message.instance), head)


def workload_of(message: admin_service_pb2.GetWorkloadResponse) -> Workload:
    """Converts what waits in a namespace."""
    types = tuple(
        TypeWorkload(
            workflow_type=item.workflow_type,
            version=item.version,
            ready_turns=item.ready_turns,
            oldest_ready_age=item.oldest_ready_age.ToTimedelta()
            if item.HasField("oldest_ready_age")
            else None,
            busy_instances=item.busy_instances,
            blocked_instances=item.blocked_instances,
            paused_instances=item.paused_instances,
            starved=item.starved,
        )
        for item in message.types
    )
    return Workload(
        types=types,
        more=message.more,
        parked_turns=message.parked_turns,
        damaged_records=message.damaged_records,
        timers=message.timers,
        late_timers=message.late_timers,
    )


def check_of(message: admin_service_pb2.CheckDataResponse) -> CheckPage:
    """Converts what one part of a check found."""
    return CheckPage(
        items=[
            Finding(item.instance_id, item.key, item.entry, item.text, item.partition)
            for item in message.findings
        ],
        next_page_token=message.next_cursor,
        instances=message.instances,
        entries=message.entries,
        partitions_done=message.partitions_done,
        partitions=message.partitions,
    )


def set_span(target: Duration, value: float | timedelta | None) -> None:
    """Sets a duration from seconds or a timedelta; None leaves it unset, zero is set."""
    if value is not None:
        target.FromTimedelta(value if isinstance(value, timedelta) else timedelta(seconds=value))
        target.SetInParent()


def seconds_of(value: float | timedelta) -> float:
    """Converts a timedelta to seconds; a number is seconds already."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
