"""Turns a failed call into the exception of its reason.

The status travels as `google.rpc.Status` in the trailing metadata `grpc-status-details-bin`, with `ErrorInfo`
and `RetryInfo` inside. The three messages are declared here, in a pool of their own, so that the SDK needs no
further package and does not clash with one that brings them too.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pawl._reasons import error_of
from pawl.errors import ServerError

DETAILS = "grpc-status-details-bin"
DOMAIN = "pawl"

_F = descriptor_pb2.FieldDescriptorProto


def _declare() -> dict[str, Any]:
    def add(name: str, *fields: tuple[str, int, Any, Any, str]) -> None:
        message = file.message_type.add(name=name)
        for field, number, label, kind, type_name in fields:
            message.field.add(name=field, number=number, label=label, type=kind, type_name=type_name or None)

    file = descriptor_pb2.FileDescriptorProto(
        name="pawl/sdk/status.proto", package="pawl.sdk", syntax="proto3"
    )
    one, many = _F.LABEL_OPTIONAL, _F.LABEL_REPEATED
    add("Any", ("type_url", 1, one, _F.TYPE_STRING, ""), ("value", 2, one, _F.TYPE_BYTES, ""))
    add(
        "Status",
        ("code", 1, one, _F.TYPE_INT32, ""),
        ("message", 2, one, _F.TYPE_STRING, ""),
        ("details", 3, many, _F.TYPE_MESSAGE, ".pawl.sdk.Any"),
    )
    add("Entry", ("key", 1, one, _F.TYPE_STRING, ""), ("value", 2, one, _F.TYPE_STRING, ""))
    add(
        "ErrorInfo",
        ("reason", 1, one, _F.TYPE_STRING, ""),
        ("domain", 2, one, _F.TYPE_STRING, ""),
        ("metadata", 3, many, _F.TYPE_MESSAGE, ".pawl.sdk.Entry"),
    )
    add("Duration", ("seconds", 1, one, _F.TYPE_INT64, ""), ("nanos", 2, one, _F.TYPE_INT32, ""))
    add("RetryInfo", ("retry_delay", 1, one, _F.TYPE_MESSAGE, ".pawl.sdk.Duration"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("Status", "ErrorInfo", "RetryInfo")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pawl.sdk.{name}"))
        for name in names
    }


_MESSAGES = _declare()


def error_from_status(code: str, text: str, details: bytes | None) -> ServerError:
    """Builds the exception of a status: by the reason in `details`, else by the code.

    Damaged or foreign details are passed over.
    """
    reason, message, metadata, retry_after = "", text, {}, None
    try:
        status = _MESSAGES["Status"].FromString(details or b"")
        message = status.message or text
        for detail in status.details:
            if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                info = _MESSAGES["ErrorInfo"].FromString(detail.value)
                if info.domain == DOMAIN:
                    reason = info.reason
                    metadata = {entry.key: entry.value for entry in info.metadata}
            elif detail.type_url.endswith("/google.rpc.RetryInfo"):
                delay = _MESSAGES["RetryInfo"].FromString(detail.value).retry_delay
                retry_after = delay.seconds + delay.nanos / 1e9
    except DecodeError:
        pass
    return error_of(reason, message, code=code, metadata=metadata, retry_after=retry_after)


def error_from_call(error: grpc.RpcError) -> ServerError:
    """Builds the exception of a failed call, of grpc.aio or plain grpc."""
    call: Any = error
    details = None
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS:
            details = value
    return error_from_status(call.code().name, call.details() or "", details)
