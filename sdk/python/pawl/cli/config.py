"""`pawl config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pawl.cli.options import (
    config_option,
    insecure_option,
    json_option,
    metrics_option,
    processes_option,
)
from pawl.cli.output import print_json, print_table
from pawl.cli.serve import DEV, configure

if TYPE_CHECKING:
    from pawl_server.configuration import Configuration, Setting


@click.command(short_help="Show the settings a server would have, and where each comes from.")
@click.option("--dev", is_flag=True, help="As 'pawl dev' would have them, not 'pawl server'.")
@click.option("--changed", is_flag=True, help="Leave out what is a default.")
@click.option("--redis", "redis_url", metavar="URL", help="As given to the server; so are the options below.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of `pawl dev`.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on.")
@click.option("--namespace", help="Namespace to work on.")
@insecure_option
@processes_option
@metrics_option
@config_option
@json_option
def config(dev: bool, changed: bool, file: Path | None, as_json: bool, **options: Any) -> None:
    """Show every setting in force and where it comes from, without starting or asking anything.

    Options win over PAWL_* variables, these over the file, the file over the defaults. A bad value, a key
    that is none, or a file that can't be read ends this as it would end the start of a server. Passwords are
    masked.
    """
    found = configure(options, file, DEV if dev else None)
    rows = [row for row in found.in_force() if not changed or row.origin.kind != "default"]
    if as_json:
        print_json(_json(found, rows))
        return
    click.echo(f"file: {found.file or 'none'}")
    print_table(("SETTING", "VALUE", "FROM"), [(row.name, _text(row.value), str(row.origin)) for row in rows])
    for name in found.unknown:
        click.echo(f"{name} is set, but there is no such setting", err=True)


def _json(found: Configuration, rows: list[Setting]) -> dict[str, Any]:
    return {
        "file": None if found.file is None else str(found.file),
        "settings": {
            row.name: {
                "value": str(row.value) if isinstance(row.value, Path) else row.value,
                "variable": row.variable,
                "from": row.origin.kind,
                "place": row.origin.place or None,
            }
            for row in rows
        },
        "unknown_variables": list(found.unknown),
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
