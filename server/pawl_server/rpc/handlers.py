"""Which method of which object answers which call.

The table is made from the descriptors of pawl.v1. Requests that are too large or can't be decoded reach their
handler as a Refused, so that they too get a status with a reason, and so do calls that this server does not
know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pawl_server.domain.errors import InvalidField, LimitExceeded, Reason, Refused
from pawl_server.domain.limits import REQUEST_BYTES
from pawl_server.rpc.status import abort

log = logging.getLogger(__name__)

_MAKERS: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _reader(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        if len(data) > REQUEST_BYTES:
            return LimitExceeded("request_bytes", len(data), REQUEST_BYTES)
        try:
            return parse(data)
        except DecodeError:
            return InvalidField("request", "is not a message of the type that the call expects")

    return read


async def _unknown(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    problem = Refused(Reason.UNIMPLEMENTED, "this server does not know the call")
    await abort(context, problem)


class Handlers(grpc.GenericRpcHandler):
    """All services of a server; `names` are their full names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._unknown: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(_unknown)

    def add(self, descriptor: ServiceDescriptor, servicer: object) -> None:
        """Adds a service; calls for which `servicer` has no method answer UNIMPLEMENTED.

        Its `READERS`, if it has any, decode the requests of the calls named there.
        """
        self.names.append(descriptor.full_name)
        readers: Mapping[str, Callable[[bytes], Any]] = getattr(servicer, "READERS", {})
        for method in descriptor.methods:
            if not hasattr(servicer, method.name):
                continue  # answered as an unknown call
            make = _MAKERS[method.client_streaming, method.server_streaming]
            self._methods[f"/{descriptor.full_name}/{method.name}"] = make(
                getattr(servicer, method.name),
                request_deserializer=readers.get(method.name)
                or _reader(GetMessageClass(method.input_type).FromString),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call."""
        name = handler_call_details.method
        found = self._methods.get(name)
        return self._unknown if found is None and name.startswith("/pawl.") else found
