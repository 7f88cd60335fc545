"""TurnService."""

from __future__ import annotations

from pawl.v1 import turn_service_pb2 as pb
from pawl_server.domain.ids import check_own_id
from pawl_server.engine import Engine
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, unary


class TurnService:
    """Reads turns."""

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
