"""`pawl info`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pawl.cli.options import call, client_options
from pawl.cli.output import info_json, local, print_fields, print_json, print_table

if TYPE_CHECKING:
    from pawl.client import Client
    from pawl.models import ServerInfo


def _others(found: ServerInfo) -> str | None:
    """How many servers there are besides, if any, and where."""
    others = [address for run, address in found.servers.items() if run != found.server_run]
    return f"{len(others)} more: {', '.join(sorted(others))}" if others else None


@click.command(short_help="Say what a server is and runs on.")
@client_options
def info(address: str | None, timeout: float, as_json: bool) -> None:
    """Say what a server is, what it runs on, how safe its writes are, and which limits hold."""

    async def job(client: Client) -> tuple[ServerInfo, str]:
        return await client.info(), client.address

    found, where = call(address, timeout, job)
    if as_json:
        print_json(info_json(found, where))
        return
    assumed = f" ({found.durability_assumed})" if found.durability_assumed else ""
    print_fields(
        {
            "address": where,
            "version": found.version,
            "server": f"{found.server_name} (run {found.server_run})"
            if found.server_name
            else found.server_run,
            "own address": found.own_address if found.own_address != where else None,
            "servers": _others(found),
            "namespace": f"{found.namespace}, {found.partitions} partitions",
            "store": found.store if found.store_reachable else f"{found.store} (not reachable)",
            "durability": found.durability.lower() + assumed,
            "time": "virtual" if found.virtual_time else None,
            "started": local(found.start_time),
            "capabilities": ", ".join(found.capabilities) or None,
        }
    )
    click.echo()
    print_table(("LIMIT", "VALUE"), sorted(found.limits.items()))
