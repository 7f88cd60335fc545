"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from pawl.errors import PayloadError
from pawl.payloads import BINARY, Payload, decode

if TYPE_CHECKING:
    from rich.table import Table

    from pawl.models import Failure, Instance, Origin, RetryPolicy, Sent, ServerInfo, Turn, WorkflowType

    Cell = str | int | float | None


def print_json(value: Any) -> None:
    """Prints one JSON value on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str = "none") -> None:
    """Prints rows under headings; every row stays on one line where the output is no terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    if table.row_count:
        _print(table)
    else:
        click.echo(empty)


def print_fields(fields: Mapping[str, Cell]) -> None:
    """Prints names and values, leaving out those that are None."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None:
            table.add_row(name, Text(_cell(value)))
    _print(table)


def _print(table: Table) -> None:
    """Prints a table as wide as the terminal; elsewhere each row is one line, without spaces at its end."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    console = Console(highlight=False, width=100_000)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _cell(value: Cell) -> str:
    return "" if value is None else str(value)


def moment(time: datetime | None) -> str | None:
    """Writes a time as JSON has it: RFC 3339 in UTC, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(time: datetime | None) -> str | None:
    """Writes a time for people: local time with its zone, to the second."""
    return None if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def seconds(span: timedelta | None) -> float | None:
    """Writes a duration in seconds."""
    return None if span is None else span.total_seconds()


def value_of(payload: Payload | None) -> Any:
    """Gives a payload's value if it is JSON, else an object with its encoding and its bytes in base64."""
    if payload is None:
        return None
    if payload.encoding != BINARY:
        try:
            return decode(payload)
        except PayloadError:
            pass
    return {"encoding": payload.encoding, "base64": base64.b64encode(payload.data).decode()}


def text_of(payload: Payload | None) -> str | None:
    """Writes a payload as compact JSON."""
    return None if payload is None else json.dumps(value_of(payload), ensure_ascii=False)


def instance_json(instance: Instance, *, state: bool = True) -> dict[str, Any]:
    """An instance as JSON."""
    from pawl.cli.running import progress_view_json

    return {
        "id": instance.id,
        "type": instance.workflow_type,
        "version": instance.version,
        "incarnation": instance.incarnation,
        "status": instance.status,
        **({"state": value_of(instance.state_payload)} if state else {}),
        "create_time": moment(instance.create_time),
        "pending_turns": instance.pending_turns,
        "head_turn": instance.head_turn,
        "last_turn": instance.last_turn,
        "oldest_kept_turn": instance.oldest_kept_turn,
        "lease_timeout_s": seconds(instance.lease_timeout),
        "max_attempts": instance.max_attempts or None,
        "delayed_messages": instance.delayed_messages,
        "parked_turns": instance.parked_turns,
        "paused": instance.paused,
        "tags": list(instance.tags),
        "correlation_key": instance.correlation_key or None,
        "last_seq": instance.last_seq,
        **({"progress": progress_view_json(instance.progress)} if state else {}),
        "retry": policy_json(instance.retry),
    }


def policy_json(policy: RetryPolicy | None) -> dict[str, Any] | None:
    """What a retry policy states, as JSON."""
    if policy is None:
        return None
    stated = {
        "initial_delay_s": seconds(policy.initial_delay),
        "max_delay_s": seconds(policy.max_delay),
        "factor": policy.factor,
        "jitter": policy.jitter,
        "max_elapsed_s": seconds(policy.max_elapsed),
        "non_retryable_reasons": list(policy.non_retryable_reasons) or None,
    }
    return {name: value for name, value in stated.items() if value is not None}


def failure_text(failure: Failure | None) -> str | None:
    """A failure for people: its reason and its message."""
    if failure is None:
        return None
    return f"{failure.reason}: {failure.message}" if failure.message else failure.reason


def failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """A failure as JSON."""
    if failure is None:
        return None
    return {
        "reason": failure.reason,
        "message": failure.message,
        "attempt": failure.attempt,
        "fail_time": moment(failure.fail_time),
        "non_retryable": failure.non_retryable,
        "truncated": failure.truncated,
        "details": value_of(failure.details_payload),
        "cause": failure_json(failure.cause),
    }


def _origin_json(origin: Origin) -> dict[str, Any]:
    if origin.kind == "client":
        return {"kind": "client", "base64": base64.b64encode(origin.client).decode()}
    return {"kind": origin.kind, "turn": origin.turn, "message_id": origin.message_id}


def turn_json(turn: Turn, *, payloads: bool = True) -> dict[str, Any]:
    """A turn as JSON."""
    from pawl.cli.running import turn_parts_json

    body: dict[str, Any] = {
        "instance_id": turn.instance_id,
        "incarnation": turn.incarnation,
        "turn": turn.turn,
        "state": turn.state,
        "message_id": turn.message_id,
        "origin": _origin_json(turn.origin),
        "attempt": turn.attempt,
        "step_count": turn.step_count,
        "last_failure": failure_json(turn.last_failure),
        "admit_time": moment(turn.admit_time),
        "finish_time": moment(turn.finish_time),
        "due_time": moment(turn.due_time),
        "trimmed": turn.trimmed,
        "continuation_turn": turn.continuation_turn or None,
        "expire_time": moment(turn.expire_time),
        "defer_reason": turn.defer_reason or None,
        "discarded": turn.discarded,
        **turn_parts_json(turn, payloads=payloads),
    }
    if payloads:
        body["message"] = value_of(turn.message_payload)
        body["reply"] = value_of(turn.reply_payload)
        body["steps"] = [
            {
                "position": step.position,
                "key": step.key,
                "kind": step.kind,
                "attempt": step.attempt,
                "save_time": moment(step.save_time),
                "output": None if step.failure else value_of(step.output_payload),
                "wait_outcome": step.wait_outcome or None,
                "resolved": step.resolved,
                "failure": failure_json(step.failure),
            }
            for step in turn.steps
        ]
    return body


def state_text(turn: Turn) -> str:
    """The state of a turn, and why its worker put it off."""
    return f"{turn.state} ({turn.defer_reason})" if turn.defer_reason else turn.state


def sent_json(sent: Sent) -> dict[str, Any]:
    """The answer to a message as JSON."""
    return {
        "instance_id": sent.instance_id,
        "message_id": sent.message_id,
        "turn": sent.turn,
        "incarnation": sent.incarnation,
        "admit_time": moment(sent.admit_time),
        "due_time": moment(sent.due_time),
        "outcome": None if sent.outcome is None else turn_json(sent.outcome),
    }


def info_json(info: ServerInfo, address: str) -> dict[str, Any]:
    """A server's description as JSON."""
    return {
        "address": address,
        "version": info.version,
        "server_name": info.server_name,
        "server_run": info.server_run,
        "namespace": info.namespace,
        "partitions": info.partitions,
        "durability": info.durability.lower(),
        "durability_assumed": info.durability_assumed or None,
        "store": info.store,
        "limits": dict(sorted(info.limits.items())),
        "beat_interval_s": seconds(info.beat_interval),
        "capabilities": list(info.capabilities),
        "engine_time": moment(info.engine_time),
        "start_time": moment(info.start_time),
        "virtual_time": info.virtual_time,
        "store_reachable": info.store_reachable,
        "own_address": info.own_address or None,
        "servers": dict(sorted(info.servers.items())),
    }


def type_json(one: WorkflowType) -> dict[str, Any]:
    """The settings of a type as JSON."""
    return {
        "name": one.name,
        "revision": one.revision,
        "update_time": moment(one.update_time),
        "lease_timeout_s": seconds(one.lease_timeout),
        "max_attempts": one.max_attempts,
        "attempt_timeout_s": seconds(one.attempt_timeout),
        "queue_timeout_s": seconds(one.queue_timeout),
        "total_timeout_s": seconds(one.total_timeout),
    }
