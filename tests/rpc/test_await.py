"""Waiting for a turn: send-and-wait and AwaitTurn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import message_service_pb2 as messages
from pawl.v1.turn_pb2 import Turn, TurnState
from pawl_server.app import Handle, running
from pawl_server.engine.control import Target
from tests.support.api import Api, json, refusal_of
from tests.support.hand import Hand
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.wait import wait_until

SOON_S = 15
"""Less than any wait."""


@pytest.fixture
async def server(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Handle]:
    """A server that never polls: what comes, came as a hint."""
    async with running(settings_for(redis_url, poll_interval_ms=NEVER_MS)) as handle:
        yield handle
    assert violations_everywhere(redis_server) == []


async def await_turn(api: Api, instance_id: str, turn: int, seconds: int = 20, incarnation: int = 0) -> Turn:
    """AwaitTurn."""
    request = messages.AwaitTurnRequest(
        instance_id=instance_id, turn=turn, wait=Duration(seconds=seconds), incarnation=incarnation
    )
    return (await api.messages.AwaitTurn(request)).turn


@pytest.mark.spec("R-AWAIT-1", "R-DELIVER-2")
@pytest.mark.parametrize("final", [True, False], ids=["failed for good", "completed"])
async def test_a_turn_that_ends_on_another_server(api: Api, server: Handle, final: bool) -> None:
    await api.create("a")
    sent = asyncio.ensure_future(api.send("a", "m", wait=Duration(seconds=20)))
    await wait_until(lambda: server.engine.awaits.count == 1)
    waiting = asyncio.ensure_future(await_turn(api, "a", 1))
    await wait_until(lambda: server.engine.awaits.count == 2)
    hand = Hand(server.engine)
    await (hand.fail("a") if final else hand.finish("a", b"42"))
    turn = await waiting
    assert turn == (await sent).outcome
    assert turn.state == (TurnState.TURN_STATE_FAILED if final else TurnState.TURN_STATE_COMPLETED)
    if not final:
        assert turn.reply == json("42")
        assert turn.step_count == 1
        assert not turn.steps
    assert server.engine.awaits.count == 0


@pytest.mark.spec("R-AWAIT-1")
async def test_a_turn_that_is_finished_already(api: Api, server: Handle) -> None:
    await api.create("a")
    await api.send("a", "m")
    await Hand(server.engine).finish("a")
    assert (await await_turn(api, "a", 1)).state == TurnState.TURN_STATE_COMPLETED
    assert (await api.send("a", "m", wait=Duration(seconds=20))).outcome.reply == json("done")


@pytest.mark.spec("R-AWAIT-1")
async def test_the_end_of_the_wait_returns_the_turn_as_it_stands(api: Api) -> None:
    await api.create("a")
    sent = await api.send("a", "m", wait=Duration(nanos=20_000_000))
    assert sent.outcome.state == TurnState.TURN_STATE_QUEUED
    assert (await await_turn(api, "a", 1, seconds=0)).state == TurnState.TURN_STATE_QUEUED


@pytest.mark.spec("R-AWAIT-1")
async def test_waiters_of_many_turns_of_one_instance(api: Api, server: Handle) -> None:
    """The note in Redis is used up by each end, so later turns must renew it."""
    await api.create("a")
    for at in range(5):
        await api.send("a", f"m{at}")
    waiting = [asyncio.ensure_future(await_turn(api, "a", turn)) for turn in (1, 3, 3, 5, 5)]
    await wait_until(lambda: server.engine.awaits.count == 5)
    hand = Hand(server.engine)
    for turn in range(1, 6):
        await hand.finish("a", b"%d" % turn)
    replies = [(await each).reply.data for each in waiting]
    assert replies == [b"1", b"3", b"3", b"5", b"5"]


@pytest.mark.spec("R-AWAIT-1", "R-CANCEL-2")
async def test_turns_that_end_one_after_another_behind_their_head(api: Api, server: Handle) -> None:
    """Only the first end uses up the note, and nobody is told of the others."""
    await api.create("a")
    for at in range(6):
        await api.send("a", f"m{at}")
    waiting = [asyncio.ensure_future(await_turn(api, "a", turn)) for turn in range(1, 6)]
    await wait_until(lambda: server.engine.awaits.count == 5)
    cancel = server.engine.control.cancel
    await asyncio.gather(*(cancel(Target("a", turn=turn), force=True) for turn in (3, 2, 5)))  # in one flush
    async with asyncio.timeout(SOON_S):
        ended = await asyncio.gather(*(waiting[at] for at in (1, 2, 4)))
    assert {turn.state for turn in ended} == {TurnState.TURN_STATE_CANCELLED}
    hand = Hand(server.engine)
    for at in (0, 3):
        assert not waiting[at].done()
        await hand.finish("a")
        assert (await waiting[at]).state == TurnState.TURN_STATE_COMPLETED
    assert server.engine.awaits.count == 0


@pytest.mark.spec("R-AWAIT-1", "R-TTL-1")
async def test_messages_that_expire_together_behind_their_head(api: Api, server: Handle) -> None:
    await api.create("a")
    await api.send("a", "head")
    for at in range(4):
        await api.send("a", f"m{at}", ttl=Duration(nanos=300_000_000))
    head = asyncio.ensure_future(await_turn(api, "a", 1))
    async with asyncio.timeout(SOON_S):
        expiring = await asyncio.gather(*(await_turn(api, "a", turn) for turn in range(2, 6)))
    assert {turn.state for turn in expiring} == {TurnState.TURN_STATE_EXPIRED}
    assert not head.done()
    await Hand(server.engine).finish("a")
    assert (await head).state == TurnState.TURN_STATE_COMPLETED


@pytest.mark.spec("R-AWAIT-1")
async def test_a_lost_hint_costs_a_poll(redis_url: str) -> None:
    async with running(settings_for(redis_url, poll_interval_ms=50)) as server, Api(server.address) as api:
        await api.create("a")
        waiting = asyncio.ensure_future(api.send("a", "m", wait=Duration(seconds=20)))
        await wait_until(lambda: server.engine.awaits.count == 1)
        # A script that runs in the name of this server tells this server nothing.
        await Hand(server.engine, server.engine.server_run).finish("a")
        assert (await waiting).outcome.state == TurnState.TURN_STATE_COMPLETED


async def test_what_nobody_can_wait_for(api: Api) -> None:
    created = await api.create("a")
    await api.send("a", "m")
    for instance_id, turn in (("none", 1), ("a", 2)):
        problem = await refusal_of(await_turn(api, instance_id, turn))
        assert (problem.code, problem.reason) == ("NOT_FOUND", "NOT_FOUND")
        assert problem.metadata == {"resource": "turn", "name": f"{instance_id}/{turn}"}
    problem = await refusal_of(await_turn(api, "a", 1, incarnation=created.incarnation + 1))
    assert problem.reason == "NOT_FOUND"


async def test_a_caller_that_goes_away_leaves_nothing_behind(api: Api, server: Handle) -> None:
    await api.create("a")
    await api.send("a", "m")
    call = api.messages.AwaitTurn(messages.AwaitTurnRequest(instance_id="a", turn=1))
    await wait_until(lambda: server.engine.awaits.count == 1)
    call.cancel()
    await wait_until(lambda: server.engine.awaits.count == 0)
    assert (await api.send("a", "n")).turn == 2


async def test_a_server_that_stops_lets_its_waiters_go(api: Api, server: Handle) -> None:
    await api.create("a")
    await api.send("a", "m")
    waiting = asyncio.ensure_future(refusal_of(await_turn(api, "a", 1)))
    await wait_until(lambda: server.engine.awaits.count == 1)
    await server.stop()
    problem = await waiting
    assert (problem.code, problem.reason) == ("UNAVAILABLE", "DRAINING")
    assert problem.retry_ms
