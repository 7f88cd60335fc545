"""`python -m bench.watching`: what watchers cost, one JSON line each.

W1-scripts with and without a feed, in turn, medians of some rounds: nobody watches, somebody watched within
the last 15 minutes, one server listens. And the memory that an idle watcher takes in the server.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import grpc.aio

from bench.common import Sizes
from bench.fleet import Fleet
from bench.scripts import run_scripts
from pawl.v1 import event_service_pb2 as pb
from pawl.v1.event_service_pb2_grpc import EventServiceStub
from pawl_server.store import scripts_gen
from pawl_server.store.client import Store
from pawl_server.store.feed import CHANNEL, KEEP_MS

CHANNELS = 20
INSTANCES = 100


async def _nobody(_: Store) -> None:
    pass


async def _feed(store: Store) -> None:
    for partition in store.partitions:
        await scripts_gen.watch(partition, keep_ms=KEEP_MS)


async def _listener(store: Store) -> None:
    await _feed(store)
    listener = store.subscribe(CHANNEL, lambda partition, entry: None)
    await listener.wait_ready(5)


MODES: dict[str, Callable[[Store], Awaitable[None]]] = {
    "unwatched": _nobody,
    "feed": _feed,
    "one listener": _listener,
}


async def feed_rows(sizes: Sizes, rounds: int) -> list[dict[str, Any]]:
    """One row for each mode: microseconds of Redis for a turn, and the calibration of the same rounds."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode, prepare in MODES.items():
            found[mode].append(await run_scripts(sizes, prepare))
    return [
        {
            "workload": "feed",
            "mode": mode,
            "rounds": rounds,
            "exact": all(row["exact"] for row in rows),
            **{
                name: round(statistics.median(row[name] for row in rows), 2)
                for name in ("store_us", "calibration_us", "turn_per_calibration", "turns_per_s")
            },
        }
        for mode, rows in found.items()
    ]


def _memory_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


async def memory_row(watchers: int) -> dict[str, Any]:
    """KiB of the server for each idle watcher, by resident memory. Linux only."""
    fleet = Fleet()
    client = await fleet.start()
    channels = [
        grpc.aio.insecure_channel(fleet.address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CHANNELS)
    ]
    try:
        for at in range(INSTANCES):
            await client.create(f"i{at}", "t", version="v1")
        pid = fleet.pid("server")
        stubs = [EventServiceStub(channel) for channel in channels]
        calls: list[Any] = []

        async def open_some(count: int) -> None:
            fresh = [
                stubs[at % CHANNELS].WatchEvents(pb.WatchEventsRequest(instance_id=f"i{at % INSTANCES}"))
                for at in range(count)
            ]
            await asyncio.gather(*(call.read() for call in fresh))
            calls.extend(fresh)

        await open_some(watchers // 10)
        before = _memory_kib(pid)
        await open_some(watchers)
        return {
            "workload": "watchers",
            "watchers": len(calls),
            "kib_each": round((_memory_kib(pid) - before) / watchers, 1),
        }
    finally:
        for channel in channels:
            await channel.close()
        await client.close()
        fleet.stop()


@click.command()
@click.option("--rounds", default=5, help="Rounds of each mode.")
@click.option("--watchers", default=2_000, help="Watchers to open.")
def main(rounds: int, watchers: int) -> None:
    """Prints what watchers cost."""
    for row in asyncio.run(feed_rows(Sizes(turns=50), rounds)):
        click.echo(json.dumps(row))
    click.echo(json.dumps(asyncio.run(memory_row(watchers))))


if __name__ == "__main__":
    main()
