"""What a turn costs as more is stored: script calls, Redis commands and script time.

200 instances are active all the time; what grows are the instances that nobody touches, or the turns that are
kept. The number of calls and commands of a turn must not change; script time may, through caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio

from bench.scripts import BLOB, CONCURRENCY, LIST, STATE, calibrate, drain
from pawl_server.domain.limits import Limits
from pawl_server.embedded import EmbeddedServer, EmbeddedSettings
from pawl_server.store import scripts_gen as scripts
from pawl_server.store.client import Store, StoreSettings

ACTIVE = 200
TURNS = 20
STORED = (100, 10_000, 100_000)
KEPT = (0, 256)
ROUNDS = 5
BATCH = 500


@dataclass
class Point:
    """A store to measure, and what it stands for."""

    what: dict[str, int]
    store: Store
    probe: redis.asyncio.Redis
    turns: int
    """Turns that each active instance has had."""


async def _fill(store: Store, first: int, last: int) -> None:
    """Creates instances that nobody will touch."""
    for begin in range(first, last, BATCH):
        items: dict[int, list[scripts.CreateItem]] = {}
        for number in range(begin, min(begin + BATCH, last)):
            name = f"still-{number:09d}"
            item = scripts.CreateItem(name, "still", "v1", b"d", STATE, 0, 0, b"", b"", "")
            items.setdefault(store.partition_of(name).index, []).append(item)
        await asyncio.gather(
            *(
                scripts.create(store.partitions[index], max_state=1 << 20, items=batch)
                for index, batch in items.items()
            )
        )


async def _send(store: Store, limits: Limits, number: int) -> None:
    """One message to each active instance."""
    items: dict[int, list[scripts.SendItem]] = {}
    for active in range(ACTIVE):
        name = f"active-{active}"
        item = scripts.SendItem(
            name, f"m{number}", b"digest00", BLOB, b"", True, "bench-one", "v1", b"created0", STATE, 0, 0,
            b"", b"", False, 0, 0,
        )  # fmt: skip
        items.setdefault(store.partition_of(name).index, []).append(item)
    await asyncio.gather(
        *(
            scripts.send(
                store.partitions[index], server="benchrun", max_pending=limits.pending_messages,
                max_message=limits.message_bytes, max_state=limits.state_bytes, items=batch[at : at + LIST],
            )
            for index, batch in items.items()
            for at in range(0, len(batch), LIST)
        )
    )  # fmt: skip


async def _turns(store: Store, limits: Limits, first: int, count: int) -> int:
    """So many turns of each active instance, one round after the other; the number of turns."""
    done = 0
    share = CONCURRENCY // len(store.partitions)
    for number in range(first, first + count):
        await _send(store, limits, number)
        done += sum(await asyncio.gather(*(drain(one, limits, share) for one in store.partitions)))
    return done


async def _counters(probe: redis.asyncio.Redis) -> tuple[int, int, float]:
    """Script calls, commands within them, and microseconds inside scripts so far."""
    stats = await probe.info("commandstats")
    calls = stats["cmdstat_evalsha"]["calls"]
    inside = sum(
        one["calls"] for name, one in stats.items() if name not in ("cmdstat_evalsha", "cmdstat_info")
    )
    return calls, inside, stats["cmdstat_evalsha"]["usec"]


async def _measure(point: Point, limits: Limits) -> dict[str, Any]:
    """One round of turns at one point."""

    async def cpu() -> float:
        info = await point.probe.info("cpu")
        return info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]

    before, used = await _counters(point.probe), await cpu()
    done = await _turns(point.store, limits, point.turns, TURNS)
    after, used = await _counters(point.probe), await cpu() - used
    point.turns += TURNS
    calls, commands, inside = (now - then for now, then in zip(after, before, strict=True))
    return {
        "calls_per_turn": round(calls / done, 3),
        "commands_per_turn": round(commands / done, 2),
        "script_us_per_turn": inside / done,
        "store_us_per_turn": used / done * 1e6,
        "calibration_us": await calibrate(point.probe, cpu),
        "exact": done == ACTIVE * TURNS,
    }


def _median(name: str, rows: list[dict[str, Any]], digits: int) -> float:
    return round(statistics.median(row[name] for row in rows), digits)


async def run_scaling(
    stored: tuple[int, ...] = STORED, kept: tuple[int, ...] = KEPT, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """One row for each number of stored instances, then one for each number of kept turns.

    Every point has a store of its own; all are measured in turn, so many rounds, and the medians are given.
    """
    limits = Limits()
    async with contextlib.AsyncExitStack() as stack:
        points = [await _point(stack, limits, count, TURNS) for count in stored]
        points += [await _point(stack, limits, stored[0], count, count) for count in kept]
        found: list[list[dict[str, Any]]] = [[] for _ in points]
        for _ in range(rounds):
            for point, rows in zip(points, found, strict=True):
                rows.append(await _measure(point, limits))
    answer: list[dict[str, Any]] = []
    for point, rows in zip(points, found, strict=True):
        answer.append(
            {
                "workload": "scaling",
                **point.what,
                "calls_per_turn": _median("calls_per_turn", rows, 3),
                "commands_per_turn": _median("commands_per_turn", rows, 1),
                "script_us_per_turn": _median("script_us_per_turn", rows, 1),
                "store_us_per_turn": _median("store_us_per_turn", rows, 1),
                "calibration_us": _median("calibration_us", rows, 1),
                "exact": all(row["exact"] for row in rows),
            }
        )
    for row in answer:
        row["script_ratio"] = round(row["script_us_per_turn"] / answer[0]["script_us_per_turn"], 2)
        row["store_ratio"] = round(row["store_us_per_turn"] / answer[0]["store_us_per_turn"], 2)
    return answer


async def _point(
    stack: contextlib.AsyncExitStack, limits: Limits, stored: int, turns: int, kept: int | None = None
) -> Point:
    """A store with so many instances, whose active ones have had so many turns, all of them kept."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pawl-bench-"))
    embedded = await EmbeddedServer.start(EmbeddedSettings(folder=Path(folder) / "data"))
    stack.push_async_callback(embedded.stop)
    store = await Store.open(StoreSettings(url=embedded.url))
    stack.push_async_callback(store.close)
    probe = redis.asyncio.Redis.from_url(embedded.url)
    stack.push_async_callback(probe.aclose)
    await _fill(store, 0, stored)
    await _turns(store, limits, 0, turns)
    what = {"stored": stored + ACTIVE} if kept is None else {"kept_turns": kept}
    return Point(what, store, probe, turns)
