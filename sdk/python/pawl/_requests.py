"""What a client sends: instances to create and messages, as values and as requests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pawl._convert import set_policy, set_span, time_of, turn_of
from pawl._running import Principal
from pawl._unset import UNSET
from pawl.models import RetryPolicy, Sent
from pawl.payloads import encode
from pawl.v1 import failure_pb2, signal_pb2
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.workflow import Workflow


@dataclass(frozen=True, slots=True)
class NewInstance:
    """What to create if the instance is absent. Maps to InstanceSpec."""

    workflow: Workflow | str
    """A declared workflow, or the name of a type."""
    version: str | None = None
    """Required where `workflow` is a name."""
    state: Any = UNSET
    """Default is the workflow's initial state; for a name, none."""
    lease_timeout: float | timedelta | None = None
    """Seconds or timedelta, 1 s to 1 h; None leaves it to the type."""
    max_attempts: int | None = None
    """1 to 1,000; None leaves it to the type."""
    tags: Sequence[str] = ()
    """At most 16 words to find the instance by."""
    correlation_key: str = ""
    """One word to find the instance by; need not be unique."""
    retry: RetryPolicy | None = None
    """Overrides single fields of the type's retry policy; its `max_attempts` is left out."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of `Client.send_many`. Maps to SendMessageRequest."""

    instance_id: str
    message: Any
    id: str | None = None
    """Idempotency id; default is a new UUID."""
    create: NewInstance | Workflow | None = None
    origin: bytes = b""
    delay: float | timedelta | None = None
    """Admits the message after this time, 1 ms to 365 days."""
    ttl: float | timedelta | None = None
    """Ends the turn EXPIRED if no attempt has begun this long after admission, 1 ms to 365 days."""


def new_id() -> str:
    """A new idempotency id."""
    return str(uuid.uuid4())


def type_name(workflow: Workflow | str) -> str:
    """Name of a type."""
    return workflow.name if isinstance(workflow, Workflow) else workflow


def spec_of(create: NewInstance | Workflow) -> instances.InstanceSpec:
    new = NewInstance(create) if isinstance(create, Workflow) else create
    declared = new.workflow if isinstance(new.workflow, Workflow) else None
    version = new.version or (declared.version if declared else None)
    if version is None:
        raise ValueError(f"workflow {new.workflow!r} is given by name, so it needs a version")
    spec = instances.InstanceSpec(
        workflow_type=declared.name if declared else new.workflow,  # pyright: ignore[reportArgumentType]
        version=version,
        max_attempts=new.max_attempts or 0,
        tags=new.tags,
        correlation_key=new.correlation_key,
    )
    if new.state is not UNSET:
        spec.state.CopyFrom(encode(new.state))
    elif declared:
        spec.state.CopyFrom(declared.initial_state)
    set_span(spec.lease_timeout, new.lease_timeout)
    if new.retry is not None:
        set_policy(spec.retry, new.retry)
    return spec


def request_of(message: Message) -> messages.SendMessageRequest:
    request = messages.SendMessageRequest(
        instance_id=message.instance_id,
        message_id=message.id if message.id is not None else new_id(),
        message=encode(message.message),
        origin=message.origin,
    )
    set_span(request.delay, message.delay)
    set_span(request.ttl, message.ttl)
    if message.create is not None:
        request.create_if_absent.CopyFrom(spec_of(message.create))
    return request


def sender_message(sender: Principal | None) -> signal_pb2.Principal:
    """Says who acts; None is a program without a name. Raises ValueError for a kind that is none."""
    stated = sender or Principal()
    number = dict(signal_pb2.PrincipalClass.items()).get(f"PRINCIPAL_CLASS_{stated.kind or 'UNSPECIFIED'}")
    if number is None:
        raise ValueError(f"{stated.kind!r} is no kind of principal")
    return signal_pb2.Principal(name=stated.name, **{"class": number})


def failure_message(reason: str, message: str, details: Any) -> failure_pb2.Failure:
    """Builds a failure that a caller decides on."""
    failure = failure_pb2.Failure(reason=reason, message=message)
    if details is not None:
        failure.details.CopyFrom(encode(details))
    return failure


def sent_of(request: messages.SendMessageRequest, answer: messages.SendMessageResponse) -> Sent:
    return Sent(
        instance_id=request.instance_id,
        message_id=request.message_id,
        turn=answer.turn,
        incarnation=answer.incarnation,
        admit_time=time_of(answer.admit_time),
        outcome=turn_of(answer.outcome) if answer.HasField("outcome") else None,
        due_time=time_of(answer.due_time),
    )
