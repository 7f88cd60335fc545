"""The program `pawl`: its commands, and one place where every error ends."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from pawl.cli.exits import Exit, command_error, end
from pawl.errors import PawlError

COMMANDS = {
    "dev": "pawl.cli.serve:dev",
    "server": "pawl.cli.serve:server",
    "demo": "pawl.cli.demo:demo",
    "create": "pawl.cli.instances:create",
    "send": "pawl.cli.messages:send",
    "signal": "pawl.cli.answers:signal_turn",
    "respond": "pawl.cli.answers:respond",
    "get": "pawl.cli.instances:get",
    "list": "pawl.cli.instances:list_instances",
    "turns": "pawl.cli.turns:turns",
    "events": "pawl.cli.events:events",
    "watch": "pawl.cli.events:watch",
    "inbox": "pawl.cli.backlog:inbox",
    "backlog": "pawl.cli.backlog:backlog",
    "parked": "pawl.cli.backlog:parked",
    "pause": "pawl.cli.control:pause",
    "resume": "pawl.cli.control:resume",
    "wake": "pawl.cli.control:wake",
    "retry": "pawl.cli.control:retry",
    "skip": "pawl.cli.control:skip",
    "park": "pawl.cli.control:park",
    "redrive": "pawl.cli.control:redrive",
    "resolve": "pawl.cli.control:resolve",
    "cancel": "pawl.cli.control:cancel",
    "delete": "pawl.cli.control:delete",
    "worker": "pawl.cli.worker:worker",
    "doctor": "pawl.cli.doctor:doctor",
    "fsck": "pawl.cli.fsck:fsck",
    "config": "pawl.cli.config:config",
    "info": "pawl.cli.info:info",
}
"""Where each command is, in the order of the help."""


class Program(click.Group):
    """Loads a command when it is asked for, and turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Loads a command; None if there is none of that name."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)

    def main(self, args: Sequence[str] | None = None, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Runs the program and exits."""
        words = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in words
        _open_standard_files()
        named |= {"standalone_mode": False, "prog_name": "pawl"}
        try:
            result = super().main(words, **named)
        except click.Abort:
            sys.exit(Exit.INTERRUPTED)
        except click.ClickException as error:
            end(error, as_json=as_json)
        except PawlError as error:
            end(command_error(error), as_json=as_json)
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # Nobody reads on: the flush at the end must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.FAILED)
        sys.exit(result if isinstance(result, int) else Exit.OK)


def _open_standard_files() -> None:
    """Fills descriptors 0 to 2 where the caller has closed them: libuv aborts if it closes one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _version() -> str:
    try:
        return version("pawl-workflows")
    except PackageNotFoundError:
        return "unknown"


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"pawl {_version()}")
        ctx.exit()


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Durable message workflows: start a server, talk to it, run workers.

    Commands that talk to a server find it by --address, else by PAWL_ADDRESS, else at 127.0.0.1:7295. With
    --json they print one JSON value. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server
    answers, 4 not found, 5 not finished in time, 130 interrupted.
    """
