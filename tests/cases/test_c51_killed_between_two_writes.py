"""C-51: a transition that is several writes, and somebody dies between two of them.

Given  an instance in the state in which a call changes something.
Do     make the call, keep back the reply of its script, kill the server, and make the call at another one.
Expect there was nothing to die between: one script for the call. The second one gives the answer of the
       first, the ledger has each event once, and an end of the turn if and only if the turn has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.failure_pb2 import Failure
from pawl_server.app import Handle, running
from pawl_server.domain.states import TurnState
from pawl_server.store import records
from tests.support.api import CALL_S, TYPE, VERSION, Api, json, spec
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import constants, violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.wait import wait_until

ENDS = {
    constants("ledger")[f"TURN_{state.name}"]: state
    for state in (
        TurnState.COMPLETED, TurnState.CANCELLED, TurnState.SKIPPED, TurnState.PARKED, TurnState.EXPIRED,
    )
} | {constants("ledger")["MESSAGE_CANCELLED"]: TurnState.CANCELLED}  # fmt: skip
"""Types of the events that end a turn."""
BACKGROUND = {"beat", "claim", "expire", "hello", "poll", "sweep", "watch", "stats", "starved", "get_leases"}
"""Scripts that a server runs by itself."""
SECOND, MINUTE = Duration(seconds=1), Duration(seconds=60)


@dataclass
class Scene:
    """One server, and the lease of the turn that runs, if one does."""

    api: Api
    lease: bytes = b""

    async def queued(self) -> None:
        """Two messages wait."""
        await self.api.create("a")
        for message_id in ("m1", "m2"):
            await self.api.send("a", message_id)

    async def leased(self) -> None:
        """The first one's turn runs."""
        await self.queued()
        workflows = [pb.WorkflowRef(workflow_type=TYPE, version=VERSION)]
        polled = await self.api.workers.PollTurn(
            pb.PollTurnRequest(workflows=workflows, wait=SECOND), timeout=CALL_S
        )
        self.lease = polled.turn.lease
        await self.api.workers.RenewLeases(pb.RenewLeasesRequest(leases=[self.lease]), timeout=CALL_S)

    async def waiting(self) -> None:
        """It has been put off."""
        await self.leased()
        await defer(self)

    async def failed(self) -> None:
        """It has failed for good."""
        await self.leased()
        await fail_for_good(self)

    async def parked(self) -> None:
        """It is parked."""
        await self.failed()
        await park(self)

    async def delayed(self) -> None:
        """A message waits for its time."""
        await self.api.create("a")
        await send_later(self)

    async def paused(self) -> None:
        """Nothing begins."""
        await self.queued()
        await pause(self)

    async def nothing(self) -> None:
        """There is nothing yet."""


Call = Callable[[Scene], Awaitable[Any]]


def create(scene: Scene) -> Awaitable[Any]:
    return scene.api.instances.CreateInstance(
        instances.CreateInstanceRequest(instance_id="a", spec=spec(), request_id="r"), timeout=CALL_S
    )


def send(scene: Scene) -> Awaitable[Any]:
    return scene.api.messages.SendMessage(
        messages.SendMessageRequest(
            instance_id="a", message_id="m9", message=json("1"), create_if_absent=spec()
        ),
        timeout=CALL_S,
    )


def send_later(scene: Scene) -> Awaitable[Any]:
    request = messages.SendMessageRequest(instance_id="a", message_id="late", message=json("1"), delay=MINUTE)
    return scene.api.messages.SendMessage(request, timeout=CALL_S)


def checkpoint(scene: Scene) -> Awaitable[Any]:
    step = pb.Checkpoint(key="one", output=json("1"))
    return scene.api.workers.Checkpoint(
        pb.CheckpointRequest(lease=scene.lease, n=1, checkpoint=step), timeout=CALL_S
    )


def sleep(scene: Scene) -> Awaitable[Any]:
    step = pb.Sleep(key="nap", duration=MINUTE)
    return scene.api.workers.Sleep(pb.SleepRequest(lease=scene.lease, n=1, sleep=step), timeout=CALL_S)


