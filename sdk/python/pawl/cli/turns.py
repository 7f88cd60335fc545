"""`pawl turns`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pawl.cli.options import call, client_options, first
from pawl.cli.output import (
    failure_text,
    local,
    print_fields,
    print_json,
    print_table,
    state_text,
    text_of,
    turn_json,
)
from pawl.cli.running import operation_text, signal_text, wait_text

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawl.client import Client
    from pawl.models import SavedStep, Turn


_DUE = {"RUNNING": "lease until", "BACKOFF": "next attempt"}
"""What the due time of a turn means, by its state."""


@click.command(short_help="List the turns of an instance, or show one.")
@click.argument("instance_id", metavar="ID")
@click.argument("number", metavar="[TURN]", type=click.IntRange(min=1), required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="List at most so many; 0 lists all.",
)
@client_options
def turns(
    instance_id: str, number: int | None, limit: int, address: str | None, timeout: float, as_json: bool
) -> None:
    """List the turns of an instance, newest first, or show one with its message, steps and reply."""
    if number is not None:
        turn = call(address, timeout, lambda client: client.get_turn(instance_id, number))
        if as_json:
            print_json(turn_json(turn))
        else:
            show(turn)
        return

    def job(client: Client) -> Awaitable[list[Turn]]:
        return first(client.list_turns(instance_id, page_size=min(limit, 100)), limit)

    found = call(address, timeout, job)
    if as_json:
        print_json([turn_json(turn, payloads=False) for turn in found])
        return
    print_table(
        ("TURN", "STATE", "MESSAGE ID", "ATTEMPT", "STEPS", "ADMITTED", "FINISHED", "LAST FAILURE"),
        [
            (
                turn.turn,
                state_text(turn),
                turn.message_id,
                turn.attempt,
                turn.step_count,
                local(turn.admit_time),
                local(turn.finish_time),
                failure_text(turn.last_failure),
            )
            for turn in found
        ],
        empty=f"{instance_id} has no turns",
    )


def show(turn: Turn) -> None:
    """Prints a turn with its steps for people."""
    origin = turn.origin
    print_fields(
        {
            "turn": f"{turn.turn} of {turn.instance_id}",
            "state": turn.state,
            "message id": turn.message_id,
            "origin": None if origin.kind == "client" else f"{origin.kind} of turn {origin.turn}",
            "message": "discarded" if turn.discarded else text_of(turn.message_payload),
            "reply": text_of(turn.reply_payload),
            "attempt": turn.attempt,
            "deferred for": turn.defer_reason or None,
            "waits for": wait_text(turn.wait) if turn.wait else None,
            "operation": operation_text(turn.operation) if turn.operation else None,
            "details": text_of(turn.operation.details_payload) if turn.operation else None,
            "checkpoint": text_of(turn.operation.checkpoint_payload) if turn.operation else None,
            "last failure": failure_text(turn.last_failure),
            "admitted": local(turn.admit_time),
            "finished": local(turn.finish_time),
            _DUE.get(turn.state, "goes on"): local(turn.due_time),
            "redriven as" if turn.state == "PARKED" else "continued by": f"turn {turn.continuation_turn}"
            if turn.continuation_turn
            else None,
            "expires": local(turn.expire_time) if not turn.finished else None,
            "to finish by": local(turn.total_deadline) if not turn.finished else None,
            "cancelled by": local(turn.cancel_deadline),
            "trimmed": "yes" if turn.trimmed else None,
        }
    )
    if turn.steps:
        click.echo()
        print_table(
            ("STEP", "KEY", "KIND", "ATTEMPT", "SAVED", "OUTPUT"),
            [
                (
                    step.position,
                    step.key,
                    step.kind,
                    step.attempt,
                    local(step.save_time),
                    output_text(step),
                )
                for step in turn.steps
            ],
        )
    if turn.signals:
        click.echo()
        print_table(
            ("SIGNAL", "ID", "SENDER", "RECEIVED", "STEP", "VALUE"),
            [
                (
                    signal.name or f"callback {signal.callback_key}",
                    signal.signal_id,
                    f"{signal.sender.name} ({signal.sender.kind})".strip(),
                    local(signal.receive_time),
                    signal.consumed_position or None,
                    signal_text(signal),
                )
                for signal in turn.signals
            ],
        )


def output_text(step: SavedStep) -> str | None:
    """What a step saved, in words where it is no value."""
    if step.wait_outcome == "TIMED_OUT":
        return "nothing was received in time"
    if step.failure is not None:
        return f"rejected: {failure_text(step.failure)}"
    return f"{text_of(step.output_payload)}{'   (by resolve)' if step.resolved else ''}"
