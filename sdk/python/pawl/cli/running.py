"""What unfinished turns do and wait for, as JSON and in words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from pawl.cli.output import failure_json, failure_text, local, moment, text_of, value_of

if TYPE_CHECKING:
    from pawl._running import Operation, Progress, ProgressView, Signal, SignalWait
    from pawl.models import Turn


def progress_text(progress: Progress) -> str:
    """How far a step is, in words: "reading, 40 of 97 pages"."""
    if not progress.done and progress.total is None:
        return progress.phase
    amount = f"{progress.done}" if progress.total is None else f"{progress.done} of {progress.total}"
    return f"{progress.phase}, {amount} {progress.unit}".rstrip()


def progress_json(progress: Progress | None) -> dict[str, Any] | None:
    """Progress as JSON."""
    if progress is None:
        return None
    return {
        "phase": progress.phase,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit or None,
    }


def progress_view_json(view: ProgressView | None) -> dict[str, Any] | None:
    """Progress of an instance as JSON."""
    if view is None:
        return None
    times = {"start_time": moment(view.start_time), "report_time": moment(view.report_time)}
    return {**(progress_json(view.progress) or {}), **times}


def operation_text(operation: Operation) -> str:
    """A registered step in words."""
    does = "runs" if operation.active else f"ran last, in attempt {operation.attempt}"
    kind = f" ({operation.kind})" if operation.kind not in ("", "step") else ""
    parts = [f"step {operation.key}{kind} {does}"]
    if operation.progress is not None:
        parts.append(progress_text(operation.progress))
    if operation.deadline is not None:
        parts.append(f"until {local(operation.deadline)} at most")
    if operation.heartbeat_deadline is not None:
        parts.append(f"reports again by {local(operation.heartbeat_deadline)}")
    return ", ".join(parts)


def operation_json(operation: Operation | None) -> dict[str, Any] | None:
    """A registered step as JSON."""
    if operation is None:
        return None
    return {
        "key": operation.key,
        "kind": operation.kind,
        "position": operation.position,
        "attempt": operation.attempt,
        "active": operation.active,
        "on_restart": operation.on_restart,
        "start_time": moment(operation.start_time),
        "deadline": moment(operation.deadline),
        "heartbeat_deadline": moment(operation.heartbeat_deadline),
        "sequence": operation.sequence,
        "report_time": moment(operation.report_time),
        "progress": progress_json(operation.progress),
        "details": value_of(operation.details_payload),
        "checkpoint": value_of(operation.checkpoint_payload),
    }


def wait_text(wait: SignalWait) -> str:
    """What a turn waits for, in words."""
    what = f"a callback, {wait.key}" if wait.callback else f"signal {wait.name}"
    return f"{what}, until {local(wait.deadline)}" if wait.deadline else what


def wait_json(wait: SignalWait | None) -> dict[str, Any] | None:
    """What a turn waits for, as JSON."""
    if wait is None:
        return None
    return {
        "key": wait.key,
        "signal": wait.name or None,
        "callback": wait.callback,
        "callback_token": wait.callback_token or None,
        "start_time": moment(wait.start_time),
        "deadline": moment(wait.deadline),
    }


def signal_text(signal: Signal) -> str:
    """What a turn received, and what it holds."""
    if signal.rejected:
        return "rejected" if signal.failure is None else f"rejected: {failure_text(signal.failure)}"
    return "" if signal.consumed_position else text_of(signal.value_payload) or ""


def signal_json(signal: Signal) -> dict[str, Any]:
    """What a turn received, as JSON."""
    return {
        "signal_id": signal.signal_id or None,
        "signal": signal.name or None,
        "callback_key": signal.callback_key or None,
        "rejected": signal.rejected,
        "receive_time": moment(signal.receive_time),
        "sender": {"name": signal.sender.name or None, "kind": signal.sender.kind or None},
        "consumed_position": signal.consumed_position or None,
        "failure": failure_json(signal.failure),
        "value": None if signal.rejected else value_of(signal.value_payload),
    }


def turn_parts_json(turn: Turn, *, payloads: bool) -> dict[str, Any]:
    """The parts of a turn that this module knows, as JSON."""
    parts: dict[str, Any] = {
        "operation": operation_json(turn.operation),
        "wait": wait_json(turn.wait),
        "total_deadline": moment(turn.total_deadline),
        "cancel_deadline": moment(turn.cancel_deadline),
    }
    if payloads:
        parts["signals"] = [signal_json(signal) for signal in turn.signals]
    return parts


def decisions(turn: Turn) -> tuple[str, ...]:
    """The commands that decide about an UNCERTAIN turn."""
    key = turn.operation.key if turn.operation else "KEY"
    base = f"pawl resolve {turn.instance_id} {turn.turn} --key {shlex.quote(key)} --attempt {turn.attempt}"
    return (
        f"{base} --output JSON   # it happened, and this came out",
        f"{base} --retry",
        f"{base} --fail REASON",
    )


def uncertain_text(turn: Turn) -> str:
    """Why a turn is UNCERTAIN, in words."""
    step = f"step {turn.operation.key}" if turn.operation else "its step"
    failure = failure_text(turn.last_failure)
    return f"{step} may or may not have happened" + (f": {failure}" if failure else "")