def defer(scene: Scene) -> Awaitable[Any]:
    request = pb.DeferTurnRequest(lease=scene.lease, n=1, defer=pb.Defer(delay=MINUTE))
    return scene.api.workers.DeferTurn(request, timeout=CALL_S)


def release(scene: Scene) -> Awaitable[Any]:
    request = pb.ReleaseTurnRequest(lease=scene.lease, n=1, release=pb.Release())
    return scene.api.workers.ReleaseTurn(request, timeout=CALL_S)


def fail(scene: Scene) -> Awaitable[Any]:
    body = pb.Fail(failure=Failure(reason="ERROR"), retry_delay=MINUTE)
    return scene.api.workers.FailTurn(pb.FailTurnRequest(lease=scene.lease, n=1, fail=body), timeout=CALL_S)


def fail_for_good(scene: Scene) -> Awaitable[Any]:
    body = pb.Fail(failure=Failure(reason="ERROR", non_retryable=True))
    return scene.api.workers.FailTurn(pb.FailTurnRequest(lease=scene.lease, n=1, fail=body), timeout=CALL_S)


def finish(scene: Scene) -> Awaitable[Any]:
    step = pb.Checkpoint(key="one", output=json("1"))
    body = pb.Finish(state=json("2"), reply=json("3"), continuation=json("4"), last_step=step)
    request = pb.FinishTurnRequest(lease=scene.lease, n=1, finish=body)
    return scene.api.workers.FinishTurn(request, timeout=CALL_S)


def pause(scene: Scene) -> Awaitable[Any]:
    request = instances.PauseInstanceRequest(instance_id="a", request_id="pause")
    return scene.api.instances.PauseInstance(request, timeout=CALL_S)


def resume(scene: Scene) -> Awaitable[Any]:
    request = instances.ResumeInstanceRequest(instance_id="a", request_id="r")
    return scene.api.instances.ResumeInstance(request, timeout=CALL_S)


def wake(scene: Scene) -> Awaitable[Any]:
    request = instances.WakeInstanceRequest(instance_id="a", request_id="r")
    return scene.api.instances.WakeInstance(request, timeout=CALL_S)


def retry(scene: Scene) -> Awaitable[Any]:
    request = turns.RetryTurnRequest(instance_id="a", turn=1, request_id="r")
    return scene.api.turns.RetryTurn(request, timeout=CALL_S)


def skip(scene: Scene) -> Awaitable[Any]:
    request = turns.SkipTurnRequest(instance_id="a", turn=1, request_id="r")
    return scene.api.turns.SkipTurn(request, timeout=CALL_S)


def park(scene: Scene) -> Awaitable[Any]:
    request = turns.ParkTurnRequest(instance_id="a", turn=1, request_id="park")
    return scene.api.turns.ParkTurn(request, timeout=CALL_S)


def redrive(scene: Scene) -> Awaitable[Any]:
    request = turns.RedriveParkedRequest(instance_id="a", turn=1, request_id="r")
    return scene.api.turns.RedriveParked(request, timeout=CALL_S)


def cancel(scene: Scene) -> Awaitable[Any]:
    request = turns.CancelTurnRequest(instance_id="a", turn=1, request_id="r")
    return scene.api.turns.CancelTurn(request, timeout=CALL_S)


def cancel_message(scene: Scene) -> Awaitable[Any]:
    request = messages.CancelMessageRequest(instance_id="a", message_id="m2", request_id="r")
    return scene.api.messages.CancelMessage(request, timeout=CALL_S)


def cancel_delayed(scene: Scene) -> Awaitable[Any]:
    request = messages.CancelMessageRequest(instance_id="a", message_id="late", request_id="r")
    return scene.api.messages.CancelMessage(request, timeout=CALL_S)


def delete(scene: Scene) -> Awaitable[Any]:
    request = instances.DeleteInstanceRequest(instance_id="a", request_id="r")
    return scene.api.instances.DeleteInstance(request, timeout=CALL_S)


