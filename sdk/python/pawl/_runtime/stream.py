"""One work stream: frames out in batches, frames in to the runtime, beats both ways."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pawl._runtime.attempt import Attempt
from pawl._runtime.operation import Operation
from pawl._transport import WorkCall
from pawl.errors import LimitExceeded, ServerError, Unavailable
from pawl.v1.worker_service_pb2 import (
    CommandResult,
    LeasedTurn,
    LeaseEvent,
    ServerHello,
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

    def opened(self, stream: WorkStream) -> None:
        """The server has said hello; nothing else has come from it before."""

    def drain(self, stream: WorkStream) -> None:
        """The server asks to move to another stream."""

    def servers(self, servers: dict[str, str], stream: WorkStream) -> None:
        """The server names the servers of the namespace: addresses by run."""

    def leases_on(self, stream: WorkStream) -> list[bytes]:
        """Leases held on a stream, for its beats."""
        ...


class WorkStream:
    """One stream from hello to end. `expected` is the server's run, if it must be a certain one."""

    def __init__(self, call: WorkCall, ordinal: int, receiver: Receiver, expected: str = "") -> None:
        self.ordinal = ordinal
        self.draining = False
        """True if the stream is to be left."""
        self.opened = asyncio.get_running_loop().create_future()
        """Done once the server has said hello."""
        self.server = ""
        """Id of the server's run."""
        self.expected = expected
        self.servers: dict[str, str] = {}
        """Addresses of servers by run, as this one named them last."""
        self.named: frozenset[bytes] = frozenset()
        """Leases in its first frame."""
        self.handing: set[bytes] = set()
        """Leases that other streams have asked for and not yet got; the stream stays open until they have."""
        self.running = 0
        """Turns delivered here whose handlers run."""
        self.error: ServerError | None = None
        """What the stream ended with."""
        self._call = call
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._out: deque[Attempt | Operation] = deque()
        self._adoptions: deque[tuple[int, bytes]] = deque()
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
        self._heard = 0.0
        self._lost: str | None = None

    @property
    def stranger(self) -> bool:
        """True if another server answers than the one that was expected."""
        return bool(self.expected) and self.server != self.expected

    @property
    def outstanding(self) -> int:
        """Credits that the server may still use."""
        return self._credits - self._delivered

    @property
    def load(self) -> int:
        """Turns that run or may yet come by this stream."""
        return self.outstanding + self.running

    @property
    def silent(self) -> bool:
        """Whether the server has missed a beat."""
        return self._loop.time() - self._heard > 1.25 * self._beat_interval

    # What the runtime asks for.

    def begin(self, hello: WorkHello, credits_now: int) -> None:
        """Says what the first frame is."""
        self._hello, self._credits, self._dirty = hello, credits_now, True

    async def run(self) -> None:
        """Opens the stream and serves it until it ends. Raises the ServerError that it ended with, if any."""
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

    def send_early(self, operation: Operation) -> None:
        """Queues the command of a step that runs, ahead of what its attempt will send."""
        operation.sent_on = self
        self._out.append(operation)
        self.wake()

    def adopt(self, ordinal: int, leases: Sequence[bytes]) -> None:
        """Asks for leases of other streams, by a decision of this number."""
        self._adoptions.extend((ordinal, lease) for lease in leases)
        self.wake()

    def grant(self, count: int) -> None:
        """Lets the server hand out more turns."""
        self._credits += count
        self.wake()

    def end(self) -> None:
        """Asks the server to end the stream after the answers to what was sent."""
        if not self._ending:
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
        if self._adoptions:
            self._add_adoptions(frame)
        if self._out:
            self._add_commands(frame)
        if self._beat_due:
            self._beat_due = False
            self._beat_number += 1
            self._beat_leases = self._receiver.leases_on(self)
            self._add_beat(frame)
        elif self._beat_leases:
            self._add_beat(frame)
        if self._ending and not self._out and not self._adoptions:
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

    def _add_adoptions(self, frame: WorkRequest) -> None:
        for _ in range(min(MAX_ITEMS, len(self._adoptions))):
            ordinal, lease = self._adoptions.popleft()
            if not frame.adoptions or frame.adoptions[-1].ordinal != ordinal:
                frame.adoptions.add(ordinal=ordinal)
            frame.adoptions[-1].leases.append(lease)
        if self._adoptions:
            self._dirty = True

    def _add_commands(self, frame: WorkRequest) -> None:
        count = size = 0
        out, commands = self._out, frame.commands
        while out:
            sender = out[0]
            command = sender.command
            if command is None or sender.sent_on is not self:
                out.popleft()
                continue
            length = command.ByteSize()
            if self._max_frame and length + 64 > self._max_frame:
                out.popleft()
                sender.refuse(_too_large(length, self._max_frame))
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
            self._heard = self._loop.time()
            self._received = frame.frame
            if frame.HasField("hello"):
                self._open(frame.hello)
            if frame.turns:
                self._delivered += len(frame.turns)
                for turn in frame.turns:
                    self._receiver.deliver(turn, self)
                # Tells the server that they arrived, in the frame that carries what their first steps give.
                self.wake()
            for result in frame.results:
                self._receiver.answer(result, self)
            if frame.lease_events or frame.HasField("fleet") or frame.HasField("drain"):
                self._take_news(frame)

    def _take_news(self, frame: WorkResponse) -> None:
        for event in frame.lease_events:
            self._receiver.lease_event(event, self)
        if frame.HasField("fleet"):
            servers = {one.server_run: one.address for one in frame.fleet.servers}
            self._receiver.servers(servers, self)
        if frame.HasField("drain"):
            self._receiver.drain(self)
        self.wake()

    def _open(self, hello: ServerHello) -> None:
        self.server = hello.server_run
        self._max_frame = hello.max_frame_bytes
        self._beat_interval = hello.beat_interval.ToTimedelta().total_seconds() or DEFAULT_BEAT
        self._plan_beat()
        if not self.opened.done():
            self.opened.set_result(None)
            self._receiver.opened(self)
        self.wake()

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
