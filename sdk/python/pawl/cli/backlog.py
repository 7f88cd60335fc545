"""`pawl inbox`, `pawl backlog` and `pawl parked`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pawl.cli.options import call, client_options, first
from pawl.cli.output import (
    failure_text,
    instance_json,
    local,
    moment,
    print_json,
    print_table,
    seconds,
    state_text,
    text_of,
    turn_json,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawl.client import Client
    from pawl.models import BacklogEntry, InboxEntry, Turn, Workload

_limit = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show at most so many; 0 shows all.",
)


@click.command(short_help="List what waits in the inbox of an instance.")
@click.argument("instance_id", metavar="ID")
@_limit
@click.option("--payloads", is_flag=True, help="Show the messages as well.")
@client_options
def inbox(
    instance_id: str, limit: int, payloads: bool, address: str | None, timeout: float, as_json: bool
) -> None:
    """List the unfinished turns of an instance, oldest first, then its delayed messages."""

    def job(client: Client) -> Awaitable[list[InboxEntry]]:
        found = client.inbox(instance_id, page_size=min(limit, 100), include_payloads=payloads)
        return first(found, limit)

    found = call(address, timeout, job)
    if as_json:
        print_json(
            [{**turn_json(one.turn, payloads=payloads), "message_bytes": one.message_bytes} for one in found]
        )
        return
    print_table(
        ("TURN", "STATE", "MESSAGE ID", "BYTES", "ATTEMPT", "ADMITTED", "DUE", "LAST FAILURE", "MESSAGE"),
        [
            (
                one.turn.turn or None,
                state_text(one.turn) if one.turn.turn else "DELAYED",
                one.turn.message_id,
                one.message_bytes,
                one.turn.attempt,
                local(one.turn.admit_time),
                local(one.turn.due_time),
                failure_text(one.turn.last_failure),
                text_of(one.turn.message_payload) if payloads else None,
            )
            for one in found
        ],
        empty=f"nothing waits in the inbox of {instance_id}",
    )


@click.command(short_help="List what waits, by type or by instance of a type.")
@click.argument("workflow_type", metavar="[TYPE]", required=False)
@click.option("--version", default="", help="Only instances of this version.")
@_limit
@client_options
def backlog(
    workflow_type: str | None,
    version: str,
    limit: int,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """List the types that have unfinished turns; with TYPE, its instances that have any."""
    if workflow_type is None:
        _workload(address, timeout, as_json)
        return
    name = workflow_type

    def job(client: Client) -> Awaitable[list[BacklogEntry]]:
        return first(client.backlog(name, version=version, page_size=min(limit, 100)), limit)

    found = call(address, timeout, job)
    if as_json:
        print_json(
            [
                {
                    **instance_json(one.instance, state=False),
                    "head": one.head and turn_json(one.head, payloads=False),
                }
                for one in found
            ]
        )
        return
    print_table(
        ("ID", "VERSION", "STATUS", "PENDING", "HEAD", "STATE", "ATTEMPT", "ADMITTED", "LAST FAILURE"),
        [
            (
                one.instance.id,
                one.instance.version,
                one.instance.status,
                one.instance.pending_turns,
                one.head and one.head.turn,
                one.head and state_text(one.head),
                one.head and one.head.attempt,
                local(one.head.admit_time) if one.head else None,
                failure_text(one.head.last_failure) if one.head else None,
            )
            for one in found
        ],
        empty=f"no instance of type {name} has unfinished turns",
    )


def _workload(address: str | None, timeout: float, as_json: bool) -> None:
    load: Workload = call(address, timeout, lambda client: client.workload())
    if as_json:
        print_json(
            [
                {
                    "type": one.workflow_type,
                    "version": one.version,
                    "ready_turns": one.ready_turns,
                    "oldest_ready_age_s": seconds(one.oldest_ready_age),
                    "busy_instances": one.busy_instances,
                    "blocked_instances": one.blocked_instances,
                    "paused_instances": one.paused_instances,
                    "starved": one.starved,
                }
                for one in load.types
            ]
        )
        return
    print_table(
        ("TYPE", "VERSION", "READY", "OLDEST", "BUSY", "BLOCKED", "PAUSED", ""),
        [
            (
                one.workflow_type,
                one.version,
                one.ready_turns,
                None if one.oldest_ready_age is None else f"{one.oldest_ready_age.total_seconds():.1f} s",
                one.busy_instances,
                one.blocked_instances,
                one.paused_instances,
                "no worker: start one of this type and version" if one.starved else None,
            )
            for one in load.types
        ],
        empty="nothing waits",
    )


@click.command(short_help="List the parked turns of a type.")
@click.argument("workflow_type", metavar="TYPE")
@click.option("--instance", "instance_id", default="", help="Only turns of this instance.")
@_limit
@client_options
def parked(
    workflow_type: str, instance_id: str, limit: int, address: str | None, timeout: float, as_json: bool
) -> None:
    """List the parked turns of a type with their messages; 'pawl redrive' sends one again or drops it."""

    def job(client: Client) -> Awaitable[list[Turn]]:
        found = client.list_parked(workflow_type, instance_id=instance_id, page_size=min(limit, 100))
        return first(found, limit)

    found = call(address, timeout, job)
    if as_json:
        print_json([{**turn_json(one), "steps": [], "park_time": moment(one.finish_time)} for one in found])
        return
    print_table(
        ("ID", "TURN", "MESSAGE ID", "PARKED", "LAST FAILURE", "MESSAGE"),
        [
            (
                one.instance_id,
                one.turn,
                one.message_id,
                local(one.finish_time),
                failure_text(one.last_failure),
                text_of(one.message_payload),
            )
            for one in found
        ],
        empty=f"no turn of type {workflow_type} is parked",
    )
