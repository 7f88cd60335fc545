"""Workers whose turn has a total deadline: what they are told, and when they lose it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.admin_service_pb2 import PutWorkflowTypeRequest
from pawl.v1.turn_pb2 import TURN_STATE_EXPIRED, TURN_STATE_FAILED, Turn
from pawl.v1.workflow_type_pb2 import WorkflowType
from pawl_server.app import running
from tests.support.api import CALL_S, TYPE, Api
from tests.support.invariants import violations_everywhere
from tests.support.raw_worker import Answer, ByClaim, ByPolls, ByStream
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stream import checkpoint, finish, refusal

WAYS: dict[str, Callable[[Api], Any]] = {
    "stream": ByStream,
    "claim": ByClaim,
    "renewed claim": lambda api: ByClaim(api, renew=True),
    "polls": ByPolls,
}
EXPIRED = Answer.refused("LEASE_ENDED", {"how": "expired"})


async def shown(api: Api, turn: int = 1) -> Turn:
    """A turn of the instance."""
    request = turns.GetTurnRequest(instance_id="a", turn=turn)
    return (await api.turns.GetTurn(request, timeout=CALL_S)).turn


async def put(api: Api, **seconds: int) -> None:
    """Stores settings of the usual type."""
    spans: dict[str, Any] = {name: Duration(seconds=value) for name, value in seconds.items()}
    await api.admin.PutWorkflowType(PutWorkflowTypeRequest(workflow_type=WorkflowType(name=TYPE, **spans)))


@pytest.mark.spec("R-TOTAL-1", "R-TOTAL-2", "R-TOTAL-3", "R-FENCE-1")
@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_is_lost_at_its_total_deadline(
    redis_server: RedisServer, redis_url: str, way: str
) -> None:
    async with running(settings_for(redis_url, virtual_time=True)) as server, Api(server.address) as api:
        await put(api, total_timeout=20)
        await api.create("a")
        await api.send("a", "m1")
        await api.advance(5_000)
        async with WAYS[way](api) as worker:
            turn = await worker.turn()
            assert turn.total_remaining.ToMilliseconds() == 15_000
            due = (await shown(api)).total_deadline
            assert due.ToMilliseconds() - turn.admit_time.ToMilliseconds() == 20_000
            await api.advance(14_999)
            assert (await worker.do(turn, checkpoint("one"))).ok
            await api.advance(1)
            assert await worker.do(turn, finish()) == EXPIRED
            if isinstance(worker, ByStream | ByClaim):
                event = await (worker.stream if isinstance(worker, ByStream) else worker).event()
                assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "expired"}))
            failed = await shown(api)
            assert (failed.state, failed.last_failure.reason) == (TURN_STATE_FAILED, "TOTAL_DEADLINE")
            assert (failed.last_failure.fail_time, failed.HasField("total_deadline")) == (due, False)
            await api.turns.RetryTurn(turns.RetryTurnRequest(instance_id="a", turn=1), timeout=CALL_S)
            again = await worker.turn()
            assert (again.attempt, again.total_remaining.seconds) == (2, 20)
            assert (await worker.do(again, finish())).ok
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-TTL-3")
async def test_a_message_that_nobody_takes_in_time(redis_server: RedisServer, redis_url: str) -> None:
    async with running(settings_for(redis_url, virtual_time=True)) as server, Api(server.address) as api:
        await put(api, queue_timeout=20)
        await api.create("a")
        sent = await api.send("a", "m1")
        first = await shown(api)
        assert first.expire_time.ToMilliseconds() - sent.admit_time.ToMilliseconds() == 20_000
        assert not first.HasField("total_deadline")
        await api.advance(20_000)
        assert (await shown(api)).state == TURN_STATE_EXPIRED
        await api.send("a", "m2")
        async with ByStream(api) as worker:
            turn = await worker.turn()
            assert (turn.turn, turn.HasField("total_remaining")) == (2, False)
            assert (await worker.do(turn, finish())).ok
    assert violations_everywhere(redis_server) == []
