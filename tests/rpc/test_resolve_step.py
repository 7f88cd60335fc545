"""ResolveStep over gRPC: its decisions, its refusals, and who hears of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pawl.v1.event_pb2 import Actor
from pawl.v1.event_service_pb2 import ListEventsRequest
from pawl.v1.failure_pb2 import Failure
from pawl.v1.message_service_pb2 import AwaitTurnRequest
from pawl.v1.operation_pb2 import ON_RESTART_PARK
from pawl.v1.payload_pb2 import Payload
from pawl.v1.step_pb2 import StepDecision
from pawl.v1.turn_pb2 import Turn, TurnState
from pawl.v1.turn_service_pb2 import GetTurnRequest, ResolveStepRequest
from tests.support.api import CALL_S, Api, json, refusal_of
from tests.support.stream import Stream, finish, release, start_operation, started
from tests.support.wait import wait_until


async def uncertain(api: Api, stream: Stream) -> None:
    """Turn 1 of `a` gets into a step of unknown outcome."""
    turn = await started(api, stream)
    await stream.command(turn, start_operation(key="pay", kind="tool", on_restart=ON_RESTART_PARK))
    await stream.command(turn, release())


def asked(**fields: Any) -> ResolveStepRequest:
    """A request about that step."""
    return ResolveStepRequest(**{"instance_id": "a", "turn": 1, "key": "pay", **fields})


async def shown(api: Api) -> Turn:
    """Turn 1 of `a`."""
    return (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn


@pytest.mark.spec("R-UNCERTAIN-1", "R-UNCERTAIN-2", "R-UNCERTAIN-3", "R-AWAIT-1")
async def test_a_decision_and_its_repeat(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        await stream.command(turn, start_operation(key="pay", on_restart=ON_RESTART_PARK))
        wait = AwaitTurnRequest(instance_id="a", turn=1)
        wait.wait.FromSeconds(60)
        waiting = asyncio.ensure_future(api.messages.AwaitTurn(wait, timeout=CALL_S))
        await stream.command(turn, release())
        assert (await waiting).turn.state == TurnState.TURN_STATE_UNCERTAIN
        request = asked(output=json(b"paid"), request_id="r", comment="asked the bank", attempt=1)
        first = await api.turns.ResolveStep(request, timeout=CALL_S)
        assert first.state == TurnState.TURN_STATE_QUEUED
        again = await stream.turn()
        assert (again.steps[0].kind, again.steps[0].output, again.steps[0].resolved) == (
            "step",
            json(b"paid"),
            True,
        )
        assert await api.turns.ResolveStep(request, timeout=CALL_S) == first
        request.output.CopyFrom(json(b"not paid"))
        problem = await refusal_of(api.turns.ResolveStep(request, timeout=CALL_S))
        assert (problem.reason, problem.metadata["name"]) == ("BODY_CONFLICT", "r")
        await stream.command(again, finish())
    page = await api.events.ListEvents(ListEventsRequest(instance_id="a"), timeout=CALL_S)
    by_kind = {event.WhichOneof("detail"): event for event in page.events}
    resolved = by_kind["step_resolved"]
    assert (resolved.step_resolved.key, resolved.step_resolved.comment) == ("pay", "asked the bank")
    assert resolved.step_resolved.decision == StepDecision.STEP_DECISION_SAVE
    assert resolved.actor == Actor.ACTOR_OPERATOR
    assert by_kind["turn_uncertain"].turn_uncertain.key == "pay"
    started_event = by_kind["operation_started"].operation_started
    assert (started_event.key, started_event.kind) == ("pay", "step")


@pytest.mark.spec("R-UNCERTAIN-2")
async def test_it_runs_again_or_fails(api: Api) -> None:
    async with Stream(api, credits=3) as stream:
        await uncertain(api, stream)
        done = await api.turns.ResolveStep(asked(retry=True), timeout=CALL_S)
        assert done.state == TurnState.TURN_STATE_QUEUED
        again = await stream.turn()
        assert (again.operation.key, len(again.steps)) == ("pay", 0)
        await stream.command(again, start_operation(key="pay", on_restart=ON_RESTART_PARK))
        await stream.command(again, release())
        cause = Failure(reason="BANK", message="closed")
        failure = Failure(reason="UNPAID", message="it is not there", details=json(b"1"), cause=cause)
        done = await api.turns.ResolveStep(asked(failure=failure), timeout=CALL_S)
        assert done.state == TurnState.TURN_STATE_FAILED
        turn = await shown(api)
        assert turn.state == TurnState.TURN_STATE_FAILED
        last = turn.last_failure
        assert (last.reason, last.message, last.details) == ("UNPAID", "it is not there", json(b"1"))
        assert (last.cause.reason, last.attempt, last.HasField("fail_time")) == ("BANK", 1, True)
        assert turn.operation.key == "pay"


@pytest.mark.spec("R-UNCERTAIN-3", "R-LIMIT-1")
async def test_what_is_refused(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        await uncertain(api, stream)

        async def refused(**fields: Any) -> tuple[str, dict[str, str]]:
            problem = await refusal_of(api.turns.ResolveStep(asked(**fields), timeout=CALL_S))
            return problem.reason, dict(problem.metadata)

        big, most = json(b"x" * 65_537), json(b"x" * 65_536)
        assert await refused(retry=True, key="other") == ("WRONG_STATE", {"state": "UNCERTAIN", "key": "pay"})
        assert await refused(retry=True, attempt=2) == ("WRONG_STATE", {"state": "UNCERTAIN", "attempt": "1"})
        assert await refused(output=big) == (
            "LIMIT_EXCEEDED", {"limit": "step_output_bytes", "value": "65537", "max": "65536"},
        )  # fmt: skip
        for field, fields in (
            ("decision", {}),
            ("decision", {"retry": False}),
            ("key", {"key": "", "retry": True}),
            ("output.encoding", {"output": Payload(encoding="a b")}),
            ("failure.reason", {"failure": Failure()}),
            ("attempt", {"retry": True, "attempt": -1}),
            ("turn", {"retry": True, "turn": 0}),
            ("instance_id", {"retry": True, "instance_id": ""}),
        ):
            assert await refused(**fields) == ("INVALID_FIELD", {"field": field})
        assert (await refused(retry=True, turn=2))[0] == "NOT_FOUND"
        assert (await refused(retry=True, incarnation=1 << 50))[0] == "NOT_FOUND"
        assert (await refused(retry=True, comment="c" * 257))[1]["limit"] == "comment_bytes"
        assert (await shown(api)).state == TurnState.TURN_STATE_UNCERTAIN
        await api.turns.ResolveStep(asked(output=most), timeout=CALL_S)

        async def queued() -> bool:
            return (await shown(api)).state == TurnState.TURN_STATE_QUEUED

        await wait_until(queued)
        assert await refused(retry=True) == ("WRONG_STATE", {"state": "QUEUED"})
