"""`pawl pause`, `resume`, `wake`, `retry`, `skip`, `park`, `redrive`, `cancel` and `delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from pawl.cli.options import call, client_options, confirm
from pawl.cli.output import local, moment, print_json

if TYPE_CHECKING:
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


@click.command(short_help="Send the message of a parked turn again, or drop it.")
@_turn
@click.option("--discard", is_flag=True, help="Drop the kept message instead of sending it.")
@_control
def redrive(how: _How, instance_id: str, number: int, discard: bool) -> None:
    """Send the message of a PARKED turn again, as a new turn at the end of the inbox."""

    def job(client: Client) -> Awaitable[int]:
        return client.redrive_parked(instance_id, number, discard=discard, **how.given)

    turn = how.call(job)
    text = f"turn {turn} of {instance_id}" if turn else f"the message of turn {number} is dropped"
    how.tell({"turn": turn or None}, text)


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
