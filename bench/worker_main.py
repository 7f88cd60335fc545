"""Worker process of the benchmarks: `python -m bench.worker_main INDEX CONCURRENCY`; slots in BENCH_SLOTS."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.slots import DONE, GO, MARK, RUNS, STARTED, TIMES, WORKER, Slots
from pawl import Client, Worker, workflow

BODY = {"text": "x" * 40}
STATE = "s" * 100


def _slots() -> Slots:
    return Slots(Path(os.environ["BENCH_SLOTS"]))


SLOTS = _slots() if "BENCH_SLOTS" in os.environ else None
BASE = WORKER * (int(sys.argv[1]) + 1) if __name__ == "__main__" else 0


@workflow("bench-one", version="v1", initial_state={"count": 0, "pad": STATE})
async def one(ctx: Any, state: dict[str, Any], message: dict[str, Any]) -> Any:
    """W1, W1b, W3, W6: one step."""
    assert SLOTS is not None
    SLOTS.add(BASE + STARTED)
    value = await ctx.step("work", lambda: BODY)
    SLOTS.add(BASE + DONE)
    return ctx.done({"count": state["count"] + 1, "pad": STATE}, result=value)


@workflow("bench-many", version="v1")
async def many(ctx: Any, state: Any, message: dict[str, Any]) -> Any:
    """W2, W4: as many steps as the message says; with `times` each step leaves its start time."""
    assert SLOTS is not None
    SLOTS.add(BASE + STARTED)
    for k in range(message["steps"]):
        if message.get("times"):
            SLOTS.set(TIMES + k, time.monotonic())
        await ctx.step(f"step-{k}", lambda: BODY)
    if message.get("times"):
        SLOTS.set(TIMES + message["steps"], time.monotonic())
    SLOTS.add(BASE + DONE)
    return ctx.done({"steps": message["steps"]})


@workflow("bench-stuck", version="v1")
async def stuck(ctx: Any, state: Any, message: Any) -> Any:
    """W7: the second step of the first run never ends."""
    assert SLOTS is not None
    slots = SLOTS
    await ctx.step("first", lambda: BODY)

    async def second() -> float:
        slots.set(BASE + MARK, time.monotonic())
        if BASE == WORKER:
            await asyncio.get_running_loop().create_future()
        return 1.0

    await ctx.step("second", second)
    SLOTS.add(BASE + DONE)
    return ctx.done(None)


@workflow("bench-waiting", version="v1")
async def waiting(ctx: Any, state: Any, message: dict[str, Any]) -> Any:
    """W5: leaves the time at which it goes on after a wait."""
    assert SLOTS is not None
    SLOTS.add(BASE + STARTED)
    got = await ctx.wait_for_signal("go")
    SLOTS.set(TIMES + message["slot"], time.monotonic())
    SLOTS.add(BASE + DONE)
    return ctx.done(None, result=got.value)


@workflow("bench-sleeping", version="v1")
async def sleeping(ctx: Any, state: Any, message: dict[str, Any]) -> Any:
    """W5t, W5b: sleeps until `at`, or for `seconds`; leaves when it goes on, and how often it did."""
    assert SLOTS is not None
    SLOTS.add(BASE + STARTED)
    seconds = message.get("seconds") or max(0.001, message["at"] - time.time())
    await ctx.sleep("nap", seconds)
    SLOTS.set(TIMES + message["slot"], time.time())
    SLOTS.add(RUNS + message["slot"])
    SLOTS.add(BASE + DONE)
    return ctx.done(None)


@workflow("bench-timers", version="v1")
async def timers(ctx: Any, state: Any, message: dict[str, Any]) -> Any:
    """W5t: timers of the event loop, first after `seconds`, then every `pause`; says how late they are."""
    loop = asyncio.get_running_loop()

    async def run() -> list[float]:
        first = loop.time() + message["seconds"]
        return await asyncio.gather(*(_late(first + k * message["pause"]) for k in range(message["count"])))

    return ctx.done(None, result=await ctx.step("timers", run))


async def _late(due: float) -> float:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(due - loop.time())
    return time.monotonic() - due


WORKFLOWS = [one, many, stuck, waiting, sleeping, timers]


async def _main() -> None:
    assert SLOTS is not None
    slots = SLOTS
    await asyncio.to_thread(slots.wait, lambda: slots.get(GO) > 0, 600, lambda: None)
    async with Client() as client:
        worker = Worker(client, workflows=WORKFLOWS, concurrency=int(sys.argv[2]))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(worker.stop(0)))
        await worker.run()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(_main())
    except ImportError:
        asyncio.run(_main())
