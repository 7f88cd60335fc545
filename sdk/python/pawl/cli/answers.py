"""`pawl signal` and `pawl respond`: what turns wait for, and their answers."""

from __future__ import annotations

import getpass
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pawl.cli.exits import CommandError
from pawl.cli.messages import message_value
from pawl.cli.options import call, client_options, first
from pawl.cli.output import local, moment, print_fields, print_json, print_table, text_of, value_of
from pawl.cli.running import wait_json, wait_text
from pawl.cli.waiting import head_of, waits_for

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pawl._running import CallbackAnswer, Principal, Signalled
    from pawl.client import Client
    from pawl.models import BacklogEntry, Instance, Turn

_sender = click.option(
    "--sender", metavar="NAME", help="Who says it, for those who look at the turn; default: the login name."
)
_id = click.option("--id", "signal_id", help="Idempotency id of the signal; default: a new UUID.")
_text = click.option("--text", is_flag=True, help="Take VALUE as a string instead of reading it as JSON.")


def _person(name: str | None) -> Principal:
    from pawl._running import Principal

    if name is None:
        try:
            name = getpass.getuser()
        except (ImportError, KeyError, OSError):
            name = ""
    return Principal(name, "PERSON")


@click.command("signal", short_help="Send a signal to a turn.")
@click.argument("instance_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--turn", type=click.IntRange(min=1), help="Turn to signal; default: the one at the head.")
@_id
@click.option(
    "--file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Read VALUE from it; - is standard input.",
)
@_text
@click.option("--incarnation", type=click.IntRange(min=0), default=0, help="Only this life of the id.")
@_sender
@client_options
def signal_turn(
    instance_id: str,
    name: str,
    value: str | None,
    turn: int | None,
    signal_id: str | None,
    file: Path | None,
    text: bool,
    incarnation: int,
    sender: str | None,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send a signal to the unfinished turn at the head, or to the next one that is admitted if there is none.

    VALUE is JSON; "-" reads it from standard input, and without it null is sent. A signal that comes early is
    kept for the turn until its code waits for NAME. Sending again with the same --id gives the first answer
    and sends nothing.
    """
    given = message_value(_content(value, file), text, False, "VALUE")

    def job(client: Client) -> Awaitable[Signalled]:
        return client.signal(
            *(instance_id, name, given),
            turn=turn,
            id=signal_id,
            incarnation=incarnation,
            sender=_person(sender),
        )

    _tell_signalled(call(address, timeout, job), as_json)


def _content(value: str | None, file: Path | None) -> str | None:
    """Gives what stands for VALUE: itself, what a file has, or "-"."""
    if file is None:
        return value
    if value is not None:
        raise click.UsageError("VALUE and --file exclude each other")
    if str(file) == "-":
        return "-"
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(str(error), param_hint="--file") from None


def _tell_signalled(done: Signalled, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "instance_id": done.instance_id,
                "turn": done.turn,
                "signal_id": done.signal_id,
                "receive_time": moment(done.receive_time),
                "consumed_position": done.consumed_position or None,
            }
        )
        return
    took = (
        f"took it as step {done.consumed_position}" if done.consumed_position else "keeps it until it waits"
    )
    click.echo(f"turn {done.turn} of {done.instance_id} {took}, signal {done.signal_id}")


@click.command(short_help="Show what a turn waits for, and answer it.")
@click.argument("instance_id", metavar="[ID]", required=False)
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--type", "workflow_type", help="Without ID: list what turns of this type wait for.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="List at most so many; 0 for all.",
)
@click.option("--reject", "reason", metavar="REASON", help="Reject the callback with this short reason.")
@click.option("--message", "message", default="", help="With --reject: text for people.")
@_id
@_text
@_sender
@client_options
def respond(
    instance_id: str | None,
    value: str | None,
    workflow_type: str | None,
    limit: int,
    reason: str | None,
    message: str,
    signal_id: str | None,
    text: bool,
    sender: str | None,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Show what the turn at the head of an instance waits for, a signal or a callback; with VALUE, answer it.

    VALUE is JSON; "-" reads it from standard input. The answer goes to the turn that waits, and to no other.
    With --type, list what all turns of a type wait for.
    """
    if (instance_id is None) == (workflow_type is None):
        raise click.UsageError("give either ID or --type")
    if reason is not None and value is not None:
        raise click.UsageError("VALUE and --reject exclude each other")
    if message and reason is None:
        raise click.UsageError("--message needs --reject")
    if instance_id is None:
        _list(workflow_type or "", limit, address, timeout, as_json)
    elif value is None and reason is None:
        _show(instance_id, address, timeout, as_json)
    else:
        given = None if value is None else message_value(value, text, False, "VALUE")

        async def job(client: Client) -> Signalled | CallbackAnswer:
            head = await _waiting(client, instance_id)
            return await _answer(client, head, given, reason, message, signal_id, _person(sender))

        _tell(call(address, timeout, job), as_json)


async def _read(client: Client, instance_id: str) -> tuple[Instance, Turn | None]:
    instance = await client.get(instance_id)
    return instance, await head_of(client, instance)


async def _waiting(client: Client, instance_id: str) -> Turn:
    """Gives the turn that waits. Ends the command if none does."""
    instance, head = await _read(client, instance_id)
    if head is None or head.wait is None:
        raise CommandError("WRONG_STATE", _not_waiting(instance, head), details={"instance_id": instance_id})
    return head


def _not_waiting(instance: Instance, head: Turn | None) -> str:
    if head is None:
        return f"{instance.id} waits for nothing: its inbox is empty"
    return f"{instance.id} waits for no answer: turn {head.turn} {waits_for(head, instance)}"


async def _answer(
    client: Client,
    head: Turn,
    value: Any,
    reason: str | None,
    message: str,
    signal_id: str | None,
    sender: Principal,
) -> Signalled | CallbackAnswer:
    assert head.wait is not None
    if not head.wait.callback:
        if reason is not None:
            text = f"turn {head.turn} waits for signal {head.wait.name}; only a callback can be rejected"
            raise CommandError("WRONG_STATE", text)
        return await client.signal(
            *(head.instance_id, head.wait.name, value),
            turn=head.turn,
            id=signal_id,
            incarnation=head.incarnation,
            sender=sender,
        )
    if signal_id is not None:
        raise click.UsageError("--id is for signals; a callback takes one result only")
    token = head.wait.callback_token
    if reason is not None:
        return await client.reject_callback(token, message, reason=reason, sender=sender)
    return await client.resolve_callback(token, value, sender=sender)


def _tell(done: Signalled | CallbackAnswer, as_json: bool) -> None:
    from pawl._running import Signalled

    if isinstance(done, Signalled):
        _tell_signalled(done, as_json)
    elif as_json:
        receive_time = moment(done.receive_time)
        print_json({"instance_id": done.instance_id, "turn": done.turn, "receive_time": receive_time})
    else:
        click.echo(f"turn {done.turn} of {done.instance_id} has its answer")


def _show(instance_id: str, address: str | None, timeout: float, as_json: bool) -> None:
    instance, head = call(address, timeout, lambda client: _read(client, instance_id))
    if as_json:
        waiting = head is not None and head.wait is not None
        print_json(_waiting_json(instance, head) if waiting and head else None)
        return
    if head is None or head.wait is None:
        click.echo(_not_waiting(instance, head))
        return
    print_fields(
        {
            "turn": f"{head.turn} of {instance.id}",
            "waits for": wait_text(head.wait),
            "since": local(head.wait.start_time),
            "message": text_of(head.message_payload),
            "last step": f"{head.steps[-1].key}: {text_of(head.steps[-1].output_payload)}"
            if head.steps
            else None,
            "answer with": f"pawl respond {shlex.quote(instance.id)} VALUE",
        }
    )


def _waiting_json(instance: Instance, head: Turn) -> dict[str, Any]:
    last = head.steps[-1] if head.steps else None
    return {
        "instance_id": instance.id,
        "turn": head.turn,
        "wait": wait_json(head.wait),
        "message": value_of(head.message_payload),
        "last_step": last and {"key": last.key, "output": value_of(last.output_payload)},
    }


def _list(workflow_type: str, limit: int, address: str | None, timeout: float, as_json: bool) -> None:
    async def job(client: Client) -> list[tuple[BacklogEntry, Turn]]:
        async def waiting():
            async for entry in client.backlog(workflow_type, page_size=100):
                if entry.head is not None and entry.head.wait is not None:
                    yield entry, entry.head

        return await first(waiting(), limit)

    found = call(address, timeout, job)
    if as_json:
        print_json(
            [
                {"instance_id": entry.instance.id, "turn": head.turn, "wait": wait_json(head.wait)}
                for entry, head in found
            ]
        )
        return
    print_table(
        ("ID", "TURN", "WAITS FOR", "SINCE", "UNTIL"),
        [
            (
                entry.instance.id,
                head.turn,
                f"callback {head.wait.key}" if head.wait.callback else f"signal {head.wait.name}",
                local(head.wait.start_time),
                local(head.wait.deadline),
            )
            for entry, head in found
            if head.wait is not None
        ],
        empty=f"no turn of type {workflow_type} waits for an answer",
    )
