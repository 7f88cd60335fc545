"""C-31: a turn that its worker can't even read.

Given  a worker with several turns on its stream, one of which has a message that can't be decoded.
Do     nothing: whatever the worker does about that turn, it does again each time it gets it.
Expect that turn to fail, with an attempt for each time, until none is left and its inbox is blocked. The
       stream stays as it is, and the other turns end as if nothing were wrong.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from pawl import Client, Context, Outcome, workflow
from pawl.v1.instance_service_pb2 import InstanceSpec
from pawl.v1.message_service_pb2 import AwaitTurnRequest
from pawl.v1.turn_pb2 import TURN_STATE_COMPLETED, TURN_STATE_FAILED, Turn
from pawl_server.app import Handle
from tests.support.api import CALL_S, VERSION, Api
from tests.support.raw_worker import ByClaim, ByPolls, ByStream, Worker
from tests.support.stream import fail, finish
from tests.support.wait import wait_until
from tests.support.workers import StartWorker

ATTEMPTS = 3
POISON = b"{not json"
GOOD = [f"good-{number}" for number in range(8)]
WAYS: dict[str, Any] = {"stream": ByStream, "claim": ByClaim, "polls": ByPolls}


async def given(api: Api, workflow_type: str = "t") -> None:
    """The poisoned instance, between good ones."""
    spec = InstanceSpec(workflow_type=workflow_type, version=VERSION, max_attempts=ATTEMPTS)
    for name in (*GOOD[:4], "poisoned", *GOOD[4:]):
        data = POISON if name == "poisoned" else b"1"
        await api.send(name, "m1", data, create_if_absent=spec)


async def ended(api: Api, name: str) -> Turn:
    """The first turn of an instance, once it has ended."""
    request = AwaitTurnRequest(instance_id=name, turn=1)
    return (await api.messages.AwaitTurn(request, timeout=CALL_S)).turn


async def work(worker: Worker, count: int) -> None:
    """What a worker does that can't read everything."""
    for _ in range(count):
        turn = await worker.turn()
        try:
            json.loads(turn.message.data)
        except ValueError:
            assert (await worker.do(turn, fail("UNDELIVERABLE", delay_ms=0))).ok
        else:
            assert (await worker.do(turn, finish())).ok


@pytest.mark.spec("R-FAIL-2", "R-WORK-4")
@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_that_cant_be_read_fails_and_stops_no_other(server: Handle, api: Api, way: str) -> None:
    async with WAYS[way](api) as worker:
        streams = list(server.delivery.sessions)
        await given(api)
        await work(worker, len(GOOD) + ATTEMPTS)
        poisoned = await ended(api, "poisoned")
        assert (poisoned.state, poisoned.attempt) == (TURN_STATE_FAILED, ATTEMPTS)
        assert poisoned.last_failure.reason == "UNDELIVERABLE"
        for name in GOOD:
            turn = await ended(api, name)
            assert (turn.state, turn.attempt) == (TURN_STATE_COMPLETED, 1)
        assert list(server.delivery.sessions) == streams


@pytest.mark.spec("R-SDK-12")
async def test_a_worker_of_the_sdk_fails_it_and_goes_on(
    server: Handle, api: Api, client: Client, start_worker: StartWorker
) -> None:
    @workflow("plain", version=VERSION)
    async def plain(ctx: Context, state: Any, message: Any) -> Outcome:
        return ctx.done(None, result=message)

    start_worker(plain)
    await wait_until(lambda: server.delivery.sessions)
    streams = list(server.delivery.sessions)
    await given(api, "plain")
    poisoned = await ended(api, "poisoned")
    assert (poisoned.state, poisoned.last_failure.reason) == (TURN_STATE_FAILED, "UNDECODABLE")
    for name in GOOD:
        assert ((await ended(api, name)).state, (await ended(api, name)).attempt) == (TURN_STATE_COMPLETED, 1)
    assert list(server.delivery.sessions) == streams
    sent = await client.send("good-0", 2)
    assert (await ended(api, "good-0")).turn == sent.turn - 1
