"""C-49: a stream that reconnects again and again.

Given  a worker that runs a turn, beside others with free credits.
Do     let its stream end and come back 20 times in quick succession, in good order, by cuts, and on two
       servers.
Expect the turn to be handed out to nobody while its lease lives: each new stream adopts the lease instead,
       and the turn ends as attempt 1.
"""

from __future__ import annotations

import pytest

from pawl import Client
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl_server.app import Handle, running
from tests.support.api import CALL_S, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal, started
from tests.support.wait import wait_until
from tests.support.workers import Long, StartWorker, current_stream

RECONNECTS = 20


async def check(api: Api, stored: Stored, other: Stream) -> None:
    """Turn 1 of instance `a` ended as its first attempt, and nobody else saw it."""
    turn = (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn
    assert (turn.attempt, [step.attempt for step in turn.steps]) == (1, [1])
    record = stored.record("a")
    assert (record.lost, record.failures, record.deliveries) == (0, 0, 0)
    assert stored.events("a").count("ATTEMPT_STARTED") == 1
    assert other.waiting("turns") == 0


@pytest.mark.spec("R-LEASE-7", "R-WORK-10")
@pytest.mark.parametrize("ending", ["cut", "in good order"])
async def test_a_worker_that_comes_back_keeps_its_turn(api: Api, stored: Stored, ending: str) -> None:
    async with Stream(api, session="other") as other:
        taker = Stream(api, credits=1)
        await taker.open()
        turn = await started(api, taker)
        await taker.command(turn, checkpoint("one"))
        await other.credit(5)
        for ordinal in range(2, RECONNECTS + 2):
            if ending == "cut":
                taker.cut()
            else:
                assert await taker.done() == "OK"
            taker = Stream(api, ordinal=ordinal, leases=[turn.lease])
            await taker.open()
            event = await taker.event()
            assert (event.lease, refusal(event)) == (turn.lease, ("", {}))
            assert taker.waiting("turns") == 0
        assert refusal(await taker.command(turn, finish(), n=2))[0] == ""
        await check(api, stored, other)
        taker.cut()


@pytest.mark.spec("R-LEASE-7", "R-WORK-10")
async def test_a_worker_that_moves_between_servers_keeps_its_turn(
    server: Handle, api: Api, stored: Stored, redis_url: str
) -> None:
    async with (
        running(settings_for(redis_url, server_name="two")) as second,
        Api(second.address) as second_api,
        Stream(api, session="other") as other,
    ):
        taker = Stream(api, credits=1)
        await taker.open()
        turn = await started(api, taker)
        await taker.command(turn, checkpoint("one"))
        await other.credit(5)
        for ordinal in range(2, RECONNECTS + 2):
            taker.cut()
            taker = Stream((api, second_api)[ordinal % 2], ordinal=ordinal, leases=[turn.lease])
            await taker.open()
            event = await taker.event()
            assert (event.lease, refusal(event)) == (turn.lease, ("", {}))
        assert refusal(await taker.command(turn, finish(), n=2))[0] == ""
        await check(api, stored, other)
        taker.cut()


class TestSdk:
    """The same with a worker of the SDK behind a proxy that cuts."""

    @pytest.fixture
    def server(self, quick_server: Handle) -> Handle:
        """What `client`, `proxy` and `start_worker` are for."""
        return quick_server

    @pytest.mark.spec("R-WORK-10", "R-SDK-8")
    async def test_a_turn_survives_the_reconnects(
        self, client: Client, proxy: FaultProxy, start_worker: StartWorker
    ) -> None:
        long = Long()
        worker = start_worker(long.workflow, address=proxy.url)
        sent = await client.send("l-1", 1, create=long.workflow)
        await wait_until(lambda: long.ran == ["a", "b"])
        start_worker(long.workflow)
        for _ in range(RECONNECTS):
            stream = current_stream(worker)
            proxy.cut()
            await wait_until(lambda stream=stream: current_stream(worker) not in (None, stream))
        long.go.set()
        turn = await client.await_turn("l-1", sent.turn, wait=20)
        assert (turn.result(), long.ran, long.cancelled) == (1, ["a", "b", "c"], 0)
