"""`pawl send`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pawl.cli.exits import CommandError, Exit
from pawl.cli.options import JSON, call, client_options, parse_json, read_input
from pawl.cli.output import local, print_json, sent_json, text_of
from pawl.cli.waiting import why_unfinished
from pawl.errors import InstanceDeleted, NotFound, TurnUnfinished

if TYPE_CHECKING:
    from pawl.client import Client, NewInstance
    from pawl.models import Sent


@click.command(short_help="Send a message, which becomes a turn.")
@click.argument("instance_id", metavar="ID")
@click.argument("message", required=False)
@click.option("--id", "message_id", help="Idempotency id of the message; default: a new UUID.")
@click.option("--type", "workflow_type", help="With --version: create the instance if it is absent.")
@click.option("--version", help="Code version of an instance that is created.")
@click.option("--state", type=JSON, help="Initial state, as JSON, of an instance that is created.")
@click.option(
    "--delay", type=click.FloatRange(0.001, 31_536_000), metavar="SECONDS", help="Admit it after this time."
)
@click.option(
    "--ttl",
    type=click.FloatRange(0.001, 31_536_000),
    metavar="SECONDS",
    help="Let it expire if no attempt has begun this long after admission.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="Wait for the turn to finish, and print what it returned.",
)
@click.option("--text", is_flag=True, help="Send MESSAGE as a string instead of reading it as JSON.")
@click.option("--binary", is_flag=True, help="Send the bytes of standard input as they are.")
@client_options
def send(
    instance_id: str,
    message: str | None,
    message_id: str | None,
    workflow_type: str | None,
    version: str | None,
    state: Any,
    delay: float | None,
    ttl: float | None,
    wait: float | None,
    text: bool,
    binary: bool,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send a message to an instance, where it becomes a turn.

    MESSAGE is JSON; "-" reads it from standard input, and without it null is sent. Sending again with the
    same --id gives the first answer and sends nothing. With --wait the exit code tells how the turn ended:
    0 completed, 1 failed, 5 not finished yet; the line on stderr then says what it waits for. A turn that
    continued with a message of its own is completed: what it returned is printed, and on stderr the turn that
    continues it, which 'pawl turns' shows.
    """
    _check_delay(delay, wait)
    value = message_value(message, text, binary)
    new = _new_instance(workflow_type, version, state)

    async def job(client: Client) -> tuple[Sent, str]:
        try:
            sent = await client.send(
                instance_id, value, id=message_id, create=new, delay=delay, ttl=ttl, wait=wait
            )
        except InstanceDeleted as error:
            text = f"{error.message}; another --id sends a new message"
            raise CommandError(error.reason, text, Exit.NOT_FOUND, error.metadata) from None
        except NotFound as error:
            text = f"{error.message}; --type and --version create it"
            raise CommandError(error.reason, text, Exit.NOT_FOUND, error.metadata) from None
        if sent.outcome is None or sent.outcome.finished or sent.outcome.blocked:
            return sent, ""
        return sent, await why_unfinished(client, instance_id, sent.turn)

    sent, why = call(address, timeout, job)
    if as_json:
        print_json(sent_json(sent))
    else:
        _show(sent)
    if sent.outcome is not None and sent.outcome.state != "COMPLETED":
        try:
            sent.outcome.result()  # raises what the exit code and the line on stderr are made of
        except TurnUnfinished as error:
            unfinished = f"turn {sent.turn} of {instance_id}, message {sent.message_id}, is not finished"
            details = {"state": error.state, "turn": str(sent.turn), "message_id": sent.message_id}
            said = f"{unfinished}: {why or error.state}"
            raise CommandError("UNFINISHED", said, Exit.UNFINISHED, details) from None


def _show(sent: Sent) -> None:
    if not sent.turn:
        click.echo(f"message {sent.message_id} of {sent.instance_id}, due {local(sent.due_time)}")
    elif sent.outcome is None:
        click.echo(f"turn {sent.turn} of {sent.instance_id}, message {sent.message_id}")
    elif sent.outcome.state == "COMPLETED":
        click.echo(text_of(sent.outcome.reply_payload) or "null")
        if sent.outcome.continuation_turn:
            click.echo(f"continued by turn {sent.outcome.continuation_turn}", err=True)


def _check_delay(delay: float | None, wait: float | None) -> None:
    if delay is not None and wait is not None:
        raise click.UsageError("--delay and --wait exclude each other")


def message_value(message: str | None, text: bool, binary: bool, name: str = "MESSAGE") -> Any:
    """Gives what an argument called `name` stands for; a usage error if that can't be told."""
    if text and binary:
        raise click.UsageError("--text and --binary exclude each other")
    if binary:
        if message not in (None, "-"):
            raise click.UsageError(f"--binary reads standard input, so {name} must be left out")
        return read_input()

    def fail(why: str) -> Any:
        raise click.UsageError(f"{name} is {why}; --text sends it as a string")

    if message == "-":
        data = read_input()
        return _decoded(data, name) if text else parse_json(data, fail)
    if message is None:
        return "" if text else None
    return message if text else parse_json(message, fail)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 at position {error.start}") from None


def _new_instance(workflow_type: str | None, version: str | None, state: Any) -> NewInstance | None:
    from pawl.client import UNSET, NewInstance

    if workflow_type is None:
        if version is not None or state is not None:
            raise click.UsageError("--version and --state need --type")
        return None
    if version is None:
        raise click.UsageError("--type needs --version")
    return NewInstance(workflow_type, version, UNSET if state is None else state)
