"""A worker by hand over a real work stream: it knows pawl.v1 and nothing else.

    async with Stream(api, credits=1) as stream:
        turn = await stream.turn()
        result = await stream.command(turn, finish(state=b"1"))

A task takes frames in as they come; `turn`, `result`, `event` and `beat` wait for the next of their kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc.aio

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.operation_pb2 import ON_RESTART_UNSPECIFIED, OnRestart, Progress
from tests.support.api import CALL_S, TYPE, VERSION, Api, Problem, json


def workflows(*names: str) -> list[pb.WorkflowRef]:
    """Workflow types in the usual version."""
    return [pb.WorkflowRef(workflow_type=name, version=VERSION) for name in names or (TYPE,)]


def checkpoint(key: str, output: bytes = b"out", kind: str = "") -> dict[str, Any]:
    """A Checkpoint command."""
    return {"checkpoint": pb.Checkpoint(key=key, kind=kind, output=json(output))}


def finish(
    state: bytes | None = None,
    reply: bytes | None = b"done",
    *,
    again: bytes | None = None,
    step: tuple[str, bytes] | None = None,
) -> dict[str, Any]:
    """A Finish command."""
    body = pb.Finish()
    if state is not None:
        body.state.CopyFrom(json(state))
    if reply is not None:
        body.reply.CopyFrom(json(reply))
    if again is not None:
        body.continuation.CopyFrom(json(again))
    if step is not None:
        body.last_step.key = step[0]
        body.last_step.output.CopyFrom(json(step[1]))
    return {"finish": body}


def fail(
    reason: str = "BROKEN",
    *,
    final: bool = False,
    delay_ms: int | None = None,
    last: pb.ReportProgress | None = None,
) -> dict[str, Any]:
    """A Fail command; `last` is the report that comes with it."""
    body = pb.Fail()
    body.failure.reason = reason
    body.failure.message = "it broke"
    body.failure.non_retryable = final
    if delay_ms is not None:
        body.retry_delay.FromMilliseconds(delay_ms)
    if last is not None:
        body.last_progress.CopyFrom(last)
    return {"fail": body}


def release() -> dict[str, Any]:
    """A Release command."""
    return {"release": pb.Release()}


def sleep(key: str = "nap", ms: int = 60_000) -> dict[str, Any]:
    """A Sleep command."""
    body = pb.Sleep(key=key)
    body.duration.FromMilliseconds(ms)
    return {"sleep": body}


def wait_signal(
    key: str = "wait", name: str = "go", ms: int | None = None, *, callback: str = ""
) -> dict[str, Any]:
    """A WaitSignal command; for the callback of a key if one is given."""
    body = pb.WaitSignal(key=key, name="" if callback else name, callback_key=callback)
    if ms is not None:
        body.timeout.FromMilliseconds(ms)
    return {"wait_signal": body}


def defer(ms: int = 60_000, reason: str = "") -> dict[str, Any]:
    """A Defer command."""
    body = pb.Defer(reason=reason)
    body.delay.FromMilliseconds(ms)
    return {"defer": body}


def start_operation(
    position: int = 1,
    key: str = "step",
    kind: str = "",
    *,
    timeout_ms: int | None = 60_000,
    heartbeat_ms: int | None = None,
    on_restart: OnRestart.ValueType = ON_RESTART_UNSPECIFIED,
) -> dict[str, Any]:
    """A StartOperation command."""
    body = pb.StartOperation(position=position, key=key, kind=kind, on_restart=on_restart)
    if timeout_ms is not None:
        body.timeout.FromMilliseconds(timeout_ms)
    if heartbeat_ms is not None:
        body.heartbeat_timeout.FromMilliseconds(heartbeat_ms)
    return {"start_operation": body}


def report_progress(
    sequence: int = 1,
    position: int = 1,
    key: str = "step",
    *,
    phase: str | None = None,
    done: int = 0,
    total: int | None = None,
    unit: str = "",
    details: bytes | None = None,
    resume: bytes | None = None,
) -> dict[str, Any]:
    """A ReportProgress command; with a `phase` it has progress."""
    body = pb.ReportProgress(position=position, key=key, sequence=sequence)
    if phase is not None:
        body.progress.CopyFrom(Progress(phase=phase, done=done, total=total, unit=unit))
    if details is not None:
        body.details.CopyFrom(json(details))
    if resume is not None:
        body.resume.CopyFrom(json(resume))
    return {"report_progress": body}


UNNUMBERED = ("start_operation", "report_progress")


class Stream:
    """One work stream. `acks` False never says what it received, `beats` False never answers a server's beat.

    `frames` are all frames that came, `credits_total` and `received` what the next frame will say, `fleet`
    the servers' addresses by run, as the server last named them.
    """

    def __init__(
        self,
        api: Api,
        *,
        session: str = "worker",
        ordinal: int = 1,
        credits: int = 0,
        types: Sequence[str] = (),
        acks: bool = True,
        beats: bool = True,
        leases: Sequence[bytes] = (),
        **hello: Any,
    ) -> None:
        self.frames: list[pb.WorkResponse] = []
        self.acks = acks
        self.beats = beats
        self.credits_total = credits
        self.received = 0
        self.held: list[bytes] = []
        self.hello = pb.WorkHello(
            session=session,
            stream_ordinal=ordinal,
            sdk="by-hand",
            workflows=workflows(*types),
            leases=leases,
            **hello,
        )
        self.server: pb.ServerHello | None = None
        self.fleet: dict[str, str] = {}
        self._call = api.workers.Work()
        self._queues: dict[str, asyncio.Queue[Any]] = {
            name: asyncio.Queue() for name in ("turns", "results", "lease_events", "beats", "drains")
        }
        self._numbers: dict[bytes, int] = {}
        self._beat = self._answered = 0
        self._writing = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Stream:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def open(self) -> None:
        """Says hello and waits for the server's."""
        await self.say(hello=self.hello)
        first = await asyncio.wait_for(self._call.read(), CALL_S)
        assert isinstance(first, pb.WorkResponse), first
        assert first.frame == 1
        self.server = first.hello
        self._reader = asyncio.create_task(self._read(first))

    async def _read(self, first: pb.WorkResponse) -> None:
        frame: Any = first
        while frame is not grpc.aio.EOF:
            self._take_in(frame)
            try:
                if frame.HasField("beat") and self.beats and self._unasked(frame.beat.number):
                    await self.beat_now()
                elif self.acks and frame.turns:
                    await self.say()
                frame = await self._call.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                return

    def _unasked(self, number: int) -> bool:
        """Whether a beat of the server is not the answer to one of ours."""
        answer, self._answered = number != self._answered, number
        return not answer

    def _take_in(self, frame: pb.WorkResponse) -> None:
        assert frame.frame == len(self.frames) + 1, "frames are numbered without gaps"
        self.frames.append(frame)
        if self.acks:
            self.received = frame.frame
            self.held += [turn.lease for turn in frame.turns]
        for name in ("turns", "results", "lease_events"):
            for item in getattr(frame, name):
                self._queues[name].put_nowait(item)
        if frame.HasField("fleet"):
            self.fleet = {one.server_run: one.address for one in frame.fleet.servers}
        if frame.HasField("beat"):
            self._queues["beats"].put_nowait(frame.beat)
        if frame.HasField("drain"):
            self._queues["drains"].put_nowait(frame.drain)

    async def say(self, **fields: Any) -> None:
        """Sends a frame; what every frame carries is filled in unless given."""
        async with self._writing:
            fields = {"received_through": self.received, "credits_total": self.credits_total, **fields}
            await self._call.write(pb.WorkRequest(**fields))

    async def credit(self, count: int) -> None:
        """Grants more turns."""
        self.credits_total += count
        await self.say()

    async def beat_now(self, leases: Sequence[bytes] | None = None) -> None:
        """Sends a beat with the leases held, or the ones given."""
        self._beat += 1
        listed = self.held if leases is None else leases
        await self.say(beat=pb.Beat(number=self._beat, leases=listed))

    async def adopt(self, ordinal: int, *leases: bytes) -> None:
        """Asks for leases of other streams, by a decision of this number."""
        self.held += leases
        await self.say(adoptions=[pb.Adoption(ordinal=ordinal, leases=leases)])

    async def _next(self, name: str) -> Any:
        try:
            return await asyncio.wait_for(self._queues[name].get(), CALL_S)
        except TimeoutError:
            raise AssertionError(f"no {name} within {CALL_S} s; {len(self.frames)} frames came") from None

    async def turn(self) -> pb.LeasedTurn:
        """The next turn."""
        return await self._next("turns")

    async def turns(self, count: int) -> list[pb.LeasedTurn]:
        """The next `count` turns."""
        return [await self.turn() for _ in range(count)]

    async def result(self) -> pb.CommandResult:
        """The next result."""
        return await self._next("results")

    async def event(self) -> pb.LeaseEvent:
        """The next lease event."""
        return await self._next("lease_events")

    async def beat(self) -> pb.ServerBeat:
        """The next beat of the server."""
        return await self._next("beats")

    async def drained(self) -> pb.Drain:
        """The server asks to move."""
        return await self._next("drains")

    def waiting(self, name: str) -> int:
        """How many of a kind came that nobody has taken."""
        return self._queues[name].qsize()

    def build(self, lease: pb.LeasedTurn | bytes, action: dict[str, Any], n: int | None = None) -> pb.Command:
        """A command with the next number of its lease, or the one given; 0 for kinds without numbers."""
        key = lease if isinstance(lease, bytes) else lease.lease
        if any(name in action for name in UNNUMBERED):
            return pb.Command(lease=key, n=n or 0, **action)
        if n is None:
            n = self._numbers.get(key, 0) + 1
        self._numbers[key] = n
        if action and "checkpoint" not in action and key in self.held:
            self.held.remove(key)
        return pb.Command(lease=key, n=n, **action)

    async def command(
        self, lease: pb.LeasedTurn | bytes, action: dict[str, Any], n: int | None = None, **fields: Any
    ) -> pb.CommandResult:
        """Sends one command and waits for its result; no other may be under way."""
        await self.say(commands=[self.build(lease, action, n)], **fields)
        return await self.result()

    def cut(self) -> None:
        """Ends the stream as a worker that dies does."""
        self._call.cancel()

    async def done(self) -> str:
        """Ends the stream in good order; the status code's name."""
        await self.say(end=True)
        return (await asyncio.wait_for(self._call.code(), CALL_S)).name

    async def code(self) -> str:
        """The status code's name, once the stream has ended."""
        return (await asyncio.wait_for(self._call.code(), CALL_S)).name

    async def problem(self) -> Problem:
        """Why the server refused to go on."""
        await asyncio.wait_for(self._call.code(), CALL_S)
        if self._reader is not None:
            await asyncio.wait([self._reader])
        try:
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return Problem.of(error)
        raise AssertionError("the stream ended in good order")


async def started(
    api: Api, stream: Stream, instance_id: str = "a", messages: int = 1, **spec: Any
) -> pb.LeasedTurn:
    """Makes an instance with messages and takes its first turn."""
    await api.create(instance_id, **spec)
    for number in range(messages):
        await api.send(instance_id, f"m{number + 1}")
    return await stream.turn()


def refusal(result: pb.CommandResult | pb.LeaseEvent) -> tuple[str, dict[str, str]]:
    """Reason and metadata of a refused command or a lease that ended; ("", {}) otherwise."""
    from pawl.v1.error_pb2 import Reason

    given = result.refusal if isinstance(result, pb.CommandResult) else result.ended
    if not given.reason:
        return "", {}
    return Reason.Name(given.reason).removeprefix("REASON_"), dict(given.metadata)
