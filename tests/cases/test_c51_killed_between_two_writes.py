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
from pawl.v1.operation_pb2 import ON_RESTART_PARK
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
    token: str = ""
    """Of the callback `call` of that turn."""

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
        self.lease, self.token = polled.turn.lease, polled.turn.callback_base + "call"
        await self.api.workers.RenewLeases(pb.RenewLeasesRequest(leases=[self.lease]), timeout=CALL_S)

    async def waiting(self) -> None:
        """It has been put off."""
        await self.leased()
        await defer(self)

    async def suspended(self) -> None:
        """It waits for a signal."""
        await self.leased()
        await wait(self)

    async def suspended_by_a_callback(self) -> None:
        """It waits for a callback."""
        await self.leased()
        await wait_callback(self)

    async def signalled(self) -> None:
        """It has received the signal just before it waits for it."""
        await self.leased()
        await signal(self)

    async def answered(self) -> None:
        """Its callback has a result before it waits for it."""
        await self.leased()
        await answer(self)

    async def at_work(self) -> None:
        """A step of it is registered."""
        await self.leased()
        await start(self)

    async def uncertain(self) -> None:
        """It ended in a step that must not be repeated unseen."""
        await self.leased()
        await start_unseen(self)
        await release(self)

    async def cancelling(self) -> None:
        """Its worker is asked to give it up."""
        await self.leased()
        await cancel(self)

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


def wait(scene: Scene) -> Awaitable[Any]:
    body = pb.WaitSignal(key="answer", name="go", timeout=MINUTE)
    request = pb.WaitSignalRequest(lease=scene.lease, n=1, wait_signal=body)
    return scene.api.workers.WaitSignal(request, timeout=CALL_S)


def wait_callback(scene: Scene) -> Awaitable[Any]:
    body = pb.WaitSignal(key="answer", callback_key="call")
    request = pb.WaitSignalRequest(lease=scene.lease, n=1, wait_signal=body)
    return scene.api.workers.WaitSignal(request, timeout=CALL_S)


def start(scene: Scene) -> Awaitable[Any]:
    body = pb.StartOperation(position=1, key="one", timeout=MINUTE, heartbeat_timeout=MINUTE)
    request = pb.StartOperationRequest(lease=scene.lease, start_operation=body)
    return scene.api.workers.StartOperation(request, timeout=CALL_S)


def start_unseen(scene: Scene) -> Awaitable[Any]:
    body = pb.StartOperation(position=1, key="one", on_restart=ON_RESTART_PARK)
    request = pb.StartOperationRequest(lease=scene.lease, start_operation=body)
    return scene.api.workers.StartOperation(request, timeout=CALL_S)


def report(scene: Scene) -> Awaitable[Any]:
    body = pb.ReportProgress(position=1, key="one", sequence=1, details=json("1"))
    request = pb.ReportProgressRequest(lease=scene.lease, report_progress=body)
    return scene.api.workers.ReportProgress(request, timeout=CALL_S)


def signal(scene: Scene) -> Awaitable[Any]:
    return scene.api.signal("a", "s1", "go", "1")


def signal_instance(scene: Scene) -> Awaitable[Any]:
    request = turns.SignalInstanceRequest(instance_id="a", signal_id="s1", name="go", value=json("1"))
    return scene.api.turns.SignalInstance(request, timeout=CALL_S)


def answer(scene: Scene) -> Awaitable[Any]:
    request = turns.ResolveCallbackRequest(token=scene.token, value=json("1"))
    return scene.api.turns.ResolveCallback(request, timeout=CALL_S)


def reject(scene: Scene) -> Awaitable[Any]:
    request = turns.ResolveCallbackRequest(token=scene.token, failure=Failure(reason="NO"))
    return scene.api.turns.ResolveCallback(request, timeout=CALL_S)


