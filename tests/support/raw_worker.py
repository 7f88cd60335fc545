"""A worker made of stubs of pawl.v1 and nothing else, in the ways in which one can be written.

    async with by_calls(api) as worker:
        turn = await worker.turn()
        answer = await worker.do(turn, finish(state=b"1"))

All of them take and end turns with the same calls here, so that a test can be run with each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import grpc.aio
from google.protobuf.json_format import MessageToDict

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.error_pb2 import Reason
from pawl.v1.workflow_type_pb2 import WorkflowType
from tests.support.api import CALL_S, Api, Problem
from tests.support.stream import UNNUMBERED, Stream, workflows

TIMES = ("finishTime", "wakeTime", "dueTime", "deadline", "remaining", "heartbeatRemaining")


class Answer(NamedTuple):
    """What a command was answered: the reason if it was refused; otherwise `already`, or the details."""

    reason: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    already: bool = False
    detail: tuple[tuple[str, Any], ...] = ()
    """By JSON name; times are True."""

    @property
    def ok(self) -> bool:
        """Whether it was applied, now or earlier."""
        return not self.reason

    @classmethod
    def refused(cls, reason: str, metadata: Any) -> Answer:
        """A refusal."""
        return cls(reason=reason, metadata=tuple(sorted(metadata.items())))

    @classmethod
    def applied(cls, already: bool, detail: Any) -> Answer:
        """A success, with the message of its details if there is one."""
        shown = {} if detail is None else MessageToDict(detail)
        return cls(already=already, detail=tuple((k, k in TIMES or v) for k, v in sorted(shown.items())))


class Worker(Protocol):
    """One way of being a worker. It holds one turn at a time at most, unless `credit` raises that."""

    async def turn(self) -> pb.LeasedTurn:
        """The next turn, received."""
        ...

    async def do(self, lease: pb.LeasedTurn | bytes, action: dict[str, Any], n: int | None = None) -> Answer:
        """One command, with the next number of its lease or the one given."""
        ...


def key_of(lease: pb.LeasedTurn | bytes) -> bytes:
    """The bytes that name a lease."""
    return lease if isinstance(lease, bytes) else lease.lease


def _named(action: dict[str, Any], result: pb.CommandResult) -> None:
    """A command without a number is named by the details of its result, also if it was refused."""
    for name in UNNUMBERED:
        if name in action:
            body, detail = action[name], getattr(result, name)
            assert (result.n, result.WhichOneof("detail")) == (0, name), result
            assert detail.position == body.position
            assert getattr(detail, "sequence", 0) == getattr(body, "sequence", 0)


class ByStream:
    """A work stream for everything."""

    def __init__(self, api: Api, **hello: Any) -> None:
        self.stream = Stream(api, credits=1, **hello)
        self._taken = 0

    async def __aenter__(self) -> ByStream:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.stream.__aexit__(*error)

    async def turn(self) -> pb.LeasedTurn:
        """The next turn of the stream, whose frame is received at once."""
        self._taken += 1
        if self._taken > self.stream.credits_total:
            await self.stream.credit(1)
        return await self.stream.turn()

    async def do(self, lease: pb.LeasedTurn | bytes, action: dict[str, Any], n: int | None = None) -> Answer:
        """A command on the stream."""
        result = await self.stream.command(lease, action, n)
        if result.HasField("refusal"):
            _named(action, result)
            reason = Reason.Name(result.refusal.reason).removeprefix("REASON_")
            return Answer.refused(reason, result.refusal.metadata)
        _named(action, result)
        detail = result.WhichOneof("detail")
        return Answer.applied(result.already, getattr(result, detail) if detail else None)


class Calls:
    """Commands by unary calls."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._numbers: dict[bytes, int] = {}

    async def do(self, lease: pb.LeasedTurn | bytes, action: dict[str, Any], n: int | None = None) -> Answer:
        """A command by a call of its own."""
        key = key_of(lease)
        if any(name in action for name in UNNUMBERED):
            return await self._unnumbered(key, action)
        if n is None:
            n = self._numbers.get(key, 0) + 1
        self._numbers[key] = n
        workers = self.api.workers
        calls: dict[str, tuple[Any, Any]] = {
            "checkpoint": (workers.Checkpoint, pb.CheckpointRequest),
            "finish": (workers.FinishTurn, pb.FinishTurnRequest),
            "fail": (workers.FailTurn, pb.FailTurnRequest),
            "release": (workers.ReleaseTurn, pb.ReleaseTurnRequest),
            "sleep": (workers.Sleep, pb.SleepRequest),
            "defer": (workers.DeferTurn, pb.DeferTurnRequest),
            "wait_signal": (workers.WaitSignal, pb.WaitSignalRequest),
        }
        unknown = self.api.channel.unary_unary("/pawl.v1.WorkerService/Juggle")
        try:
            if not action:
                await unknown(b"", timeout=CALL_S)
            [(name, body)] = action.items()
            call, request = calls[name]
            answer = await call(request(lease=key, n=n, **{name: body}), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            problem = Problem.of(error)
            return Answer.refused(problem.reason, problem.metadata)
        has_detail = "result" in answer.DESCRIPTOR.fields_by_name and answer.HasField("result")
        return Answer.applied(answer.already, answer.result if has_detail else None)

    async def _unnumbered(self, key: bytes, action: dict[str, Any]) -> Answer:
        workers = self.api.workers
        calls: dict[str, tuple[Any, Any]] = {
            "start_operation": (workers.StartOperation, pb.StartOperationRequest),
            "report_progress": (workers.ReportProgress, pb.ReportProgressRequest),
        }
        [(name, body)] = action.items()
        call, request = calls[name]
        try:
            answer = await call(request(lease=key, **{name: body}), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            problem = Problem.of(error)
            return Answer.refused(problem.reason, problem.metadata)
        return Answer.applied(False, answer.result)

    async def received(self, turn: pb.LeasedTurn) -> pb.LeasedTurn:
        """Tells the server that the turn has arrived."""
        request = pb.RenewLeasesRequest(leases=[turn.lease])
        answer = await self.api.workers.RenewLeases(request, timeout=CALL_S)
        assert not answer.results[0].HasField("refusal"), answer
        return turn


class ByPolls(Calls):
    """PollTurn and unary calls; nothing else is open."""

    def __init__(self, api: Api, *types: str, wait_ms: int = 10_000) -> None:
        super().__init__(api)
        self.request = pb.PollTurnRequest(workflows=workflows(*types), session="polls")
        self.request.wait.FromMilliseconds(wait_ms)

    async def __aenter__(self) -> ByPolls:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def poll(self) -> pb.LeasedTurn | None:
        """One PollTurn: its turn, as it was handed out."""
        answer = await self.api.workers.PollTurn(self.request, timeout=CALL_S)
        return answer.turn if answer.HasField("turn") else None

    async def turn(self) -> pb.LeasedTurn:
        """The turn of a poll, received."""
        turn = await self.poll()
        assert turn is not None, "no turn within the wait"
        return await self.received(turn)


class ByClaim(Calls):
    """A Claim stream and unary calls."""

    def __init__(
        self,
        api: Api,
        *types: str,
        session: str = "claims",
        ordinal: int = 0,
        max_turns: int = 1,
        renew: bool = False,
        leases: Sequence[bytes] = (),
        settings: WorkflowType | None = None,
        **hello: Any,
    ) -> None:
        super().__init__(api)
        self.frames: list[pb.ClaimResponse] = []
        self._renews = renew
        self._request = pb.ClaimRequest(
            hello=pb.WorkHello(
                session=session,
                stream_ordinal=ordinal,
                sdk="by-hand",
                workflows=[
                    pb.WorkflowRef(workflow_type=ref.workflow_type, version=ref.version, settings=settings)
                    for ref in workflows(*types)
                ],
                leases=leases,
                **hello,
            ),
            max_turns=max_turns,
            renew_while_open=renew,
        )
        self._queues: dict[str, asyncio.Queue[Any]] = {
            name: asyncio.Queue() for name in ("turns", "lease_events", "beats", "drains")
        }
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self.server: pb.ServerHello | None = None

    async def __aenter__(self) -> ByClaim:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def open(self) -> None:
        """Opens the stream and waits for the server's hello."""
        self._call = self.api.workers.Claim(self._request)
        first = await asyncio.wait_for(self._call.read(), CALL_S)
        assert isinstance(first, pb.ClaimResponse), first
        self.server = first.hello
        self._reader = asyncio.create_task(self._read(first))

    async def _read(self, frame: Any) -> None:
        while frame is not grpc.aio.EOF:
            self.frames.append(frame)
            for name in ("turns", "lease_events"):
                for item in getattr(frame, name):
                    self._queues[name].put_nowait(item)
            if frame.HasField("beat"):
                self._queues["beats"].put_nowait(frame.beat)
            if frame.HasField("drain"):
                self._queues["drains"].put_nowait(frame.drain)
            try:
                frame = await self._call.read()
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                return

    async def _next(self, name: str) -> Any:
        try:
            return await asyncio.wait_for(self._queues[name].get(), CALL_S)
        except TimeoutError:
            raise AssertionError(f"no {name} within {CALL_S} s; {len(self.frames)} frames came") from None

    async def handed(self) -> pb.LeasedTurn:
        """The next turn, as it was handed out."""
        return await self._next("turns")

    async def turn(self) -> pb.LeasedTurn:
        """The next turn; received by a renewal, unless the server sees to that."""
        turn = await self.handed()
        return turn if self._renews else await self.received(turn)

    async def event(self) -> pb.LeaseEvent:
        """The next lease event."""
        return await self._next("lease_events")

    async def beat(self) -> pb.ServerBeat:
        """The next beat."""
        return await self._next("beats")

    async def drained(self) -> pb.Drain:
        """The server asks to move."""
        return await self._next("drains")

    def waiting(self, name: str) -> int:
        """How many of a kind came that nobody has taken."""
        return self._queues[name].qsize()

    def cut(self) -> None:
        """Ends the stream as a client that dies does."""
        if self._call is not None:
            self._call.cancel()

    async def code(self) -> str:
        """The status code's name, once the stream has ended."""
        return (await asyncio.wait_for(self._call.code(), CALL_S)).name

    async def problem(self) -> Problem:
        """Why the server refused, or ended the stream."""
        if self._call is None:
            self._call = self.api.workers.Claim(self._request)
        await asyncio.wait_for(self._call.code(), CALL_S)
        if self._reader is not None:
            await asyncio.wait([self._reader])
        try:
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return Problem.of(error)
        raise AssertionError("the stream ended in good order")
