"""A plain gRPC client for tests, and what a refused call says. It knows only pawl.v1, not the SDK."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from pawl.testing.v1.clock_service_pb2 import AdvanceRequest
from pawl.testing.v1.clock_service_pb2_grpc import ClockServiceStub
from pawl.v1.admin_service_pb2_grpc import AdminServiceStub
from pawl.v1.event_service_pb2_grpc import EventServiceStub
from pawl.v1.instance_service_pb2 import CreateInstanceRequest, InstanceSpec
from pawl.v1.instance_service_pb2_grpc import InstanceServiceStub
from pawl.v1.message_service_pb2 import SendMessageRequest, SendMessageResponse
from pawl.v1.message_service_pb2_grpc import MessageServiceStub
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_service_pb2 import SignalTurnRequest, SignalTurnResponse
from pawl.v1.turn_service_pb2_grpc import TurnServiceStub
from pawl.v1.worker_service_pb2_grpc import WorkerServiceStub

TYPE, VERSION = "t", "v1"
TV = f"{TYPE}:{VERSION}"
CALL_S = 20.0
"""Longest time that a call of a test may take."""


def json(data: bytes | str) -> Payload:
    """A payload with encoding json."""
    return Payload(data=data.encode() if isinstance(data, str) else data, encoding="json")


def spec(**fields: Any) -> InstanceSpec:
    """An instance of the usual type."""
    return InstanceSpec(**{"workflow_type": TYPE, "version": VERSION, **fields})


class Api:
    """All services at one address; `async with Api(address) as api`."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        )
        self.instances = InstanceServiceStub(self.channel)
        self.messages = MessageServiceStub(self.channel)
        self.turns = TurnServiceStub(self.channel)
        self.events = EventServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        self.workers = WorkerServiceStub(self.channel)

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def create(self, instance_id: str, **fields: Any) -> Any:
        """Creates an instance of the usual type; returns the instance."""
        request = CreateInstanceRequest(instance_id=instance_id, spec=spec(**fields))
        return (await self.instances.CreateInstance(request, timeout=CALL_S)).instance

    async def advance(self, ms: int) -> None:
        """Moves the clock of a server with virtual time, without waiting for the turn that runs."""
        request = AdvanceRequest()
        request.duration.FromMilliseconds(ms)
        request.settle_timeout.FromMilliseconds(0)
        await ClockServiceStub(self.channel).Advance(request, timeout=CALL_S)

    async def signal(
        self,
        instance_id: str,
        signal_id: str = "s1",
        name: str = "go",
        data: bytes | str = b"1",
        *,
        turn: int = 1,
        **fields: Any,
    ) -> SignalTurnResponse:
        """Sends a signal to a turn."""
        request = SignalTurnRequest(
            instance_id=instance_id, turn=turn, signal_id=signal_id, name=name, value=json(data), **fields
        )
        return await self.turns.SignalTurn(request, timeout=CALL_S)

    async def send(
        self, instance_id: str, message_id: str, data: bytes | str = b"1", **fields: Any
    ) -> SendMessageResponse:
        """Sends a message."""
        request = SendMessageRequest(
            instance_id=instance_id, message_id=message_id, message=json(data), **fields
        )
        return await self.messages.SendMessage(request, timeout=CALL_S)


@dataclass(frozen=True)
class Problem:
    """What a refused call said. `retry_ms` is the delay of RetryInfo, None without one."""

    code: str
    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    retry_ms: int | None = None

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> Problem:
        """Reads the status; the code in the details must be that of the call.

        What the transport says by itself has no details: `reason` is empty.
        """
        metadata = dict(error.trailing_metadata() or ())
        raw = metadata.get("grpc-status-details-bin", b"")
        status = Status.FromString(raw if isinstance(raw, bytes) else raw.encode())
        info, delay, retry = ErrorInfo(), RetryInfo(), None
        for detail in status.details:
            if detail.Unpack(info):
                assert info.domain == "pawl"
            elif detail.Unpack(delay):
                retry = delay.retry_delay.ToMilliseconds()
        assert not raw or status.code == error.code().value[0]
        return cls(error.code().name, info.reason, status.message, dict(info.metadata), retry)


async def refusal_of(call: Awaitable[Any]) -> Problem:
    """The refusal of a call that must be refused."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return Problem.of(error)
    raise AssertionError(f"not refused: {answer}")
