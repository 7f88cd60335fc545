"""What an instance, or a turn of it, waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawl.cli.output import failure_text, local, state_text
from pawl.cli.running import operation_text, uncertain_text, wait_text
from pawl.errors import PawlError

if TYPE_CHECKING:
    from pawl.client import Client
    from pawl.models import Instance, Turn


async def head_of(client: Client, instance: Instance) -> Turn | None:
    """Reads the turn at the head of an inbox; None if the inbox is empty, or the turn can't be read."""
    if not instance.pending_turns:
        return None
    try:
        return await client.get_turn(instance.id, instance.head_turn, incarnation=instance.incarnation)
    except PawlError:
        return None


async def why_unfinished(client: Client, instance_id: str, number: int) -> str:
    """Says what an unfinished turn waits for; empty if that can't be found out."""
    try:
        instance = await client.get(instance_id)
    except PawlError:
        return ""
    head = await head_of(client, instance)
    if head is None or head.turn > number:
        return ""
    if head.turn == number:
        return waits_for(head, instance)
    link = ", whose " if head.state in ("BACKOFF", "RUNNING") else ", which "
    return f"behind turn {head.turn}{link}{waits_for(head, instance, link)}"


def waits_for(head: Turn, instance: Instance, link: str = "") -> str:
    """Says what the turn at the head waits for, beginning with `, which ` or `, whose ` if given."""
    failure = failure_text(head.last_failure)
    state = state_text(head)
    if instance.paused and head.state not in ("RUNNING", "CANCELLING", "WAITING", "UNCERTAIN"):
        return f"is {state}, and the instance is paused: 'pawl resume {instance.id}'"
    if head.state == "QUEUED":
        is_ = "is " if link else ""
        return f"{is_}waiting for a worker of {instance.workflow_type} {instance.version}"
    if head.state == "RUNNING":
        before = f"; before: {failure}" if failure else ""
        does = f"; {operation_text(head.operation)}" if head.operation and head.operation.active else ""
        return f"attempt {head.attempt} is running, its lease until {local(head.due_time)}{does}{before}"
    if head.state == "BACKOFF":
        return f"attempt {head.attempt} failed: {failure}; the next one is due at {local(head.due_time)}"
    if head.state == "FAILED":
        return f"FAILED: {failure}"
    if head.state in ("SLEEPING", "DEFERRED"):
        return f"is {state} until {local(head.due_time)}"
    if head.state == "WAITING" and head.wait is not None:
        return f"is WAITING for {wait_text(head.wait)}: 'pawl respond {instance.id}'"
    if head.state == "CANCELLING":
        return f"is CANCELLING, and ends by {local(head.cancel_deadline)}"
    if head.state == "UNCERTAIN":
        return f"is UNCERTAIN: {uncertain_text(head)}; 'pawl doctor' tells what helps"
    return f"is {head.state}"
