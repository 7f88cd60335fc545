"""ClockService, which only servers with virtual time have."""

from __future__ import annotations

from pawl.testing.v1 import clock_service_pb2 as pb
from pawl_server.domain.errors import InvalidField
from pawl_server.domain.times import SECOND, duration_ms, timestamp, timestamp_ms
from pawl_server.engine.clock import ADVANCE_MAX_MS, Clock
from pawl_server.rpc.call import Context, Gate, time_left, unary

SETTLE_MAX_MS = 60 * SECOND
SETTLE_MS = 2 * SECOND
LIMIT_S = 600.0
"""How long a call without a deadline may take."""
ANSWER_SHARE = 0.9
"""Share of a call's time in which the clock moves; the rest is for saying how far it came."""


class ClockService:
    """Reads and moves the engine's clock."""

    def __init__(self, clock: Clock, gate: Gate) -> None:
        self.gate = gate
        self._clock = clock

    @unary()
    async def GetClock(self, request: pb.GetClockRequest, context: Context) -> pb.GetClockResponse:
        """What the clock shows, and when something is due next."""
        now_ms, next_ms = await self._clock.read()
        answer = pb.GetClockResponse(engine_time=timestamp(now_ms))
        if next_ms:
            answer.next_due_time.CopyFrom(timestamp(next_ms))
        return answer

    @unary()
    async def Advance(self, request: pb.AdvanceRequest, context: Context) -> pb.AdvanceResponse:
        """Moves the clock by way of everything that is due."""
        to_ms, by_ms = None, 0
        match request.WhichOneof("target"):
            case "duration":
                by_ms = duration_ms("duration", request.duration, 0, ADVANCE_MAX_MS)
            case "time":
                to_ms = timestamp_ms("time", request.time)
            case _:
                raise InvalidField("target", "is missing: name a duration or a time")
        settle_ms = SETTLE_MS
        if request.HasField("settle_timeout"):
            settle_ms = duration_ms("settle_timeout", request.settle_timeout, 0, SETTLE_MAX_MS)
        left = time_left(context)
        limit_s = LIMIT_S if left is None else left * ANSWER_SHARE
        moved = await self._clock.advance(to_ms, by_ms, settle_ms / 1000, limit_s)
        return pb.AdvanceResponse(
            engine_time=timestamp(moved.now_ms), fired=moved.fired, running=moved.running
        )