CALLS: list[tuple[str, Callable[[Scene], Awaitable[None]], Call]] = [
    ("create", Scene.nothing, create),
    ("send", Scene.nothing, send),
    ("send", Scene.queued, send_later),
    ("checkpoint", Scene.leased, checkpoint),
    ("sleep", Scene.leased, sleep),
    ("defer", Scene.leased, defer),
    ("release", Scene.leased, release),
    ("fail", Scene.leased, fail),
    ("fail", Scene.leased, fail_for_good),
    ("finish", Scene.leased, finish),
    ("pause", Scene.queued, pause),
    ("resume", Scene.paused, resume),
    ("wake", Scene.waiting, wake),
    ("retry", Scene.failed, retry),
    ("skip", Scene.failed, skip),
    ("park", Scene.failed, park),
    ("redrive", Scene.parked, redrive),
    ("cancel", Scene.leased, cancel),
    ("cancel_message", Scene.queued, cancel_message),
    ("cancel_message", Scene.delayed, cancel_delayed),
    ("delete", Scene.leased, delete),
]
EACH = pytest.mark.parametrize(("script", "before", "call"), CALLS, ids=[call.__name__ for *_, call in CALLS])


def scripts_run(server: Handle) -> dict[str, int]:
    """How often each script was answered, but for those of the server's own."""
    counts: dict[str, int] = {}
    for lane in server.engine.store.metrics.values():
        for name, tally in lane.scripts.items():
            if name not in BACKGROUND:
                counts[name] = counts.get(name, 0) + tally.calls
    return counts


@EACH
@pytest.mark.spec("R-STORE-3", "R-STORE-4")
async def test_a_call_is_one_script(
    api: Api, server: Handle, script: str, before: Callable[[Scene], Awaitable[None]], call: Call
) -> None:
    scene = Scene(api)
    await before(scene)
    counts = scripts_run(server)
    await call(scene)
    after = scripts_run(server)
    run = {name: after[name] - counts.get(name, 0) for name in after if after[name] != counts.get(name, 0)}
    assert run == {script: 1}


@EACH
@pytest.mark.spec("R-STORE-3", "R-STORE-4", "R-CMD-2", "R-CONTROL-1", "R-SEND-2", "R-DELETE-2")
async def test_a_server_dies_after_the_script_and_before_its_reply(
    redis_server: RedisServer,
    redis_url: str,
    script: str,
    before: Callable[[Scene], Awaitable[None]],
    call: Call,
) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        running(settings_for(proxy.url)) as first,
        Api(first.address) as api,
    ):
        scene, stored = Scene(api), Stored(first, redis_server)
        await before(scene)
        seen = stored.events("a")
        proxy.down.hold()
        lost = asyncio.ensure_future(call(scene))
        await wait_until(lambda: stored.events("a") != seen, what="the script has run")
        once = stored.events("a")
        assert not lost.done()
        lost.cancel()
        proxy.refuse()
        proxy.cut()
        proxy.down.release()
    async with running(settings_for(redis_url)) as second, Api(second.address) as api:
        scene.api = api
        await call(scene)
        stored = Stored(second, redis_server)
        assert stored.events("a") == once
        if once:
            check_ends(stored)
    assert violations_everywhere(redis_server) == []


def check_ends(stored: Stored) -> None:
    """The ledger has the end of a turn if and only if the turn has ended, and no end twice."""
    tag = stored.tag("a")
    ends: dict[int, int] = {}
    for raw in stored.redis.call("LRANGE", f"{tag}e:a", 0, -1):
        event = records.ledger_event(raw)
        if event.type in ENDS:
            assert event.turn not in ends
            ends[event.turn] = ENDS[event.type]
    fields = stored.redis.call("HGETALL", f"{tag}i:a")
    receipts = {
        int(name[:-2]): records.receipt(raw).state
        for name, raw in zip(fields[::2], fields[1::2], strict=True)
        if name.endswith(b".h")
    }
    assert ends == receipts
