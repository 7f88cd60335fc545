"""One work stream: frames out in batches, frames in to the runtime, beats both ways."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from pawl._runtime.attempt import Attempt
from pawl._transport import WorkCall
from pawl.errors import LimitExceeded, ServerError, Unavailable
from pawl.v1.worker_service_pb2 import (
    CommandResult,
    LeasedTurn,
    LeaseEvent,
    WorkHello,
    WorkRequest,
    WorkResponse,
)

log = logging.getLogger("pawl.worker")

MAX_ITEMS = 256
MAX_BYTES = 256 * 1024
BEAT_LEASES = 2_000
"""Leases of a beat in one frame: with the longest ids they take some 300 KiB."""
DEFAULT_BEAT = 2.0
MAX_SILENT_BEATS = 3


class Receiver(Protocol):
    """What a stream hands its frames to."""

    def deliver(self, turn: LeasedTurn, stream: WorkStream) -> None:
        """A turn was leased to this worker."""

    def answer(self, result: CommandResult, stream: WorkStream) -> None:
        """A command was answered."""

    def lease_event(self, event: LeaseEvent, stream: WorkStream) -> None:
        """A lease was adopted, or ended."""

    def drain(self, stream: WorkStream) -> None:
        """The server asks to move to another stream."""

    def leases_on(self, stream: WorkStream) -> list[bytes]:
        """Leases held on a stream, for its beats."""
        ...


class WorkStream:
    """One stream from hello to end."""

    def __init__(self, call: WorkCall, ordinal: int, receiver: Receiver) -> None:
        self.ordinal = ordinal
        self.draining = False
        self.opened = asyncio.get_running_loop().create_future()
        """Done once the server has said hello."""
        self.server = ""
        """Id of the server's run."""
        self.error: ServerError | None = None
        """What the stream ended with."""
        self._call = call
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._out: deque[Attempt] = deque()
        self._hello: WorkHello | None = None
        self._received = 0
        self._credits = 0
        self._delivered = 0
        self._dirty = False
        self._waker: asyncio.Future[None] | None = None
        self._ending = False
        self._max_frame = 0
        self._beat_interval = DEFAULT_BEAT
        self._beat_number = 0
        self._beat_due = False
        self._beat_leases: list[bytes] = []
        self._next_beat = 0.0
        self._beat_timer: asyncio.TimerHandle | None = None
        self._silent = 0
        self._lost: str | None = None

    # What the runtime asks for.

    async def run(self, hello: WorkHello, credits_now: int) -> None:
        """Opens the stream and serves it until it ends. Raises the ServerError that it ended with, if any."""
        self._hello, self._credits, self._dirty = hello, credits_now, True
        writer = self._loop.create_task(self._write_frames())
        try:
            await self._read_frames()
            if self._lost:
                raise Unavailable(self._lost)
        finally:
            writer.cancel()
            if self._beat_timer is not None:
                self._beat_timer.cancel()
            await self._call.close()

    def send(self, attempt: Attempt) -> None:
        """Queues the attempt's command."""
        attempt.sent_on = self
        self._out.append(attempt)
        self.wake()

    def offer(self, slots: int) -> None:
        """Says how many turns the worker could take now, and grants what the server does not know of."""
        wanted = self._delivered + slots
        if wanted > self._credits:
            self._credits = wanted
            self.wake()

    def end(self) -> None:
        """Asks the server to end the stream after the answers to what was sent."""
        self._ending = True
        self.wake()

    async def cut(self, why: str = "") -> None:
        """Gives the stream up."""
        self._lost = self._lost or why
        await self._call.close()

    def wake(self) -> None:
        """Has a frame sent in the next step of the event loop."""
        self._dirty = True
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    # Out.

    async def _write_frames(self) -> None:
        while True:
            if not self._dirty:
                self._waker = self._loop.create_future()
                await self._waker
            else:
                # What became due during the last write: lets the handlers of this tick add theirs.
                await asyncio.sleep(0)
            if not await self._call.write(self._next_frame()):
                return

    def _next_frame(self) -> WorkRequest:
        frame = WorkRequest(received_through=self._received, credits_total=self._credits)
        self._dirty = False
        if self._hello is not None:
            frame.hello.CopyFrom(self._hello)
            self._hello = None
            return frame
        if self._out:
            self._add_commands(frame)
        if self._beat_due:
            self._beat_due = False
            self._beat_number += 1
            self._beat_leases = self._receiver.leases_on(self)
            self._add_beat(frame)
        elif self._beat_leases:
            self._add_beat(frame)
        if self._ending and not self._out:
            frame.end = True
        return frame

    def _add_beat(self, frame: WorkRequest) -> None:
        """The next part of a beat; all leases of a worker may not fit into one frame."""
        part, self._beat_leases = self._beat_leases[:BEAT_LEASES], self._beat_leases[BEAT_LEASES:]
        frame.beat.number = self._beat_number
        frame.beat.leases.extend(part)
        if self._beat_leases:
            frame.beat.partial = True
            self._dirty = True

    def _add_commands(self, frame: WorkRequest) -> None:
        count = size = 0
        out, commands = self._out, frame.commands
        while out:
            attempt = out[0]
            command = attempt.command
            if command is None or attempt.sent_on is not self:
                out.popleft()
                continue
            length = command.ByteSize()
            if self._max_frame and length + 64 > self._max_frame:
                out.popleft()
                attempt.refuse(_too_large(length, self._max_frame))
                continue
            if count and (count >= MAX_ITEMS or size + length > MAX_BYTES):
                self._dirty = True
                return
            out.popleft()
            commands.append(command)
            count += 1
            size += length

    # In.

    async def _read_frames(self) -> None:
        while (frame := await self._call.read()) is not None:
            self._silent = 0
            self._received = frame.frame
            if frame.turns:
                self._delivered += len(frame.turns)
                for turn in frame.turns:
                    self._receiver.deliver(turn, self)
                # Tells the server that they arrived, in the frame that carries what their first steps give.
                self.wake()
            for result in frame.results:
                self._receiver.answer(result, self)
            if frame.lease_events or frame.HasField("hello") or frame.HasField("drain"):
                self._take_news(frame)

    def _take_news(self, frame: WorkResponse) -> None:
        if frame.HasField("hello"):
            self._open(frame)
        for event in frame.lease_events:
            self._receiver.lease_event(event, self)
        if frame.HasField("drain"):
            self.draining = True
            self._receiver.drain(self)
        self.wake()

    def _open(self, frame: WorkResponse) -> None:
        hello = frame.hello
        self.server = hello.server_run
        self._max_frame = hello.max_frame_bytes
        self._beat_interval = hello.beat_interval.ToTimedelta().total_seconds() or DEFAULT_BEAT
        self._plan_beat()
        if not self.opened.done():
            self.opened.set_result(None)

    # Beats.

    def _plan_beat(self) -> None:
        self._next_beat = self._loop.time() + self._beat_interval
        self._beat_timer = self._loop.call_at(self._next_beat, self._beat)

    def _beat(self) -> None:
        if self._loop.time() - self._next_beat > self._beat_interval / 2:
            # The loop was blocked: frames may wait unread, so the silence says nothing about the server.
            self._silent = 0
        elif self._silent >= MAX_SILENT_BEATS:
            log.warning("no frame from the server for %d beats; opening another stream", self._silent)
            self._loop.create_task(self.cut("the server was silent"))
            return
        self._silent += 1
        self._beat_due = True
        self.wake()
        self._plan_beat()


def _too_large(size: int, limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"a command of {size} bytes does not fit the server's largest frame of {limit} bytes",
        reason="LIMIT_EXCEEDED",
        metadata={"limit": "frame_bytes", "value": str(size), "max": str(limit)},
    )
