"""The gRPC server: its services, options and addresses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pawl.v1 import (
    admin_service_pb2,
    event_service_pb2,
    instance_service_pb2,
    message_service_pb2,
    turn_service_pb2,
)
from pawl_server import ports
from pawl_server.engine import Engine
from pawl_server.ports import AddressInUse
from pawl_server.rpc.admin_service import AdminService
from pawl_server.rpc.call import Gate
from pawl_server.rpc.event_service import EventService
from pawl_server.rpc.handlers import Handlers
from pawl_server.rpc.health import Health
from pawl_server.rpc.instance_service import InstanceService
from pawl_server.rpc.message_service import MessageService
from pawl_server.rpc.turn_service import TurnService

log = logging.getLogger(__name__)

MAX_RECEIVE_BYTES = 16 << 20
"""What gRPC takes in at all; what is above the limits of requests and frames gets a status with a reason."""
MAX_SEND_BYTES = 32 << 20
LAST_ANSWERS_S = 0.25
"""How long answers that are being sent have when the server closes."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    # Calls are bounded by the gate, with a reason; gRPC's own bound cancels some of a burst without one.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
    # Clients may ping each 10 s, also without a call, to find a dead connection; the server does the same.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 9_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

Extra = tuple[ServiceDescriptor, object]
"""A further service: its descriptor and the object that has its methods."""


def service(module: object, name: str) -> ServiceDescriptor:
    """Descriptor of a service of a generated module."""
    return module.DESCRIPTOR.services_by_name[name]  # pyright: ignore[reportAttributeAccessIssue]


class RpcServer:
    """One gRPC server. With `shared`, other processes may listen on its addresses too: see ports.py."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._server = grpc.aio.server(options=(*_OPTIONS, ("grpc.so_reuseport", int(shared))))
        self._closing: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        self._health: Health | None = None

    @property
    def ready(self) -> bool:
        """Whether readiness is green."""
        return self._health is not None and self._health.ready

    def bind(self, host: str, port: int) -> str:
        """Takes an address, and returns it: `host:port`, or `unix:/path`. Raises AddressInUse.

        Nothing is answered before `start`.
        """
        if host.startswith("unix:"):
            self._bind(host)
            return host
        if not self._shared:
            ports.probe(host, port)
        return ports.join(host, self._bind(ports.join(host, port)))

    def _bind(self, wanted: str) -> int:
        try:
            return self._server.add_insecure_port(wanted)
        except RuntimeError as error:
            raise AddressInUse(f"can't listen on {wanted}: {error}") from None

    async def start(self, engine: Engine, gate: Gate, extra: Iterable[Extra] = ()) -> None:
        """Answers calls from now on; `extra` are services beside the unary ones of this package."""
        own: tuple[Extra, ...] = (
            (service(instance_service_pb2, "InstanceService"), InstanceService(engine, gate)),
            (service(message_service_pb2, "MessageService"), MessageService(engine, gate)),
            (service(turn_service_pb2, "TurnService"), TurnService(engine, gate)),
            (service(event_service_pb2, "EventService"), EventService(engine, gate)),
            (service(admin_service_pb2, "AdminService"), AdminService(engine, gate)),
        )
        handlers = Handlers()
        for descriptor, servicer in (*own, *extra):
            handlers.add(descriptor, servicer)
        self._server.add_generic_rpc_handlers((handlers,))
        self._gate = gate
        self._health = Health(engine.store.ping, handlers.names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        shown = (*handlers.names, service(health_pb2, "Health").full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(shown, self._server)
        await self._health.start()
        await self._server.start()

    async def drain(self, grace_s: float) -> None:
        """Takes no new calls and connections from now on; those under way go on, for the grace at most.

        Clients are told to connect anew, which leads them to another server where there is one.
        """
        if self._gate is not None and self._health is not None:
            self._gate.draining = True
            await self._health.drain()
            self._closing = asyncio.create_task(self._server.stop(grace_s), name="rpc closing")

    async def stop(self, grace_s: float) -> None:
        """Lets unary calls end within the grace, gives the address back, cuts what is left.

        Streams are not waited for: those of workers have been drained by then, and a client that watches
        health or reads reflection keeps its stream open for ever.
        """
        if self._health is not None:
            await self._health.stop()
        if self._gate is not None:
            await self._gate.drain(grace_s)
        await self._server.stop(min(grace_s, LAST_ANSWERS_S))
        if self._closing is not None:
            await self._closing
