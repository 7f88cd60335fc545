"""A server that speaks the real protocol and does what the test says.

It keeps no state of workflows: a test delivers turns, looks at frames and answers commands, by hand or
automatically. Behaviour of the real server is tested with the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from pawl.payloads import encode
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import worker_service_pb2 as work
from pawl.v1.error_pb2 import Reason
from pawl.v1.fleet_pb2 import Fleet, Server
from pawl.v1.message_service_pb2_grpc import MessageServiceServicer, add_MessageServiceServicer_to_server
from pawl.v1.step_pb2 import Step
from pawl.v1.worker_service_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from tests.support.wait import wait_until

END = object()


def refusal(reason: str, message: str = "", **metadata: str) -> messages.Refusal:
    """Builds a refusal from the name of its reason."""
    return messages.Refusal(reason=Reason.Value(f"REASON_{reason}"), message=message, metadata=metadata)


def leased_turn(
    instance_id: str = "i-1",
    message: Any = None,
    *,
    turn: int = 1,
    state: Any = None,
    workflow: str = "test",
    fence: int = 1,
    steps: dict[str, Any] | None = None,
    lease_timeout: float = 60.0,
    attempt: int = 1,
    **fields: Any,
) -> work.LeasedTurn:
    """Builds a turn as the server would lease it."""
    leased = work.LeasedTurn(
        lease=f"{instance_id}/{turn}/{fence}".encode(),
        fence=fence,
        instance_id=instance_id,
        incarnation=1,
        workflow_type=workflow,
        version="v1",
        turn=turn,
        message_id=f"m-{turn}",
        message=encode(message),
        state=encode(state),
        attempt=attempt,
        max_attempts=3,
        namespace="default",
        steps=[
            Step(position=at, key=key, output=encode(value))
            for at, (key, value) in enumerate((steps or {}).items(), 1)
        ],
        **fields,
    )
    leased.lease_timeout.FromMilliseconds(round(lease_timeout * 1000))
    leased.attempt_timeout.FromSeconds(3600)
    leased.admit_time.FromSeconds(1_800_000_000)
    return leased


class FakeStream:
    """One work stream as the server sees it."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._out: asyncio.Queue[Any] = asyncio.Queue()
        self._frame = 0
        self.frames: list[work.WorkRequest] = []
        self.commands: list[work.Command] = []
        self.closed = False

    @property
    def hello(self) -> work.WorkHello:
        return self.frames[0].hello

    @property
    def credits(self) -> int:
        return max(frame.credits_total for frame in self.frames)

    @property
    def received(self) -> int:
        return max(frame.received_through for frame in self.frames)

    @property
    def beats(self) -> list[work.Beat]:
        return [frame.beat for frame in self.frames if frame.HasField("beat")]

    @property
    def adoptions(self) -> list[work.Adoption]:
        return [adoption for frame in self.frames for adoption in frame.adoptions]

    @property
    def ended(self) -> bool:
        """Whether the worker has asked for the end."""
        return any(frame.end for frame in self.frames)

    def send(self, **fields: Any) -> None:
        """Sends a frame."""
        self._frame += 1
        self._out.put_nowait(work.WorkResponse(frame=self._frame, **fields))

    def deliver(self, *turns: work.LeasedTurn) -> None:
        """Leases turns to the worker."""
        self.send(turns=turns)

    def answer(self, *results: work.CommandResult) -> None:
        """Answers commands."""
        self.send(results=results)

    def cut(self) -> None:
        """Breaks the stream off."""
        self._out.put_nowait(END)

    async def command(self, number: int = 1) -> work.Command:
        """Waits for the n-th command that arrived on this stream."""
        await wait_until(lambda: len(self.commands) >= number, what=f"command {number}")
        return self.commands[number - 1]

    async def read(self, requests: AsyncIterator[work.WorkRequest]) -> None:
        """Takes frames in, answering what the server answers by itself."""
        try:
            async for frame in requests:
                self.frames.append(frame)
                if frame.HasField("hello"):
                    if self._server.refuse_hello is not None:
                        self._out.put_nowait(self._server.refuse_hello)
                        continue
                    self.send(hello=self._server.hello(), fleet=self._server.fleet)
                    adopted = [self._server.adopted(lease) for lease in frame.hello.leases]
                    if adopted:
                        self.send(lease_events=adopted)
                for adoption in frame.adoptions:
                    if self._server.answer_adoptions:
                        self.send(lease_events=[self._server.adopted(lease) for lease in adoption.leases])
                self.commands.extend(frame.commands)
                results = [answer for c in frame.commands if (answer := self._server.answer(c)) is not None]
                if results:
                    self.answer(*results)
                if frame.HasField("beat") and self._server.answer_beats:
                    self.send(beat=work.ServerBeat(number=frame.beat.number))
                if frame.end and not self._server.hold_end:
                    self._out.put_nowait(None)
        finally:
            self.closed = True

    async def responses(self, context: grpc.aio.ServicerContext) -> AsyncIterator[work.WorkResponse]:
        """Frames to send, until the stream is ended or cut."""
        while True:
            frame = await self._out.get()
            if frame is None:
                return
            if frame is END:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
            if isinstance(frame, tuple):
                await context.abort(*frame)
            yield frame


