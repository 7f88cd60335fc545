"""The script calls of W1 without gRPC: the same lists, at the same concurrency, on the embedded store.

Says how much of a turn is Redis and the store client; W1 through gRPC should reach at least a quarter of this
rate.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio

from bench.common import Sizes, percentiles
from pawl_server.domain.limits import Limits
from pawl_server.embedded import EmbeddedServer, EmbeddedSettings
from pawl_server.store import scripts_gen as scripts
from pawl_server.store.client import PartitionHandle, Store, StoreSettings
from pawl_server.store.records import ClaimedTurn, claimed_turn

SERVER, CONN, TV = "benchrun", "benchrun.1.1", "bench-one:v1"
CONCURRENCY = 64
LIST = 64
BLOB = b"json\0" + b'{"text": "' + b"x" * 40 + b'"}'
STATE = b"json\0" + b"s" * 110
CALIBRATION = (
    "#!lua flags=allow-oom\nfor i = 1, 10 do redis.call('HSET', KEYS[1], 'f' .. i, ARGV[1]) end return 1"
)


async def _admit(store: Store, sizes: Sizes, limits: Limits) -> None:
    names = [f"w1-{i}" for i in range(sizes.instances)]
    for number in range(sizes.turns):
        by_partition: dict[int, list[scripts.SendItem]] = {}
        for name in names:
            handle = store.partition_of(name)
            by_partition.setdefault(handle.index, []).append(
                scripts.SendItem(
                    name,
                    f"m{number}",
                    b"digest00",
                    BLOB,
                    b"",
                    True,
                    "bench-one",
                    "v1",
                    b"created0",
                    STATE,
                    0,
                    0,
                    b"",
                    b"",
                    False,
                    0,
                    0,
                )
            )
        calls = [
            scripts.send(
                store.partitions[index], server=SERVER, max_pending=limits.pending_messages,
                max_message=limits.message_bytes, max_state=limits.state_bytes, items=items[at : at + LIST],
            )
            for index, items in by_partition.items()
            for at in range(0, len(items), LIST)
        ]  # fmt: skip
        for result in await asyncio.gather(*calls):
            if not all(isinstance(reply, scripts.SendOk) for reply in result.replies):
                raise RuntimeError(f"send was refused: {result.replies}")


def _finish_item(turn: ClaimedTurn) -> scripts.FinishItem:
    return scripts.FinishItem(
        turn.instance_id, turn.incarnation, turn.turn, turn.fence, 1, b"command0", True, "work", "step", BLOB,
        b"digest00", True, STATE, True, BLOB, False, b"", b"", TV, CONN,
    )  # fmt: skip


async def drain(partition: PartitionHandle, limits: Limits, share: int) -> int:
    """Claims once, then finishes and claims in lists until the partition is empty; the number of turns."""
    claimed = await scripts.claim(
        partition,
        server=SERVER,
        delivery_ms=5000,
        max_bytes=1 << 20,
        items=[scripts.ClaimItem(TV, share, CONN)],
    )
    held = [claimed_turn(view) for view in claimed.replies[0].turns]
    done = 0
    while held:
        result = await scripts.finish(
            partition, server=SERVER, max_steps=limits.steps_per_turn, max_step=limits.step_output_bytes,
            max_turn=limits.turn_bytes, max_state=limits.state_bytes, max_reply=limits.reply_bytes,
            max_message=limits.message_bytes, delivery_ms=5000, items=[_finish_item(turn) for turn in held],
        )  # fmt: skip
        done += len(held)
        held = []
        for reply in result.replies:
            if not isinstance(reply, scripts.FinishOk):
                raise RuntimeError(f"finish was refused: {reply}")
            held += [claimed_turn(view) for view in reply.turns]
    return done


async def run_scripts(
    sizes: Sizes, prepare: Callable[[Store], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """One row: turns/s of claim and finish, and the Redis CPU of a turn against a calibration script.

    `prepare` gets the store before any work is done on it.
    """
    limits = Limits()
    with tempfile.TemporaryDirectory(prefix="pawl-bench-") as folder:
        embedded = await EmbeddedServer.start(EmbeddedSettings(folder=Path(folder) / "data"))
        store = await Store.open(StoreSettings(url=embedded.url))
        probe = redis.asyncio.Redis.from_url(embedded.url)
        try:
            if prepare is not None:
                await prepare(store)

            async def cpu() -> float:
                info = await probe.info("cpu")
                return info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]

            before, begin = await cpu(), time.monotonic()
            await _admit(store, sizes, limits)
            admit_seconds, admit_cpu = time.monotonic() - begin, await cpu() - before
            before, begin = await cpu(), time.monotonic()
            share = CONCURRENCY // len(store.partitions)
            done = sum(await asyncio.gather(*(drain(one, limits, share) for one in store.partitions)))
            seconds, drain_cpu = time.monotonic() - begin, await cpu() - before
            calibration = await calibrate(probe, cpu)
        finally:
            await probe.aclose()
            await store.close()
            await embedded.stop()
    n = sizes.instances * sizes.turns
    turn_us = (admit_cpu + drain_cpu) / n * 1e6
    return {
        "workload": "W1-scripts", "turns_per_s": round(done / seconds, 1),
        "admitted_per_s": round(n / admit_seconds, 1),
        "store_us": round(turn_us, 1), "calibration_us": round(calibration, 1),
        "turn_per_calibration": round(turn_us / calibration, 2),
        "exact": done == n,
    }  # fmt: skip


async def calibrate(probe: redis.asyncio.Redis, cpu: Any) -> float:
    """Median microseconds of Redis for ten HSETs in one script, pipelined by 64."""
    sha = await probe.script_load(CALIBRATION)
    samples = []
    for _ in range(5):
        before = await cpu()
        for _ in range(16):
            pipeline = probe.pipeline(transaction=False)
            for _ in range(64):
                pipeline.evalsha(sha, 1, "{calibration}h", "v" * 64)
            await pipeline.execute()
        samples.append((await cpu() - before) / 1024 * 1e6)
    await probe.delete("{calibration}h")
    return percentiles(samples)[0] / 1e3
