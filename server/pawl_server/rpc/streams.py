"""Streams of workers over gRPC: reading and writing frames. What they mean is in delivery/."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio
from google.protobuf.message import DecodeError

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery import WorkSession
from pawl_server.domain.errors import InvalidField
from pawl_server.domain.limits import FRAME_BYTES
from pawl_server.log_lines import STREAM_BROKEN
from pawl_server.rpc.call import Context
from pawl_server.rpc.status import abort

log = logging.getLogger(__name__)

HELLO_S = 10.0
"""How long a worker has for its first frame."""

GONE_S = 0.1
"""How long gRPC may take to cancel the call of a worker that is gone."""


def read_frame(data: bytes) -> pb.WorkRequest | InvalidField:
    """A frame of a worker, or why it is none."""
    if len(data) > FRAME_BYTES:
        return InvalidField("frame", f"has {len(data)} bytes, at most {FRAME_BYTES}")
    try:
        return pb.WorkRequest.FromString(data)
    except DecodeError as error:
        return InvalidField("frame", f"can't be decoded: {error}")


async def first_frame(context: Context) -> pb.WorkRequest:
    """The first frame of a worker. Raises InvalidField."""
    try:
        async with asyncio.timeout(HELLO_S):
            first = await context.read()
    except TimeoutError:
        raise InvalidField("hello", f"did not come within {HELLO_S:g} s") from None
    if isinstance(first, InvalidField):
        raise first
    if first is grpc.aio.EOF:
        raise InvalidField("hello", "is missing: the stream ended before its first frame")
    return first


async def serve(session: WorkSession, context: Context, where: str) -> None:
    """Serves an open stream until one of both sides ends it; nothing is read from a client that only listens.

    `where` is the name of the call. Ends the call by itself if not in good order.
    """
    writer = asyncio.create_task(_write(session, context), name=f"write {session.conn}")
    reader: asyncio.Task[None] | None = None
    if not session.listens:
        reader = asyncio.create_task(_read(session, context), name=f"read {session.conn}")
    tasks = [writer] if reader is None else [writer, reader]
    try:
        await asyncio.wait((*tasks, session.end), return_when=asyncio.FIRST_COMPLETED)
        if reader is not None and not (session.end.done() or writer.done()):
            await _last_frames(session, reader, writer)
    finally:
        session.close()
        for task in tasks:
            task.cancel()
    error = _outcome(session, reader)
    if error is not None:
        await abort(context, error, where)


async def _read(session: WorkSession, context: Context) -> None:
    """Takes frames in until the worker's side ends. Raises InvalidField."""
    while True:
        if session.choked:
            await session.relieved()
        frame = await context.read()
        if frame is grpc.aio.EOF:
            if not session.ending:
                # A stream that broke reads like one that its worker has ended, until it is cancelled.
                await asyncio.sleep(GONE_S)
            session.finish()
            return
        if isinstance(frame, InvalidField):
            raise frame
        session.receive(frame)


async def _write(session: WorkSession, context: Context) -> None:
    """Sends what waits, as one frame each time, until the stream is finished."""
    while (frame := await session.next_frame()) is not None:
        try:
            await context.write(frame)
        except Exception as error:
            STREAM_BROKEN(log, conn=session.conn, why=str(error) or type(error).__name__)
            return
        session.written()


async def _last_frames(session: WorkSession, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
    """The worker says nothing more: its commands get their results, unless it broke a rule."""
    if not reader.cancelled() and reader.exception() is None:
        await asyncio.wait((writer, session.end), return_when=asyncio.FIRST_COMPLETED)


def _outcome(session: WorkSession, reader: asyncio.Task[None] | None) -> BaseException | None:
    """Why the stream ended, if not in good order."""
    if reader is not None and reader.done() and not reader.cancelled():
        error = reader.exception()
        if error is not None:
            return error
    return session.end.result()
