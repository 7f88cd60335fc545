"""C-27: something between worker and server ends idle streams, or forgets them.

Given  a worker behind a proxy that knows nothing of gRPC.
Do     leave the stream idle for longer than the proxy allows; cut it, or let it go half-open, right when a
       message is sent.
Expect beats to keep the idle stream open; a turn that was handed to a dead stream to come back within the
       delivery timeout, without an attempt, and to run on the next stream: also where beats are too rare to
       tell that the stream is dead.
"""

from __future__ import annotations

import asyncio

import pytest

from pawl import Client, Context, Outcome, workflow
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl_server.app import Handle, running
from tests.support.api import CALL_S, Api
from tests.support.fault_proxy import Direction, FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, finish, refusal
from tests.support.wait import wait_until
from tests.support.workers import StartWorker

IDLE_S = 2.5
BEAT_MS = 500


class Impatient(Direction):
    """Cuts all connections once nothing has gone this way for IDLE_S. `cuts` counts that."""

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__()
        self.cuts = 0
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(IDLE_S, self._idle, 0)

    def _idle(self, seen: int) -> None:
        on_time = self._loop.time() - self._timer.when() < IDLE_S / 2
        if on_time and seen == self.seen:
            self.cuts += 1
            self._proxy.cut()
        self._timer = self._loop.call_later(IDLE_S, self._idle, self.seen)

    def stop(self) -> None:
        """Becomes patient."""
        self._timer.cancel()


async def attempts_of(api: Api) -> int:
    """How many attempts turn 1 of instance `a` took."""
    return (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn.attempt


@pytest.mark.spec("R-WORK-7")
async def test_beats_keep_an_idle_stream_open(redis_server: RedisServer, redis_url: str) -> None:
    settings = settings_for(redis_url, beat_interval_ms=BEAT_MS)
    async with (
        running(settings) as handle,
        Api(handle.address) as api,
        FaultProxy(handle.address) as proxy,
    ):
        proxy.up, proxy.down = up, down = Impatient(proxy), Impatient(proxy)
        async with Api(proxy.url) as behind, Stream(behind, credits=1) as stream:
            clock = asyncio.get_running_loop().time
            began = clock()
            while clock() < began + 2 * IDLE_S:
                await stream.beat()
            await api.create("a")
            await api.send("a", "m1")
            turn = await stream.turn()
            assert refusal(await stream.command(turn, finish()))[0] == ""
            assert (up.cuts, down.cuts, len(proxy.links)) == (0, 0, 1)
        up.stop()
        down.stop()
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-LEASE-2", "R-FAIL-4", "R-EXPIRE-2")
@pytest.mark.parametrize("how", ["cut", "half-open", "lost on the way"])
@pytest.mark.parametrize("beat_interval_ms", [200, 60_000], ids=["beats", "no beats"])
async def test_a_turn_handed_to_a_dead_stream_reaches_the_next_one(
    redis_server: RedisServer, redis_url: str, how: str, beat_interval_ms: int
) -> None:
    settings = settings_for(redis_url, beat_interval_ms=beat_interval_ms, delivery_timeout_ms=300)
    async with running(settings) as handle, Api(handle.address) as api:
        stored = Stored(handle, redis_server)
        async with FaultProxy(handle.address) as proxy, Api(proxy.url) as behind:
            dead = Stream(behind, credits=1, session="dead")
            await dead.open()
            if how == "cut":
                proxy.down.drop(1, containing=b"m1")
            elif how == "half-open":
                proxy.half_open()
            else:
                proxy.down.hold()
            await api.create("a")
            await api.send("a", "m1")
            await wait_until(lambda: stored.record("a").fence, what="the turn is handed out")
            async with Stream(api, credits=1, session="alive") as alive:
                turn = await alive.turn()
                assert turn.attempt == 1
                assert refusal(await alive.command(turn, finish()))[0] == ""
                record = stored.record("a")
                assert (record.failures, record.lost) == (0, 0)
            assert await attempts_of(api) == 1
            dead.cut()
    assert violations_everywhere(redis_server) == []


class TestSdk:
    """The same with a worker of the SDK, which notices by itself and opens the next stream."""

    @pytest.fixture
    def server(self, quick_server: Handle) -> Handle:
        """What `client`, `proxy` and `start_worker` are for."""
        return quick_server

    @pytest.mark.spec("R-SDK-8", "R-FAIL-4")
    @pytest.mark.parametrize("how", ["cut", "half-open"])
    async def test_a_turn_handed_to_a_dead_stream_costs_no_attempt(
        self, client: Client, proxy: FaultProxy, start_worker: StartWorker, how: str
    ) -> None:
        @workflow("quick", version="v1")
        async def quick(ctx: Context, state: object, message: object) -> Outcome:
            return ctx.done(None, result=ctx.attempt)

        start_worker(quick, address=proxy.url)
        assert (await client.send("q-1", 1, create=quick, wait=10)).result() == 1
        for number in range(3):
            message = f"message {number}"
            if how == "cut":
                proxy.down.drop(1, containing=message.encode())
            else:
                proxy.half_open()
            sent = await client.send("q-1", message, wait=20)
            assert sent.result() == 1
            assert sent.outcome is not None
            assert sent.outcome.attempt == 1
        assert proxy.down.dropped == (3 if how == "cut" else 0)
