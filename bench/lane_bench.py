"""What a lane costs: CPU of this process per script call, in batches.

    python -m bench.lane_bench [--url unix:///path | redis://host:port] [--calls 200000]

Prints one JSON line per batch size: `python_us` is CPU time of this process per call (building the command,
the flush, parsing the reply, waking the caller), `calls_per_s` the rate with one batch after the other.
Without --url a private server is started. The script does next to nothing, so that the rest is the client.
"""

from __future__ import annotations

import argparse
import json
import time

import uvloop

from pawl_server.store.connection import Endpoint
from pawl_server.store.lane import Lane, Link
from pawl_server.store.script_call import Script
from pawl_server.store.wire import Home

TEXT = "#!lua\nreturn {1700000000000, {{'OK', 7, ARGV[2]}}, {}}"
HOME = Home((1, "{n.00.a}meta"))
ARGV = (b"i-0123456789", b"x" * 64, 12345, "pawl", 1700000000000, b"y" * 32)


async def measure(lane: Lane, script: Script[object], batch: int, calls: int) -> dict[str, object]:
    """Runs `calls` calls in batches of `batch`, each batch within one tick."""
    rounds = calls // batch
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        for future in [lane.call(script, HOME, ARGV) for _ in range(batch)]:
            await future
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    done = rounds * batch
    return {
        "workload": "lane",
        "batch": batch,
        "python_us": round(cpu / done * 1e6, 2),
        "calls_per_s": round(done / wall),
        "flushes": lane.metrics.flushes,
    }


async def run(url: str, calls: int) -> None:
    """Measures the batch sizes 1, 4, 16, 64 and 256."""
    script: Script[object] = Script("noop", TEXT, Script.sha_of(TEXT), 0)
    endpoint = Endpoint.parse(url)
    lane = Lane("bench", Link(endpoint.dial, endpoint.authenticate, [script]))
    await lane.start(5)
    try:
        await lane.call(script, HOME, ARGV)
        for batch in (1, 4, 16, 64, 256):
            print(json.dumps(await measure(lane, script, batch, calls if batch > 1 else calls // 10)))
    finally:
        await lane.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--calls", type=int, default=100_000)
    args = parser.parse_args()
    if args.url:
        uvloop.run(run(args.url, args.calls))
        return
    from tests.support.redis_server import RedisServer

    with RedisServer() as server:
        uvloop.run(run(server.url, args.calls))


if __name__ == "__main__":
    main()
