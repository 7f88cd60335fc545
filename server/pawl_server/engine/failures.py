"""Failures as callers state them, checked and cut to their limits."""

from __future__ import annotations

from typing import NamedTuple

from pawl.v1.failure_pb2 import Failure
from pawl_server.domain.errors import LimitExceeded
from pawl_server.domain.ids import check_id
from pawl_server.domain.limits import (
    FAILURE_BYTES,
    FAILURE_CAUSES,
    FAILURE_DETAILS_BYTES,
    FAILURE_MESSAGE_BYTES,
)
from pawl_server.domain.payload import check_payload, from_blob, to_blob


class StatedFailure(NamedTuple):
    """A failure, ready to be stored."""

    reason: str
    message: str
    truncated: bool
    """Whether something was cut, here or before."""
    details: bytes
    """Blob; empty for none."""
    cause: bytes
    """The cause with its own, as a serialized Failure; empty for none."""
    final: bool


NO_FAILURE = StatedFailure("", "", False, b"", b"", False)


def read_failure(field: str, failure: Failure) -> StatedFailure:
    """Checks a failure; `field` is its path.

    A message that is too long is cut. Causes that do not fit are dropped, innermost first. Raises
    InvalidField, LimitExceeded("failure_details_bytes").
    """
    own = _stated(field, failure)
    room = FAILURE_BYTES - len(own.reason) - len(own.message) - len(own.details.data)
    causes: list[Failure] = []
    whole = True
    place, path = failure, field
    while whole and place.HasField("cause"):
        place, path = place.cause, f"{path}.cause"
        cause = _stated(path, place)
        size = cause.ByteSize() + 8  # what it takes inside another one
        whole = len(causes) < FAILURE_CAUSES and size <= room
        if whole:
            room -= size
            causes.append(cause)
    nested = b""
    for at in range(len(causes) - 1, -1, -1):
        if at + 1 < len(causes):
            causes[at].cause.CopyFrom(causes[at + 1])
    if causes:
        nested = causes[0].SerializeToString()
    details = to_blob(own.details.encoding, own.details.data) if own.HasField("details") else b""
    return StatedFailure(
        own.reason, own.message, own.truncated or not whole, details, nested, failure.non_retryable
    )


def failure_bytes(stated: StatedFailure) -> bytes:
    """A failure with its causes as one serialized Failure."""
    failure = Failure(
        reason=stated.reason,
        message=stated.message,
        truncated=stated.truncated,
        non_retryable=stated.final,
    )
    if stated.details:
        failure.details.encoding, failure.details.data = from_blob(stated.details)
    if stated.cause:
        failure.cause.MergeFromString(stated.cause)
    return failure.SerializeToString(deterministic=True)


def _stated(field: str, failure: Failure) -> Failure:
    """One failure without its cause, attempt and time."""
    reason = check_id(f"{field}.reason", failure.reason)
    text = failure.message.encode()
    truncated = failure.truncated or len(text) > FAILURE_MESSAGE_BYTES
    stated = Failure(
        reason=reason,
        message=text[:FAILURE_MESSAGE_BYTES].decode(errors="ignore"),
        truncated=truncated,
        non_retryable=failure.non_retryable,
    )
    if failure.HasField("details"):
        details = failure.details
        check_payload(f"{field}.details", details.encoding, details.digest)
        if len(details.data) > FAILURE_DETAILS_BYTES:
            raise LimitExceeded("failure_details_bytes", len(details.data), FAILURE_DETAILS_BYTES)
        stated.details.encoding, stated.details.data = details.encoding, details.data
    return stated