class FakeServer(WorkerServiceServicer, MessageServiceServicer):
    """Records what workers and clients do.

    `rescues` are the renewals by watchdogs, which a machine may cause at any time that is too busy for the
    worker's loop to run; `renewals` are all others.
    """

    def __init__(self) -> None:
        self.address = ""
        self.run = "fake"
        self.fleet: Fleet | None = None
        self.streams: list[FakeStream] = []
        self.renewals: list[work.RenewLeasesRequest] = []
        self.rescues: list[work.RenewLeasesRequest] = []
        self.adoptions: list[work.AdoptLeasesRequest] = []
        self.batches: list[messages.SendMessagesRequest] = []
        self.beat_interval = 10.0
        self.max_frame_bytes = 0
        self.answer_beats = True
        self.answer_adoptions = True
        self.hold_end = False
        self.refuse_hello: tuple[grpc.StatusCode, str] | None = None
        self.answer: Callable[[work.Command], work.CommandResult | None] = ok
        self.adopted: Callable[[bytes], work.LeaseEvent] = lambda lease: work.LeaseEvent(lease=lease)
        self.renewed: Callable[[bytes], work.RenewResult] = lambda lease: work.RenewResult(lease=lease)
        self.admit: Callable[[messages.SendMessageRequest], messages.SendResult] = self._admitted
        self.fail_calls: list[grpc.StatusCode] = []
        self.hold_calls: asyncio.Event | None = None
        self._turns = 0

    def hello(self) -> work.ServerHello:
        hello = work.ServerHello(server_run=self.run, version="0", max_frame_bytes=self.max_frame_bytes)
        hello.beat_interval.FromMilliseconds(round(self.beat_interval * 1000))
        return hello

    async def stream(self, number: int = 1) -> FakeStream:
        """Waits for the n-th stream to have said hello."""
        await wait_until(
            lambda: len(self.streams) >= number and self.streams[number - 1].frames, what=f"stream {number}"
        )
        return self.streams[number - 1]

    def _admitted(self, request: messages.SendMessageRequest) -> messages.SendResult:
        self._turns += 1
        return messages.SendResult(sent=messages.SendMessageResponse(turn=self._turns, incarnation=1))

    async def _gate(self, context: grpc.aio.ServicerContext) -> None:
        if self.hold_calls is not None:
            await self.hold_calls.wait()
        if self.fail_calls:
            await context.abort(self.fail_calls.pop(0), "failed by the test")

    async def Work(self, request_iterator: Any, context: Any) -> AsyncIterator[work.WorkResponse]:
        stream = FakeStream(self)
        self.streams.append(stream)
        reader = asyncio.get_running_loop().create_task(stream.read(request_iterator))
        try:
            async for frame in stream.responses(context):
                yield frame
        finally:
            reader.cancel()
            stream.closed = True

    async def RenewLeases(self, request: Any, context: Any) -> work.RenewLeasesResponse:
        await self._gate(context)
        (self.renewals if request.detach or request.ordinal else self.rescues).append(request)
        return work.RenewLeasesResponse(results=[self.renewed(lease) for lease in request.leases])

    async def AdoptLeases(self, request: Any, context: Any) -> work.AdoptLeasesResponse:
        await self._gate(context)
        self.adoptions.append(request)
        return work.AdoptLeasesResponse(results=[self.renewed(lease) for lease in request.leases])

    async def SendMessages(self, request: Any, context: Any) -> messages.SendMessagesResponse:
        self.batches.append(request)
        await self._gate(context)
        return messages.SendMessagesResponse(results=[self.admit(item) for item in request.messages])

    async def SendMessage(self, request: Any, context: Any) -> messages.SendMessageResponse:
        raise NotImplementedError

    async def AwaitTurn(self, request: Any, context: Any) -> messages.AwaitTurnResponse:
        raise NotImplementedError


def ok(command: work.Command) -> work.CommandResult:
    """Success of any command."""
    result = work.CommandResult(lease=command.lease, n=command.n)
    if command.HasField("checkpoint"):
        result.checkpoint.position = command.n
    _name_early(result, command)
    return result


def _name_early(result: work.CommandResult, command: work.Command) -> None:
    """What tells the answers of a step's reports apart."""
    if command.HasField("start_operation"):
        result.start_operation.position = command.start_operation.position
    elif command.HasField("report_progress"):
        result.report_progress.position = command.report_progress.position
        result.report_progress.sequence = command.report_progress.sequence


def refuse(command: work.Command, reason: str, **metadata: str) -> work.CommandResult:
    """Refusal of a command."""
    result = work.CommandResult(lease=command.lease, n=command.n, refusal=refusal(reason, **metadata))
    _name_early(result, command)
    return result


def fleet(*servers: FakeServer) -> Fleet:
    """What a server says about the servers there are."""
    return Fleet(servers=[Server(server_run=one.run, address=one.address) for one in servers])


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    """Runs a fake server on a free port."""
    fake = FakeServer()  # pyright: ignore[reportAbstractUsage]
    server = grpc.aio.server()
    add_WorkerServiceServicer_to_server(fake, server)
    add_MessageServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(0)
