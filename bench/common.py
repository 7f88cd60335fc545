"""What the workloads share: sizes, percentiles, and waiting for the processes."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.fleet import Fleet
from bench.slots import WORKER
from bench.worker_main import one
from pawl import Client

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much work; `quick` is for a look, not for a result."""

    instances: int = 200
    turns: int = 125
    many_instances: int = 100
    closed: int = 200
    steps: int = 200
    parked: int = 10_000
    recoveries: int = 3
    signals: int = 200
    timers: int = 200
    burst: int = 10_000


QUICK = Sizes(
    instances=50,
    turns=20,
    many_instances=20,
    closed=30,
    steps=50,
    parked=1_000,
    recoveries=1,
    signals=20,
    timers=50,
    burst=1_000,
)


def percentiles(seconds: Iterable[float]) -> tuple[float, float]:
    """p50 and p99 in ms."""
    ordered = sorted(seconds)
    return (
        round(statistics.median(ordered) * 1e3, 3),
        round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3, 3),
    )


def of_worker(fleet: Fleet, slot: int, index: int = 0) -> float:
    """A counter of one worker."""
    return fleet.slots.get(WORKER * (index + 1) + slot)


async def until(fleet: Fleet, ready: Callable[[], bool], seconds: float = 120) -> None:
    """Raises TimeoutError, or RuntimeError if a process has died."""
    await asyncio.to_thread(fleet.slots.wait, ready, seconds, fleet.alive)


async def warm(fleet: Fleet, client: Client) -> None:
    """Has the worker, which must have started, run some turns."""
    for i in range(20):
        await client.send(f"warm-{i}", {"n": 0}, create=one, wait=30)
