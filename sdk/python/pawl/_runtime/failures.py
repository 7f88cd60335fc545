"""Exceptions of handlers as failures of the wire."""

from __future__ import annotations

import re
from typing import Any

from pawl._convert import set_span
from pawl.errors import (
    BodyConflict,
    Defer,
    InvalidField,
    LimitExceeded,
    PawlError,
    PayloadError,
    RetryableError,
    ServerError,
    Unimplemented,
    WorkflowError,
    WrongState,
)
from pawl.payloads import encode
from pawl.v1.failure_pb2 import Failure
from pawl.v1.worker_service_pb2 import Defer as DeferCommand
from pawl.v1.worker_service_pb2 import Fail

MAX_MESSAGE_BYTES = 2048
MAX_DETAILS_BYTES = 8 * 1024
MAX_CAUSES = 8
MAX_RETRY_DELAY = 86_400.0
LASTING = (BodyConflict, InvalidField, LimitExceeded, Unimplemented, WrongState)
"""Refusals that repeat whenever the same code runs again."""


def failure_message(reason: str, message: str, *, permanent: bool = False, details: Any = None) -> Failure:
    """Builds a failure: text cut to its limit, a malformed reason mended, oversize details left out."""
    data = message.encode(errors="replace")
    failure = Failure(
        reason=re.sub(r"[^A-Za-z0-9_.-]", "_", reason)[:128] or "ERROR",
        message=data[:MAX_MESSAGE_BYTES].decode(errors="ignore"),
        truncated=len(data) > MAX_MESSAGE_BYTES,
        non_retryable=permanent,
    )
    if details is not None:
        payload = encode(details)
        if len(payload.data) <= MAX_DETAILS_BYTES:
            failure.details.CopyFrom(payload)
    return failure


def _add_causes(failure: Failure, error: BaseException) -> None:
    """Adds what an exception was raised from, and so on; the server keeps what fits."""
    place, seen = failure, {id(error)}
    while (cause := error.__cause__) is not None and len(seen) <= MAX_CAUSES and id(cause) not in seen:
        seen.add(id(cause))
        reason = getattr(cause, "reason", None) or type(cause).__name__
        place.cause.CopyFrom(failure_message(str(reason), str(cause) or repr(cause)))
        place, error = place.cause, cause


def refused_failure(error: ServerError) -> Failure:
    """Failure of a turn whose command was refused; for good, if another attempt would meet the same."""
    return failure_message(error.reason or error.code, error.message, permanent=isinstance(error, LASTING))


def fail_of(error: BaseException) -> Fail:
    """Says how an exception of a handler fails its attempt."""
    fail = _fail_of(error)
    _add_causes(fail.failure, error)
    return fail


def _fail_of(error: BaseException) -> Fail:
    text = str(error) or repr(error)
    if isinstance(error, WorkflowError):
        return _with_details(error.reason, text, error.details, permanent=True)
    if isinstance(error, RetryableError):
        fail = _with_details(error.reason, text, error.details, permanent=False)
        if error.delay is not None:
            set_span(fail.retry_delay, min(max(0.0, error.delay), MAX_RETRY_DELAY))
        return fail
    if isinstance(error, PayloadError):
        reason = "UNDECODABLE" if error.decoding else "PayloadError"
        return Fail(failure=failure_message(reason, text, permanent=not error.decoding))
    return Fail(failure=failure_message(type(error).__name__, text))


def defer_of(error: Defer) -> DeferCommand:
    """Says how a turn is put off; a malformed reason is mended."""
    command = DeferCommand(reason=re.sub(r"[^A-Za-z0-9_.-]", "_", error.reason)[:128])
    set_span(command.delay, error.delay)
    return command


def _with_details(reason: str, text: str, details: Any, *, permanent: bool) -> Fail:
    try:
        return Fail(failure=failure_message(reason, text, permanent=permanent, details=details))
    except PawlError as problem:
        return Fail(
            failure=failure_message(reason, f"{text} (details left out: {problem})", permanent=permanent)
        )
