"""W5, W5t and W5b: turns that wait for a signal, or their time. Each gives a row; delivery is checked."""

from __future__ import annotations

import asyncio
import time

from bench.common import Row, Sizes, of_worker, percentiles, until, warm
from bench.fleet import Fleet
from bench.slots import DONE, GO, RUNS, STARTED, TIMES
from bench.worker_main import sleeping, timers, waiting
from pawl import Client, Message, Turn

PAUSE_S = 0.01
"""Between two timers of W5t, and before each signal of W5."""
LATE_MS = 3.0
"""How much later durable timers may be than those of the event loop, at the median."""
READERS = 100


async def w5(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """Signal to a turn that waits, until its handler goes on behind the wait; one after the other."""
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    started, times = of_worker(fleet, STARTED), []
    for i in range(sizes.signals):
        instance = f"w5-{i}"
        sent = await client.send(instance, {"slot": i}, id="m", create=waiting)
        await _waits(client, instance, sent.turn)
        await asyncio.sleep(PAUSE_S)
        begin = time.monotonic()
        await client.signal(instance, "go", i, turn=sent.turn, id="s")
        await client.await_turn(instance, sent.turn, wait=30)
        times.append(fleet.slots.get(TIMES + i) - begin)
    p50, p99 = percentiles(times)
    turns = [await client.get_turn(f"w5-{i}", 1) for i in range(sizes.signals)]
    exact = of_worker(fleet, STARTED) - started == 2 * sizes.signals and all(
        turn.state == "COMPLETED"
        and (turn.result(), turn.attempt, turn.step_count) == (i, 1, 1)
        and [signal.consumed_position for signal in turn.signals] == [1]
        for i, turn in enumerate(turns)
    )
    return {"p50_ms": p50, "p99_ms": p99, "exact": exact}


async def _waits(client: Client, instance: str, turn: int) -> None:
    end = time.monotonic() + 30
    while (state := (await client.get_turn(instance, turn)).state) != "WAITING":
        if time.monotonic() > end:
            raise TimeoutError(f"{instance} is {state}, and waits for nothing")
        await asyncio.sleep(0.002)


async def w5t(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """How late durable timers are, and timers of the worker's event loop in the same seconds."""
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    started, done = of_worker(fleet, STARTED), of_worker(fleet, DONE)
    first = 1.0
    bare = asyncio.create_task(
        client.send(
            "w5t-bare",
            {"seconds": first + PAUSE_S / 2, "pause": PAUSE_S, "count": sizes.timers},
            create=timers,
            wait=60,
        )
    )
    await client.send_many(
        [
            Message(f"w5t-{i}", {"slot": i, "seconds": first + i * PAUSE_S}, id="m", create=sleeping)
            for i in range(sizes.timers)
        ]
    )
    await until(fleet, lambda: of_worker(fleet, DONE) >= done + sizes.timers)
    loop_late = (await bare).result()
    turns = await _turns(client, "w5t-", sizes.timers)
    late = []
    for i, turn in enumerate(turns):
        began = turn.steps[0].save_time
        assert began is not None
        late.append(fleet.slots.get(TIMES + i) - (began.timestamp() + first + i * PAUSE_S))
    p50, p99 = percentiles(late)
    bare_p50, bare_p99 = percentiles(loop_late)
    exact = (
        len(loop_late) == sizes.timers
        and min(late) > -0.002  # engine time has milliseconds
        and _once(fleet, turns)
        and of_worker(fleet, STARTED) - started == 2 * sizes.timers
    )
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "exact": exact,
        "loop_p50_ms": bare_p50,
        "loop_p99_ms": bare_p99,
        "over_loop_ms": round(p50 - bare_p50, 3),
        "late": p50 - bare_p50 > LATE_MS,
    }


async def w5b(fleet: Fleet, client: Client, sizes: Sizes) -> Row:
    """A burst: sleepers that are all due within one second; how late they go on, and the last of them."""
    fleet.start_worker()
    fleet.slots.set(GO, 1)
    await warm(fleet, client)
    started, done = of_worker(fleet, STARTED), of_worker(fleet, DONE)
    at = time.time() + 5 + sizes.burst / 250
    due = [at + i / sizes.burst for i in range(sizes.burst)]
    await client.send_many(
        [Message(f"w5b-{i}", {"slot": i, "at": due[i]}, id="m", create=sleeping) for i in range(sizes.burst)]
    )
    await until(fleet, lambda: of_worker(fleet, STARTED) >= started + sizes.burst, at - time.time())
    await until(fleet, lambda: of_worker(fleet, DONE) >= done + sizes.burst, at - time.time() + 120)
    late = [fleet.slots.get(TIMES + i) - due[i] for i in range(sizes.burst)]
    await client.await_turn(f"w5b-{sizes.burst - 1}", 1, wait=30)
    turns = await _turns(client, "w5b-", sizes.burst)
    p50, p99 = percentiles(late)
    last = max(fleet.slots.get(TIMES + i) for i in range(sizes.burst))
    asleep = [step.save_time for turn in turns for step in turn.steps if step.save_time is not None]
    exact = (
        _once(fleet, turns)
        and of_worker(fleet, STARTED) - started == 2 * sizes.burst
        and max(when.timestamp() for when in asleep) < at
        and min(late) > -0.002
    )
    return {
        "turns_per_s": round(sizes.burst / (last - at), 1),
        "p50_ms": p50,
        "p99_ms": p99,
        "exact": exact,
        "last_s": round(last - at - 1.0, 3),
    }


def _once(fleet: Fleet, turns: list[Turn]) -> bool:
    """Whether each of the sleepers has gone on once, and has completed."""
    return all(
        (turn.state, turn.attempt, turn.step_count) == ("COMPLETED", 1, 1) and fleet.slots.get(RUNS + i) == 1
        for i, turn in enumerate(turns)
    )


async def _turns(client: Client, prefix: str, count: int) -> list[Turn]:
    """The first turns of instances, by number; each has finished or is about to."""
    limit = asyncio.Semaphore(READERS)

    async def read(i: int) -> Turn:
        async with limit:
            await client.await_turn(f"{prefix}{i}", 1, wait=30)
            return await client.get_turn(f"{prefix}{i}", 1)

    return await asyncio.gather(*(read(i) for i in range(count)))
