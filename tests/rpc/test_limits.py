"""Every limit of a unary call, at its maximum and one above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.error_pb2 import Reason
from pawl.v1.payload_pb2 import Payload
from pawl.v1.workflow_type_pb2 import Retention, RetryPolicy, WorkflowType
from pawl_server.app import Handle
from pawl_server.domain.errors import LimitExceeded
from pawl_server.domain.limits import FIXED, Limits
from tests.support.api import Api, json, refusal_of, spec
from tests.support.items import create_item, send_item

LIMITS = Limits()
DAY_MS = 86_400_000


def ms(value: int) -> Duration:
    """A duration."""
    return Duration(seconds=value // 1000, nanos=value % 1000 * 1_000_000)


def _send(**fields: Any) -> messages.SendMessageRequest:
    return messages.SendMessageRequest(
        **{"instance_id": "a", "message_id": "m", "message": json("1"), **fields}
    )


class Measured(NamedTuple):
    """A limit that measures a request: `call` makes one of the given size."""

    limit: str
    maximum: int
    call: Callable[[Api, int], Any]


MEASURED = (
    Measured(
        "message_bytes",
        LIMITS.message_bytes,
        lambda api, n: api.messages.SendMessage(_send(message=json(b"x" * n))),
    ),
    Measured(
        "origin_bytes", LIMITS.origin_bytes, lambda api, n: api.messages.SendMessage(_send(origin=b"x" * n))
    ),
    Measured(
        "state_bytes",
        LIMITS.state_bytes,
        lambda api, n: api.messages.SendMessage(
            _send(instance_id="b", create_if_absent=spec(state=json(b"x" * n)))
        ),
    ),
    Measured(
        "state_bytes",
        LIMITS.state_bytes,
        lambda api, n: api.instances.CreateInstance(
            instances.CreateInstanceRequest(instance_id="c", spec=spec(state=json(b"x" * n)))
        ),
    ),
    Measured(
        "batch_messages",
        256,
        lambda api, n: api.messages.SendMessages(
            messages.SendMessagesRequest(messages=[_send(message_id=f"b{at}") for at in range(n)])
        ),
    ),
)


@pytest.mark.spec("R-LIMIT-1")
@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case.limit)
async def test_the_maximum_is_accepted_and_one_above_is_refused(api: Api, case: Measured) -> None:
    await api.create("a")
    problem = await refusal_of(case.call(api, case.maximum + 1))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED")
    assert problem.metadata == {
        "limit": case.limit,
        "value": str(case.maximum + 1),
        "max": str(case.maximum),
    }
    assert problem.retry_ms is None
    await case.call(api, case.maximum)


@pytest.mark.spec("R-LIMIT-1")
async def test_bytes_of_a_batch(api: Api) -> None:
    def batch(size: int) -> messages.SendMessagesRequest:
        full = json(b"x" * LIMITS.message_bytes)
        request = messages.SendMessagesRequest(
            messages=[_send(message_id=f"m{at:03}", message=full) for at in range(95)]
        )
        request.messages.add(instance_id="a", message_id="last")
        while (missing := size - request.ByteSize()) > 0:
            request.messages[-1].origin += b"x" * max(1, missing - 8)
        assert request.ByteSize() == size
        return request

    await api.create("a")
    maximum = 3 << 20
    problem = await refusal_of(api.messages.SendMessages(batch(maximum + 1)))
    assert problem.metadata == {"limit": "batch_bytes", "value": str(maximum + 1), "max": str(maximum)}
    answer = await api.messages.SendMessages(batch(maximum))
    assert [result.sent.turn for result in answer.results[:95]] == list(range(1, 96))


@pytest.mark.spec("R-SEND-4", "R-LIMIT-1")
async def test_pending_messages(api: Api) -> None:
    await api.create("a")
    batch = [_send(message_id=f"m{at}") for at in range(LIMITS.pending_messages)]
    answer = await api.messages.SendMessages(messages.SendMessagesRequest(messages=batch))
    assert [result.sent.turn for result in answer.results] == list(range(1, 129))
    problem = await refusal_of(api.send("a", "more"))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED")
    assert problem.metadata == {"limit": "pending_messages", "value": "129", "max": "128"}
    assert problem.retry_ms, "there may be room later"
    assert (await api.send("a", "m0")).turn == 1, "a repeat is still answered"
    full = await api.messages.SendMessages(messages.SendMessagesRequest(messages=[_send(message_id="n")]))
    assert full.results[0].refusal.reason == Reason.REASON_LIMIT_EXCEEDED


@pytest.mark.parametrize("mib", [4, 10])
@pytest.mark.spec("R-LIMIT-1")
async def test_a_request_that_is_far_too_large_is_refused_with_its_limit(api: Api, mib: int) -> None:
    problem = await refusal_of(api.send("a", "m", b"x" * (mib << 20)))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED")
    assert problem.metadata["limit"] == "request_bytes"


@pytest.mark.spec("R-LIMIT-1")
async def test_the_transitions_enforce_limits_themselves(server: Handle) -> None:
    engine = server.engine
    over = b"json\0" + b"x" * (LIMITS.message_bytes + 1)
    state = b"json\0" + b"x" * (LIMITS.state_bytes + 1)
    await engine.instances.create(create_item("a", state=state[:-1]))
    await engine.inbox.send(send_item("a", "m", message=over[:-1]))
    with pytest.raises(LimitExceeded, match="message_bytes") as refused:
        await engine.inbox.send(send_item("a", "n", message=over))
    assert refused.value.value == LIMITS.message_bytes + 1, "the encoding does not count"
    with pytest.raises(LimitExceeded, match="state_bytes"):
        await engine.instances.create(create_item("b", state=state))
    with pytest.raises(LimitExceeded, match="state_bytes"):
        await engine.inbox.send(send_item("c", create=True, message=b"", state=state))


class Ranged(NamedTuple):
    """A field with a range: both ends are accepted, `bad` values are INVALID_FIELD with `path`."""

    path: str
    good: tuple[Any, ...]
    bad: tuple[Any, ...]
    call: Callable[[Api, Any], Any]


def _put(**fields: Any) -> admin.PutWorkflowTypeRequest:
    return admin.PutWorkflowTypeRequest(workflow_type=WorkflowType(name="t", **fields))


RANGED = (
    Ranged(
        "message.encoding",
        ("", "e" * 64, "a/b+c;v=1~!"),
        ("e" * 65, "a b", "ä", "\t", "a\0"),
        lambda api, v: api.messages.SendMessage(_send(message_id=f"e{len(v)}", message=Payload(encoding=v))),
    ),
    Ranged(
        "message.digest",
        (b"", b"d" * 32),
        (b"d" * 33,),
        lambda api, v: api.messages.SendMessage(_send(message_id=f"d{len(v)}", message=Payload(digest=v))),
    ),
    Ranged(
        "wait",
        (ms(0),),
        (ms(600_001), ms(-1), Duration(seconds=1, nanos=-1), Duration(seconds=1 << 40)),
        lambda api, v: api.messages.SendMessage(_send(wait=v)),
    ),
    Ranged(
        "wait",
        (ms(0),),
        (ms(600_001), ms(-1)),
        lambda api, v: api.messages.AwaitTurn(messages.AwaitTurnRequest(instance_id="a", turn=1, wait=v)),
    ),
    Ranged(
        "turn",
        (1,),
        (0, -1, 1 << 62),
        lambda api, v: api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=v)),
    ),
    Ranged(
        "turn",
        (),
        (0, -1),
        lambda api, v: api.messages.AwaitTurn(messages.AwaitTurnRequest(instance_id="a", turn=v)),
    ),
    Ranged(
        "incarnation",
        (0,),
        (-1,),
        lambda api, v: api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1, incarnation=v)),
    ),
    Ranged(
        "page_size",
        (0, 1, 100),
        (-1, 101),
        lambda api, v: api.turns.ListTurns(turns.ListTurnsRequest(instance_id="a", page_size=v)),
    ),
    Ranged(
        "page_size",
        (0, 1, 100),
        (-1, 101),
        lambda api, v: api.instances.ListInstances(
            instances.ListInstancesRequest(workflow_type="t", page_size=v)
        ),
    ),
    Ranged(
        "page_size",
        (0, 1, 100),
        (-1, 101),
        lambda api, v: api.admin.ListWorkflowTypes(admin.ListWorkflowTypesRequest(page_size=v)),
    ),
    Ranged(
        "spec.lease_timeout",
        (ms(1_000), ms(3_600_000)),
        (ms(0), ms(999), ms(3_600_001)),
        lambda api, v: api.create(f"l{v.seconds}", lease_timeout=v),
    ),
    Ranged(
        "spec.max_attempts",
        (0, 1, 1_000),
        (-1, 1_001),
        lambda api, v: api.create(f"n{v}", max_attempts=v),
    ),
    Ranged(
        "workflow_type.lease_timeout",
        (ms(1_000), ms(3_600_000)),
        (ms(999), ms(3_600_001)),
        lambda api, v: api.admin.PutWorkflowType(_put(lease_timeout=v)),
    ),
    Ranged(
        "workflow_type.attempt_timeout",
        (ms(1_000), ms(7 * DAY_MS)),
        (ms(999), ms(7 * DAY_MS + 1)),
        lambda api, v: api.admin.PutWorkflowType(_put(attempt_timeout=v)),
    ),
    Ranged(
        "workflow_type.queue_timeout",
        (ms(1), ms(365 * DAY_MS)),
        (ms(0), ms(365 * DAY_MS + 1)),
        lambda api, v: api.admin.PutWorkflowType(_put(queue_timeout=v)),
    ),
    Ranged(
        "workflow_type.total_timeout",
        (ms(1), ms(365 * DAY_MS)),
        (ms(0), ms(365 * DAY_MS + 1)),
        lambda api, v: api.admin.PutWorkflowType(_put(total_timeout=v)),
    ),
    Ranged(
        "workflow_type.max_attempts",
        (0, 1, 1_000),
        (-1, 1_001),
        lambda api, v: api.admin.PutWorkflowType(_put(max_attempts=v)),
    ),
    Ranged(
        "workflow_type.retry.initial_delay",
        (ms(1), ms(DAY_MS)),
        (ms(0), ms(DAY_MS + 1)),
        lambda api, v: api.admin.PutWorkflowType(_put(retry=RetryPolicy(initial_delay=v))),
    ),
    Ranged(
        "workflow_type.retry.max_delay",
        (ms(1), ms(DAY_MS)),
        (ms(0), ms(DAY_MS + 1)),
        lambda api, v: api.admin.PutWorkflowType(_put(retry=RetryPolicy(max_delay=v))),
    ),
    Ranged(
        "workflow_type.retry.factor",
        (0, 1, 1.5, 100),
        (0.99, 100.1, -1, float("nan"), float("inf")),
        lambda api, v: api.admin.PutWorkflowType(_put(retry=RetryPolicy(factor=v))),
    ),
    Ranged(
        "workflow_type.retention.min_turns",
        (0, 1, 2_000),
        (-1, 2_001),
        lambda api, v: api.admin.PutWorkflowType(_put(retention=Retention(min_turns=v))),
    ),
    Ranged(
        "workflow_type.retention.max_turns",
        (0, 1, 100_000),
        (-1, 100_001),
        lambda api, v: api.admin.PutWorkflowType(_put(retention=Retention(max_turns=v))),
    ),
    Ranged(
        "workflow_type.retention.max_bytes",
        (0, 1 << 10, 1 << 30),
        (-1, 1, (1 << 30) + 1),
        lambda api, v: api.admin.PutWorkflowType(_put(retention=Retention(max_bytes=v))),
    ),
    Ranged(
        "workflow_type.retention.max_age",
        (ms(0), ms(365 * DAY_MS)),
        (ms(-1), ms(365 * DAY_MS + 1)),
        lambda api, v: api.admin.PutWorkflowType(_put(retention=Retention(max_age=v))),
    ),
    Ranged(
        "workflow_type.retention.keep_none",
        (Retention(keep_none=True),),
        (Retention(keep_none=True, min_turns=1), Retention(keep_none=True, max_age=ms(1))),
        lambda api, v: api.admin.PutWorkflowType(_put(retention=v)),
    ),
    Ranged(
        "expected_revision",
        (),
        (-1,),
        lambda api, v: api.admin.PutWorkflowType(
            admin.PutWorkflowTypeRequest(workflow_type=WorkflowType(name="t"), expected_revision=v)
        ),
    ),
)


@pytest.mark.spec("R-ID-4")
async def test_fields_with_a_range(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m")
    for case in RANGED:
        for value in case.bad:
            problem = await refusal_of(case.call(api, value))
            assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), (case.path, value)
            assert problem.metadata == {"field": case.path}, (case.path, value)
        for value in case.good:
            await case.call(api, value)


async def test_an_empty_batch_and_a_wait_in_a_batch(api: Api) -> None:
    problem = await refusal_of(api.messages.SendMessages(messages.SendMessagesRequest()))
    assert problem.metadata == {"field": "messages"}
    await api.create("a")
    batch = messages.SendMessagesRequest(messages=[_send(), _send(message_id="n", wait=ms(0))])
    answer = await api.messages.SendMessages(batch)
    assert answer.results[0].sent.turn == 1
    assert answer.results[1].refusal.metadata == {"field": "messages[1].wait"}


@pytest.mark.spec("R-LIMIT-2")
async def test_the_server_names_its_limits(api: Api) -> None:
    info = await api.admin.GetServerInfo(admin.GetServerInfoRequest())
    assert dict(info.limits) == LIMITS.as_map()
    assert set(FIXED) < set(info.limits)
