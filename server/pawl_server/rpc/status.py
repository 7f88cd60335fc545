"""The one table of refusals: reason -> gRPC code, and whether and when a repeat can succeed.

error.proto documents the same facts for clients; a test compares the two. A status travels as
`google.rpc.Status` in the trailing metadata `grpc-status-details-bin`, with `ErrorInfo` (domain "pawl") and,
where waiting helps, `RetryInfo`.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from pawl_server.domain.errors import Reason, Refused
from pawl_server.domain.times import duration
from pawl_server.engine.problems import refusal, refused

__all__ = ["DETAILS", "DOMAIN", "TABLE", "abort", "details_of", "refusal", "refused"]

DETAILS = "grpc-status-details-bin"
DOMAIN = "pawl"

_Code = grpc.StatusCode


class Answer(NamedTuple):
    """How a reason is answered. `retryable`: repeating the same request can succeed."""

    code: grpc.StatusCode
    retryable: bool = False
    retry_after_ms: int = 0
    """Delay that RetryInfo asks for; 0 leaves RetryInfo out."""


TABLE: dict[Reason, Answer] = {
    Reason.INVALID_FIELD: Answer(_Code.INVALID_ARGUMENT),
    Reason.LIMIT_EXCEEDED: Answer(_Code.RESOURCE_EXHAUSTED),
    Reason.NOT_FOUND: Answer(_Code.NOT_FOUND, retryable=True),
    Reason.PRUNED: Answer(_Code.NOT_FOUND),
    Reason.BODY_CONFLICT: Answer(_Code.ALREADY_EXISTS),
    Reason.STALE_FENCE: Answer(_Code.ABORTED),
    Reason.LEASE_ENDED: Answer(_Code.FAILED_PRECONDITION),
    Reason.GAP: Answer(_Code.ABORTED, retryable=True),
    Reason.WRONG_STATE: Answer(_Code.FAILED_PRECONDITION),
    Reason.DRAINING: Answer(_Code.UNAVAILABLE, retryable=True, retry_after_ms=100),
    Reason.STORE_UNAVAILABLE: Answer(_Code.UNAVAILABLE, retryable=True, retry_after_ms=200),
    Reason.OVERLOADED: Answer(_Code.RESOURCE_EXHAUSTED, retryable=True, retry_after_ms=500),
    Reason.MOVING: Answer(_Code.UNAVAILABLE, retryable=True, retry_after_ms=200),
    Reason.REVISION_CONFLICT: Answer(_Code.ABORTED),
    Reason.INSTANCE_DELETING: Answer(_Code.UNAVAILABLE, retryable=True, retry_after_ms=200),
    Reason.INSTANCE_DELETED: Answer(_Code.NOT_FOUND),
    Reason.COMPACTED: Answer(_Code.OUT_OF_RANGE),
    Reason.REWOUND: Answer(_Code.ABORTED),
    Reason.UNIMPLEMENTED: Answer(_Code.UNIMPLEMENTED),
    Reason.INTERNAL: Answer(_Code.INTERNAL),
    Reason.DEADLINE: Answer(_Code.DEADLINE_EXCEEDED, retryable=True),
    Reason.DURABILITY_NOT_MET: Answer(_Code.UNAVAILABLE, retryable=True, retry_after_ms=200),
    # The next two end turns and attempts, not calls.
    Reason.UNDELIVERABLE: Answer(_Code.FAILED_PRECONDITION),
    Reason.WORKER_LOST: Answer(_Code.FAILED_PRECONDITION),
    Reason.SUPERSEDED: Answer(_Code.ABORTED),
    Reason.CURSOR_STALE: Answer(_Code.INVALID_ARGUMENT),
}

_IN_USE = {"pending_messages": Answer(_Code.RESOURCE_EXHAUSTED, retryable=True, retry_after_ms=500)}
"""Limits that count things in use: there may be room later."""

_MESSAGE_CHARS = 1_000


def answer(problem: Refused) -> Answer:
    """How a refusal is answered."""
    if problem.reason is Reason.LIMIT_EXCEEDED:
        return _IN_USE.get(problem.metadata.get("limit", ""), TABLE[problem.reason])
    return TABLE[problem.reason]


def details_of(problem: Refused) -> bytes:
    """The serialized google.rpc.Status of a refusal."""
    found = answer(problem)
    details = [_packed(ErrorInfo(reason=problem.reason, domain=DOMAIN, metadata=problem.metadata))]
    if found.retry_after_ms:
        details.append(_packed(RetryInfo(retry_delay=duration(found.retry_after_ms))))
    code: int = found.code.value[0]
    return Status(code=code, message=problem.message[:_MESSAGE_CHARS], details=details).SerializeToString()


def _packed(detail: ErrorInfo | RetryInfo) -> Any:
    packed = Any()
    packed.Pack(detail)
    return packed


async def abort(context: grpc.aio.ServicerContext, error: BaseException, where: str = "") -> NoReturn:
    """Ends a call with the status of any exception; `where` names the call in the log."""
    problem = refused(error, where)
    metadata = (*(context.trailing_metadata() or ()), (DETAILS, details_of(problem)))
    try:
        await context.abort(answer(problem).code, problem.message[:_MESSAGE_CHARS], metadata)
    except grpc.aio.InternalError:
        # The caller went away before the status had left; it may have waited behind a frame that is not read.
        raise asyncio.CancelledError from None
    raise AssertionError("abort raises")
