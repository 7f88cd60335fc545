"""TurnService."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from pawl.v1 import turn_service_pb2 as pb
from pawl_server.delivery.frames import fill_refusal
from pawl_server.domain.callback import read_token
from pawl_server.domain.ids import check_own_id, check_type
from pawl_server.domain.times import timestamp
from pawl_server.engine import Engine
from pawl_server.engine.redriving import Redriven, redrive_all
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, unary
from pawl_server.rpc.responses import respond

if TYPE_CHECKING:
    from pawl.v1.turn_pb2 import TurnState


class TurnService:
    """Reads and controls turns."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self.gate = gate
        self._engine = engine

    @unary()
    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:
        """Reads a turn with all that is kept of it."""
        instance_id = check_own_id("instance_id", request.instance_id)
        turn = convert.turn_number(request.turn)
        life = convert.incarnation(request.incarnation)
        return pb.GetTurnResponse(turn=await self._engine.turns.get(instance_id, turn, life))

    @unary()
    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        """Reads a page of the kept turns of an instance, newest first."""
        instance_id = check_own_id("instance_id", request.instance_id)
        size = convert.page_size(request.page_size)
        turns, token = await self._engine.turns.list(
            instance_id, size, request.page_token, payloads=request.include_payloads
        )
        return pb.ListTurnsResponse(turns=turns, next_page_token=token)

    @unary(sheds=False)
    async def RetryTurn(self, request: pb.RetryTurnRequest, context: Context) -> pb.RetryTurnResponse:
        """Gives a failed turn another round of attempts."""
        done = await self._engine.control.retry(convert.failed_target(request))
        return pb.RetryTurnResponse(
            state=cast("TurnState.ValueType", done.state), max_attempts=done.max_attempts
        )

    @unary(sheds=False)
    async def SkipTurn(self, request: pb.SkipTurnRequest, context: Context) -> pb.SkipTurnResponse:
        """Ends a failed turn so that its inbox goes on."""
        finished_ms = await self._engine.control.skip(convert.failed_target(request))
        return pb.SkipTurnResponse(finish_time=timestamp(finished_ms))

    @unary(sheds=False)
    async def ParkTurn(self, request: pb.ParkTurnRequest, context: Context) -> pb.ParkTurnResponse:
        """Sets a failed turn aside."""
        finished_ms = await self._engine.control.park(convert.failed_target(request))
        return pb.ParkTurnResponse(finish_time=timestamp(finished_ms))

    @unary(sheds=False)
    async def ResolveStep(self, request: pb.ResolveStepRequest, context: Context) -> pb.ResolveStepResponse:
        """Decides about the step of an uncertain turn."""
        state = await self._engine.control.resolve_step(
            convert.failed_target(request), convert.decision(request)
        )
        return pb.ResolveStepResponse(state=cast("TurnState.ValueType", state))

    @unary(sheds=False)
    async def CancelTurn(self, request: pb.CancelTurnRequest, context: Context) -> pb.CancelTurnResponse:
        """Ends an unfinished turn, or asks its worker to."""
        done = await self._engine.control.cancel(convert.target(request), force=request.force)
        return pb.CancelTurnResponse(
            finish_time=timestamp(done.finished_ms) if done.finished_ms else None,
            former_state=cast("TurnState.ValueType", done.former),
            state=cast("TurnState.ValueType", done.state),
            cancel_deadline=timestamp(done.cancel_ms) if done.cancel_ms else None,
        )

    @unary()
    async def SignalTurn(self, request: pb.SignalTurnRequest, context: Context) -> pb.SignalTurnResponse:
        """Sends a signal to one turn."""
        turn = convert.turn_number(request.turn)
        done = await self._engine.signals.give(convert.signal_item(request, turn, self._engine.limits))
        return pb.SignalTurnResponse(
            receive_time=timestamp(done.received_ms), consumed_position=done.position
        )

    @unary()
    async def SignalInstance(
        self, request: pb.SignalInstanceRequest, context: Context
    ) -> pb.SignalInstanceResponse:
        """Sends a signal to the turn at the head, or to the next one."""
        done = await self._engine.signals.give(convert.signal_item(request, 0, self._engine.limits))
        return pb.SignalInstanceResponse(
            turn=done.turn, receive_time=timestamp(done.received_ms), consumed_position=done.position
        )

    @unary()
    async def ResolveCallback(
        self, request: pb.ResolveCallbackRequest, context: Context
    ) -> pb.ResolveCallbackResponse:
        """Gives a callback its result."""
        named = read_token(request.token, self._engine.namespace)
        done = await self._engine.signals.give(convert.callback_item(request, named, self._engine.limits))
        return pb.ResolveCallbackResponse(
            instance_id=named.instance_id, turn=done.turn, receive_time=timestamp(done.received_ms)
        )

    @unary()
    async def RedriveParked(
        self, request: pb.RedriveParkedRequest, context: Context
    ) -> pb.RedriveParkedResponse:
        """Sends the message of a parked turn again, or drops it."""
        turn = await self._engine.control.redrive(convert.target(request), discard=request.discard)
        return pb.RedriveParkedResponse(turn=turn)

    async def RedriveAllParked(self, request: pb.RedriveAllParkedRequest, context: Context) -> None:
        """Redrives or discards the parked turns of a type, and says how far it has come."""

        async def begin() -> AsyncGenerator[pb.RedriveAllParkedResponse, None]:
            wanted = convert.redrive_wanted(request)
            async with contextlib.aclosing(redrive_all(self._engine, wanted)) as steps:
                async for done in steps:
                    yield _redriven(done)

        stall = self._engine.events.options.stall
        await respond(self.gate, request, context, begin, "RedriveAllParked", stall)

    @unary()
    async def ListParked(self, request: pb.ListParkedRequest, context: Context) -> pb.ListParkedResponse:
        """Reads a page of the parked turns of a type."""
        workflow_type = check_type("workflow_type", request.workflow_type)
        instance_id = check_own_id("instance_id", request.instance_id) if request.instance_id else ""
        size = convert.page_size(request.page_size)
        found, token = await self._engine.listing.parked(workflow_type, instance_id, size, request.page_token)
        return pb.ListParkedResponse(turns=found, next_page_token=token)


def _redriven(done: Redriven) -> pb.RedriveAllParkedResponse:
    response = pb.RedriveAllParkedResponse(
        seen=done.seen, redriven=done.redriven, skipped=done.skipped, refused=done.refused, done=done.done
    )
    if done.refusal is not None:
        fill_refusal(response.last_refusal, done.refusal)
    return response
