"""The stubs of a channel, by service: one list for each kind of channel."""

from __future__ import annotations

import grpc
import grpc.aio

from pawl.v1.admin_service_pb2_grpc import AdminServiceStub
from pawl.v1.event_service_pb2_grpc import EventServiceStub
from pawl.v1.instance_service_pb2_grpc import InstanceServiceStub
from pawl.v1.message_service_pb2_grpc import MessageServiceStub
from pawl.v1.turn_service_pb2_grpc import TurnServiceStub
from pawl.v1.worker_service_pb2_grpc import WorkerServiceStub


class AioStubs:
    """Stubs whose calls are awaited."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.admin = AdminServiceStub(channel)
        self.events = EventServiceStub(channel)
        self.instances = InstanceServiceStub(channel)
        self.messages = MessageServiceStub(channel)
        self.turns = TurnServiceStub(channel)
        self.workers = WorkerServiceStub(channel)


class SyncStubs:
    """Stubs whose calls block."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.admin = AdminServiceStub(channel)
        self.events = EventServiceStub(channel)
        self.instances = InstanceServiceStub(channel)
        self.messages = MessageServiceStub(channel)
        self.turns = TurnServiceStub(channel)
        self.workers = WorkerServiceStub(channel)
