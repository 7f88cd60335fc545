"""The calls of one turn go to any server: by streams, by unary calls, in turn and repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.turn_pb2 import TURN_STATE_COMPLETED
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl_server.app import running
from tests.support.api import CALL_S, Api, json
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stream import Stream, checkpoint, finish, refusal, started


@pytest.fixture
async def apis(redis_server: RedisServer, redis_url: str) -> AsyncIterator[list[Api]]:
    """Clients of three servers on one store."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running(settings_for(redis_url, server_name=f"server-{number}")))
            for number in range(3)
        ]
        yield [await stack.enter_async_context(Api(server.address)) for server in servers]


def saved(key: str) -> pb.Checkpoint:
    """A step."""
    return pb.Checkpoint(key=key, output=json(b"out"))


@pytest.mark.spec("R-CMD-2", "R-LEASE-5")
async def test_a_turn_whose_calls_all_go_elsewhere(apis: list[Api]) -> None:
    one, two, three = apis
    async with Stream(one, credits=1) as stream, Stream(two, ordinal=2) as other:
        turn = await started(one, stream)
        lease = turn.lease
        renewed = await three.workers.RenewLeases(pb.RenewLeasesRequest(leases=[lease]), timeout=CALL_S)
        assert renewed.results[0].remaining.seconds >= 59
        first = pb.CheckpointRequest(lease=lease, n=1, checkpoint=saved("a"))
        for api in (three, two, one):
            answer = await api.workers.Checkpoint(first, timeout=CALL_S)
            assert answer.result.position == 1, "a repeat on any server gives the first answer"
        assert refusal(await other.command(lease, checkpoint("b"), n=2))[0] == ""
        again = await stream.command(lease, checkpoint("b"), n=2)
        assert (refusal(again)[0], again.checkpoint.position) == ("", 2)
        gap = await other.command(lease, checkpoint("d"), n=4)
        assert refusal(gap) == ("GAP", {"last": "2"})
        third = pb.CheckpointRequest(lease=lease, n=3, checkpoint=saved("c"))
        await two.workers.Checkpoint(third, timeout=CALL_S)
        done = pb.FinishTurnRequest(lease=lease, n=4, finish=pb.Finish(reply=json(b"done")))
        times = [
            (await api.workers.FinishTurn(done, timeout=CALL_S)).result.finish_time.ToMilliseconds()
            for api in (three, one, two)
        ]
        assert len(set(times)) == 1
        late = await stream.command(lease, finish(), n=5)
        assert refusal(late) == ("LEASE_ENDED", {"how": "completed"})
    kept = (await two.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn
    assert kept.state == TURN_STATE_COMPLETED
    assert (kept.attempt, [step.key for step in kept.steps]) == (1, ["a", "b", "c"])


@pytest.mark.spec("R-CMD-2", "R-LEASE-7", "R-LEASE-10")
async def test_a_turn_that_is_carried_round_all_servers(apis: list[Api]) -> None:
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(Stream(api, ordinal=number))
            for number, api in enumerate(apis, start=1)
        ]
        await streams[0].credit(1)
        turn = await started(apis[0], streams[0])
        for n in range(1, 10):
            here, away = streams[n % 3], apis[(n + 1) % 3]
            if n % 4 == 0:
                detach = pb.RenewLeasesRequest(leases=[turn.lease], detach=True, ordinal=100 + 2 * n - 1)
                await away.workers.RenewLeases(detach, timeout=CALL_S)
            await here.adopt(100 + 2 * n, turn.lease)
            while (event := await here.event()).HasField("ended"):
                assert refusal(event)[0] == "SUPERSEDED", "which tells that it had moved on"
            assert event.lease == turn.lease
            result = await here.command(turn, checkpoint(f"s{n}"), n=n)
            assert (refusal(result)[0], result.checkpoint.position) == ("", n)
        streams[1].cut()
        streams[2].cut()
        result = await streams[0].command(turn, finish(), n=10)
        assert refusal(result)[0] == ""
