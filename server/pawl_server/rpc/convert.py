"""Requests, checked field by field, as what the engine takes.

Every function raises InvalidField with the path of the bad field, or LimitExceeded. `at` is the path of the
message that is read, with its dot: "" for the request itself, "messages[3]." inside a batch.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration

from pawl.v1.instance_service_pb2 import InstanceSpec, ListInstancesRequest
from pawl.v1.message_service_pb2 import SendMessageRequest
from pawl.v1.payload_pb2 import Payload
from pawl.v1.signal_pb2 import Principal, PrincipalClass
from pawl.v1.step_pb2 import StepDecision
from pawl.v1.turn_service_pb2 import (
    RedriveAllParkedRequest,
    ResolveCallbackRequest,
    ResolveStepRequest,
    SignalInstanceRequest,
    SignalTurnRequest,
)
from pawl.v1.workflow_type_pb2 import ExhaustionPolicy, WorkflowType
from pawl_server.domain import limits as bounds
from pawl_server.domain.callback import Callback
from pawl_server.domain.errors import InvalidField, LimitExceeded
from pawl_server.domain.ids import check_id, check_optional_id, check_own_id, check_type
from pawl_server.domain.limits import Limits
from pawl_server.domain.payload import check_payload, digest_of, payload_digest, payload_parts, to_blob
from pawl_server.domain.times import DAY, HOUR, SECOND, duration_ms, timestamp_ms
from pawl_server.engine.control import Decision, Target
from pawl_server.engine.failures import failure_bytes, read_failure
from pawl_server.engine.inbox import SendItem
from pawl_server.engine.instances import CreateItem, Wanted
from pawl_server.engine.listing import STATUSES
from pawl_server.engine.policies import read_policy
from pawl_server.engine.redriving import Wanted as Redrive
from pawl_server.engine.signals import SignalItem
from pawl_server.engine.types import TypeSettings
from pawl_server.store.records import pack_policy

MAX_TURN = (1 << 53) - 1


def blob(field: str, payload: Payload, limit: str, maximum: int) -> bytes:
    """A payload as it is stored; `limit` is the name of `maximum`, in bytes of data."""
    check_payload(field, payload.encoding, payload.digest)
    if len(payload.data) > maximum:
        raise LimitExceeded(limit, len(payload.data), maximum)
    return to_blob(payload.encoding, payload.data)


def sender(principal: Principal) -> tuple[str, int]:
    """Name and class of somebody who acts, as stated."""
    name, kind = principal.name, getattr(principal, "class")
    size = len(name.encode())
    if size > bounds.PRINCIPAL_BYTES or not name.isprintable():
        raise InvalidField("sender.name", f"is not at most {bounds.PRINCIPAL_BYTES} bytes of printable text")
    if kind not in PrincipalClass.values():
        raise InvalidField("sender.class", f"is {kind}, which this server does not know")
    return name, kind


def signal_item(request: SignalTurnRequest | SignalInstanceRequest, turn: int, limits: Limits) -> SignalItem:
    """A signal; `turn` 0 for one to the instance."""
    instance_id = check_own_id("instance_id", request.instance_id)
    signal_id = check_id("signal_id", request.signal_id)
    name = check_id("name", request.name)
    payload = request.value
    value = blob("value", payload, "signal_bytes", limits.signal_bytes)
    parts = payload_parts(payload.encoding, payload.data, payload.digest)
    life, who = incarnation(request.incarnation), sender(request.sender)
    digest = digest_of(name.encode(), *parts)
    return SignalItem(instance_id, life, turn, signal_id, name, "", digest, False, value, *who)


FAILURE_ENCODING = "pawl/failure"


def callback_item(request: ResolveCallbackRequest, named: Callback, limits: Limits) -> SignalItem:
    """The result of the callback that a token names."""
    result = request.WhichOneof("result")
    rejected = result == "failure"
    if result is None:
        raise InvalidField("value", "is missing, and so is failure")
    if rejected:
        stated = failure_bytes(read_failure("failure", request.failure))
        value = to_blob(FAILURE_ENCODING, stated)
        digest = digest_of(b"failure", request.failure.SerializeToString(deterministic=True))
    else:
        payload = request.value
        value = blob("value", payload, "signal_bytes", limits.signal_bytes)
        digest = digest_of(b"value", *payload_parts(payload.encoding, payload.data, payload.digest))
    who = sender(request.sender)
    return SignalItem(
        named.instance_id, named.incarnation, named.turn, "", "", named.key, digest, rejected, value, *who
    )


def turn_number(value: int) -> int:
    """A turn number, from 1."""
    if not 1 <= value <= MAX_TURN:
        raise InvalidField("turn", f"is {value}, not 1 to {MAX_TURN}")
    return value


def incarnation(value: int) -> int:
    """An incarnation, or 0 for any."""
    if value < 0:
        raise InvalidField("incarnation", f"is {value}, below 0")
    return value


def page_size(value: int) -> int:
    """The number of items of a page."""
    if not 0 <= value <= bounds.PAGE_SIZE:
        raise InvalidField("page_size", f"is {value}, not within 0 to {bounds.PAGE_SIZE}")
    return value or bounds.PAGE_SIZE_DEFAULT


def wait_ms(field: str, value: Duration) -> int:
    """A wait of 0 to 10 minutes."""
    return duration_ms(field, value, 0, bounds.WAIT_MS)


def target(request: Any, turn: bool = True) -> Target:
    """Whom a control call is about; `turn` says whether it names a turn."""
    found = Target(
        check_own_id("instance_id", request.instance_id),
        check_optional_id("request_id", request.request_id),
        _comment(request.comment),
        incarnation=incarnation(request.incarnation),
    )
    return found._replace(turn=turn_number(request.turn)) if turn else found


def _comment(text: str) -> str:
    size = len(text.encode())
    if size > bounds.COMMENT_BYTES:
        raise LimitExceeded("comment_bytes", size, bounds.COMMENT_BYTES)
    return text


def failed_target(request: Any) -> Target:
    """Whom a decision about a failed turn is about."""
    return target(request)._replace(attempt=_within("attempt", request.attempt, 0, 1 << 30))


def decision(request: ResolveStepRequest) -> Decision:
    """What was decided about a step."""
    key = check_id("key", request.key)
    kind = request.WhichOneof("decision")
    if kind == "output":
        output = request.output
        check_payload("output", output.encoding, output.digest)
        digest = payload_digest(output.encoding, output.data, output.digest)
        return Decision(key, _SAVE, digest, to_blob(output.encoding, output.data))
    if kind == "failure":
        stated = read_failure("failure", request.failure)
        digest = digest_of(request.failure.SerializeToString(deterministic=True))
        return Decision(key, _FAIL, digest, failure=stated)
    if not request.retry:
        raise InvalidField("decision", "is missing: output, retry or failure")
    return Decision(key, _RETRY, b"")


_SAVE, _RETRY = StepDecision.STEP_DECISION_SAVE, StepDecision.STEP_DECISION_RETRY
_FAIL = StepDecision.STEP_DECISION_FAIL


def redrive_wanted(request: RedriveAllParkedRequest) -> Redrive:
    """Which parked turns are meant."""
    return Redrive(
        workflow_type=check_type("workflow_type", request.workflow_type),
        instance_id=check_own_id("instance_id", request.instance_id) if request.instance_id else "",
        reason=check_optional_id("reason", request.reason),
        discard=request.discard,
        comment=_comment(request.comment),
    )


def wanted_instances(request: ListInstancesRequest) -> Wanted:
    """Which instances are to be listed; a status is checked, but not part of the answer."""
    names = [name for name in ("tag", "correlation_key", "status") if getattr(request, name)]
    if len(names) > 1:
        raise InvalidField(names[1], f"excludes {names[0]}")
    times = [name for name in ("created_from", "created_before") if request.HasField(name)]
    if request.status:
        if request.status not in STATUSES:
            raise InvalidField("status", "is not BLOCKED or PAUSED")
        if times:
            raise InvalidField(times[0], "excludes status")
    found = Wanted(
        from_ms=timestamp_ms("created_from", request.created_from),
        before_ms=timestamp_ms("created_before", request.created_before),
    )
    if request.tag:
        return found._replace(by="tag", word=check_id("tag", request.tag))
    if request.correlation_key:
        return found._replace(by="key", word=check_id("correlation_key", request.correlation_key))
    return found


def create_item(
    at: str, instance_id: str, spec: InstanceSpec, limits: Limits, request_id: str = ""
) -> CreateItem:
    """An instance to create. `at` is the path of the spec."""
    workflow_type = check_type(f"{at}workflow_type", spec.workflow_type)
    version = check_id(f"{at}version", spec.version)
    state = b""
    parts: tuple[bytes, ...] = ()
    if spec.HasField("state"):
        payload = spec.state
        state = blob(f"{at}state", payload, "state_bytes", limits.state_bytes)
        parts = payload_parts(payload.encoding, payload.data, payload.digest)
    lease = 0
    if spec.HasField("lease_timeout"):
        lease = duration_ms(f"{at}lease_timeout", spec.lease_timeout, SECOND, HOUR)
    attempts = _within(f"{at}max_attempts", spec.max_attempts, 0, 1_000)
    words = _words(at, spec)
    retry = pack_policy(read_policy(f"{at}retry.", spec.retry, attempts=False))
    named = ((b"words", words) if words else ()) + ((b"retry", retry) if retry else ())
    digest = digest_of(workflow_type.encode(), version.encode(), b"%d %d" % (lease, attempts), *parts, *named)
    return CreateItem(
        instance_id, workflow_type, version, digest, state, lease, attempts, retry, words, request_id
    )


def _words(at: str, spec: InstanceSpec) -> bytes:
    """Correlation key and tags as create.lua takes them."""
    if not spec.tags and not spec.correlation_key:
        return b""
    if len(spec.tags) > bounds.TAGS:
        raise LimitExceeded("tags_per_instance", len(spec.tags), bounds.TAGS)
    tags = sorted({check_id(f"{at}tags[{place}]", tag) for place, tag in enumerate(spec.tags)})
    key = check_optional_id(f"{at}correlation_key", spec.correlation_key)
    return b"".join(word.encode() + b"\0" for word in (key, *tags))


def send_item(at: str, request: SendMessageRequest, limits: Limits) -> SendItem:
    """A message to admit."""
    instance_id = check_own_id(f"{at}instance_id", request.instance_id)
    message_id = check_own_id(f"{at}message_id", request.message_id)
    payload = request.message
    message = blob(f"{at}message", payload, "message_bytes", limits.message_bytes)
    digest = payload_digest(payload.encoding, payload.data, payload.digest)
    origin = request.origin
    if len(origin) > limits.origin_bytes:
        raise LimitExceeded("origin_bytes", len(origin), limits.origin_bytes)
    waits, delay, ttl = request.HasField("wait"), 0, 0
    if request.HasField("delay"):
        delay = duration_ms(f"{at}delay", request.delay, 1, 365 * DAY)
        if waits:
            raise InvalidField(f"{at}wait", "is not possible for a delayed message")
    if request.HasField("ttl"):
        ttl = duration_ms(f"{at}ttl", request.ttl, 1, 365 * DAY)
    if delay or ttl:
        digest = digest_of(digest, b"%d %d" % (delay, ttl))
    if not request.HasField("create_if_absent"):
        nothing = ("", "", b"", b"", 0, 0, b"", b"")
        return SendItem(instance_id, message_id, digest, message, origin, False, *nothing, waits, delay, ttl)
    new = create_item(f"{at}create_if_absent.", instance_id, request.create_if_absent, limits)
    return SendItem(
        instance_id,
        message_id,
        digest,
        message,
        origin,
        True,
        new.type,
        new.version,
        new.digest,
        new.state,
        new.lease_ms,
        new.max_attempts,
        new.retry,
        new.words,
        waits,
        delay,
        ttl,
    )


def type_settings(at: str, message: WorkflowType) -> TypeSettings:
    """Settings of a workflow type; fields that are unset mean the default."""
    settings: TypeSettings = {}
    _spans(settings, at, message, (("lease_timeout", "lease_ms", SECOND, HOUR),))
    _spans(settings, at, message, (("attempt_timeout", "attempt_timeout_ms", SECOND, 7 * DAY),))
    _spans(settings, at, message, (("queue_timeout", "queue_timeout_ms", 1, 365 * DAY),))
    _spans(settings, at, message, (("total_timeout", "total_timeout_ms", 1, 365 * DAY),))
    if message.max_attempts:
        settings["max_attempts"] = _within(f"{at}max_attempts", message.max_attempts, 1, 1_000)
    if message.on_exhausted:
        if message.on_exhausted not in ExhaustionPolicy.values():
            raise InvalidField(f"{at}on_exhausted", f"is {message.on_exhausted}, which is no policy")
        settings["on_exhausted"] = message.on_exhausted
    if message.HasField("retry"):
        settings.update(read_policy(f"{at}retry.", message.retry, attempts=False))
    if message.HasField("retention"):
        _retention(settings, f"{at}retention.", message)
    return settings


def _retention(settings: TypeSettings, at: str, message: WorkflowType) -> None:
    keep = message.retention
    counts = (
        ("min_turns", keep.min_turns, 1, 2_000),
        ("max_turns", keep.max_turns, 1, 100_000),
        ("max_bytes", keep.max_bytes, 1 << 10, 1 << 30),
    )
    for name, value, low, high in counts:
        if value:
            settings[name] = _within(f"{at}{name}", value, low, high)
    _spans(settings, at, keep, (("max_age", "max_age_ms", 0, 365 * DAY),))
    if keep.keep_none:
        if len(keep.ListFields()) > 1:
            raise InvalidField(f"{at}keep_none", "excludes the other fields")
        settings.update(min_turns=0, max_age_ms=0)


def _spans(
    settings: TypeSettings, at: str, message: Any, spans: tuple[tuple[str, str, int, int], ...]
) -> None:
    for field, name, low, high in spans:
        if message.HasField(field):
            settings[name] = duration_ms(f"{at}{field}", getattr(message, field), low, high)


def _within(field: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidField(field, f"is {value}, not within {low} to {high}")
    return value
