"""`pawl fsck`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pawl.cli.exits import Exit
from pawl.cli.options import call, client_options
from pawl.cli.output import print_json

if TYPE_CHECKING:
    from pawl.client import Client
    from pawl.models import Finding


@click.command(short_help="Check what is stored, and mend it.")
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@click.option(
    "--page",
    type=click.IntRange(1, 1000),
    default=200,
    show_default=True,
    help="Keys and entries to look at per call.",
)
@click.option("--resume", metavar="CURSOR", default="", help="Go on where an interrupted check stopped.")
@client_options
def fsck(repair: bool, page: int, resume: str, address: str | None, timeout: float, as_json: bool) -> int:
    """Check everything that is stored, while everything goes on: recount, and compare indexes and timers.

    Looks at a part at a time, and can be stopped and resumed. Exit code 1 says that something was found and
    is not mended. What changes while it is looked at can be reported although nothing is wrong: only what a
    second run finds again is certain.
    """
    findings: list[dict[str, Any]] = []
    counts = {"instances": 0, "entries": 0}
    cursor = resume

    async def job(client: Client) -> None:
        nonlocal cursor
        while True:
            part = await client.check_data_page(repair=repair, page_size=page, page_token=cursor)
            counts["instances"] += part.instances
            counts["entries"] += part.entries
            for one in part.items:
                findings.append(_json(one))
                if not as_json:
                    click.echo(_text(one))
            cursor = part.next_page_token
            if not as_json and sys.stderr.isatty():
                done = f"{part.partitions_done} of {part.partitions} partitions"
                click.echo(f"\r{done}, {counts['instances']} instances", nl=False, err=True)
            if not cursor:
                return

    try:
        call(address, timeout, job)
    except BaseException:
        if cursor:
            click.echo(f"go on with --resume {cursor}", err=True)
        raise
    if as_json:
        print_json({**counts, "repaired": repair, "findings": findings})
    else:
        what = "mended where that is possible" if repair else "found"
        click.echo(
            f"{counts['instances']} instances, {counts['entries']} entries: "
            + (f"{len(findings)} problems {what}" if findings else "all is well")
        )
    return Exit.FAILED if findings and not repair else Exit.OK


def _json(one: Finding) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "instance_id": one.instance_id or None,
        "key": one.key or None,
        "entry": one.entry or None,
        "text": one.text,
    }


def _text(one: Finding) -> str:
    where = one.instance_id or f"{one.key} {one.entry}".strip()
    return f"partition {one.partition}, {where}: {one.text}"
