"""WorkerService: work streams, and renewal and adoption of leases apart from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery import Delivery, WorkSession, read_hello
from pawl_server.delivery.actions import ACTIONS
from pawl_server.delivery.frames import fill_ms, fill_refusal
from pawl_server.delivery.unary import apply
from pawl_server.domain.errors import InvalidField
from pawl_server.domain.ids import check_id, check_ordinal
from pawl_server.domain.lease import Lease
from pawl_server.domain.limits import FRAME_BYTES, LEASES_PER_REQUEST
from pawl_server.engine.refusals import refused
from pawl_server.log_lines import STREAM_BROKEN
from pawl_server.rpc.call import Context, Gate, unary
from pawl_server.rpc.convert import type_settings
from pawl_server.rpc.status import abort

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Any)

HELLO_S = 10.0
"""How long a worker has for its first frame."""


def read_frame(data: bytes) -> pb.WorkRequest | InvalidField:
    """A frame of a worker, or why it is none."""
    if len(data) > FRAME_BYTES:
        return InvalidField("frame", f"has {len(data)} bytes, at most {FRAME_BYTES}")
    try:
        return pb.WorkRequest.FromString(data)
    except DecodeError as error:
        return InvalidField("frame", f"can't be decoded: {error}")


class WorkerService:
    """Handlers of pawl.v1.WorkerService. Thin: the state of a stream is in delivery/sessions.py."""

    READERS: ClassVar = {"Work": read_frame}
    """Requests that are decoded here, by call: see rpc/handlers.py."""

    def __init__(self, delivery: Delivery, gate: Gate) -> None:
        self.gate = gate
        self._delivery = delivery

    async def Work(self, _: AsyncIterator[Any], context: Context) -> None:
        """One stream: a reader and a writer, until the worker or the server ends it."""
        with self.gate.stream("Work", context):
            await self._work(context)

    async def _work(self, context: Context) -> None:
        try:
            session = await self._open(context)
        except Exception as error:
            await abort(context, error, "Work")
        reader = asyncio.create_task(self._read(session, context), name=f"read {session.conn}")
        writer = asyncio.create_task(self._write(session, context), name=f"write {session.conn}")
        try:
            await asyncio.wait((reader, writer, session.end), return_when=asyncio.FIRST_COMPLETED)
            if not (session.end.done() or writer.done()):
                await self._last_frames(session, reader, writer)
        finally:
            session.close()
            reader.cancel()
            writer.cancel()
        error = _outcome(session, reader)
        if error is not None:
            await abort(context, error, "Work")

    async def _open(self, context: Context) -> WorkSession:
        context.set_trailing_metadata(self.gate.metadata)
        try:
            async with asyncio.timeout(HELLO_S):
                first = await context.read()
        except TimeoutError:
            raise InvalidField("hello", f"did not come within {HELLO_S:g} s") from None
        if isinstance(first, InvalidField):
            raise first
        if first is grpc.aio.EOF:
            raise InvalidField("hello", "is missing: the stream ended before its first frame")
        hello = read_hello(first)
        for at, ref in enumerate(first.hello.workflows):
            if ref.HasField("settings"):
                settings = type_settings(f"hello.workflows[{at}].settings.", ref.settings)
                await self._delivery.engine.types.ensure(ref.workflow_type, settings)
        return self._delivery.open_session(first, hello)

    @staticmethod
    async def _read(session: WorkSession, context: Context) -> None:
        """Takes frames in until the worker's side ends. Raises InvalidField."""
        while True:
            if session.choked:
                await session.relieved()
            frame = await context.read()
            if frame is grpc.aio.EOF:
                session.finish()
                return
            if isinstance(frame, InvalidField):
                raise frame
            session.receive(frame)

    @staticmethod
    async def _write(session: WorkSession, context: Context) -> None:
        """Sends what waits, as one frame each time, until the stream is finished."""
        while (frame := await session.next_frame()) is not None:
            try:
                await context.write(frame)
            except Exception as error:
                STREAM_BROKEN(log, conn=session.conn, why=str(error) or type(error).__name__)
                return
            session.written()

    @staticmethod
    async def _last_frames(
        session: WorkSession, reader: asyncio.Task[None], writer: asyncio.Task[None]
    ) -> None:
        """The worker says nothing more: its commands get their results, unless it broke a rule."""
        if not reader.cancelled() and reader.exception() is None:
            await asyncio.wait((writer, session.end), return_when=asyncio.FIRST_COMPLETED)

    @unary(sheds=False, while_draining=True)
    async def RenewLeases(self, request: pb.RenewLeasesRequest, _: Context) -> pb.RenewLeasesResponse:
        """Renews leases, each on its own."""
        leases = self._leases(request.leases)
        sound = [lease for lease in leases if isinstance(lease, Lease)]
        store = self._delivery.engine.leases
        if request.detach:
            replies = await store.detach_all(sound, check_ordinal("ordinal", request.ordinal, least=0))
        else:
            replies = await store.renew_all(sound)
        response = pb.RenewLeasesResponse()
        _fill_results(response.results, request.leases, leases, replies)
        return response

    @unary(sheds=False, while_draining=True)
    async def AdoptLeases(self, request: pb.AdoptLeasesRequest, _: Context) -> pb.AdoptLeasesResponse:
        """Moves leases to an open stream of the session."""
        check_id("session", request.session)
        leases = self._leases(request.leases)
        session = self._delivery.find(request.session, request.stream_ordinal)
        sound = [
            (key, lease)
            for key, lease in zip(request.leases, leases, strict=True)
            if isinstance(lease, Lease)
        ]
        replies = await self._delivery.engine.leases.adopt_all([lease for _, lease in sound], session.conn)
        for (key, lease), reply in zip(sound, replies, strict=True):
            session.adopted(key, lease, session.conn, reply)
        response = pb.AdoptLeasesResponse()
        _fill_results(response.results, request.leases, leases, replies)
        return response

    @unary(sheds=False, while_draining=True)
    async def Checkpoint(self, request: pb.CheckpointRequest, _: Context) -> pb.CheckpointResponse:
        """Saves a step."""
        return await self._command("checkpoint", request, pb.CheckpointResponse())

    @unary(sheds=False, while_draining=True)
    async def FinishTurn(self, request: pb.FinishTurnRequest, _: Context) -> pb.FinishTurnResponse:
        """Completes a turn."""
        return await self._command("finish", request, pb.FinishTurnResponse())

    @unary(sheds=False, while_draining=True)
    async def FailTurn(self, request: pb.FailTurnRequest, _: Context) -> pb.FailTurnResponse:
        """Ends an attempt that failed."""
        return await self._command("fail", request, pb.FailTurnResponse())

    @unary(sheds=False, while_draining=True)
    async def ReleaseTurn(self, request: pb.ReleaseTurnRequest, _: Context) -> pb.ReleaseTurnResponse:
        """Gives a turn back."""
        return await self._command("release", request, pb.ReleaseTurnResponse())

    async def _command(self, name: str, request: Any, response: R) -> R:
        """One command by itself; `name` is the field of the request that has it."""
        answer = await apply(self._delivery, name, request.lease, request.n, getattr(request, name))
        fill = ACTIONS[name].fill
        if answer is None:
            response.already = True
        elif fill is not None:
            fill(response.result, answer)
        return response

    def _leases(self, keys: Sequence[bytes]) -> list[Lease | InvalidField]:
        if not 0 < len(keys) <= LEASES_PER_REQUEST:
            raise InvalidField("leases", f"has {len(keys)} entries, not 1 to {LEASES_PER_REQUEST}")
        return [self._lease(at, key) for at, key in enumerate(keys)]

    def _lease(self, at: int, key: bytes) -> Lease | InvalidField:
        try:
            return self._delivery.engine.leases.decode(key)
        except InvalidField as error:
            return InvalidField(f"leases[{at}]", error.why)


def _outcome(session: WorkSession, reader: asyncio.Task[None]) -> BaseException | None:
    """Why the stream ended, if not in good order."""
    if reader.done() and not reader.cancelled() and (error := reader.exception()) is not None:
        return error
    return session.end.result()


def _fill_results(
    results: Any, keys: Sequence[bytes], leases: Sequence[Lease | InvalidField], replies: Sequence[Any]
) -> None:
    answers = iter(replies)
    for key, lease in zip(keys, leases, strict=True):
        result = results.add()
        result.lease = key
        if isinstance(lease, InvalidField):
            fill_refusal(result.refusal, lease)
            continue
        reply = next(answers)
        if not isinstance(reply, Exception) and reply.word == "OK":
            fill_ms(result.remaining, reply.remaining_ms)
        else:
            fill_refusal(result.refusal, refused(lease, reply))
