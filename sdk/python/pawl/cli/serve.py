"""`pawl dev` and `pawl server`: the same server, with its own store or with yours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from pawl.cli.exits import CommandError, Exit
from pawl.cli.options import (
    FLAGS,
    config_option,
    insecure_option,
    json_option,
    metrics_option,
    processes_option,
    run,
)
from pawl.cli.output import info_json, print_fields, print_json

if TYPE_CHECKING:
    from pawl_server.app import Handle
    from pawl_server.configuration import Configuration
    from pawl_server.settings import Settings

DEV = {"log_level": "warning"}
"""Settings of `pawl dev` that differ from the usual ones unless something is said about them."""
NEEDS_SERVER = "this needs the server: pip install 'pawl-workflows[server]'"


def require_server() -> None:
    """Raises CommandError unless the packages of the extra [server] are installed."""
    try:
        import_module("pawl_server.app")
    except ModuleNotFoundError as error:
        raise CommandError("NOT_INSTALLED", f"{NEEDS_SERVER} ({error})", Exit.USAGE) from None


def configure(
    options: Mapping[str, Any], file: Path | None, defaults: Mapping[str, Any] | None = None
) -> Configuration:
    """Puts the server's settings together; a bad one is a usage error. `defaults` replace the usual ones."""
    from pawl_server.configuration import load
    from pawl_server.settings import BadSetting

    try:
        return load(options, flags=FLAGS, file=file, defaults=defaults)
    except BadSetting as error:
        raise CommandError("BAD_SETTING", str(error), Exit.USAGE, {"setting": error.setting}) from None


@click.command(short_help="Run a server with a private store in one folder.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the embedded store; default PAWL_DATA_DIR, else .pawl.",
)
@click.option("--host", help="Address to listen on; default 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="Port to listen on; default 7295, 0 takes a free one."
)
@click.option(
    "--redis", "redis_url", metavar="URL", help="Use this Redis or Valkey instead of an embedded one."
)
@processes_option
@metrics_option
@config_option
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
@json_option
def dev(file: Path | None, until_stdin_closes: bool, as_json: bool, **options: Any) -> None:
    """Run a server for development, with a private Valkey in one folder.

    Nothing else has to be installed or started. The folder keeps its data over restarts and serves one
    server at a time. Ctrl-C stops server and store in good order. With --redis (redis://, rediss:// or
    unix://) no store is started.
    """
    require_server()
    serve(configure(options, file, DEV), as_json=as_json, until_stdin_closes=until_stdin_closes)


@click.command(short_help="Run a server on a Redis or Valkey of your own.")
@click.option(
    "--redis", "redis_url", metavar="URL", help="redis://, rediss:// or unix:// URL; default PAWL_REDIS_URL."
)
@click.option("--host", help="Address to listen on; default PAWL_HOST, else 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="Port to listen on; default PAWL_PORT, else 7295."
)
@click.option("--namespace", help="Namespace to work on; default PAWL_NAMESPACE, else default.")
@insecure_option
@processes_option
@metrics_option
@config_option
@json_option
def server(file: Path | None, as_json: bool, **options: Any) -> None:
    """Run a server for production, on a Redis or Valkey of your own.

    Any number of servers may share it. Every setting has a PAWL_* variable and a key in pawl.toml; 'pawl
    config' shows what is in force. SIGTERM lets running turns end before the server stops; calls that wait
    for a turn are answered DRAINING at once.
    """
    require_server()
    configuration = configure(options, file)
    if configuration.settings.redis_url is None:
        text = (
            "--redis, PAWL_REDIS_URL or redis_url in pawl.toml must name a store; 'pawl dev' brings its own"
        )
        raise CommandError("BAD_SETTING", text, Exit.USAGE, {"setting": "PAWL_REDIS_URL"})
    serve(configuration, as_json=as_json, until_stdin_closes=False)


def serve(configuration: Configuration, *, as_json: bool, until_stdin_closes: bool) -> None:
    """Runs a server until a signal; says on stdout what runs once it can be used."""
    from pawl_server import logs

    settings = configuration.settings
    logs.set_up(settings.log_level, settings.log_format)
    configuration.warn()
    folder = None if settings.redis_url else os.path.abspath(settings.data_dir)
    if settings.processes > 1:
        _become_parent(settings, folder, as_json, until_stdin_closes)
    run(_serve(settings, folder, as_json, until_stdin_closes))


def _become_parent(
    settings: Settings, folder: str | None, as_json: bool, until_stdin_closes: bool
) -> NoReturn:
    """Replaces this program, which has loaded gRPC, by one that starts processes and has not."""
    from pawl_server.fleet.__main__ import Handover

    facts = {"as_json": as_json, "folder": folder, "processes": settings.processes}
    teller = ("-P", "-m", "pawl.cli.announce")
    handover = Handover(settings, teller, facts, until_stdin_closes)
    sys.stdout.flush()
    words = ("-P", "-m", "pawl_server.fleet", str(handover.descriptor()))
    os.execv(sys.executable, (sys.executable, *words))


async def _serve(settings: Settings, folder: str | None, as_json: bool, until_stdin_closes: bool) -> None:
    from pawl_server.app import CANNOT_START, running
    from pawl_server.store.errors import StoreUnavailable

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _on_input, stop)
    try:
        async with running(settings) as handle:
            await announce(_serving(handle, folder), as_json=as_json)
            await stop.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal ends the process at once
    except StoreUnavailable as error:
        raise CommandError("STORE_UNAVAILABLE", str(error), Exit.UNAVAILABLE) from None
    except CANNOT_START as error:
        raise CommandError("CANNOT_START", str(error)) from None


def _on_input(stop: asyncio.Event) -> None:
    """Stops once standard input is closed; what comes before is passed over."""
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


class Serving(NamedTuple):
    """What runs, beyond what the server itself says of it."""

    address: str
    folder: str | None
    metrics: str | None
    risk: str
    pid: int
    processes: int


def _serving(handle: Handle, folder: str | None) -> Serving:
    metrics = f"http://{handle.metrics.address}/metrics" if handle.metrics else None
    risk = handle.engine.store.durability.risk
    return Serving(handle.address, folder, metrics, risk, os.getpid(), 1)


async def announce(serving: Serving, *, as_json: bool) -> None:
    """Says on stdout what runs."""
    from pawl.client import Client

    async with Client(serving.address) as client:
        info = await client.info()
    if as_json:
        facts = {name: getattr(serving, name) for name in ("pid", "processes", "folder", "metrics")}
        print_json({**info_json(info, serving.address), **facts})
        return
    click.echo("Pawl is ready. Ctrl-C stops it.")
    assumed = f" ({info.durability_assumed})" if info.durability_assumed else ""
    folder = serving.folder
    print_fields(
        {
            "address": serving.address,
            "processes": serving.processes if serving.processes > 1 else None,
            "store": f"{info.store}, {'embedded' if folder else 'given by --redis'}",
            "folder": folder,
            "durability": info.durability.lower() + assumed,
            "warning": serving.risk or None,
            "metrics": serving.metrics,
            "namespace": f"{info.namespace}, {info.partitions} partitions",
            "version": info.version,
        }
    )
