"""C-41: an id that should not have been accepted, and a repair loop that invents ids.

Given  a running server.
Do     call everything with bad ids, in every field that holds one, those in the frames of a work stream
       included: empty, with spaces, of 129 characters, beyond ASCII, with a reserved prefix, with a colon
       or braces, which mean something in keys.
Expect INVALID_FIELD with the name of the field, and nothing stored. The sweep, which walks what is
       unfinished, makes no instance and no turn out of what it finds there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import event_service_pb2 as events
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1 import worker_service_pb2 as workers
from pawl.v1.error_pb2 import Reason
from pawl.v1.failure_pb2 import Failure
from pawl.v1.workflow_type_pb2 import RetryPolicy, WorkflowType
from pawl_server.app import Handle
from pawl_server.domain.callback import callback_base
from pawl_server.domain.lease import Lease
from tests.support.api import Api, Problem, json, refusal_of, spec
from tests.support.redis_server import RedisServer
from tests.support.stored import Stored
from tests.support.stream import (
    UNNUMBERED,
    Stream,
    checkpoint,
    fail,
    finish,
    refusal,
    report_progress,
    start_operation,
    started,
)  # fmt: skip
from tests.support.wait import wait_until

BAD = ("", "x" * 129, "größe", "a{b}", "a:b", "a b", " a", "a/b", "a\n", "a\0b", "\U0001f600")
RESERVED_IDS = ("continue-1", "pawl-x")
RESERVED_TYPES = ("pawl.x",)
LEASE = Lease(0, "a", 1, 1, 1).encode()
GOOD = ("x" * 128, "A.z_0-9", "-", ".")


CONTROLS = (
    *("PauseInstance", "ResumeInstance", "WakeInstance", "DeleteInstance"),
    *("RetryTurn", "SkipTurn", "ParkTurn", "CancelTurn", "RedriveParked", "ResolveStep"),
)


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


def _adopt(**fields: Any) -> workers.AdoptLeasesRequest:
    return workers.AdoptLeasesRequest(**{"session": "w", "stream_ordinal": 1, "leases": [LEASE], **fields})


def _hello(**fields: Any) -> workers.WorkHello:
    return workers.WorkHello(**{"session": "w", "stream_ordinal": 1, "workflows": [_ref()], **fields})


def _ref(**fields: Any) -> workers.WorkflowRef:
    return workers.WorkflowRef(**{"workflow_type": "t", "version": "v1", **fields})


def _step(**fields: Any) -> workers.Checkpoint:
    return workers.Checkpoint(**{"key": "one", "output": json("1"), **fields})


def _poll(**fields: Any) -> workers.PollTurnRequest:
    return workers.PollTurnRequest(**{"workflows": [_ref()], "session": "w", **fields})


def _control(service: str, method: str, name: str, api: Api, value: str) -> Any:
    """Makes a control call with a value in one of its fields."""
    module = {"instances": instances, "turns": turns, "messages": messages}[service]
    request = getattr(module, f"{method}Request")(instance_id="a")
    if service == "turns":
        request.turn = 1
    if service == "messages":
        request.message_id = "m"
    if method == "ResolveStep":
        request.key, request.retry = "one", True
    setattr(request, name, value)
    return getattr(getattr(api, service), method)(request)


SIGNALS = ("SignalTurn", "SignalInstance")


def _signal(method: str, name: str, api: Api, value: str) -> Any:
    """Sends a signal with a value in one of its fields."""
    request = getattr(turns, f"{method}Request")(instance_id="a", signal_id="s", name="go")
    if method == "SignalTurn":
        request.turn = 1
    setattr(request, name, value)
    return getattr(api.turns, method)(request)


def _failure(reason: str, cause: str = "") -> Failure:
    """A failure; with a `cause` one that another one of that reason led to."""
    return Failure(reason=reason, cause=Failure(reason=cause)) if cause else Failure(reason=reason)


def _answer(key: str, **fields: Any) -> turns.ResolveCallbackRequest:
    """A result for a callback of a turn that never was."""
    return turns.ResolveCallbackRequest(token=callback_base("default", "nobody", 1, 1) + key, **fields)


def _resolve(**fields: Any) -> turns.ResolveStepRequest:
    return turns.ResolveStepRequest(**{"instance_id": "a", "turn": 1, "key": "one", **fields})


def _retry(reason: str) -> RetryPolicy:
    """A policy with a second reason that is not worth another attempt."""
    return RetryPolicy(non_retryable_reasons=["FINE", reason])


def _redrive_all(name: str, api: Api, value: str) -> Any:
    request = turns.RedriveAllParkedRequest(workflow_type="t")
    setattr(request, name, value)
    return _first(api.turns.RedriveAllParked(request))


def _list_by(name: str, api: Api, value: str) -> Any:
    request = instances.ListInstancesRequest(workflow_type="t")
    setattr(request, name, value)
    return api.instances.ListInstances(request)


async def _first(call: Any) -> Any:
    """The first frame of a stream."""
    try:
        return await call.read()
    finally:
        call.cancel()


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
    Field("session", lambda api, v: api.workers.AdoptLeases(_adopt(session=v))),
    *(
        Field(name, partial(_signal, method, name), RESERVED_IDS if name == "instance_id" else ())
        for method in SIGNALS
        for name in ("instance_id", "signal_id", "name")
    ),
    *(
        Field(
            name,
            partial(_control, service, method, name),
            RESERVED_IDS if name == "instance_id" else (),
            optional=name == "request_id",
        )
        for service, method in (
            ("instances", "PauseInstance"),
            ("instances", "ResumeInstance"),
            ("instances", "WakeInstance"),
            ("instances", "DeleteInstance"),
            ("turns", "RetryTurn"),
            ("turns", "SkipTurn"),
            ("turns", "ParkTurn"),
            ("turns", "CancelTurn"),
            ("turns", "RedriveParked"),
            ("turns", "ResolveStep"),
            ("messages", "CancelMessage"),
        )
        for name in ("instance_id", "request_id")
    ),
    Field("message_id", partial(_control, "messages", "CancelMessage", "message_id")),
    Field("key", partial(_control, "turns", "ResolveStep", "key")),
    Field("failure.reason", lambda api, v: api.turns.ResolveStep(_resolve(failure=_failure(v)))),
    Field(
        "failure.cause.reason",
        lambda api, v: api.turns.ResolveStep(_resolve(failure=_failure("FINE", v))),
        optional=True,
    ),
    Field("token", lambda api, v: api.turns.ResolveCallback(_answer(v, value=json("1")))),
    Field("failure.reason", lambda api, v: api.turns.ResolveCallback(_answer("k", failure=_failure(v)))),
    Field("workflow_type", partial(_redrive_all, "workflow_type"), RESERVED_TYPES),
    Field("instance_id", partial(_redrive_all, "instance_id"), RESERVED_IDS, optional=True),
    Field("reason", partial(_redrive_all, "reason"), optional=True),
    Field(
        "spec.retry.non_retryable_reasons[1]",
        lambda api, v: api.instances.CreateInstance(_create(spec=spec(retry=_retry(v)))),
    ),
    Field(
        "workflow_type.retry.non_retryable_reasons[1]",
        lambda api, v: api.admin.PutWorkflowType(
            admin.PutWorkflowTypeRequest(workflow_type=WorkflowType(name="t", retry=_retry(v)))
        ),
    ),
    Field(
        "message_id",
        lambda api, v: api.messages.AwaitTurn(messages.AwaitTurnRequest(instance_id="a", message_id=v)),
        optional=True,
    ),
    Field(
        "instance_id",
        lambda api, v: api.messages.ListInbox(messages.ListInboxRequest(instance_id=v)),
        RESERVED_IDS,
    ),
    Field(
        "workflow_type",
        lambda api, v: api.messages.ListBacklog(messages.ListBacklogRequest(workflow_type=v)),
        RESERVED_TYPES,
    ),
    Field(
        "version",
        lambda api, v: api.messages.ListBacklog(messages.ListBacklogRequest(workflow_type="t", version=v)),
        optional=True,
    ),
    Field(
        "workflow_type",
        lambda api, v: api.turns.ListParked(turns.ListParkedRequest(workflow_type=v)),
        RESERVED_TYPES,
    ),
    Field(
        "instance_id",
        lambda api, v: api.turns.ListParked(turns.ListParkedRequest(workflow_type="t", instance_id=v)),
        RESERVED_IDS,
        optional=True,
    ),
    Field("spec.tags[1]", lambda api, v: api.instances.CreateInstance(_create(spec=spec(tags=["x", v])))),
    Field(
        "spec.correlation_key",
        lambda api, v: api.instances.CreateInstance(_create(spec=spec(correlation_key=v))),
        optional=True,
    ),
    *(
        Field(
            name,
            partial(_list_by, name),
            optional=True,
        )
        for name in ("tag", "correlation_key")
    ),
    Field(
        "workflow_type",
        lambda api, v: api.admin.GetWorkload(admin.GetWorkloadRequest(workflow_type=v)),
        RESERVED_TYPES,
        optional=True,
    ),
    Field("session", lambda api, v: api.workers.PollTurn(_poll(session=v)), optional=True),
    Field(
        "workflows[0].workflow_type",
        lambda api, v: api.workers.PollTurn(_poll(workflows=[_ref(workflow_type=v)])),
    ),
    Field("workflows[0].version", lambda api, v: api.workers.PollTurn(_poll(workflows=[_ref(version=v)]))),
    Field(
        "instance_id",
        lambda api, v: api.events.ListEvents(events.ListEventsRequest(instance_id=v)),
        RESERVED_IDS,
    ),
    Field(
        "instance_id",
        lambda api, v: _first(api.events.WatchEvents(events.WatchEventsRequest(instance_id=v))),
        RESERVED_IDS,
    ),
    Field(
        "workflow_type",
        lambda api, v: _first(api.events.WatchNamespace(events.WatchNamespaceRequest(workflow_type=v))),
        RESERVED_TYPES,
        optional=True,
    ),
)

HELLO_FIELDS: dict[str, Callable[[str], workers.WorkHello]] = {
    "hello.session": lambda v: _hello(session=v),
    "hello.workflows[0].workflow_type": lambda v: _hello(workflows=[_ref(workflow_type=v)]),
    "hello.workflows[0].version": lambda v: _hello(workflows=[_ref(version=v)]),
    "hello.workflows[0].settings.name": lambda v: _hello(workflows=[_ref(settings=WorkflowType(name=v))]),
    "hello.workflows[0].settings.retry.non_retryable_reasons[1]": lambda v: _hello(
        workflows=[_ref(settings=WorkflowType(retry=_retry(v)))]
    ),
}
COMMAND_FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "checkpoint.key": checkpoint,
    "checkpoint.kind": lambda v: checkpoint("one", kind=v),
    "finish.last_step.key": lambda v: finish(step=(v, b"out")),
    "finish.last_step.kind": lambda v: {"finish": workers.Finish(last_step=_step(kind=v))},
    "fail.failure.reason": fail,
    "fail.failure.cause.reason": lambda v: {"fail": workers.Fail(failure=_failure("FINE", v))},
    "fail.step_key": lambda v: {"fail": workers.Fail(failure=_failure("FINE"), step_key=v)},
    "fail.step_retry.non_retryable_reasons[1]": lambda v: {
        "fail": workers.Fail(failure=_failure("FINE"), step_key="one", step_retry=_retry(v))
    },
    "fail.last_progress.key": lambda v: fail(last=workers.ReportProgress(position=1, key=v, sequence=1)),
    "start_operation.key": lambda v: start_operation(key=v),
    "start_operation.kind": lambda v: start_operation(kind=v),
    "report_progress.key": lambda v: report_progress(key=v),
    "sleep.key": lambda v: {"sleep": workers.Sleep(key=v, duration=Duration(seconds=1))},
    "defer.reason": lambda v: {"defer": workers.Defer(reason=v, delay=Duration(seconds=1))},
    "wait_signal.key": lambda v: {"wait_signal": workers.WaitSignal(key=v, name="go")},
    "wait_signal.name": lambda v: {"wait_signal": workers.WaitSignal(key="one", name=v)},
    "wait_signal.callback_key": lambda v: {"wait_signal": workers.WaitSignal(key="one", callback_key=v)},
}
MAY_BE_EMPTY = (
    "hello.workflows[0].settings.name",
    "checkpoint.kind",
    "finish.last_step.kind",
    "fail.failure.cause.reason",
    "fail.step_key",
    "start_operation.kind",
    "defer.reason",
    "wait_signal.callback_key",
)

NO_IDS = {
    "pawl.v1.Payload.encoding",
    "pawl.v1.ListInstancesRequest.page_token",
    "pawl.v1.ListTurnsRequest.page_token",
    "pawl.v1.ListWorkflowTypesRequest.page_token",
    "pawl.v1.WorkHello.sdk",
    "pawl.v1.WorkHello.sdk_version",
    "pawl.v1.WorkHello.capabilities",
    "pawl.v1.WorkHello.LabelsEntry.key",
    "pawl.v1.WorkHello.LabelsEntry.value",
    "pawl.v1.Failure.message",
    "pawl.v1.CheckDataRequest.cursor",
    "pawl.v1.ListBacklogRequest.page_token",
    "pawl.v1.ListInboxRequest.page_token",
    "pawl.v1.ListParkedRequest.page_token",
    "pawl.v1.WatchNamespaceRequest.cursor",
    "pawl.v1.Principal.name",
    "pawl.v1.ResolveCallbackRequest.token",
    "pawl.v1.Progress.phase",
    "pawl.v1.Progress.unit",
    "pawl.v1.RedriveAllParkedRequest.comment",
    *(f"pawl.v1.{call}Request.comment" for call in (*CONTROLS, "CancelMessage") if call != "DeleteInstance"),
}
"""Text of requests that is no id."""
IDS = {
    "pawl.v1.CreateInstanceRequest.instance_id",
    "pawl.v1.CreateInstanceRequest.request_id",
    "pawl.v1.InstanceSpec.workflow_type",
    "pawl.v1.InstanceSpec.version",
    "pawl.v1.GetInstanceRequest.instance_id",
    "pawl.v1.ListInstancesRequest.workflow_type",
    "pawl.v1.SendMessageRequest.instance_id",
    "pawl.v1.SendMessageRequest.message_id",
    "pawl.v1.AwaitTurnRequest.instance_id",
    "pawl.v1.GetTurnRequest.instance_id",
    "pawl.v1.ListTurnsRequest.instance_id",
    "pawl.v1.PutWorkflowTypeRequest.request_id",
    "pawl.v1.WorkflowType.name",
    "pawl.v1.GetWorkflowTypeRequest.name",
    "pawl.v1.AdoptLeasesRequest.session",
    "pawl.v1.WorkHello.session",
    "pawl.v1.WorkflowRef.workflow_type",
    "pawl.v1.WorkflowRef.version",
    "pawl.v1.Checkpoint.key",
    "pawl.v1.Checkpoint.kind",
    "pawl.v1.Failure.reason",
    "pawl.v1.Fail.step_key",
    "pawl.v1.RetryPolicy.non_retryable_reasons",
    "pawl.v1.StartOperation.key",
    "pawl.v1.StartOperation.kind",
    "pawl.v1.ReportProgress.key",
    "pawl.v1.ResolveStepRequest.key",
    *(f"pawl.v1.RedriveAllParkedRequest.{name}" for name in ("workflow_type", "instance_id", "reason")),
    "pawl.v1.InstanceSpec.tags",
    "pawl.v1.InstanceSpec.correlation_key",
    "pawl.v1.ListInstancesRequest.tag",
    "pawl.v1.ListInstancesRequest.correlation_key",
    "pawl.v1.AwaitTurnRequest.message_id",
    "pawl.v1.CancelMessageRequest.instance_id",
    "pawl.v1.CancelMessageRequest.message_id",
    "pawl.v1.CancelMessageRequest.request_id",
    "pawl.v1.ListInboxRequest.instance_id",
    "pawl.v1.ListBacklogRequest.workflow_type",
    "pawl.v1.ListBacklogRequest.version",
    "pawl.v1.ListParkedRequest.workflow_type",
    "pawl.v1.ListParkedRequest.instance_id",
    "pawl.v1.GetWorkloadRequest.workflow_type",
    "pawl.v1.PollTurnRequest.session",
    "pawl.v1.Sleep.key",
    "pawl.v1.Defer.reason",
    "pawl.v1.WaitSignal.key",
    "pawl.v1.WaitSignal.name",
    "pawl.v1.WaitSignal.callback_key",
    *(f"pawl.v1.{call}Request.{name}" for call in SIGNALS for name in ("instance_id", "signal_id", "name")),
    "pawl.v1.ListEventsRequest.instance_id",
    "pawl.v1.WatchEventsRequest.instance_id",
    "pawl.v1.WatchNamespaceRequest.workflow_type",
    *(f"pawl.v1.{call}Request.{name}" for call in CONTROLS for name in ("instance_id", "request_id")),
}
"""Ids in requests. Each has an entry in FIELDS, HELLO_FIELDS or COMMAND_FIELDS."""


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
            # Another refusal is fine: no such instance, a conflict, no such stream.
            assert reason in ("", "NOT_FOUND", "PRUNED", "BODY_CONFLICT", "WRONG_STATE"), (field, value)


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


@pytest.mark.spec("R-ID-1", "R-ID-2", "R-WORK-1")
@pytest.mark.parametrize("path", HELLO_FIELDS)
async def test_a_stream_with_a_bad_id_in_its_hello_is_refused(api: Api, path: str) -> None:
    reserved = RESERVED_TYPES if path.endswith("workflow_type") else ()
    for value in (*BAD[path in MAY_BE_EMPTY :], *reserved):
        stream = Stream(api)
        await stream._call.write(workers.WorkRequest(hello=HELLO_FIELDS[path](value)))
        problem = await stream.problem()
        assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), value
        assert problem.metadata == {"field": path}, value


@pytest.mark.spec("R-ID-1", "R-CMD-4")
async def test_a_command_with_a_bad_id_is_refused_and_changes_nothing(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, checkpoint("zero"))
        before = stored.record("a")
        for path, action in COMMAND_FIELDS.items():
            for value in BAD[path in MAY_BE_EMPTY :]:
                command = action(value)
                result = await stream.command(turn, command, n=0 if command.keys() & set(UNNUMBERED) else 2)
                assert refusal(result) == ("INVALID_FIELD", {"field": path}), value
        assert stored.record("a") == before
        assert refusal(await stream.command(turn, finish(step=("one", b"out")), n=2))[0] == ""


@pytest.mark.spec("R-ID-1")
async def test_a_lease_made_by_hand_reaches_nothing(
    api: Api, server: Handle, redis_server: RedisServer
) -> None:
    await api.create("a")
    await api.send("a", "m1")
    before = keys(redis_server)
    partitions = range(len(server.engine.store.partitions))
    async with Stream(api) as stream:
        for value in (*BAD, *RESERVED_IDS):
            for lease in (Lease(partition, value, 1, 1, 1).encode() for partition in partitions):
                result = await stream.command(lease, finish(), n=1)
                assert refusal(result)[0] in ("INVALID_FIELD", "NOT_FOUND"), value
    assert keys(redis_server) == before


def test_every_text_of_a_request_is_known_to_be_an_id_or_not() -> None:
    found: set[str] = set()
    seen: set[str] = set()

    def walk(message: Descriptor) -> None:
        if message.full_name in seen:
            return
        seen.add(message.full_name)
        for field in message.fields:
            if field.type == FieldDescriptor.TYPE_STRING:
                found.add(field.full_name)
            elif field.message_type is not None:
                walk(field.message_type)

    for module in (admin, events, instances, messages, turns, workers):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                walk(method.input_type)
    assert found == IDS | NO_IDS


def keys(redis: RedisServer) -> list[str]:
    """Every key but those that the servers keep for themselves."""
    names = [key.decode() for key in redis.call("KEYS", "*")]
    return sorted(
        name for name in names if not name.endswith(("}meta", "}servers")) and "}waiting:" not in name
    )


@pytest.mark.spec("R-SWEEP-1", "R-ID-2")
async def test_the_sweep_makes_nothing_out_of_ids_that_lead_nowhere(
    api: Api, server: Handle, stored: Stored, redis_server: RedisServer
) -> None:
    await api.create("a")
    await api.send("a", "m1")
    before, record, events = keys(redis_server), stored.record("a"), stored.events("a")
    strangers = ("", "ghost", *BAD[1:], *RESERVED_IDS)
    tags = [partition.tag for partition in server.engine.store.partitions]
    for tag in tags:
        redis_server.call("ZADD", f"{tag}busy", *(part for one in strangers for part in (0, f"t:v1:{one}")))

    def unfinished() -> set[bytes]:
        return set().union(*(redis_server.call("ZRANGE", f"{tag}busy", 0, -1) for tag in tags))

    sweeper = server.background.sweeper
    await wait_until(lambda: unfinished() == {b"t:v1:a"}, what="the sweep has removed what leads nowhere")
    await wait_until(lambda: sweeper.repaired == len(strangers) * len(tags))
    scanned = sweeper.scanned
    await wait_until(lambda: sweeper.scanned >= scanned + 2, what="the sweep comes by again")
    assert sweeper.repaired == len(strangers) * len(tags)
    assert keys(redis_server) == before
    assert (stored.record("a"), stored.events("a")) == (record, events)
