"""Every field that holds an id, against every way in which an id can be bad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.error_pb2 import Reason
from pawl.v1.workflow_type_pb2 import WorkflowType
from tests.support.api import Api, Problem, json, refusal_of, spec

BAD = ("", "x" * 129, "größe", "a{b}", "a:b", "a b", " a", "a/b", "a\n", "a\0b", "\U0001f600")
RESERVED_IDS = ("continue-1", "pawl-x")
RESERVED_TYPES = ("pawl.x",)
GOOD = ("x" * 128, "A.z_0-9", "-", ".")


class Field(NamedTuple):
    """An id field: `call` makes the call with a value in it, `path` is how the refusal names it."""

    path: str
    call: Callable[[Api, str], Any]
    reserved: tuple[str, ...] = ()
    optional: bool = False


def _send(**fields: Any) -> messages.SendMessageRequest:
    return messages.SendMessageRequest(
        **{"instance_id": "a", "message_id": "m", "message": json("1"), **fields}
    )


def _create(**fields: Any) -> instances.CreateInstanceRequest:
    return instances.CreateInstanceRequest(**{"instance_id": "a", "spec": spec(), **fields})


FIELDS = (
    Field("instance_id", lambda api, v: api.instances.CreateInstance(_create(instance_id=v)), RESERVED_IDS),
    Field(
        "spec.workflow_type",
        lambda api, v: api.instances.CreateInstance(_create(spec=spec(workflow_type=v))),
        RESERVED_TYPES,
    ),
    Field("spec.version", lambda api, v: api.instances.CreateInstance(_create(spec=spec(version=v)))),
    Field("request_id", lambda api, v: api.instances.CreateInstance(_create(request_id=v)), optional=True),
    Field(
        "instance_id",
        lambda api, v: api.instances.GetInstance(instances.GetInstanceRequest(instance_id=v)),
        RESERVED_IDS,
    ),
    Field(
        "workflow_type",
        lambda api, v: api.instances.ListInstances(instances.ListInstancesRequest(workflow_type=v)),
        RESERVED_TYPES,
    ),
    Field("instance_id", lambda api, v: api.messages.SendMessage(_send(instance_id=v)), RESERVED_IDS),
    Field("message_id", lambda api, v: api.messages.SendMessage(_send(message_id=v)), RESERVED_IDS),
    Field(
        "create_if_absent.workflow_type",
        lambda api, v: api.messages.SendMessage(_send(create_if_absent=spec(workflow_type=v))),
        RESERVED_TYPES,
    ),
    Field(
        "create_if_absent.version",
        lambda api, v: api.messages.SendMessage(_send(create_if_absent=spec(version=v))),
    ),
    Field(
        "instance_id",
        lambda api, v: api.messages.AwaitTurn(
            messages.AwaitTurnRequest(instance_id=v, turn=1, wait=Duration())
        ),
        RESERVED_IDS,
    ),
    Field(
        "instance_id",
        lambda api, v: api.turns.GetTurn(turns.GetTurnRequest(instance_id=v, turn=1)),
        RESERVED_IDS,
    ),
    Field(
        "instance_id",
        lambda api, v: api.turns.ListTurns(turns.ListTurnsRequest(instance_id=v)),
        RESERVED_IDS,
    ),
    Field(
        "workflow_type.name",
        lambda api, v: api.admin.PutWorkflowType(
            admin.PutWorkflowTypeRequest(workflow_type=WorkflowType(name=v))
        ),
        RESERVED_TYPES,
    ),
    Field(
        "request_id",
        lambda api, v: api.admin.PutWorkflowType(
            admin.PutWorkflowTypeRequest(workflow_type=WorkflowType(name="t"), request_id=v)
        ),
        optional=True,
    ),
    Field(
        "name",
        lambda api, v: api.admin.GetWorkflowType(admin.GetWorkflowTypeRequest(name=v)),
        RESERVED_TYPES,
    ),
)


@pytest.mark.spec("R-ID-1", "R-ID-2")
async def test_every_bad_id_is_refused_with_the_name_of_its_field(api: Api) -> None:
    for field in FIELDS:
        bad = (*(BAD[1:] if field.optional else BAD), *field.reserved)
        for value in bad:
            problem = await refusal_of(field.call(api, value))
            assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), (field, value)
            assert problem.metadata == {"field": field.path}, (field, value)
            assert problem.retry_ms is None


@pytest.mark.spec("R-ID-1")
async def test_good_ids_are_never_called_bad(api: Api) -> None:
    for field in FIELDS:
        for value in GOOD:
            reason = ""
            try:
                await field.call(api, value)
            except grpc.aio.AioRpcError as error:
                reason = Problem.of(error).reason
            # Another refusal is fine: no such instance, a conflict.
            assert reason in ("", "NOT_FOUND", "BODY_CONFLICT"), (field, value)


@pytest.mark.spec("R-ID-1", "R-ID-2", "R-SEND-5")
async def test_bad_ids_of_a_batch_are_refused_one_by_one(api: Api) -> None:
    await api.create("a")
    bad = (*BAD, *RESERVED_IDS)
    requests = [_send(message_id=value) for value in bad]
    requests += [_send(instance_id=value, message_id="m") for value in bad]
    requests.append(_send(message_id="fine"))
    answer = await api.messages.SendMessages(messages.SendMessagesRequest(messages=requests))
    for at, result in enumerate(answer.results[:-1]):
        name = "message_id" if at < len(bad) else "instance_id"
        assert result.refusal.reason == Reason.REASON_INVALID_FIELD
        assert result.refusal.metadata == {"field": f"messages[{at}].{name}"}
    assert answer.results[-1].sent.turn == 1


@pytest.mark.spec("R-ID-2")
async def test_nothing_is_stored_for_a_bad_id(api: Api) -> None:
    for value in (*BAD, *RESERVED_IDS):
        await refusal_of(api.messages.SendMessage(_send(instance_id=value, create_if_absent=spec())))
    listed = await api.instances.ListInstances(instances.ListInstancesRequest(workflow_type="t"))
    assert not listed.instances
