"""C-35: a signal is sent again to a turn that has gone on since.

Given  a turn that runs, and a signal to it whose answer gets lost after its script has run.
Do     defer the turn, or let its attempt fail or end otherwise, so that it runs again under a new fence; send
       the signal again, to the same server or another one, before the turn waits for it, after it consumed it
       and after it has ended. Likewise a signal to the instance, and the result of a callback.
Expect the answer of the first receipt, its time included, whatever has become of the signal since. The turn
       has received it once: its wait takes it, and a second wait of that name finds nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from pawl.v1 import turn_service_pb2 as turns
from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.signal_pb2 import Signal
from pawl.v1.step_pb2 import WaitOutcome
from pawl_server.app import running
from pawl_server.domain.states import TurnState
from tests.support.api import CALL_S, Api, json, refusal_of
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.raw_worker import ByPolls, Calls
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import defer, fail, finish, release, sleep, wait_signal
from tests.support.wait import wait_until

Send = Callable[[Api, str], Awaitable[Any]]


class Delivery(NamedTuple):
    """A way to send something to the first turn of `a`: the call, and the wait that takes it."""

    send: Send
    wait: Callable[[str], dict[str, Any]]


def to_turn(api: Api, _: str) -> Awaitable[Any]:
    """A signal to the turn."""
    return api.signal("a", "s1", "go", "sent")


def to_instance(api: Api, _: str) -> Awaitable[Any]:
    """A signal to the instance."""
    request = turns.SignalInstanceRequest(instance_id="a", signal_id="s1", name="go", value=json("sent"))
    return api.turns.SignalInstance(request, timeout=CALL_S)


def to_callback(api: Api, token: str) -> Awaitable[Any]:
    """The result of a callback."""
    request = turns.ResolveCallbackRequest(token=token, value=json("sent"))
    return api.turns.ResolveCallback(request, timeout=CALL_S)


DELIVERIES = {
    "turn": Delivery(to_turn, lambda key: wait_signal(key, "go", ms=600_000)),
    "instance": Delivery(to_instance, lambda key: wait_signal(key, "go", ms=600_000)),
    "callback": Delivery(to_callback, lambda key: wait_signal(key, callback="call", ms=600_000)),
}
GIVES_UP: dict[str, dict[str, Any]] = {
    "defer": defer(1),
    "fail": fail(delay_ms=0),
    "release": release(),
    "sleep": sleep(ms=1),
}
"""How the first lease ends; the turn comes back by itself."""


class Scene(NamedTuple):
    """Two servers of one store: replies to the first one can be lost."""

    proxy: FaultProxy
    first: Api
    second: Api
    stored: Stored


@pytest.fixture
async def scene(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Scene]:
    """Two servers, and what the store says."""
    async with (
        FaultProxy(redis_url) as proxy,
        running(settings_for(proxy.url, server_name="one")) as one,
        running(settings_for(redis_url, server_name="two")) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        yield Scene(proxy, first, second, Stored(two, redis_server))
    assert violations_everywhere(redis_server) == []


async def first_turn(scene: Scene, worker: ByPolls) -> pb.LeasedTurn:
    """The turn that it is about, under its first fence, with another one behind it."""
    await scene.second.create("a")
    for name in ("m1", "m2"):
        await scene.second.send("a", name)
    return await worker.turn()


async def lose_the_answer(scene: Scene, send: Send, token: str) -> None:
    """Sends it through the first server, which is told nothing of what the script has done."""
    scene.proxy.down.hold()
    lost = asyncio.ensure_future(send(scene.first, token))
    await wait_until(lambda: received(scene) == 1, what="the script has run")
    assert not lost.done()
    lost.cancel()
    scene.proxy.cut()
    scene.proxy.down.release()


def received(scene: Scene) -> int:
    """How often the ledger has a receipt."""
    return scene.stored.events("a").count("SIGNAL_RECEIVED")


async def signals(scene: Scene) -> list[Signal]:
    """What the first turn has received, as GetTurn shows it."""
    request = turns.GetTurnRequest(instance_id="a", turn=1)
    return list((await scene.second.turns.GetTurn(request, timeout=CALL_S)).turn.signals)


@pytest.mark.spec("R-SIGNAL-2", "R-SIGNAL-4", "R-CALLBACK-2")
@pytest.mark.parametrize("end", GIVES_UP)
@pytest.mark.parametrize("kind", DELIVERIES)
async def test_what_was_kept_is_consumed_once(scene: Scene, kind: str, end: str) -> None:
    send, wait = DELIVERIES[kind]
    async with ByPolls(scene.second) as worker:
        old = await first_turn(scene, worker)
        token = old.callback_base + "call"
        await lose_the_answer(scene, send, token)
        [kept] = await signals(scene)
        assert (await worker.do(old, GIVES_UP[end])).ok
        turn = await worker.turn()
        assert turn.lease != old.lease

        answers = [await send(api, token) for api in (scene.second, scene.first)]
        first = answers[0]
        assert (answers, first.receive_time) == ([first, first], kept.receive_time)
        assert await signals(scene) == [kept], "kept once, as it came"

        n = len(turn.steps) + 1
        got = await worker.do(turn, wait("one"))
        assert (dict(got.detail)["outcome"], dict(got.detail)["position"]) == (
            "WAIT_OUTCOME_RECEIVED",
            n,
        )
        assert [await send(api, token) for api in (scene.first, scene.second)] == [first, first]
        [used] = await signals(scene)
        assert (used.consumed_position, used.HasField("value")) == (n, False)

        assert dict((await worker.do(turn, wait("two"))).detail)["suspended"] is True
        assert await send(scene.second, token) == first, "it does not come a second time"
        record = scene.stored.record("a")
        assert (record.state, record.steps, record.head) == (TurnState.WAITING, n, 1)
        await end_it(scene, worker)
        assert await send(scene.first, token) == first
    assert received(scene) == 1


@pytest.mark.spec("R-SIGNAL-2", "R-SIGNAL-4", "R-CALLBACK-2")
@pytest.mark.parametrize("kind", DELIVERIES)
async def test_what_resumed_the_turn_did_so_once(scene: Scene, kind: str) -> None:
    """The lost answer said that the wait was over."""
    send, wait = DELIVERIES[kind]
    async with ByPolls(scene.second) as worker:
        old = await first_turn(scene, worker)
        token = old.callback_base + "call"
        assert dict((await worker.do(old, wait("one"))).detail)["suspended"] is True
        await lose_the_answer(scene, send, token)
        turn = await worker.turn()
        assert [(step.key, step.output.data, step.wait_outcome) for step in turn.steps] == [
            ("one", b"sent", WaitOutcome.WAIT_OUTCOME_RECEIVED)
        ]
        assert (await worker.do(turn, defer(1))).ok
        turn = await worker.turn()

        answers = [await send(api, token) for api in (scene.first, scene.second)]
        assert answers[0] == answers[1]
        assert getattr(answers[0], "consumed_position", 1) == 1, "as the first answer would have said"
        [used] = await signals(scene)
        assert (used.consumed_position, used.receive_time) == (1, answers[0].receive_time)
        assert len(turn.steps) == scene.stored.record("a").steps == 1
        assert dict((await worker.do(turn, wait("two"))).detail)["suspended"] is True
        assert await send(scene.second, token) == answers[0]
        assert scene.stored.events("a").count("TURN_WAITING") == 2
        await end_it(scene, worker)
    assert received(scene) == 1


async def end_it(scene: Scene, worker: ByPolls) -> None:
    """Cancels the turn, which waits; what it got does not go on to the next one."""
    request = turns.CancelTurnRequest(instance_id="a", turn=1)
    await scene.second.turns.CancelTurn(request, timeout=CALL_S)
    behind = await worker.turn()
    assert behind.turn == 2
    shown = await scene.second.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=2), timeout=CALL_S)
    assert not shown.turn.signals
    assert (await worker.do(behind, finish())).ok


@pytest.mark.spec("R-WAIT-4", "R-SIGNAL-2")
async def test_the_wait_of_the_old_lease_takes_nothing(scene: Scene) -> None:
    """It was answered once; whatever it says under its old fence consumes no second signal."""
    async with ByPolls(scene.second) as worker:
        old = await first_turn(scene, worker)
        await to_turn(scene.second, "")
        got = await worker.do(old, wait_signal("one"), n=1)
        assert (await worker.do(old, defer(1), n=2)).ok
        turn = await worker.turn()
        await scene.second.signal("a", "s2", "go", "next")
        late = await Calls(scene.first).do(old, wait_signal("one"), n=1)
        assert (late.reason, late.already) == ("", True), "a command before the last one of its lease"
        refused = await Calls(scene.first).do(old, wait_signal("two"), n=3)
        assert (refused.reason, dict(refused.metadata)) == ("LEASE_ENDED", {"how": "deferred"})
        assert [signal.consumed_position for signal in await signals(scene)] == [1, 0]
        following = await worker.do(turn, wait_signal("two"))
        assert dict(following.detail)["position"] == 2
        assert dict(got.detail)["position"] == 1
        problem = await refusal_of(scene.first.signal("a", "s2", "go", "other"))
        assert problem.reason == "BODY_CONFLICT"
        assert (await worker.do(turn, finish())).ok
