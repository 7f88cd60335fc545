"""C-19: a script has committed, and its reply is lost.

Given  a turn that a worker completes, with another one behind it.
Do     lose the reply of the script that completes it: once, below the worker; then twice, so that the
       worker hears that the store is unavailable and repeats its command, on this server or another one.
       Lose the reply of every other call that changes something once.
Expect the same answer for every repeat, the finish time of the one execution included: not "already
       completed". The inbox has advanced by one turn, and the next one is handed out once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.turn_pb2 import TURN_STATE_COMPLETED
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl_server.app import Handle, running
from tests.cases.test_c51_killed_between_two_writes import COUNTED_DOWN, EACH, Call, Scene, check_ends, image
from tests.support.api import CALL_S, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import lanes, settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, finish, refusal
from tests.support.wait import wait_until

BEHIND = b"the message behind"
"""A finish claims the next turn, so its reply, and no other one of the test, carries this."""
DONE = finish(b"1", b"reply")


@asynccontextmanager
async def behind_a_proxy(redis: RedisServer) -> AsyncIterator[tuple[FaultProxy, Handle, Api]]:
    """A server whose replies from Redis can be lost."""
    async with (
        FaultProxy(redis.url) as proxy,
        running(settings_for(proxy.url, server_name="one")) as handle,
        Api(handle.address) as api,
    ):
        yield proxy, handle, api
    assert violations_everywhere(redis) == []


async def first_turn(api: Api, stream: Stream) -> pb.LeasedTurn:
    """The first of two turns."""
    await api.create("a")
    await api.send("a", "m1")
    turn = await stream.turn()
    await api.send("a", "m2", BEHIND)
    stream.credits_total += 1  # goes with the finish
    return turn


async def check(api: Api, stored: Stored, result: pb.CommandResult) -> None:
    """The answer is that of the one execution, which advanced the inbox by one."""
    assert (refusal(result)[0], result.already) == ("", False)
    turn = (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn
    assert (turn.state, turn.reply.data, turn.attempt) == (TURN_STATE_COMPLETED, b"reply", 1)
    assert turn.finish_time == result.finish.finish_time
    record = stored.record("a")
    assert (record.head, record.pending) == (2, 1)
    assert stored.events("a").count("TURN_COMPLETED") == 1


@pytest.mark.spec("R-STORE-4", "R-FINISH-2")
async def test_a_reply_lost_once_is_not_noticed(redis_server: RedisServer, redis_url: str) -> None:
    async with behind_a_proxy(redis_server) as (proxy, handle, api), Stream(api, credits=1) as stream:
        turn = await first_turn(api, stream)
        proxy.down.drop(1, containing=BEHIND)
        result = await stream.command(turn, DONE)
        assert (proxy.down.dropped, lanes(handle.engine.store, "hot")[0].retries >= 1) == (1, True)
        await check(api, Stored(handle, redis_server), result)
        assert (await stream.command(turn, DONE, n=1)).finish == result.finish
        following = await stream.turn()
        assert (following.turn, following.attempt, following.message.data) == (2, 1, BEHIND)
        assert refusal(await stream.command(following, finish()))[0] == ""
        assert stream.waiting("turns") == 0


@pytest.mark.spec("R-CMD-1", "R-CMD-2", "R-FINISH-2")
@pytest.mark.parametrize("where", ["same server", "other server"])
async def test_the_worker_repeats_what_it_has_no_answer_for(
    redis_server: RedisServer, redis_url: str, where: str
) -> None:
    async with behind_a_proxy(redis_server) as (proxy, handle, api):
        async with Stream(api, credits=1) as stream:
            turn = await first_turn(api, stream)
            proxy.down.drop(2, containing=BEHIND)
            assert refusal(await stream.command(turn, DONE))[0] == "STORE_UNAVAILABLE"
            assert proxy.down.dropped == 2
            if where == "same server":
                await repeated(api, Stored(handle, redis_server), stream, turn)
        if where == "other server":
            async with (
                running(settings_for(redis_url, server_name="two")) as other,
                Api(other.address) as other_api,
                Stream(other_api, ordinal=2, credits=1) as stream,
            ):
                await repeated(other_api, Stored(other, redis_server), stream, turn)


async def repeated(api: Api, stored: Stored, stream: Stream, turn: pb.LeasedTurn) -> None:
    """Repeats the finish until there is an answer; the turn behind it runs as its first attempt."""

    async def answered() -> pb.CommandResult | None:
        result = await stream.command(turn, DONE, n=1)
        return result if refusal(result)[0] != "STORE_UNAVAILABLE" else None

    result = await wait_until(answered)
    assert result is not None
    await check(api, stored, result)
    following = await stream.turn()
    assert (following.turn, following.attempt, following.message.data) == (2, 1, BEHIND)
    assert refusal(await stream.command(following, finish()))[0] == ""
    assert stored.record("a").pending == 0


@EACH
@pytest.mark.spec("R-STORE-4", "R-CMD-2", "R-CONTROL-1", "R-SIGNAL-4", "R-WAIT-4", "R-OP-1", "R-PROGRESS-2")
async def test_no_call_notices_that_its_script_ran_twice(
    redis_server: RedisServer,
    redis_url: str,
    script: str,
    before: Callable[[Scene], Awaitable[None]],
    call: Call,
) -> None:
    async with behind_a_proxy(redis_server) as (proxy, handle, api):
        scene, stored = Scene(api), Stored(handle, redis_server)
        await before(scene)
        seen, before_it = image(stored), resent(handle)
        proxy.down.hold()
        given = asyncio.ensure_future(call(scene))
        await wait_until(lambda: image(stored) != seen, what="the script has run")
        once = image(stored)
        assert not given.done()
        proxy.cut()
        proxy.down.release()
        answer = await given
        assert resent(handle) > before_it, "it ran once more"
        assert image(stored) == once
        assert await call(scene) == answer or call in COUNTED_DOWN
        assert image(stored) == once
        if stored.events("a"):
            check_ends(stored)


def resent(server: Handle) -> int:
    """How often calls were sent again."""
    return sum(lane.retries for lane in server.engine.store.metrics.values())
