"""Options that commands share, and the call that most of them make."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pawl.cli.exits import command_error
from pawl.errors import PawlError

if TYPE_CHECKING:
    from pawl.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

FLAGS = {"redis_url": "--redis", "metrics_address": "--metrics"}
"""Options of a server that are not spelled as the setting they set."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead of text.")

config_option = click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings in TOML; default PAWL_CONFIG, else pawl.toml in this folder if there is one.",
)
processes_option = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Server processes that share the port, for more than one core; default PAWL_PROCESSES, else 1.",
)
metrics_option = click.option(
    "--metrics",
    "metrics_address",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus there; default PAWL_METRICS_ADDRESS, else not at all.",
)
insecure_option = click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Listen beyond loopback although there are no credentials yet.",
)


def client_options(command: F) -> F:
    """Adds --address, --timeout and --json to a command that talks to a server."""
    address = click.option(
        "--address", metavar="HOST:PORT", help="Server to talk to; default PAWL_ADDRESS, else 127.0.0.1:7295."
    )
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest time to try, repeats included.",
    )
    return address(timeout(json_option(command)))


def call(address: str | None, timeout: float, job: Callable[[Client], Awaitable[T]]) -> T:
    """Runs a job with a client in an event loop of its own. Errors of the library end the command."""
    from pawl.client import Client

    where = ""

    async def connected() -> T:
        nonlocal where
        async with Client(address, timeout=timeout) as client:
            where = client.address
            return await job(client)

    try:
        return run(connected())
    except PawlError as error:
        raise command_error(error, where) from None


async def first(found: AsyncIterator[T], limit: int) -> list[T]:
    """Gathers the first items of a listing; 0 gathers all."""
    items: list[T] = []
    async for item in found:
        items.append(item)
        if len(items) == limit:
            break
    return items


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in an event loop of its own: uvloop's, where that is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def confirm(question: str, flag: str) -> None:
    """Asks before something that can't be undone; `flag` is the option that answers.

    No ends the command. Where nobody can be asked, as standard input is no terminal, that is a usage error.
    """
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        raise click.UsageError(f"{flag} is needed where standard input is no terminal that can be asked")
    click.confirm(question, abort=True, err=True)


def read_input() -> bytes:
    """Reads standard input to its end; a usage error if it is closed."""
    if sys.stdin is None or sys.stdin.closed:
        raise click.UsageError("standard input is closed")
    return sys.stdin.buffer.read()


class JsonValue(click.ParamType):
    """A value written as JSON."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads the text; a usage error names the place where it stops being JSON. Values stay as is."""
        if not isinstance(value, str | bytes):
            return value
        return parse_json(value, lambda text: self.fail(text, param, ctx))


def parse_json(text: str | bytes, fail: Callable[[str], Any]) -> Any:
    """Reads JSON; calls `fail` with a reason if it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return fail(f"not JSON at position {error.pos}: {error.msg}")
    except UnicodeDecodeError as error:
        return fail(f"not UTF-8 at position {error.start}")


JSON = JsonValue()
