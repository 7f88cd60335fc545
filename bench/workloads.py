"""The workloads W1 to W4, W6, W7, and how all are run. Each returns one row and checks exact delivery."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise

from bench.common import Row, Sizes, of_worker, percentiles, until, warm
from bench.fleet import Fleet
from bench.slots import DONE, GO, MARK, STARTED, TIMES, WORKER
from bench.waiting import w5, w5b, w5t
from bench.worker_main import many, one, stuck
from pawl import Client, Message, Retention, WorkflowType
from pawl.client import NewInstance
from pawl.testing.running import Server

SOAK_INSTANCES = 100
SOAK_PAUSE_S = 0.4
"""Real time between two rounds, which leaves most of a core to others."""
SOAK_STEP_S = 2.0
"""Engine time between two rounds."""
SOAK_WARM_UP_S = 17 * 60.0
"""Engine time until memory must be steady: the life of a receipt, and two minutes."""


async def _admit(client: Client, prefix: str, sizes: Sizes) -> None:
    """Sends round robin; the client coalesces what is sent in one tick."""
    new = NewInstance(one)
    for number in range(sizes.turns):
        batch = [
            Message(f"{prefix}{i}", {"n": number, "pad": "x" * 90}, id=f"m{number}", create=new)
            for i in range(sizes.instances)
        ]
        await client.send_many(batch)


async def _counts(client: Client, prefix: str, sizes: Sizes) -> bool:
    async def count(i: int) -> int:
        return (await client.get(f"{prefix}{i}")).state["count"]

    return all(n == sizes.turns for n in await asyncio.gather(*(count(i) for i in range(sizes.instances))))


class Usage:
    """CPU per turn by process, and the share of the machine that others used."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._before, self._start = fleet, fleet.cpu(), time.monotonic()

    def row(self, turns: int) -> Row:
        """Microseconds of CPU per turn, and foreign CPU in percent of one core."""
        now, seconds = self._fleet.cpu(), time.monotonic() - self._start
        used = {key: now[key] - self._before[key] for key in now}
        foreign = used["machine"] - sum(value for key, value in used.items() if key != "machine")
        row: Row = {
            f"{key}_us": round(used[key] / turns * 1e6, 1) for key in ("store", "server", "worker", "client")
        }
        row["foreign_pct"] = round(max(0.0, foreign) / seconds * 100, 1)
        return row


