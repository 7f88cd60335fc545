"""WorkerService: streams and polls that hand out turns, and calls for leases of any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery import Delivery, read_claim, read_hello, read_poll
from pawl_server.delivery.actions import ACTIONS
from pawl_server.delivery.frames import fill_ms, fill_refusal
from pawl_server.delivery.unary import apply
from pawl_server.domain.errors import InvalidField, Refused
from pawl_server.domain.ids import check_id, check_ordinal
from pawl_server.domain.lease import Lease
from pawl_server.domain.limits import LEASES_PER_REQUEST, POLL_WAIT_MS
from pawl_server.domain.times import duration_ms
from pawl_server.engine.refusals import refused
from pawl_server.rpc.call import Context, Gate, time_left, unary
from pawl_server.rpc.convert import type_settings
from pawl_server.rpc.status import abort
from pawl_server.rpc.streams import first_frame, read_frame, serve

ANSWER_S = 0.1
"""Kept back of a caller's time, so that the answer to a poll still reaches it."""

R = TypeVar("R", bound=Any)


class WorkerService:
    """Handlers of pawl.v1.WorkerService. Thin: the state of a stream is in delivery/sessions.py."""

    READERS: ClassVar = {"Work": read_frame}
    """Requests that are decoded here, by call: see rpc/handlers.py."""

    def __init__(self, delivery: Delivery, gate: Gate) -> None:
        self.gate = gate
        self._delivery = delivery

    async def Work(self, _: AsyncIterator[Any], context: Context) -> None:
        """One stream, until the worker or the server ends it."""
        with self.gate.stream("Work", context):
            await self._work(context)

    async def _work(self, context: Context) -> None:
        context.set_trailing_metadata(self.gate.metadata)
        try:
            first = await first_frame(context)
            hello = read_hello(first)
            await self._ensure("hello.workflows", first.hello.workflows)
            session = self._delivery.open_session(first, hello)
        except Exception as error:
            await abort(context, error, "Work")
        await serve(session, context, "Work")

    async def Claim(self, request: pb.ClaimRequest, context: Context) -> None:
        """One stream of a client that only listens, until it or the server ends it."""
        with self.gate.stream("Claim", context):
            await self._claim(request, context)

    async def _claim(self, request: pb.ClaimRequest, context: Context) -> None:
        context.set_trailing_metadata(self.gate.metadata)
        try:
            if isinstance(request, Refused):
                raise request
            hello = read_claim(request)
            await self._ensure("hello.workflows", request.hello.workflows)
            if not hello.ordinal:
                hello = hello._replace(ordinal=await self._delivery.engine.leases.time_ms())
            session = self._delivery.open_claim(
                hello, max_turns=request.max_turns, renews=request.renew_while_open
            )
        except Exception as error:
            await abort(context, error, "Claim")
        await serve(session, context, "Claim")

    async def _ensure(self, field: str, workflows: Iterable[pb.WorkflowRef]) -> None:
        """Stores the settings of types that have none yet, and has all of them listed."""
        for at, ref in enumerate(workflows):
            if ref.HasField("settings"):
                settings = type_settings(f"{field}[{at}].settings.", ref.settings)
                await self._delivery.engine.types.ensure(ref.workflow_type, settings)
            else:
                self._delivery.engine.types.see(ref.workflow_type)

    @unary()
    async def PollTurn(self, request: pb.PollTurnRequest, context: Context) -> pb.PollTurnResponse:
        """Waits for one turn."""
        types = read_poll(request)
        wait_ms = duration_ms("wait", request.wait, 0, POLL_WAIT_MS)
        await self._ensure("workflows", request.workflows)
        left = time_left(context)
        wait_s = wait_ms / 1000 if left is None else min(wait_ms / 1000, left - min(ANSWER_S, left / 10))
        with self.gate.wait():
            turn = await self._delivery.polls.take(types, wait_s)
        return pb.PollTurnResponse(turn=turn)

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
    async def Sleep(self, request: pb.SleepRequest, _: Context) -> pb.SleepResponse:
        """Saves a sleep and gives the turn back until it is over."""
        return await self._command("sleep", request, pb.SleepResponse())

    @unary(sheds=False, while_draining=True)
    async def DeferTurn(self, request: pb.DeferTurnRequest, _: Context) -> pb.DeferTurnResponse:
        """Puts a turn off."""
        return await self._command("defer", request, pb.DeferTurnResponse())

    @unary(sheds=False, while_draining=True)
    async def WaitSignal(self, request: pb.WaitSignalRequest, _: Context) -> pb.WaitSignalResponse:
        """Waits for a signal or a callback."""
        return await self._command("wait_signal", request, pb.WaitSignalResponse())

    @unary(sheds=False, while_draining=True)
    async def ReleaseTurn(self, request: pb.ReleaseTurnRequest, _: Context) -> pb.ReleaseTurnResponse:
        """Gives a turn back."""
        return await self._command("release", request, pb.ReleaseTurnResponse())

    @unary(sheds=False, while_draining=True)
    async def StartOperation(
        self, request: pb.StartOperationRequest, _: Context
    ) -> pb.StartOperationResponse:
        """Registers the step that runs."""
        return await self._unnumbered("start_operation", request, pb.StartOperationResponse())

    @unary(sheds=False, while_draining=True)
    async def ReportProgress(
        self, request: pb.ReportProgressRequest, _: Context
    ) -> pb.ReportProgressResponse:
        """Reports how far the registered step has come."""
        return await self._unnumbered("report_progress", request, pb.ReportProgressResponse())

    async def _unnumbered(self, name: str, request: Any, response: R) -> R:
        """One command that has no number; `name` is the field of the request that has it."""
        body, kind = getattr(request, name), ACTIONS[name]
        answer = await apply(self._delivery, name, request.lease, 0, body)
        assert kind.fill is not None
        assert kind.name is not None
        kind.fill(response.result, answer)
        kind.name(response.result, body)
        return response

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
            if reply.cancel_ms:
                fill_ms(result.cancel_grace, reply.cancel_ms)
        else:
            fill_refusal(result.refusal, refused(lease, reply))
