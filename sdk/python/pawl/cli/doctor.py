"""`pawl doctor`: what is stuck, why, and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from pawl.cli.exits import Exit
from pawl.cli.options import call, client_options, first
from pawl.cli.output import failure_text, local, print_json
from pawl.cli.running import decisions, uncertain_text, wait_text
from pawl.cli.waiting import head_of

if TYPE_CHECKING:
    from pawl.client import Client
    from pawl.models import Instance, ServerInfo, Turn, TypeWorkload, Workload

_SHOWN = 5
"""Instances shown of each kind and type."""
_LATE = 1_000
_NOTED = 5
"""Seconds that a ready turn waits before it is noted."""


class Problem(NamedTuple):
    """Something that is stuck."""

    what: str
    why: str
    commands: tuple[str, ...] = ()
    """What helps: one of these."""


@click.command(short_help="Say what is stuck, why, and what helps.")
@client_options
def doctor(address: str | None, timeout: float, as_json: bool) -> int:
    """Say what is stuck, why, and the command that helps. Exit code 1 if anything is.

    Looks at the store, at types that nobody works for, at instances that are blocked or paused, at late
    timers and damaged records. A type counts as stuck if a turn has been ready for two minutes and no worker
    is there; what waits for less, turns that are parked, and turns that wait for an answer are noted only.
    Changes nothing.
    """
    problems, notes, info = call(address, timeout, _examine)
    if as_json:
        print_json(
            {
                "problems": [{**one._asdict(), "commands": list(one.commands)} for one in problems],
                "notes": notes,
            }
        )
    else:
        for one in problems:
            click.echo(f"{one.what}\n  because {one.why}")
            for command in one.commands:
                click.echo(f"  try: {command}")
        if not problems:
            where = f"{info.namespace} on {info.store}"
            click.echo(f"nothing is stuck in namespace {where} ({info.durability.lower()})")
        for note in notes:
            click.echo(f"note: {note}")
    return Exit.FAILED if problems else Exit.OK


async def _examine(client: Client) -> tuple[list[Problem], list[str], ServerInfo]:
    info = await client.info()
    if not info.store_reachable:
        why = "calls answer STORE_UNAVAILABLE until it is back; nothing acknowledged is lost"
        return [Problem("the store does not answer the server", why)], [], info
    load = await client.workload()
    problems = list(_of_server(info))
    problems += _of_namespace(load)
    for one in load.types:
        problems += await _of_type(client, one)
    return problems, [*_notes(load), *await _waiting(client, load)], info


def _notes(load: Workload) -> list[str]:
    """What is no problem, or none yet."""
    notes = [
        f"{_ready(one.ready_turns)} of {one.workflow_type} {one.version} wait for a worker, the oldest"
        f" for {one.oldest_ready_age.total_seconds():.0f} s"
        for one in load.types
        if one.oldest_ready_age is not None
        and one.oldest_ready_age.total_seconds() >= _NOTED
        and not one.starved
    ]
    if load.parked_turns:
        notes.append(f"{load.parked_turns} parked turns can be redriven; 'pawl parked TYPE' lists them")
    return notes


async def _waiting(client: Client, load: Workload) -> list[str]:
    """Names turns that wait for somebody to answer, some of each type."""
    notes: list[str] = []
    for name in sorted({one.workflow_type for one in load.types}):
        shown = 0
        for item in await first(client.backlog(name, page_size=100), 100):
            if item.head is None or item.head.wait is None:
                continue
            shown += 1
            if shown > _SHOWN:
                notes.append(f"more turns of {name} wait for answers: 'pawl respond --type {name}'")
                break
            about = f"turn {item.head.turn} of {item.instance.id} waits for {wait_text(item.head.wait)}"
            notes.append(f"{about}: 'pawl respond {item.instance.id}'")
    return notes


def _of_server(info: ServerInfo) -> list[Problem]:
    if info.durability in ("MEMORY", "EVERYSEC"):
        lost = "everything" if info.durability == "MEMORY" else "up to two seconds of acknowledged work"
        why = f"a crash of Redis loses {lost}; set appendonly yes and appendfsync always"
        return [Problem(f"the store's durability is {info.durability.lower()}", why)]
    return []


def _of_namespace(load: Workload) -> list[Problem]:
    problems: list[Problem] = []
    if load.damaged_records:
        why = "what is stored of them can't be read; nobody else is held up"
        problems.append(Problem(f"{load.damaged_records} records are damaged", why, ("pawl fsck --repair",)))
    if load.late_timers > _LATE:
        why = f"{load.late_timers} of {load.timers} timers should have fired: servers or Redis are overloaded"
        problems.append(Problem("timers are late", why, ("pawl info",)))
    return problems


def _ready(count: int) -> str:
    return f"{count} ready turn{'' if count == 1 else 's'}"


async def _of_type(client: Client, one: TypeWorkload) -> list[Problem]:
    problems: list[Problem] = []
    name = f"{one.workflow_type} {one.version}"
    if one.starved and one.oldest_ready_age is not None:
        age = f"{one.oldest_ready_age.total_seconds():.0f} s"
        why = f"no worker of {name} is connected; the oldest of {_ready(one.ready_turns)} waits for {age}"
        command = f"pawl worker MODULE:WORKFLOW   # one that has {one.workflow_type} in version {one.version}"
        problems.append(Problem(f"nobody works for {name}", why, (command,)))
    if one.blocked_instances:
        problems += await _blocked(client, one)
    if one.paused_instances:
        problems += await _paused(client, one)
    return problems


async def _blocked(client: Client, one: TypeWorkload) -> list[Problem]:
    problems: list[Problem] = []
    for instance in await _some(client, one, "BLOCKED"):
        head = await head_of(client, instance)
        if head is None or not head.blocked:
            continue
        behind = instance.pending_turns - 1
        what = f"{instance.id} is blocked" + (f", {_turns(behind)} behind" if behind else "")
        if head.state == "UNCERTAIN":
            why = f"turn {head.turn} is UNCERTAIN{_since(head)}: {uncertain_text(head)}"
            problems.append(Problem(what, why, decisions(head)))
            continue
        seen = f"{instance.id} {head.turn} --attempt {head.attempt}"
        commands = (f"pawl retry {seen}", f"pawl skip {seen}", f"pawl park {seen}")
        problems.append(Problem(what, _why_failed(head), commands))
    return _with_rest(problems, one.blocked_instances, one, "blocked")


def _turns(count: int) -> str:
    return "1 turn waits" if count == 1 else f"{count} turns wait"


def _why_failed(head: Turn) -> str:
    return f"turn {head.turn} has failed for good{_since(head)}: {failure_text(head.last_failure)}"


def _since(head: Turn) -> str:
    since = head.last_failure and local(head.last_failure.fail_time)
    return f" since {since}" if since else ""


async def _paused(client: Client, one: TypeWorkload) -> list[Problem]:
    problems = [
        Problem(
            f"{instance.id} is paused, {_turns(instance.pending_turns)}",
            "somebody stopped its dispatch",
            (f"pawl resume {instance.id}",),
        )
        for instance in await _some(client, one, "PAUSED")
        if instance.pending_turns
    ]
    return _with_rest(problems, one.paused_instances, one, "paused") if problems else []


async def _some(client: Client, one: TypeWorkload, status: str) -> list[Instance]:
    found = await first(client.list(one.workflow_type, status=status, page_size=100), 100)
    return [instance for instance in found if instance.version == one.version][:_SHOWN]


def _with_rest(problems: list[Problem], count: int, one: TypeWorkload, status: str) -> list[Problem]:
    if count > len(problems) == _SHOWN:
        what = f"{count - _SHOWN} more instances of {one.workflow_type} {one.version} are {status}"
        command = f"pawl list {one.workflow_type} --status {status}"
        problems.append(Problem(what, "as above, or for other reasons", (command,)))
    return problems