async def w1(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Turns/s: instances x turns of one step, admitted before the worker runs, concurrency 64."""
    n = sizes.instances * sizes.turns
    begin = time.monotonic()
    await _admit(client, "w1-", sizes)
    admitted = time.monotonic() - begin
    fleet.start_worker()
    await asyncio.sleep(1.0)  # the interpreter of the worker starts; it waits for GO
    usage, begin = Usage(fleet), time.monotonic()
    fleet.slots.set(GO, 1)
    await until(fleet, lambda: of_worker(fleet, DONE) >= n)
    seconds = time.monotonic() - begin
    row = usage.row(n)
    exact = await _counts(client, "w1-", sizes) and of_worker(fleet, STARTED) == n
    return {
        "turns_per_s": round(n / seconds, 1),
        "admitted_per_s": round(n / admitted, 1),
        **row,
        "exact": exact,
    }


async def w1b(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """The same while admission runs."""
    n = sizes.instances * sizes.turns
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    usage, begin = Usage(fleet), time.monotonic()
    base = of_worker(fleet, DONE)
    await _admit(client, "w1b-", sizes)
    await until(fleet, lambda: of_worker(fleet, DONE) >= base + n)
    seconds = time.monotonic() - begin
    row = usage.row(n)
    exact = await _counts(client, "w1b-", sizes) and of_worker(fleet, STARTED) == base + n
    return {"turns_per_s": round(n / seconds, 1), **row, "exact": exact}


async def w2(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Steps/s: turns of 20 steps."""
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    base = of_worker(fleet, DONE)
    usage, begin = Usage(fleet), time.monotonic()
    await client.send_many(
        [Message(f"w2-{i}", {"steps": 20}, id="m", create=many) for i in range(sizes.many_instances)]
    )
    await until(fleet, lambda: of_worker(fleet, DONE) >= base + sizes.many_instances)
    seconds, steps = time.monotonic() - begin, sizes.many_instances * 20
    row = usage.row(steps)
    turns = await asyncio.gather(*(client.get_turn(f"w2-{i}", 1) for i in range(sizes.many_instances)))
    exact = (
        all(len(turn.steps) == 20 for turn in turns)
        and of_worker(fleet, STARTED) == base + sizes.many_instances
    )
    return {
        "steps_per_s": round(steps / seconds, 1),
        "turns_per_s": round(sizes.many_instances / seconds, 1),
        **row,
        "exact": exact,
    }


async def w3(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Turn latency: one instance, each message sent when the turn before is done."""
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    times = []
    for i in range(sizes.closed):
        begin = time.perf_counter()
        await client.send("w3", {"n": i}, id=f"m{i}", create=one, wait=30)
        times.append(time.perf_counter() - begin)
    p50, p99 = percentiles(times)
    exact = (await client.get("w3")).state["count"] == sizes.closed
    return {"turns_per_s": round(sizes.closed / sum(times), 1), "p50_ms": p50, "p99_ms": p99, "exact": exact}


async def w4(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Step latency: one turn of many steps; the limit of steps per turn is raised for it."""
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    await client.send("w4", {"steps": sizes.steps, "times": True}, id="m", create=many, wait=60)
    marks = [fleet.slots.get(TIMES + k) for k in range(sizes.steps + 1)]
    steps = [after - before for before, after in pairwise(marks)]
    p50, p99 = percentiles(steps)
    exact = len((await client.get_turn("w4", 1)).steps) == sizes.steps
    return {"steps_per_s": round(sizes.steps / sum(steps), 1), "p50_ms": p50, "p99_ms": p99, "exact": exact}


async def w6(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Bytes of the store's memory per instance: idle, with a message waiting, after three turns."""
    import redis.asyncio

    store = redis.asyncio.Redis(unix_socket_path=_socket(fleet))
    try:

        async def used() -> int:
            return (await store.info("memory"))["used_memory"]

        state = {"count": 0, "pad": "s" * 100}
        await client.create("w6-first", one, state=state)
        empty, disk = await used(), fleet.store_bytes()
        for begin in range(0, sizes.parked, 500):
            ids = range(begin, min(begin + 500, sizes.parked))
            await asyncio.gather(*(client.create(f"w6-{i:09d}", one, state=state) for i in ids))
        idle = await used()
        await client.send_many(
            [Message(f"w6-{i:09d}", {"n": i, "pad": "x" * 80}, id="m") for i in range(sizes.parked)]
        )
        waiting = await used()
        exact = (await client.get(f"w6-{sizes.parked - 1:09d}")).pending_turns == 1
        after = await _three_turns(fleet, client, sizes, used)
    finally:
        await store.aclose()
    return {
        "bytes": round((waiting - empty) / sizes.parked),
        "idle_bytes": round((idle - empty) / sizes.parked),
        "three_turns_bytes": round((after - empty) / sizes.parked),
        "disk_bytes": round((fleet.store_bytes() - disk) / sizes.parked),
        "exact": exact,
    }


async def _three_turns(fleet: Fleet, client: Client, sizes: Sizes, used: Callable[[], Awaitable[int]]) -> int:
    """Has each instance finish the waiting turn and two more, of one step each; memory in use then."""
    for number in (2, 3):
        await client.send_many(
            [Message(f"w6-{i:09d}", {"n": i, "pad": "x" * 80}, id=f"m{number}") for i in range(sizes.parked)]
        )
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await until(fleet, lambda: of_worker(fleet, DONE) >= 3 * sizes.parked, 300)
    for i in range(sizes.parked - 1, 0, -sizes.parked // 10):
        await client.await_turn(f"w6-{i:09d}", 3, wait=30)
    return await used()


async def soak(fleet: Fleet, client: Client, minutes: float, tell: Callable[[Row], None]) -> Row:
    """Steady load in virtual time: memory in use after the warm-up, and `minutes` later.

    A receipt lives 15 minutes whatever the retention, so memory rises until the first ones go; from then on
    it must not. The clock moves by SOAK_STEP_S with each round of turns, so that all this takes as long as
    the turns do.
    """
    import redis.asyncio

    store = redis.asyncio.Redis(unix_socket_path=_socket(fleet))
    clock = Server(fleet.address, client)
    keep = Retention(min_turns=5, max_age=timedelta(seconds=1), max_turns=10)
    await client.put_workflow_type(WorkflowType("bench-one", retention=keep))
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    last = SOAK_WARM_UP_S + minutes * 60
    samples: list[tuple[float, int, int]] = []
    begin, number, told = time.monotonic(), 0, 0.0
    new = NewInstance(one)
    while (seconds := number * SOAK_STEP_S) < last:
        batch = [
            Message(f"soak-{i}", {"n": number, "pad": "x" * 90}, id=f"m{number}", create=new)
            for i in range(SOAK_INSTANCES)
        ]
        await client.send_many(batch)
        number += 1
        await until(fleet, lambda done=number * SOAK_INSTANCES: of_worker(fleet, DONE) >= done)
        await clock.advance(SOAK_STEP_S)
        samples.append((seconds, (await store.info("memory"))["used_memory"], fleet.memory("server")))
        if seconds >= told:
            tell({"minute": round(seconds / 60), "of": round(last / 60), "bytes": samples[-1][1]})
            told += 60
        await asyncio.sleep(max(0.0, begin + number * SOAK_PAUSE_S - time.monotonic()))
    await store.aclose()
    early = [sample for sample in samples if SOAK_WARM_UP_S <= sample[0] < SOAK_WARM_UP_S + 60]
    late = [sample for sample in samples if sample[0] >= last - 60]
    row: Row = {"turns_per_engine_s": SOAK_INSTANCES / SOAK_STEP_S, "turns": number * SOAK_INSTANCES}
    for name, column in (("store", 1), ("server", 2)):
        before, after = (statistics.median(sample[column] for sample in part) for part in (early, late))
        row |= {f"{name}_early_bytes": round(before), f"{name}_late_bytes": round(after)}
        row[f"{name}_growth"] = round(after / before, 3)
    return {**row, "exact": of_worker(fleet, STARTED) == number * SOAK_INSTANCES}


def _socket(fleet: Fleet) -> str:
    """Unix socket of the embedded store."""
    for file in (fleet.path / "data").rglob("*.sock"):
        return str(file)
    raise RuntimeError("the embedded store has no socket in its folder")


async def w7(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Recovery: kill -9 of a worker inside a step; time until a second, connected worker runs that step."""
    times = []
    fleet.slots.set(GO, 1)
    for k in range(sizes.recoveries):
        for index in (0, 1):
            fleet.slots.set(WORKER * (index + 1) + MARK, 0)
        fleet.start_worker("first", index=0)
        await client.send(f"w7-{k}", {}, id="m", create=stuck)
        await until(fleet, lambda: of_worker(fleet, MARK) > 0)
        fleet.start_worker("second", index=1)
        await asyncio.sleep(1.5)  # it starts and connects
        killed = time.monotonic()
        fleet.kill("first")
        await until(fleet, lambda: of_worker(fleet, MARK, 1) > 0)
        times.append(of_worker(fleet, MARK, 1) - killed)
        await client.await_turn(f"w7-{k}", 1, wait=30)
        fleet.kill("second")
    turns = await asyncio.gather(*(client.get_turn(f"w7-{k}", 1) for k in range(sizes.recoveries)))
    exact = all(len(turn.steps) == 2 and turn.attempt == 2 for turn in turns)
    return {"recovery_s": round(statistics.median(times), 3), "exact": exact}


WORKLOADS: dict[str, Callable[[Fleet, Client, Sizes], Awaitable[Row]]] = {
    "W1": w1, "W1b": w1b, "W2": w2, "W3": w3, "W4": w4,
    "W5": w5, "W5t": w5t, "W5b": w5b, "W6": w6, "W7": w7,
}  # fmt: skip


async def run_soak(minutes: float, tell: Callable[[Row], None]) -> Row:
    """Runs the soak on a fleet of its own; `tell` gets a row each engine minute."""
    fleet = Fleet({"PAWL_LOG_LEVEL": "warning", "PAWL_VIRTUAL_TIME": "true"})
    try:
        client = await fleet.start()
        try:
            return {"workload": "soak", "minutes": minutes, **await soak(fleet, client, minutes, tell)}
        finally:
            await client.close()
    finally:
        fleet.stop()


async def run(name: str, sizes: Sizes) -> Row:
    """Runs one workload on a fleet of its own."""
    fleet = Fleet({"PAWL_LIMIT_STEPS_PER_TURN": str(sizes.steps), "PAWL_LOG_LEVEL": "warning"})
    try:
        client = await fleet.start()
        try:
            usage = Usage(fleet)
            row = await WORKLOADS[name](fleet, client, sizes)
            row.setdefault("foreign_pct", usage.row(1)["foreign_pct"])
        finally:
            await client.close()
    finally:
        fleet.stop()
    columns = ("turns_per_s", "steps_per_s", "p50_ms", "p99_ms", "bytes", "recovery_s", "exact")
    return {"workload": name, **{column: row.pop(column, None) for column in columns}, **row}
