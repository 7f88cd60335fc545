"""C-17: Redis forgets its scripts in the middle of a pipeline.

Given  a flush that carries a checkpoint, a finish, a failure, a release, a wait, the registration of a step,
       a claim, admissions and signals.
Do     remove all scripts from Redis between two pieces of it, so that some calls run and the others answer
       NOSCRIPT.
Expect every call to be answered, and what is stored to be what one execution of each leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pawl.v1.turn_pb2 import TURN_STATE_BACKOFF, TURN_STATE_RUNNING
from pawl_server.app import running
from tests.support.api import Api
from tests.support.fault_proxy import Direction, FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import (
    Stream,
    checkpoint,
    fail,
    finish,
    refusal,
    release,
    start_operation,
    started,
    wait_signal,
)  # fmt: skip

LARGE = b"x" * 3_000
ENDS: dict[str, dict[str, Any]] = {
    "step": checkpoint("one", LARGE),
    "done": finish(LARGE, again=b"more", step=("one", LARGE)),
    "broken": fail(delay_ms=60_000),
    "back": release(),
    "asks": wait_signal("wait", ms=60_000),
    "long": start_operation(),
}


class Forgetting(Direction):
    """Small pieces; once `armed`, before the piece with that number `forget` is called."""

    def __init__(self, forget: Callable[[], object]) -> None:
        super().__init__()
        self.piece = 1_000
        self.armed = 0
        self._forget = forget

    async def admit(self, data: bytes) -> bool:
        if self.armed:
            self.armed -= 1
            if not self.armed:
                self._forget()
        return await super().admit(data)


@pytest.mark.spec("R-STORE-4", "R-STORE-5")
@pytest.mark.parametrize("piece", [1, 4, 8, 12])
async def test_every_call_of_the_flush_has_run_once(
    redis_server: RedisServer, redis_url: str, piece: int
) -> None:
    async with FaultProxy(redis_url) as proxy:
        proxy.up = forgetting = Forgetting(lambda: redis_server.call("SCRIPT", "FLUSH", "SYNC"))
        async with (
            running(settings_for(proxy.url, partitions=1)) as handle,
            Api(handle.address) as api,
            Stream(api, credits=len(ENDS)) as stream,
        ):
            turns = {name: await started(api, stream, name) for name in ENDS}
            metrics = handle.engine.store.metrics
            missed = sum(lane.noscript for lane in metrics.values())
            commands = [stream.build(turns[name], ENDS[name]) for name in ENDS]
            forgetting.armed = piece
            sending = asyncio.gather(*(api.send("step", f"further-{n}", LARGE) for n in range(3)))
            signalling = asyncio.gather(
                *(api.signal("step", f"s{n}", "go", LARGE) for n in range(2)), api.signal("asks", data=LARGE)
            )
            await stream.say(commands=commands)
            sent, received = await sending, await signalling
            results = [await stream.result() for _ in ENDS]

            assert [refusal(result)[0] for result in results] == [""] * len(ENDS)
            assert sorted(answer.turn for answer in sent) == [2, 3, 4]
            assert all(answer.receive_time.ToMilliseconds() for answer in received)
            assert not forgetting.armed
            assert sum(lane.noscript for lane in metrics.values()) > missed
            check(Stored(handle, redis_server))
    assert violations_everywhere(redis_server) == []


def check(stored: Stored) -> None:
    """What one execution of each call leaves."""
    step = stored.record("step")
    assert (step.state, step.steps, step.tail, step.pending) == (TURN_STATE_RUNNING, 1, 4, 4)
    done = stored.record("done")
    assert (done.head, done.tail, done.pending) == (2, 2, 1)
    assert stored.events("done").count("TURN_COMPLETED") == 1
    broken = stored.record("broken")
    assert (broken.state, broken.failures) == (TURN_STATE_BACKOFF, 1)
    assert stored.events("broken").count("ATTEMPT_FAILED") == 1
    assert (stored.record("back").releases, stored.record("back").failures) == (1, 0)
    assert stored.events("back").count("TURN_RELEASED") == 1
    # The signal came before the wait or after it: in both cases it is consumed.
    assert (stored.record("asks").steps, stored.due("wait", "asks")) == (1, 0)
    assert stored.events("asks").count("SIGNAL_RECEIVED") == stored.events("asks").count("STEP_SAVED") == 1
    assert stored.events("step").count("SIGNAL_RECEIVED") == 2
    assert stored.events("long").count("OPERATION_STARTED") == 1
    assert stored.due("operation", "long") > 0
