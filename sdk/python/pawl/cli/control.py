"""`pawl pause`, `resume`, `wake`, `retry`, `skip`, `park`, `redrive`, `resolve`, `cancel`, `delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from pawl._unset import UNSET
from pawl.cli.exits import CommandError
from pawl.cli.options import JSON, call, client_options, confirm
from pawl.cli.output import local, moment, print_json
from pawl.errors import WorkflowError

if TYPE_CHECKING:
    from pawl._running import RedriveProgress
    from pawl.client import Client
    from pawl.models import Cancellation

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _tell(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        click.echo(text)


@dataclass(frozen=True)
class _How:
    """What all control commands take."""

    incarnation: int
    comment: str
    request_id: str | None
    address: str | None
    timeout: float
    as_json: bool

    @property
    def given(self) -> dict[str, Any]:
        """What each of these calls takes."""
        return {
            "incarnation": self.incarnation,
            "comment": self.comment,
            "request_id": self.request_id,
        }

    def call(self, job: Callable[[Client], Awaitable[T]]) -> T:
        return call(self.address, self.timeout, job)

    def tell(self, value: dict[str, Any], text: str) -> None:
        _tell(self.as_json, value, text)


def _life(command: F) -> F:
    return click.option(
        "--incarnation", type=click.IntRange(min=0), default=0, help="Only this life of the id."
    )(command)


def _control(command: F) -> F:
    """Adds the options of all control commands, which the command gets as its first argument."""

    @wraps(command)
    def gathered(
        incarnation: int,
        comment: str,
        request_id: str | None,
        address: str | None,
        timeout: float,
        as_json: bool,
        **own: Any,
    ) -> None:
        command(_How(incarnation, comment, request_id, address, timeout, as_json), **own)

    noted = click.option("--comment", default="", help="Text for the ledger, at most 256 bytes.")
    request = click.option("--request-id", help="Idempotency id; default: a new one.")
    return cast(F, _life(noted(request(client_options(gathered)))))


def _instance(command: F) -> F:
    return click.argument("instance_id", metavar="ID")(command)


def _turn(command: F) -> F:
    turn = click.argument("number", metavar="TURN", type=click.IntRange(min=1))
    return _instance(turn(command))


def _seen(command: F) -> F:
    return click.option(
        "--attempt",
        type=click.IntRange(min=0),
        default=0,
        help="Refuse unless the turn is still at this attempt.",
    )(command)


@click.command(short_help="Stop dispatch of an instance.")
@_instance
@_control
def pause(how: _How, instance_id: str) -> None:
    """Stop dispatch until 'pawl resume'.

    Messages are accepted and the turn that runs may end, but none starts.
    """
    done = how.call(lambda c: c.pause(instance_id, **how.given))
    how.tell({"paused": done}, f"{instance_id} is paused" + ("" if done else " already"))


@click.command(short_help="Start dispatch of a paused instance again.")
@_instance
@_control
def resume(how: _How, instance_id: str) -> None:
    """Start dispatch of a paused instance again."""
    done = how.call(lambda c: c.resume(instance_id, **how.given))
    how.tell({"resumed": done}, f"{instance_id} is resumed" if done else f"{instance_id} was not paused")


@click.command(short_help="End the delay of a turn that waits to be tried again.")
@_instance
@_control
def wake(how: _How, instance_id: str) -> None:
    """End the delay of a turn in BACKOFF or DEFERRED, so that it starts now. A sleep stays."""
    done = how.call(lambda c: c.wake(instance_id, **how.given))
    text = f"the head of {instance_id} is ready" if done else f"the head of {instance_id} waits for no delay"
    how.tell({"woken": done}, text)


@click.command(short_help="Give a failed turn another round of attempts.")
@_turn
@_seen
@_control
def retry(how: _How, instance_id: str, number: int, attempt: int) -> None:
    """Give a FAILED turn another round of attempts; its saved steps are kept."""

    def job(client: Client) -> Awaitable[int]:
        return client.retry_turn(instance_id, number, attempt=attempt, **how.given)

    limit = how.call(job)
    text = f"turn {number} of {instance_id} is tried again, up to attempt {limit}"
    how.tell({"max_attempts": limit}, text)


@click.command(short_help="End a failed turn, so that its inbox goes on.")
@_turn
@_seen
@_control
def skip(how: _How, instance_id: str, number: int, attempt: int) -> None:
    """End a FAILED turn as SKIPPED: the instance keeps its state, and the inbox goes on."""

    def job(client: Client) -> Awaitable[None]:
        return client.skip_turn(instance_id, number, attempt=attempt, **how.given)

    how.call(job)
    how.tell({"state": "SKIPPED"}, f"turn {number} of {instance_id} is skipped")


@click.command(short_help="Set a failed turn aside, so that its inbox goes on.")
@_turn
@_seen
@_control
def park(how: _How, instance_id: str, number: int, attempt: int) -> None:
    """End a FAILED turn as PARKED: the inbox goes on, and 'pawl redrive' sends the message again."""

    def job(client: Client) -> Awaitable[None]:
        return client.park_turn(instance_id, number, attempt=attempt, **how.given)

    how.call(job)
    how.tell({"state": "PARKED"}, f"turn {number} of {instance_id} is parked")


@click.command(short_help="Decide about a step that may or may not have happened.")
@_turn
@click.option("--key", required=True, help="Key of the step.")
@click.option("--output", type=JSON, default=UNSET, help="It happened: save this as what it returned.")
@click.option("--retry", "again", is_flag=True, help="It did not happen, or may happen again: run it.")
@click.option("--fail", "reason", metavar="REASON", help="Let the turn fail for good, for this short reason.")
@click.option("--message", default="", help="With --fail: text for people.")
@_seen
@_control
def resolve(
    how: _How,
    instance_id: str,
    number: int,
    key: str,
    output: Any,
    again: bool,
    reason: str | None,
    message: str,
    attempt: int,
) -> None:
    """Decide about the step of an UNCERTAIN turn, whose worker was lost while it ran.

    Find out whether it happened, and say so: --output, --retry or --fail.
    """
    if (output is not UNSET) + again + (reason is not None) != 1:
        raise click.UsageError("give one of --output, --retry and --fail")
    if message and reason is None:
        raise click.UsageError("--message needs --fail")
    failure = None if reason is None else WorkflowError(message, reason=reason)

    def job(client: Client) -> Awaitable[str]:
        return client.resolve_step(
            instance_id,
            number,
            key,
            output=output,
            retry=again,
            failure=failure,
            attempt=attempt,
            **how.given,
        )

    state = how.call(job)
    how.tell({"state": state}, f"turn {number} of {instance_id} is {state}")


@click.command(short_help="Send the messages of parked turns again, or drop them.")
@click.argument("instance_id", metavar="[ID]", required=False)
@click.argument("number", metavar="[TURN]", type=click.IntRange(min=1), required=False)
@click.option("--all", "workflow_type", metavar="TYPE", help="All parked turns of this type instead of one.")
@click.option("--instance", "only", default="", help="With --all: only turns of this instance.")
@click.option("--reason", default="", help="With --all: only turns whose last failure has this reason.")
@click.option("--discard", is_flag=True, help="Drop the kept messages instead of sending them.")
@click.option("--yes", is_flag=True, help="With --all and --discard: do not ask.")
@_control
def redrive(
    how: _How,
    instance_id: str | None,
    number: int | None,
    workflow_type: str | None,
    only: str,
    reason: str,
    discard: bool,
    yes: bool,
) -> None:
    """Send the message of a PARKED turn again, as a new turn at the end of the inbox.

    With --all, those of all parked turns of a type; how far it is goes to stderr. What could not be sent
    again now stays parked, and the exit code is 1. Stopping it undoes nothing, and it can be started again.
    """
    if workflow_type is not None:
        if instance_id is not None:
            raise click.UsageError("ID and --all exclude each other; --instance takes one")
        if how.request_id or how.incarnation:
            raise click.UsageError("--request-id and --incarnation go without --all")
        if discard and not yes and not how.as_json:
            confirm(f"Drop the messages of parked turns of {workflow_type}?", "--yes")
        _redrive_all(how, workflow_type, only, reason, discard)
        return
    if instance_id is None or number is None:
        raise click.UsageError("give ID and TURN, or --all TYPE")
    if only or reason or yes:
        raise click.UsageError("--instance, --reason and --yes need --all")

    def job(client: Client) -> Awaitable[int]:
        return client.redrive_parked(instance_id, number, discard=discard, **how.given)

    turn = how.call(job)
    text = f"turn {turn} of {instance_id}" if turn else f"the message of turn {number} is dropped"
    how.tell({"turn": turn or None}, text)


def _redrive_all(how: _How, workflow_type: str, only: str, reason: str, discard: bool) -> None:
    async def job(client: Client) -> RedriveProgress | None:
        last = None
        found = client.redrive_all_parked(
            workflow_type, instance_id=only, reason=reason, discard=discard, comment=how.comment
        )
        async for last in found:
            if not how.as_json and not last.done:
                click.echo(_redriven_text(last, discard), err=True)
        return last

    end = how.call(job)
    assert end is not None, "the last part says that it is the last"
    refusal = end.last_refusal
    value = {
        "seen": end.seen,
        "redriven": end.redriven,
        "skipped": end.skipped,
        "refused": end.refused,
        "last_refusal": None if refusal is None else {"reason": refusal.reason, "message": refusal.message},
    }
    how.tell(value, _redriven_text(end, discard))
    if refusal is not None:
        text = f"{end.refused} turns stay parked, the last one because: {refusal.message}"
        raise CommandError(refusal.reason, text, details=refusal.metadata)


def _redriven_text(part: RedriveProgress, discard: bool) -> str:
    did = "discarded" if discard else "redriven"
    return (
        f"{part.redriven} of {part.seen} parked turns {did}, {part.skipped} left out, {part.refused} refused"
    )


@click.command(short_help="Cancel a turn, or a message that has not started.")
@_instance
@click.argument("number", metavar="[TURN]", type=click.IntRange(min=1), required=False)
@click.option("--message", "message_id", help="Cancel the message with this id instead of a turn.")
@click.option("--force", is_flag=True, help="Do not wait for the worker of a turn that runs.")
@_control
def cancel(how: _How, instance_id: str, number: int | None, message_id: str | None, force: bool) -> None:
    """End an unfinished turn as CANCELLED, or take back a message that has not started.

    The worker of a turn that runs is told, and has ten seconds to finish the step that runs and give the turn
    up. After that, or at once with --force, it ends without the worker; what its code does outside then can
    overlap with the next turn. The instance keeps its state.
    """
    if (number is None) == (message_id is None):
        raise click.UsageError("give either TURN or --message")
    if message_id is not None and force:
        raise click.UsageError("--force is for turns")
    if message_id is not None:
        told = message_id

        def take_back(client: Client) -> Awaitable[int]:
            return client.cancel_message(instance_id, told, **how.given)

        turn = how.call(take_back)
        how.tell({"turn": turn}, f"message {told}, turn {turn}, is cancelled")
        return
    which = number or 0

    def job(client: Client) -> Awaitable[Cancellation]:
        return client.cancel_turn(instance_id, which, force=force, **how.given)

    done = how.call(job)
    text = f"turn {which} of {instance_id}, which was {done.former_state}, is "
    if done.cancel_deadline is None:
        text += "cancelled"
    else:
        text += f"{done.state}; it ends by {local(done.cancel_deadline)}"
    value = {
        "state": done.state,
        "former_state": done.former_state,
        "finish_time": moment(done.finish_time),
        "cancel_deadline": moment(done.cancel_deadline),
    }
    how.tell(value, text)


@click.command(short_help="Delete an instance with all that belongs to it.")
@_instance
@_life
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--request-id", help="Idempotency id; default: a new one.")
@client_options
def delete(
    instance_id: str,
    incarnation: int,
    yes: bool,
    request_id: str | None,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Delete an instance with its state, inbox, history and ledger; a turn that runs loses its lease."""
    if not yes and not as_json:
        confirm(f"Delete {instance_id} with everything that belongs to it?", "--yes")

    def job(client: Client) -> Awaitable[bool]:
        return client.delete(instance_id, incarnation=incarnation, request_id=request_id)

    done = call(address, timeout, job)
    _tell(as_json, {"deleted": done}, f"{instance_id} is deleted" if done else f"there is no {instance_id}")
