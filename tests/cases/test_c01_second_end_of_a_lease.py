"""C-1: one holder ends its lease twice.

Given  a worker that holds turn 1 of an instance.
Do     give the turn back, which succeeds; then complete it with the same lease, as a runtime does that ends
       each handler it ran; and fail it as well.
Expect the later ends to be answered with LEASE_ENDED (FAILED_PRECONDITION: nothing to repeat, no failure),
       state, inbox and attempts as they were, and the turn to run once more with the same attempt number.
"""

from __future__ import annotations

from typing import Any

import pytest

from pawl.v1.instance_service_pb2 import GetInstanceRequest
from pawl.v1.turn_pb2 import TURN_STATE_COMPLETED
from pawl.v1.turn_service_pb2 import GetTurnRequest
from tests.support.api import CALL_S, Api, json
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, fail, finish, refusal, release, started

SECOND_ENDS = (finish(b"9", b"again"), fail(), fail(final=True), checkpoint("late"), release())


async def state_of(api: Api) -> bytes:
    """The state of instance `a`."""
    answer = await api.instances.GetInstance(GetInstanceRequest(instance_id="a"), timeout=CALL_S)
    return answer.instance.state.data


@pytest.mark.spec("R-CMD-3", "R-CMD-4", "R-LEASE-9")
@pytest.mark.parametrize("second", SECOND_ENDS, ids=lambda action: next(iter(action)))
async def test_a_turn_that_was_given_back_cant_be_ended_again(
    api: Api, stored: Stored, second: dict[str, Any]
) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, state=json(b"1"))
        await stream.command(turn, checkpoint("one"))
        assert refusal(await stream.command(turn, release()))[0] == ""
        before = stored.record("a")

        assert refusal(await stream.command(turn, second)) == ("LEASE_ENDED", {"how": "released"})
        assert stored.record("a") == before, "nothing was counted, kept or ended"
        assert await state_of(api) == b"1"

        await stream.credit(1)
        again = await stream.turn()
        assert (again.turn, again.attempt, again.HasField("last_failure")) == (1, 1, False)
        assert [step.key for step in again.steps] == ["one"]
        # The end of the lease before is still known, and no end of this one.
        assert refusal(await stream.command(turn, second))[0] == "LEASE_ENDED"
        assert refusal(await stream.command(again, finish(b"2")))[0] == ""
        assert (await state_of(api), stored.record("a").pending) == (b"2", 0)
        assert stored.events("a").count("TURN_COMPLETED") == 1


@pytest.mark.spec("R-CMD-3")
async def test_a_turn_that_was_reported_as_failed_cant_be_completed(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, fail(delay_ms=60_000))
        assert refusal(await stream.command(turn, finish())) == ("LEASE_ENDED", {"how": "failed"})
        stored = (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn
        assert stored.state != TURN_STATE_COMPLETED
        assert not stored.HasField("reply")
