"""`pawl worker`."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import click

from pawl.cli.exits import CommandError, Exit
from pawl.cli.options import json_option, run
from pawl.cli.output import print_json
from pawl.cli.reload import REPORT_S, Reloader, Reports

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
@click.option("--reload", is_flag=True, help="Start anew with the new code when a source file changes.")
@click.option("-v", "--verbose", is_flag=True, help="Log more, and show whole tracebacks.")
@click.option("--report-to", type=int, hidden=True)
@json_option
def worker(
    names: tuple[str, ...],
    address: str | None,
    concurrency: int,
    grace: float,
    reload: bool,
    verbose: bool,
    report_to: int | None,
    as_json: bool,
) -> None:
    """Run the turns of workflows.

    MODULE:WORKFLOW names a workflow that a module declares with @workflow; MODULE alone names all of them.
    Modules are looked for in the current folder first. The worker reconnects for ever; SIGINT or SIGTERM lets
    running turns end and gives the others back. PAWL_LOG_LEVEL sets what is logged on stderr (debug is the
    same as --verbose), PAWL_LOG_FORMAT how: auto, text or json.

    With --reload the worker is replaced whenever a file changes that its modules were loaded from; installed
    packages are left out. The former one finishes its turns or gives them back, within --grace. Code that
    can't be imported replaces nothing: the worker with the former code goes on.
    """
    if reload:
        sys.exit(_reload(names, address, concurrency, grace, verbose=verbose, as_json=as_json))
    from pawl.worker import Worker
    from pawl_server import logs

    level = "debug" if verbose else _choice("PAWL_LOG_LEVEL", "info", ("debug", "info", "warning", "error"))
    form = _choice("PAWL_LOG_FORMAT", "auto", ("auto", "text", "json"))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    reports = Reports(report_to) if report_to is not None else None
    found = _load_all(names, reports, verbose=level == "debug")
    logs.set_up(level, form)
    try:
        one = Worker(address, workflows=found, concurrency=concurrency, grace=grace)
    except ValueError as error:
        raise CommandError("NO_WORKFLOW", str(error), Exit.USAGE) from None
    runs = [f"{item.name} {item.version}" for item in found]

    def announce() -> None:
        if reports is not None:
            reports.running()
        if as_json:
            print_json(
                {"address": one.address, "session": one.session, "workflows": runs, "pid": os.getpid()}
            )
        else:
            click.echo(f"Worker {one.session} runs {', '.join(runs)}. Ctrl-C stops it.")

    run(_work(one, announce, reports))


def _reload(
    names: tuple[str, ...],
    address: str | None,
    concurrency: int,
    grace: float,
    *,
    verbose: bool,
    as_json: bool,
) -> int:
    words = [*names, "--concurrency", str(concurrency), "--grace", str(grace)]
    words += ["--address", address] if address else []
    words += ["--verbose"] if verbose else []
    words += ["--json"] if as_json else []
    return Reloader(words, lambda line: click.echo(f"reload: {line}", err=True)).run()


def _load_all(names: Sequence[str], reports: Reports | None, *, verbose: bool) -> list[Workflow]:
    found: list[Workflow] = []
    try:
        for name in names:
            found += [one for one in load(name, verbose=verbose) if one not in found]
    except BaseException as error:
        if reports is not None:
            reports.loaded(error)
        raise
    if reports is not None:
        reports.loaded()
    return found


def _choice(variable: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(variable, default)
    if value.lower() not in choices:
        text = f"{variable}: {value!r} is none of {', '.join(choices)}"
        raise CommandError("BAD_SETTING", text, Exit.USAGE, {"setting": variable})
    return value.lower()


async def _work(worker: Worker, announce: Callable[[], None], reports: Reports | None) -> None:
    """Works until a signal, then stops gracefully; a second one stops at once.

    With `reports` the end of standard input stops it, too: the parent is gone.
    """
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def stop() -> None:
        stops.append(loop.create_task(worker.stop(0 if stops else None)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    reporting = None
    if reports is not None:
        loop.add_reader(sys.stdin.fileno(), _on_parent, stop)
        reporting = loop.create_task(_keep_reporting(reports))
    announce()
    await worker.run()
    await asyncio.gather(*stops)
    if reporting is not None:
        reporting.cancel()


def _on_parent(stop: Callable[[], None]) -> None:
    """The parent says nothing; it is gone when there is something to read."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    stop()


async def _keep_reporting(reports: Reports) -> None:
    """Handlers may load modules when they are used."""
    while True:
        await asyncio.sleep(REPORT_S)
        reports.loaded()


def load(name: str, *, verbose: bool = False) -> list[Workflow]:
    """Imports `MODULE:WORKFLOW`, or all workflows of `MODULE`.

    Raises CommandError if there are none, or the module can't be imported; with `verbose` whatever the import
    raised.
    """
    from pawl.workflow import Workflow

    module_name, colon, attribute = name.partition(":")
    if colon and not attribute and module_name:
        text = (
            f"{name!r} names no workflow; {module_name!r} without the colon stands for all of its workflows"
        )
        raise CommandError("NO_WORKFLOW", text, Exit.USAGE)
    module = _import(module_name, name, verbose)
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


def _import(module_name: str, name: str, verbose: bool) -> ModuleType:
    if module_name.endswith(".py"):
        better = name.replace(module_name, module_name.removesuffix(".py").replace(os.sep, "."), 1)
        text = f"{name!r} is a file; give the module's name, without .py: {better!r}"
        raise CommandError("NO_WORKFLOW", text, Exit.USAGE)
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_missing(module_name, error.name):
            text = f"{name}: no module {error.name!r}, neither here nor installed"
            text += "; the form is MODULE:WORKFLOW"
            raise CommandError("NO_WORKFLOW", text, Exit.USAGE) from None
        if not module_name or module_name.startswith("."):
            text = f"{name!r} is not of the form MODULE:WORKFLOW"
            raise CommandError("NO_WORKFLOW", text, Exit.USAGE) from None
        if verbose:
            raise
        text = f"{module_name} can't be imported: {type(error).__name__}: {error}{_place(error)}"
        raise CommandError("IMPORT_FAILED", f"{text}; -v shows the traceback", Exit.USAGE) from None


def _is_missing(module_name: str, missing: str | None) -> bool:
    """Whether it is the module itself that is missing, and not one that it imports."""
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _place(error: Exception) -> str:
    """Where it was raised: the last line of the caller's own code, if there is one."""
    if isinstance(error, SyntaxError):
        return ""  # its text names the place
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
    frames = [f for f in frames if f.filename != __file__ and f.filename != importlib.__file__]
    own = [f for f in frames if f.filename.startswith(os.getcwd() + os.sep)]
    return f" ({(own or frames)[-1].filename}, line {(own or frames)[-1].lineno})" if frames else ""
