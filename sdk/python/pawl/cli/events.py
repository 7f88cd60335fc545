"""`pawl events` and `pawl watch`: what happened, and what happens."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import click

from pawl.cli.live import Live
from pawl.cli.options import call, client_options
from pawl.cli.output import moment, print_json, print_table, seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pawl._events import Event
    from pawl.client import Client

_types = click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only events of this type, such as TURN_COMPLETED; may be given more than once.",
)


@click.command(short_help="List what happened to an instance.")
@click.argument("instance_id", metavar="ID")
@_types
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events behind this number.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=0,
    help="Show only the newest so many; 0, the default, shows all that are kept.",
)
@client_options
def events(
    instance_id: str,
    types: tuple[str, ...],
    after: int,
    limit: int,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """List the ledger of an instance, oldest first: some 200 events are kept."""
    names = _upper(types)

    async def job(client: Client) -> list[Event]:
        from pawl._events import EventCursor

        place = EventCursor(after) if after else None
        return [event async for event in client.list_events(instance_id, after=place, types=names)]

    found = call(address, timeout, job)
    found = found[-limit:] if limit else found
    if as_json:
        print_json([event_json(one) for one in found])
        return
    print_table(
        ("SEQ", "TIME", "EVENT", "TURN", "ATTEMPT", "STATE", "STATUS", "BY", "DETAIL"),
        [(one.seq, *_cells(one)) for one in found],
        empty=f"no such events of {instance_id} are kept",
    )


@click.command(short_help="Follow what happens to an instance, or to all.")
@click.argument("instance_id", metavar="[ID]", required=False)
@_types
@click.option("--workflow", "workflow_type", default="", help="Without ID: only instances of this type.")
@click.option("--from-start", is_flag=True, help="Begin with the oldest event that is kept.")
@click.option("--until-idle", is_flag=True, help="End once the instance has nothing left to do.")
@client_options
def watch(
    instance_id: str | None,
    types: tuple[str, ...],
    workflow_type: str,
    from_start: bool,
    until_idle: bool,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Follow an instance as it happens, or without ID all instances; a line per event.

    Survives restarts of servers and lost connections: each event comes once. Ends when the instance is
    deleted, with --until-idle when it is idle, and with Ctrl-C. With --json each line is one event as JSON.

    With ID, a step that reports progress shows how far it is: on a terminal in one line below the events,
    elsewhere in a line per change, at most once a second. Not with --type or --json.
    """
    if instance_id is None and (from_start or until_idle):
        raise click.UsageError("--from-start and --until-idle need ID")
    if instance_id is not None and workflow_type:
        raise click.UsageError("--workflow goes without ID")
    names = _upper(types)

    def follow(client: Client) -> AsyncIterator[tuple[Event, str]]:
        if instance_id is None:
            return _all(client, names, workflow_type)
        return _one(client, instance_id, names, from_start, until_idle)

    async def job(client: Client) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            async with Live(client, "" if names or as_json else instance_id or "") as live:
                async for event, name in follow(client):
                    live.told(event)
                    _tell(event, name, as_json=as_json, named=instance_id is None)
        except asyncio.CancelledError:
            # Asked to stop: that is how a watch usually ends.
            task.uncancel()

    call(address, timeout, job)


def _tell(event: Event, name: str, *, as_json: bool, named: bool) -> None:
    if as_json:
        print_json({**event_json(event), **({"type_of_instance": name} if name else {})})
    else:
        click.echo(_line(event, named=named))


async def _one(
    client: Client, instance_id: str, names: list[str], from_start: bool, until_idle: bool
) -> AsyncIterator[tuple[Event, str]]:
    from pawl._events import EventCursor

    after = EventCursor(0) if from_start else None
    async for event in client.watch(instance_id, after=after, types=names, until_idle=until_idle):
        yield event, ""


async def _all(client: Client, names: list[str], workflow_type: str) -> AsyncIterator[tuple[Event, str]]:
    async for item in client.watch_namespace(types=names, workflow_type=workflow_type):
        yield item.event, item.workflow_type


def _upper(types: tuple[str, ...]) -> list[str]:
    """Names of event types as the API has them. Raises a usage error for one that is none."""
    from pawl._events import types_of

    names = [name.upper().replace("-", "_") for name in types]
    try:
        types_of(names)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--type") from None
    return names


def event_json(event: Event) -> dict[str, Any]:
    """An event as JSON; details that it does not have are left out."""
    details = {
        "reason": event.reason,
        "comment": event.comment,
        "key": event.key,
        "position": event.position,
        "delay_s": seconds(event.delay),
        "message_id": event.message_id,
        "new_turn": event.new_turn,
        "signal": event.name,
        "signal_id": event.signal_id,
        "callback_key": event.callback_key,
        "sender": event.sender and {"name": event.sender.name or None, "kind": event.sender.kind or None},
        "timeout_s": seconds(event.timeout),
        "kind": event.kind,
        "decision": event.decision,
    }
    return {
        "instance_id": event.instance_id,
        "incarnation": event.incarnation,
        "seq": event.seq,
        "gen": event.gen,
        "time": moment(event.time),
        "type": event.type,
        "actor": event.actor,
        "turn": event.turn or None,
        "attempt": event.attempt or None,
        "turn_state": event.turn_state or None,
        "status": event.status,
        **{name: value for name, value in details.items() if value},
    }


def _detail(event: Event) -> str:
    parts = [event.reason, event.key, event.kind, event.decision, event.message_id, event.comment]
    if event.name:
        parts.append(f"signal {event.name}")
    if event.callback_key:
        parts.append(f"callback {event.callback_key}")
    if event.sender is not None and event.sender.name:
        parts.append(f"by {event.sender.name}")
    if event.delay is not None:
        parts.append(f"{event.delay.total_seconds():g} s")
    if event.timeout is not None:
        parts.append(f"for {event.timeout.total_seconds():g} s")
    if event.new_turn:
        parts.append(f"turn {event.new_turn}")
    return " ".join(part for part in parts if part)


def _cells(event: Event) -> tuple[str | int | None, ...]:
    time = event.time.astimezone().strftime("%H:%M:%S.%f")[:-3] if event.time else None
    return (
        time,
        event.type,
        event.turn or None,
        event.attempt or None,
        event.turn_state or None,
        event.status,
        event.actor,
        _detail(event) or None,
    )


def _line(event: Event, *, named: bool) -> str:
    time, kind, turn, attempt, state, status, _, detail = _cells(event)
    where = f"turn {turn}" if turn else ""
    if attempt:
        where += f" attempt {attempt}"
    parts = [time, event.instance_id if named else None, kind, where, detail]
    after = f"{state}, {status}" if state else status
    return "  ".join(str(part) for part in parts if part) + f"  → {after}"
