"""Failures, retry policies and redriving in bulk, over gRPC."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1 import worker_service_pb2 as worker
from pawl.v1.failure_pb2 import Failure
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_pb2 import TurnState
from pawl.v1.workflow_type_pb2 import ExhaustionPolicy, RetryPolicy, WorkflowType
from pawl_server.app import Handle
from tests.support.api import Api, refusal_of
from tests.support.hand import Hand
from tests.support.stream import workflows


async def held(api: Api, instance_id: str = "a") -> worker.LeasedTurn:
    """Creates an instance with one message, and claims it."""
    await api.create(instance_id)
    await api.send(instance_id, "m")
    return await claimed(api)


async def claimed(api: Api) -> worker.LeasedTurn:
    """The next turn of type t."""
    poll = worker.PollTurnRequest(workflows=workflows("t"), wait=Duration(seconds=20))
    return (await api.workers.PollTurn(poll)).turn


async def fail(api: Api, turn: worker.LeasedTurn, **fields: object) -> worker.FailResult:
    """Fails an attempt."""
    body = worker.Fail(**{"failure": Failure(reason="R"), **fields})
    return (await api.workers.FailTurn(worker.FailTurnRequest(lease=turn.lease, n=1, fail=body))).result


def of_step(**policy: Any) -> worker.Fail:
    """A failure of a step with a policy of its own."""
    return worker.Fail(failure=Failure(reason="R"), step_key="k", step_retry=RetryPolicy(**policy))


def nested(depth: int, message: str = "why") -> Failure:
    """A failure with so many causes."""
    failure = Failure(reason=f"R{depth}", message=message)
    for level in range(depth - 1, -1, -1):
        failure = Failure(reason=f"R{level}", message=message, cause=failure)
    return failure


def chain(failure: Failure) -> list[str]:
    """Reasons, outermost first."""
    reasons = [failure.reason]
    while failure.HasField("cause"):
        failure = failure.cause
        reasons.append(failure.reason)
    return reasons


@pytest.mark.spec("R-FAIL-8", "R-FAIL-3")
@pytest.mark.parametrize(("depth", "kept", "cut"), [(1, 1, False), (8, 8, False), (9, 8, True)])
async def test_causes_come_back(api: Api, depth: int, kept: int, cut: bool) -> None:
    turn = await held(api)
    stated = nested(depth)
    stated.cause.details.CopyFrom(Payload(data=b"{}", encoding="json"))
    await fail(api, turn, failure=stated, retry_delay=Duration())
    found = (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1))).turn.last_failure
    assert chain(found) == [f"R{level}" for level in range(kept + 1)]
    assert found.cause.details == stated.cause.details
    assert found.truncated == cut
    again = (await claimed(api)).last_failure
    assert (chain(again), again.truncated) == (chain(found), cut)


@pytest.mark.spec("R-FAIL-8")
async def test_causes_that_do_not_fit_are_dropped_innermost_first(api: Api) -> None:
    turn = await held(api)
    await fail(api, turn, failure=nested(6, "x" * 1_900))
    found = (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1))).turn.last_failure
    assert chain(found) == ["R0", "R1", "R2", "R3"]
    assert found.truncated
    assert found.ByteSize() < 8_192 + 100


@pytest.mark.spec("R-FAIL-8")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (worker.Fail(failure=Failure(reason="R", cause=Failure())), "fail.failure.cause.reason"),
        (worker.Fail(failure=Failure(reason="R"), step_key="no spaces"), "fail.step_key"),
        (worker.Fail(failure=Failure(reason="R"), step_retry=RetryPolicy(factor=2)), "fail.step_key"),
        (of_step(jitter=1.5), "fail.step_retry.jitter"),
        (of_step(jitter=-0.1), "fail.step_retry.jitter"),
        (of_step(jitter=float("nan")), "fail.step_retry.jitter"),
        (of_step(max_attempts=1_001), "fail.step_retry.max_attempts"),
        (of_step(max_attempts=-1), "fail.step_retry.max_attempts"),
        (of_step(non_retryable_reasons=["a", ""]), "fail.step_retry.non_retryable_reasons[1]"),
        (of_step(max_elapsed=Duration(seconds=0)), "fail.step_retry.max_elapsed"),
    ],
)
async def test_what_a_failure_may_not_say(api: Api, body: worker.Fail, field: str) -> None:
    turn = await held(api)
    refusal = await refusal_of(api.workers.FailTurn(worker.FailTurnRequest(lease=turn.lease, n=1, fail=body)))
    assert (refusal.reason, refusal.metadata["field"]) == ("INVALID_FIELD", field)


@pytest.mark.spec("R-FAIL-7")
async def test_the_policy_of_an_instance(api: Api) -> None:
    retry = RetryPolicy(initial_delay=Duration(seconds=7), jitter=0, non_retryable_reasons=["NO", "B"])
    spec = instances.InstanceSpec(workflow_type="t", version="v1", retry=retry)
    request = instances.CreateInstanceRequest(instance_id="a", spec=spec)
    wanted = RetryPolicy(initial_delay=Duration(seconds=7), jitter=0, non_retryable_reasons=["B", "NO"])
    assert (await api.instances.CreateInstance(request)).instance.retry == wanted
    assert (await api.instances.CreateInstance(request)).instance.retry == wanted
    got = await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))
    assert got.instance.retry == wanted
    request.spec.retry.factor = 3
    assert (await refusal_of(api.instances.CreateInstance(request))).reason == "BODY_CONFLICT"
    await api.send("a", "m")
    result = await fail(api, await claimed(api))
    assert (result.state, result.retry_delay.seconds) == (TurnState.TURN_STATE_BACKOFF, 7)


@pytest.mark.spec("R-FAIL-7")
async def test_the_attempts_of_an_instance_are_not_said_by_its_policy(api: Api) -> None:
    spec = instances.InstanceSpec(workflow_type="t", version="v1", retry=RetryPolicy(max_attempts=3))
    request = instances.CreateInstanceRequest(instance_id="a", spec=spec)
    refusal = await refusal_of(api.instances.CreateInstance(request))
    assert refusal.metadata["field"] == "spec.retry.max_attempts"


@pytest.mark.spec("R-FAIL-6", "R-LIMIT-1")
@pytest.mark.parametrize("count", [32, 33])
async def test_so_many_final_reasons(api: Api, count: int) -> None:
    names = [f"R{at}" for at in range(count)]
    spec = instances.InstanceSpec(
        workflow_type="t", version="v1", retry=RetryPolicy(non_retryable_reasons=names)
    )
    call = api.instances.CreateInstance(instances.CreateInstanceRequest(instance_id="a", spec=spec))
    if count == 32:
        assert len((await call).instance.retry.non_retryable_reasons) == 32
    else:
        refusal = await refusal_of(call)
        assert dict(refusal.metadata) == {"limit": "retry_reasons", "value": "33", "max": "32"}


@pytest.mark.spec("R-FAIL-7")
async def test_a_step_decides_by_itself(api: Api) -> None:
    turn = await held(api)
    policy = RetryPolicy(max_attempts=1)
    result = await fail(api, turn, step_key="s", step_retry=policy)
    assert result.state == TurnState.TURN_STATE_FAILED


async def parked(server: Handle, api: Api, count: int, reason: str = "BROKEN") -> None:
    """Instances with one parked turn each, in all partitions."""
    settings = WorkflowType(name="t", on_exhausted=ExhaustionPolicy.EXHAUSTION_POLICY_PARK)
    await api.admin.PutWorkflowType(admin.PutWorkflowTypeRequest(workflow_type=settings))
    hand = Hand(server.engine)
    for at in range(count):
        await api.create(f"{reason}{at}", max_attempts=1)
        await api.send(f"{reason}{at}", "m")
        await hand.fail(f"{reason}{at}", reason)


async def redrive(api: Api, **fields: object) -> list[turns.RedriveAllParkedResponse]:
    """Redrives parked turns of type t."""
    request = turns.RedriveAllParkedRequest(**{"workflow_type": "t", **fields})
    return [response async for response in api.turns.RedriveAllParked(request)]


async def left(api: Api) -> int:
    """Parked turns of type t."""
    return len((await api.turns.ListParked(turns.ListParkedRequest(workflow_type="t", page_size=100))).turns)


@pytest.mark.spec("R-POLICY-2")
async def test_redriving_in_bulk(server: Handle, api: Api) -> None:
    await parked(server, api, 3)
    await parked(server, api, 2, "OTHER")
    *_, last = await redrive(api, reason="BROKEN")
    assert (last.seen, last.redriven, last.skipped, last.refused, last.done) == (5, 3, 2, 0, True)
    assert await left(api) == 2
    inbox = (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="BROKEN0", turn=2))).turn
    assert inbox.origin.redrive.turn == 1
    [only] = await redrive(api, instance_id="OTHER1", discard=True)
    assert (only.seen, only.redriven, only.done) == (1, 1, True)
    assert await left(api) == 1


@pytest.mark.spec("R-POLICY-2")
async def test_redriving_tells_how_far_it_is(server: Handle, api: Api) -> None:
    await parked(server, api, 130)
    first, last = await redrive(api, discard=True)
    assert (first.seen, first.redriven, first.done) == (100, 100, False)
    assert (last.seen, last.redriven, last.done) == (130, 130, True)
    [nothing] = await redrive(api)
    assert (nothing.seen, nothing.done) == (0, True)


@pytest.mark.spec("R-POLICY-2")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"workflow_type": ""}, "workflow_type"),
        ({"instance_id": "no spaces"}, "instance_id"),
        ({"reason": "no spaces"}, "reason"),
    ],
)
async def test_what_redriving_refuses(api: Api, fields: dict[str, str], field: str) -> None:
    refusal = await refusal_of(redrive(api, **fields))
    assert (refusal.reason, refusal.metadata["field"]) == ("INVALID_FIELD", field)