def resolve(scene: Scene, **decision: Any) -> Awaitable[Any]:
    request = turns.ResolveStepRequest(instance_id="a", turn=1, key="one", request_id="r", **decision)
    return scene.api.turns.ResolveStep(request, timeout=CALL_S)


def save_step(scene: Scene) -> Awaitable[Any]:
    return resolve(scene, output=json("1"))


def repeat_step(scene: Scene) -> Awaitable[Any]:
    return resolve(scene, retry=True)


def fail_step(scene: Scene) -> Awaitable[Any]:
    return resolve(scene, failure=Failure(reason="ERROR"))


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


def cancel_by_force(scene: Scene) -> Awaitable[Any]:
    request = turns.CancelTurnRequest(instance_id="a", turn=1, request_id="force", force=True)
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
    ("wait_signal", Scene.leased, wait),
    ("wait_signal", Scene.leased, wait_callback),
    ("wait_signal", Scene.signalled, wait),
    ("wait_signal", Scene.answered, wait_callback),
    ("start_operation", Scene.leased, start),
    ("report_progress", Scene.at_work, report),
    ("checkpoint", Scene.at_work, checkpoint),
    ("release", Scene.cancelling, release),
    ("fail", Scene.cancelling, fail),
    ("signal", Scene.leased, signal),
    ("signal", Scene.suspended, signal),
    ("signal", Scene.leased, signal_instance),
    ("signal", Scene.suspended, signal_instance),
    ("signal", Scene.leased, answer),
    ("signal", Scene.suspended_by_a_callback, answer),
    ("signal", Scene.suspended_by_a_callback, reject),
    ("resolve_step", Scene.uncertain, save_step),
    ("resolve_step", Scene.uncertain, repeat_step),
    ("resolve_step", Scene.uncertain, fail_step),
    ("pause", Scene.queued, pause),
    ("resume", Scene.paused, resume),
    ("wake", Scene.waiting, wake),
    ("retry", Scene.failed, retry),
    ("skip", Scene.failed, skip),
    ("park", Scene.failed, park),
    ("redrive", Scene.parked, redrive),
    ("cancel", Scene.leased, cancel),
    ("cancel", Scene.cancelling, cancel_by_force),
    ("cancel_message", Scene.queued, cancel_message),
    ("cancel_message", Scene.delayed, cancel_delayed),
    ("delete", Scene.leased, delete),
]
IDS = [f"{call.__name__}-{before.__name__}" for _, before, call in CALLS]
COUNTED_DOWN = (start, report)
"""Calls that answer what is left of a time."""
EACH = pytest.mark.parametrize(("script", "before", "call"), CALLS, ids=IDS)


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
@pytest.mark.spec(
    "R-STORE-3", "R-STORE-4", "R-CMD-2", "R-CONTROL-1", "R-SEND-2", "R-DELETE-2", "R-SIGNAL-4", "R-WAIT-4"
)
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
        seen = image(stored)
        proxy.down.hold()
        lost = asyncio.ensure_future(call(scene))
        await wait_until(lambda: image(stored) != seen, what="the script has run")
        once = image(stored)
        assert not lost.done()
        lost.cancel()
        proxy.refuse()
        proxy.cut()
        proxy.down.release()
    async with running(settings_for(redis_url)) as second, Api(second.address) as api:
        scene.api, stored = api, Stored(second, redis_server)
        given = await call(scene)
        assert image(stored) == once
        assert await call(scene) == given or call in COUNTED_DOWN
        if stored.events("a"):
            check_ends(stored)
    assert violations_everywhere(redis_server) == []


def image(stored: Stored) -> tuple[dict[bytes, bytes], list[bytes]]:
    """All that is stored of the instance but its record, which a sign of life changes; and its ledger."""
    tag = stored.tag("a")
    flat = stored.redis.call("HGETALL", f"{tag}i:a")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    fields.pop(b"r", None)
    return fields, stored.redis.call("LRANGE", f"{tag}e:a", 0, -1)


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
