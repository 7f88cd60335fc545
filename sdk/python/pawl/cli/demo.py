"""`pawl demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pawl.cli.exits import CommandError, Exit
from pawl.cli.options import json_option
from pawl.cli.output import print_fields, print_json
from pawl.cli.serve import require_server

if TYPE_CHECKING:
    from pawl.demo.audit import Report

TARGETS = ("worker", "server", "store")


@click.command(short_help="See real documents survive kill -9.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@click.option("--documents", type=click.IntRange(min=1), metavar="N", help="Read at most N documents.")
@click.option(
    "--kill",
    "kills",
    type=click.Choice(TARGETS),
    multiple=True,
    help="What to kill with -9 under load; may be repeated. Default: worker.",
)
@click.option("--no-kill", is_flag=True, help="Kill nothing.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep everything that the demo writes in this folder, which must be empty or absent.",
)
@json_option
def demo(
    directory: Path | None,
    documents: int | None,
    kills: tuple[str, ...],
    no_kill: bool,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Watch real documents go through a durable workflow while a worker is killed with -9.

    Reads the Python standard library's source files that have a docstring, or all text files below DIR: one
    instance per document, six steps each, and a collector that gets a message for every finished one. Two
    workers share the documents; one is killed inside a step, and a step of one document fails once. Every
    step writes its effect to a synced file outside the store; at the end those files and the server's history
    are compared with the plan. Fails if anything was lost, if a saved step was run again, or if the worker
    was not really killed inside a step. Uses a folder of its own.
    """
    if no_kill and kills:
        raise click.UsageError("--kill and --no-kill exclude each other")
    require_server()
    from pawl.demo.corpus import CorpusError
    from pawl.demo.corpus import documents as find
    from pawl.demo.processes import DemoError
    from pawl.demo.run import Options, run_demo

    where = "the standard library of Python" if directory is None else str(directory)
    try:
        found = find(directory, documents)
    except CorpusError as error:
        raise CommandError("TOO_FEW_DOCUMENTS", str(error), Exit.USAGE) from None
    try:
        report = run_demo(found, Options(where, () if no_kill else kills or ("worker",), keep))
    except DemoError as error:
        raise CommandError("DEMO_FAILED", str(error)) from None
    except KeyboardInterrupt:
        raise click.Abort from None
    if as_json:
        print_json(report.as_json())
    else:
        show(report)
    if not report.ok:
        raise CommandError("DEMO_FAILED", "; ".join(verdict(report)))


def verdict(report: Report) -> list[str]:
    """Says what was not as it has to be."""
    found = [f"{report.lost} lost"] if report.lost else []
    found += [f"{report.duplicated} duplicated behind a saved step"] if report.duplicated else []
    return found + report.problems


def _again(report: Report) -> str:
    if not report.effects_repeated:
        return ""
    if report.workers_killed:
        return f", {report.effects_repeated} ran again: their worker died before saving (at least once)"
    return f", {report.effects_repeated} ran again: they had not been saved (at least once)"


def show(report: Report) -> None:
    """Prints the report for people."""
    killed = [
        f"{count} {name}" if count == 1 else f"{count} {name}s"
        for name, count in (
            ("worker", report.workers_killed),
            ("server", report.servers_killed),
            ("store", report.stores_killed),
        )
        if count
    ]
    print_fields(
        {
            "documents": report.documents,
            "turns": f"{report.turns} with the collector's, {report.attempts} attempts for the documents",
            "steps": f"{report.steps_run} run, {report.steps_replayed} replayed from saved results",
            "killed with -9": ", ".join(killed) or "nothing",
            "recovery": f"{report.recovery_seconds:.2f} s" if killed else None,
            "failures retried": report.failures_retried,
            "sends held back": f"{report.sends_refused}: the collector's inbox was full; repeated"
            if report.sends_refused
            else None,
            "effects": f"{report.effects_planned} planned{_again(report)}",
            "lost": report.lost,
            "duplicated behind a saved step": report.duplicated,
            "time": f"{report.seconds:.1f} s, {report.steps_per_second:.0f} steps/s",
        }
    )
    if report.ok:
        click.echo("\nEvery planned effect happened, and no saved step was run again.")
