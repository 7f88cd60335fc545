"""`pawl create`, `pawl get` and `pawl list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pawl.cli.options import JSON, call, client_options, first
from pawl.cli.output import (
    failure_text,
    instance_json,
    local,
    print_fields,
    print_json,
    print_table,
    seconds,
    text_of,
    turn_json,
    type_json,
)
from pawl.cli.running import progress_text
from pawl.cli.waiting import head_of, waits_for

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawl.client import Client
    from pawl.models import Instance, Turn, WorkflowType


@click.command()
@click.argument("instance_id", metavar="ID")
@click.option("--type", "workflow_type", required=True, help="Workflow type.")
@click.option("--version", required=True, help="Code version that the instance is pinned to.")
@click.option("--state", type=JSON, help="Initial state as JSON; default: none.")
@click.option(
    "--lease-timeout",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="Overrides the type's lease time.",
)
@click.option("--max-attempts", type=click.IntRange(1, 1000), help="Overrides the type's attempt limit.")
@click.option("--tag", "tags", multiple=True, help="Word to find the instance by; at most 16.")
@click.option("--correlation-key", default="", help="One word to find the instance by.")
@click.option("--request-id", help="Idempotency id of this request.")
@client_options
def create(
    instance_id: str,
    workflow_type: str,
    version: str,
    state: Any,
    lease_timeout: float | None,
    max_attempts: int | None,
    tags: tuple[str, ...],
    correlation_key: str,
    request_id: str | None,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Create an instance.

    Creating it again with the same type, version, state and settings gives the first answer; with others it
    is refused with BODY_CONFLICT.
    """
    from pawl.client import UNSET

    async def job(client: Client) -> Instance:
        return await client.create(
            instance_id,
            workflow_type,
            version=version,
            state=UNSET if state is None else state,
            lease_timeout=lease_timeout,
            max_attempts=max_attempts,
            tags=tags,
            correlation_key=correlation_key,
            request_id=request_id,
        )

    instance = call(address, timeout, job)
    if as_json:
        print_json(instance_json(instance, state=False))
    else:
        click.echo(f"{instance.id} is an instance of {instance.workflow_type} {instance.version}")


@click.command(short_help="Show an instance and its state.")
@click.argument("instance_id", metavar="ID")
@client_options
def get(instance_id: str, address: str | None, timeout: float, as_json: bool) -> None:
    """Show an instance, its state, and what the turn at its head waits for or failed with."""

    async def job(client: Client) -> tuple[Instance, Turn | None]:
        instance = await client.get(instance_id)
        return instance, await head_of(client, instance)

    instance, head = call(address, timeout, job)
    if as_json:
        print_json({**instance_json(instance), "head": head and turn_json(head, payloads=False)})
        return
    blocked = instance.status == "BLOCKED" and head is not None
    print_fields(
        {
            "id": instance.id,
            "type": f"{instance.workflow_type} {instance.version}",
            "status": instance.status,
            "state": text_of(instance.state_payload),
            "blocked by": f"turn {head.turn}: {_why_blocked(head, instance)}" if head and blocked else None,
            "paused": "yes" if instance.paused else None,
            "pending turns": instance.pending_turns,
            "delayed messages": instance.delayed_messages or None,
            "parked turns": instance.parked_turns or None,
            "head turn": f"{head.turn}: {waits_for(head, instance)}" if head and not blocked else None,
            "progress": progress_text(instance.progress.progress) if instance.progress else None,
            "last turn": instance.last_turn,
            "oldest kept turn": instance.oldest_kept_turn,
            "incarnation": instance.incarnation,
            "tags": ", ".join(instance.tags) or None,
            "correlation key": instance.correlation_key or None,
            "created": local(instance.create_time),
            "lease timeout": None
            if instance.lease_timeout is None
            else f"{seconds(instance.lease_timeout):g} s",
            "max attempts": instance.max_attempts or None,
        }
    )


def _why_blocked(head: Turn, instance: Instance) -> str:
    if head.state == "UNCERTAIN":
        return waits_for(head, instance)
    return failure_text(head.last_failure) or head.state


@click.command("list", short_help="List the instances of a type, or the types.")
@click.argument("workflow_type", metavar="[TYPE]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show at most so many; 0 shows all.",
)
@click.option("--tag", default="", help="Only instances with this tag.")
@click.option("--correlation-key", default="", help="Only instances with this correlation key.")
@click.option("--status", type=click.Choice(["BLOCKED", "PAUSED"], case_sensitive=False), help="Only these.")
@client_options
def list_instances(
    workflow_type: str | None,
    limit: int,
    tag: str,
    correlation_key: str,
    status: str | None,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """List the instances of a type in order of creation, without their state.

    Without TYPE, list the types that have settings, or ever had instances or workers. A type without a
    revision has the default settings.
    """
    if workflow_type is None:
        if tag or correlation_key or status:
            raise click.UsageError("--tag, --correlation-key and --status need TYPE")
        _list_types(limit, address, timeout, as_json)
        return

    def job(client: Client) -> Awaitable[list[Instance]]:
        found = client.list(
            workflow_type,
            tag=tag,
            correlation_key=correlation_key,
            status=(status or "").upper(),
            page_size=min(limit, 100),
        )
        return first(found, limit)

    found = call(address, timeout, job)
    if as_json:
        print_json([instance_json(instance, state=False) for instance in found])
        return
    print_table(
        ("ID", "VERSION", "STATUS", "PENDING", "LAST TURN", "CREATED"),
        [
            (one.id, one.version, one.status, one.pending_turns, one.last_turn, local(one.create_time))
            for one in found
        ],
        empty=f"no instances of type {workflow_type}",
    )


def _list_types(limit: int, address: str | None, timeout: float, as_json: bool) -> None:
    def job(client: Client) -> Awaitable[list[WorkflowType]]:
        return first(client.list_workflow_types(page_size=min(limit, 100)), limit)

    found = call(address, timeout, job)
    if as_json:
        print_json([type_json(one) for one in found])
        return
    print_table(
        ("TYPE", "LEASE", "MAX ATTEMPTS", "REVISION", "CHANGED"),
        [
            (
                one.name,
                f"{seconds(one.lease_timeout):g} s",
                one.max_attempts,
                one.revision or None,
                local(one.update_time),
            )
            for one in found
        ],
        empty="no type has had settings, instances or workers yet",
    )
