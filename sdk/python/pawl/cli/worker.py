"""`pawl worker`."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import click

from pawl.cli.exits import CommandError, Exit
from pawl.cli.options import json_option, run
from pawl.cli.output import print_json

if TYPE_CHECKING:
    from pawl.worker import Worker
    from pawl.workflow import Workflow


@click.command()
@click.argument("names", metavar="MODULE:WORKFLOW...", nargs=-1, required=True)
@click.option("--address", metavar="HOST:PORT", help="Server; default PAWL_ADDRESS, else 127.0.0.1:7295.")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Turns at a time."
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that running turns get to end when the worker stops.",
)
@json_option
def worker(
    names: tuple[str, ...], address: str | None, concurrency: int, grace: float, as_json: bool
) -> None:
    """Run the turns of workflows.

    MODULE:WORKFLOW names a workflow that a module declares with @workflow; MODULE alone names all of them.
    Modules are looked for in the current folder first. The worker reconnects for ever; SIGINT or SIGTERM lets
    running turns end and gives the others back.
    """
    from pawl.worker import Worker

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: list[Workflow] = []
    for name in names:
        found += [one for one in load(name) if one not in found]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        one = Worker(address, workflows=found, concurrency=concurrency, grace=grace)
    except ValueError as error:
        raise CommandError("NO_WORKFLOW", str(error), Exit.USAGE) from None
    runs = [f"{item.name} {item.version}" for item in found]

    def announce() -> None:
        if as_json:
            print_json(
                {"address": one.address, "session": one.session, "workflows": runs, "pid": os.getpid()}
            )
        else:
            click.echo(f"Worker {one.session} runs {', '.join(runs)} for {one.address}. Ctrl-C stops it.")

    run(_work(one, announce))


async def _work(worker: Worker, announce: Callable[[], None]) -> None:
    """Works until a signal, then stops gracefully; a second one stops at once."""
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def stop() -> None:
        stops.append(loop.create_task(worker.stop(0 if stops else None)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    announce()
    await worker.run()
    await asyncio.gather(*stops)


def load(name: str) -> list[Workflow]:
    """Imports `MODULE:WORKFLOW`, or all workflows of `MODULE`. Raises CommandError if there are none."""
    from pawl.workflow import Workflow

    module_name, colon, attribute = name.partition(":")
    module = _import(module_name, name)
    if colon:
        value = getattr(module, attribute, None)
        if not isinstance(value, Workflow):
            what = "no such name" if value is None else f"a {type(value).__name__}, no workflow"
            raise CommandError("NO_WORKFLOW", f"{name}: {attribute!r} is {what} in {module_name}", Exit.USAGE)
        return [value]
    declared = [value for value in vars(module).values() if isinstance(value, Workflow)]
    if not declared:
        raise CommandError("NO_WORKFLOW", f"{module_name} declares no workflow", Exit.USAGE)
    return declared


def _import(module_name: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        text = f"{name}: no module {error.name!r}, neither here nor installed; the form is MODULE:WORKFLOW"
        raise CommandError("NO_WORKFLOW", text, Exit.USAGE) from None
    except (ValueError, TypeError):
        raise CommandError(
            "NO_WORKFLOW", f"{name!r} is not of the form MODULE:WORKFLOW", Exit.USAGE
        ) from None
