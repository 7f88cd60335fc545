"""Control calls over gRPC: what they change, refuse and repeat, and who hears of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import event_service_pb2 as events
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1 import worker_service_pb2 as worker
from pawl.v1.event_pb2 import Actor
from pawl.v1.instance_pb2 import InstanceStatus
from pawl.v1.turn_pb2 import Turn, TurnState
from pawl.v1.workflow_type_pb2 import ExhaustionPolicy, WorkflowType
from pawl_server.app import Handle
from tests.support.api import CALL_S, Api, refusal_of
from tests.support.hand import Hand
from tests.support.stream import workflows
from tests.support.wait import wait_until


async def _turn(api: Api, turn: int, instance_id: str = "a") -> Turn:
    return (await api.turns.GetTurn(turns.GetTurnRequest(instance_id=instance_id, turn=turn))).turn


async def _state(api: Api, turn: int, instance_id: str = "a") -> str:
    found = await _turn(api, turn, instance_id)
    return TurnState.Name(found.state).removeprefix("TURN_STATE_")


async def _status(api: Api, instance_id: str = "a") -> str:
    found = await api.instances.GetInstance(instances.GetInstanceRequest(instance_id=instance_id))
    return InstanceStatus.Name(found.instance.status).removeprefix("INSTANCE_STATUS_")


async def _failed(server: Handle, api: Api, **fields: Any) -> Hand:
    """An instance whose first turn has failed for good, with two more behind it."""
    await api.create("a", max_attempts=1, **fields)
    for at in range(3):
        await api.send("a", f"m{at}")
    hand = Hand(server.engine)
    await hand.fail("a")
    assert await _status(api) == "BLOCKED"
    return hand


@pytest.mark.spec("R-PAUSE-1", "R-PAUSE-2")
async def test_pause_and_resume(server: Handle, api: Api) -> None:
    await api.create("a")
    await api.send("a", "m")
    pause = instances.PauseInstanceRequest(instance_id="a", request_id="p1", comment="lunch")
    assert (await api.instances.PauseInstance(pause)).paused
    assert (await api.instances.PauseInstance(pause)).paused, "the first answer"
    other = instances.PauseInstanceRequest(instance_id="a")
    assert not (await api.instances.PauseInstance(other)).paused
    assert (await _status(api), await _state(api, 1)) == ("PAUSED", "QUEUED")
    await api.send("a", "n")
    resume = instances.ResumeInstanceRequest(instance_id="a", request_id="p1")
    problem = await refusal_of(api.instances.ResumeInstance(resume))
    assert (problem.reason, problem.metadata["name"]) == ("BODY_CONFLICT", "p1")
    resume.request_id = ""
    assert (await api.instances.ResumeInstance(resume)).resumed
    assert await _status(api) == "ACTIVE"
    await Hand(server.engine).finish("a")


@pytest.mark.spec("R-RETRY-1")
async def test_retry(server: Handle, api: Api) -> None:
    hand = await _failed(server, api)
    request = turns.RetryTurnRequest(instance_id="a", turn=1, attempt=1, request_id="r")
    done = await api.turns.RetryTurn(request)
    assert (done.state, done.max_attempts) == (TurnState.TURN_STATE_QUEUED, 2)
    await hand.fail("a")
    assert await api.turns.RetryTurn(request) == done, "repeated, not retried again"
    assert await _state(api, 1) == "FAILED"
    problem = await refusal_of(
        api.turns.RetryTurn(turns.RetryTurnRequest(instance_id="a", turn=1, attempt=1))
    )
    assert (problem.code, problem.reason) == ("FAILED_PRECONDITION", "WRONG_STATE")
    assert problem.metadata == {"state": "FAILED", "attempt": "2"}
    problem = await refusal_of(api.turns.RetryTurn(turns.RetryTurnRequest(instance_id="a", turn=2)))
    assert problem.metadata == {"state": "QUEUED"}
    problem = await refusal_of(api.turns.RetryTurn(turns.RetryTurnRequest(instance_id="a", turn=9)))
    assert problem.metadata == {"resource": "turn", "name": "a/9"}


@pytest.mark.spec("R-SKIP-1")
async def test_skip(server: Handle, api: Api) -> None:
    hand = await _failed(server, api)
    waiting = asyncio.ensure_future(
        api.messages.AwaitTurn(messages.AwaitTurnRequest(instance_id="a", turn=2), timeout=CALL_S)
    )
    done = await api.turns.SkipTurn(turns.SkipTurnRequest(instance_id="a", turn=1))
    assert done.finish_time.seconds > 0
    assert (await _state(api, 1), await _status(api)) == ("SKIPPED", "ACTIVE")
    await hand.finish("a")
    assert (await waiting).turn.state == TurnState.TURN_STATE_COMPLETED


@pytest.mark.spec("R-PARK-1", "R-PARK-2")
async def test_park_and_redrive(server: Handle, api: Api) -> None:
    hand = await _failed(server, api)
    await api.turns.ParkTurn(turns.ParkTurnRequest(instance_id="a", turn=1))
    assert await _state(api, 1) == "PARKED"
    for _ in range(2):
        await hand.finish("a")
    redriven = await api.turns.RedriveParked(turns.RedriveParkedRequest(instance_id="a", turn=1))
    assert redriven.turn == 4
    found = (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=4))).turn
    assert (found.origin.redrive.turn, found.origin.redrive.message_id) == (1, "m0")
    assert found.message.data == b"1"
    polled = await api.workers.PollTurn(worker.PollTurnRequest(workflows=workflows(), session="s"))
    assert (polled.turn.turn, polled.turn.origin) == (4, found.origin)
    problem = await refusal_of(
        api.turns.RedriveParked(turns.RedriveParkedRequest(instance_id="a", turn=1, discard=True))
    )
    assert problem.metadata == {"state": "PARKED"}
    found = (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1))).turn
    assert (found.message.data, found.discarded) == (b"1", False)


@pytest.mark.spec("R-PARK-3", "R-READ-8")
async def test_views_of_a_discarded_message(server: Handle, api: Api) -> None:
    await _failed(server, api)
    await api.turns.ParkTurn(turns.ParkTurnRequest(instance_id="a", turn=1))
    listing = turns.ListParkedRequest(workflow_type="t")
    assert [turn.message.data for turn in (await api.turns.ListParked(listing)).turns] == [b"1"]
    await api.turns.RedriveParked(turns.RedriveParkedRequest(instance_id="a", turn=1, discard=True))
    assert not (await api.turns.ListParked(listing)).turns
    whole = turns.ListTurnsRequest(instance_id="a", include_payloads=True)
    for shown in (
        (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1))).turn,
        (await api.turns.ListTurns(whole)).turns[-1],
        (await api.turns.ListTurns(turns.ListTurnsRequest(instance_id="a"))).turns[-1],
    ):
        assert (shown.turn, shown.state) == (1, TurnState.TURN_STATE_PARKED)
        assert (shown.message_id, shown.last_failure.reason, shown.trimmed) == ("m0", "BROKEN", False)
        assert (shown.HasField("message"), shown.discarded) == (False, True)
    assert [turn.discarded for turn in (await api.turns.ListTurns(whole)).turns] == [False, False, True]


@pytest.mark.spec("R-CANCEL-1", "R-CANCEL-5", "R-CANCEL-9", "R-CONTROL-1")
async def test_cancel(server: Handle, api: Api) -> None:
    await api.create("a")
    for at in range(3):
        await api.send("a", f"m{at}")
    waiting = asyncio.ensure_future(
        api.messages.AwaitTurn(messages.AwaitTurnRequest(instance_id="a", turn=2), timeout=CALL_S)
    )
    await wait_until(lambda: server.engine.awaits.count == 1)
    hand = Hand(server.engine)
    claimed = await hand.claim("a")
    queued = await api.turns.CancelTurn(turns.CancelTurnRequest(instance_id="a", turn=2))
    assert queued.former_state == TurnState.TURN_STATE_QUEUED
    assert (await waiting).turn.state == TurnState.TURN_STATE_CANCELLED, "before the turn ahead of it"
    request = turns.CancelTurnRequest(instance_id="a", turn=1, request_id="r", comment="no use")
    running = await api.turns.CancelTurn(request)
    assert running.former_state == TurnState.TURN_STATE_RUNNING
    assert (running.state, running.HasField("finish_time")) == (TurnState.TURN_STATE_CANCELLING, False)
    shown = await _turn(api, 1)
    assert (shown.state, shown.cancel_deadline) == (TurnState.TURN_STATE_CANCELLING, running.cancel_deadline)
    assert (await _status(api), await _state(api, 3)) == ("ACTIVE", "QUEUED")
    for call, fields in (("RetryTurn", turns.RetryTurnRequest), ("SkipTurn", turns.SkipTurnRequest)):
        problem = await refusal_of(getattr(api.turns, call)(fields(instance_id="a", turn=1)))
        assert problem.metadata == {"state": "CANCELLING"}
    again = await api.turns.CancelTurn(turns.CancelTurnRequest(instance_id="a", turn=1))
    assert (again.former_state, again.cancel_deadline) == (shown.state, running.cancel_deadline)
    forced = turns.CancelTurnRequest(instance_id="a", turn=1, force=True, request_id="f")
    ended = await api.turns.CancelTurn(forced)
    assert (ended.state, ended.former_state) == (TurnState.TURN_STATE_CANCELLED, shown.state)
    assert (ended.finish_time, ended.HasField("cancel_deadline")) == (
        (await _turn(api, 1)).finish_time,
        False,
    )
    third = await hand.claim("a")
    assert (claimed.turn, third.turn) == (1, 3)
    assert await api.turns.CancelTurn(request) == running, "the first answer, also after the end"
    assert await api.turns.CancelTurn(forced) == ended
    request.force = True
    assert (await refusal_of(api.turns.CancelTurn(request))).reason == "BODY_CONFLICT"
    problem = await refusal_of(api.turns.CancelTurn(turns.CancelTurnRequest(instance_id="a", turn=1)))
    assert problem.metadata == {"state": "CANCELLED"}


@pytest.mark.spec("R-CANCEL-3")
async def test_cancel_message(server: Handle, api: Api) -> None:
    await api.create("a")
    await api.send("a", "m0")
    await api.send("a", "m1")
    later = await api.send("a", "m2", delay=Duration(seconds=60))
    assert later.turn == 0
    assert later.due_time.seconds > 0
    cancel = messages.CancelMessageRequest(instance_id="a", message_id="m1")
    assert (await api.messages.CancelMessage(cancel)).turn == 2
    cancel.message_id = "m2"
    cancel.comment = "not today"
    assert (await api.messages.CancelMessage(cancel)).turn == 3
    problem = await refusal_of(api.messages.CancelMessage(cancel))
    assert problem.metadata == {"state": "CANCELLED"}
    assert await api.send("a", "m2", delay=Duration(seconds=60)) == messages.SendMessageResponse(
        turn=3, incarnation=later.incarnation, admit_time=(await _turn(api, 3)).admit_time
    )
    waited = messages.AwaitTurnRequest(instance_id="a", message_id="m2")
    assert (await api.messages.AwaitTurn(waited)).turn.state == TurnState.TURN_STATE_CANCELLED
    listed = await api.events.ListEvents(events.ListEventsRequest(instance_id="a"))
    told = listed.events[-1]
    assert (told.message_cancelled.message_id, told.message_cancelled.comment) == ("m2", "not today")
    assert (told.turn, told.turn_state) == (3, TurnState.TURN_STATE_CANCELLED)
    cancel.message_id = "m9"
    problem = await refusal_of(api.messages.CancelMessage(cancel))
    assert problem.reason == "NOT_FOUND"
    await Hand(server.engine).finish("a")
    cancel.message_id = "m0"
    problem = await refusal_of(api.messages.CancelMessage(cancel))
    assert problem.metadata == {"state": "COMPLETED"}
    assert await _status(api) == "IDLE"


@pytest.mark.spec("R-AWAIT-2")
async def test_waiting_for_a_message_that_is_delayed(server: Handle, api: Api) -> None:
    await api.create("a")
    await api.send("a", "m", delay=Duration(nanos=400_000_000))
    request = messages.AwaitTurnRequest(instance_id="a", message_id="m", wait=Duration(seconds=10))
    waiting = asyncio.ensure_future(api.messages.AwaitTurn(request, timeout=CALL_S))
    hand = Hand(server.engine)
    found = await api.messages.AwaitTurn(
        messages.AwaitTurnRequest(instance_id="a", message_id="m", wait=Duration(nanos=1_000_000))
    )
    assert not found.HasField("turn")

    async def finished() -> bool:
        try:
            await hand.finish("a")
        except ValueError:
            return False  # not admitted yet: nothing to claim
        return True

    await wait_until(finished)
    assert (await waiting).turn.state == TurnState.TURN_STATE_COMPLETED
    both = messages.AwaitTurnRequest(instance_id="a", message_id="m", turn=1)
    assert (await refusal_of(api.messages.AwaitTurn(both))).metadata == {"field": "turn"}


@pytest.mark.spec("R-DELETE-1", "R-DELETE-2")
async def test_delete(server: Handle, api: Api) -> None:
    first = await api.create("a")
    await api.send("a", "m")
    delete = instances.DeleteInstanceRequest(instance_id="a", request_id="d")
    done = await api.instances.DeleteInstance(delete)
    assert (done.deleted, done.in_background) == (True, False)
    assert (await api.instances.DeleteInstance(delete)).deleted, "the first answer"
    delete.request_id = ""
    assert not (await api.instances.DeleteInstance(delete)).deleted
    problem = await refusal_of(api.send("a", "m"))
    assert (problem.code, problem.reason) == ("NOT_FOUND", "INSTANCE_DELETED")
    again = await api.create("a")
    assert again.incarnation > first.incarnation
    assert (again.head_turn, again.last_turn) == (2, 1), "a new life goes on counting"
    assert (await api.send("a", "n")).turn == 2


@pytest.mark.spec("R-CONTROL-2", "R-CONTROL-4", "R-READ-2")
async def test_another_incarnation_is_named(server: Handle, api: Api) -> None:
    await _failed(server, api)
    found = await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))
    there = found.instance.incarnation
    fields: Any = {"instance_id": "a", "incarnation": there + 1}
    one: Any = {**fields, "turn": 1}
    for call in (
        api.turns.RetryTurn(turns.RetryTurnRequest(**one)),
        api.turns.SkipTurn(turns.SkipTurnRequest(**one)),
        api.turns.ParkTurn(turns.ParkTurnRequest(**one)),
        api.turns.CancelTurn(turns.CancelTurnRequest(**one)),
        api.turns.RedriveParked(turns.RedriveParkedRequest(**one)),
        api.turns.GetTurn(turns.GetTurnRequest(**one)),
    ):
        problem = await refusal_of(call)
        assert (problem.code, problem.reason) == ("NOT_FOUND", "NOT_FOUND")
        assert problem.metadata == {"resource": "turn", "name": "a/1", "incarnation": str(there)}
        assert (
            problem.message == f"no turn a/1 of incarnation {there + 1}: the instance has incarnation {there}"
        )
    problem = await refusal_of(api.instances.DeleteInstance(instances.DeleteInstanceRequest(**fields)))
    assert problem.metadata == {"resource": "instance", "name": "a", "incarnation": str(there)}
    assert (
        problem.message == f"no instance a of incarnation {there + 1}: the instance has incarnation {there}"
    )
    absent = turns.RetryTurnRequest(instance_id="none", turn=1, incarnation=7)
    problem = await refusal_of(api.turns.RetryTurn(absent))
    assert problem.metadata == {"resource": "turn", "name": "none/1"}
    assert problem.message == "no turn none/1 of incarnation 7"
    beyond = turns.RetryTurnRequest(instance_id="a", turn=9, incarnation=there)
    problem = await refusal_of(api.turns.RetryTurn(beyond))
    assert problem.metadata == {"resource": "turn", "name": "a/9"}


@pytest.mark.parametrize("field", ["comment", "request_id", "turn", "instance_id", "incarnation", "attempt"])
async def test_bad_fields(api: Api, field: str) -> None:
    bad: dict[str, Any] = {
        "comment": "x" * 257,
        "request_id": "a b",
        "turn": 0,
        "instance_id": "pawl-x",
        "incarnation": -1,
        "attempt": -1,
    }
    request = turns.SkipTurnRequest(**{"instance_id": "a", "turn": 1, field: bad[field]})
    problem = await refusal_of(api.turns.SkipTurn(request))
    wanted = (
        {"limit": "comment_bytes", "value": "257", "max": "256"} if field == "comment" else {"field": field}
    )
    assert problem.metadata == wanted


@pytest.mark.spec("R-POLICY-1")
async def test_what_a_policy_decides_is_told_as_such(server: Handle, api: Api) -> None:
    settings = WorkflowType(name="t", on_exhausted=ExhaustionPolicy.EXHAUSTION_POLICY_SKIP)
    await api.admin.PutWorkflowType(admin.PutWorkflowTypeRequest(workflow_type=settings))
    await api.create("a")
    await api.send("a", "m")
    await Hand(server.engine).fail("a")
    found = (await api.events.ListEvents(events.ListEventsRequest(instance_id="a"))).events
    assert found[-1].WhichOneof("detail") == "turn_skipped"
    assert (found[-1].actor, found[-1].turn_skipped.comment) == (Actor.ACTOR_SERVER, "")


@pytest.mark.spec("R-CONTROL-2", "R-CONTROL-3")
async def test_calls_that_name_a_life_of_the_id(server: Handle, api: Api) -> None:
    await _failed(server, api)
    life = (await _turn(api, 1)).incarnation
    calls: list[tuple[Any, Any, str]] = [
        (api.instances.PauseInstance, instances.PauseInstanceRequest(), "a"),
        (api.instances.ResumeInstance, instances.ResumeInstanceRequest(), "a"),
        (api.instances.WakeInstance, instances.WakeInstanceRequest(), "a"),
        (api.instances.DeleteInstance, instances.DeleteInstanceRequest(), "a"),
        (api.messages.CancelMessage, messages.CancelMessageRequest(message_id="m1"), "a"),
        (api.turns.RetryTurn, turns.RetryTurnRequest(turn=1), "a/1"),
        (api.turns.SkipTurn, turns.SkipTurnRequest(turn=1), "a/1"),
        (api.turns.ParkTurn, turns.ParkTurnRequest(turn=1), "a/1"),
        (api.turns.CancelTurn, turns.CancelTurnRequest(turn=1), "a/1"),
        (api.turns.RedriveParked, turns.RedriveParkedRequest(turn=1), "a/1"),
    ]
    for call, request, name in calls:
        request.instance_id, request.request_id, request.incarnation = "a", "r", -1
        assert (await refusal_of(call(request))).metadata == {"field": "incarnation"}
        request.incarnation = life + 1
        problem = await refusal_of(call(request))
        resource = "turn" if "/" in name else "instance"
        assert (problem.code, problem.reason) == ("NOT_FOUND", "NOT_FOUND")
        assert problem.metadata == {"resource": resource, "name": name, "incarnation": str(life)}
    assert await _status(api) == "BLOCKED", "nothing has changed"
    pause = instances.PauseInstanceRequest(instance_id="a", request_id="p", incarnation=life)
    assert (await api.instances.PauseInstance(pause)).paused
    await api.instances.DeleteInstance(instances.DeleteInstanceRequest(instance_id="a", incarnation=life))
    assert (await api.instances.PauseInstance(pause)).paused, "the first answer"
    await api.create("a")
    assert (await api.instances.PauseInstance(pause)).paused
    assert await _status(api) == "IDLE", "the next life is another one"
    pause.incarnation = 0
    assert (await refusal_of(api.instances.PauseInstance(pause))).reason == "BODY_CONFLICT"


@pytest.mark.spec("R-CANCEL-3")
async def test_a_message_that_there_is_not_is_named(api: Api) -> None:
    cancel = messages.CancelMessageRequest(instance_id="a", message_id="none")
    assert (await refusal_of(api.messages.CancelMessage(cancel))).metadata == {
        "resource": "instance",
        "name": "a",
    }
    await api.create("a")
    problem = await refusal_of(api.messages.CancelMessage(cancel))
    assert (problem.reason, problem.message) == ("NOT_FOUND", "no message a/none")
    assert problem.metadata == {"resource": "message", "name": "a/none"}
