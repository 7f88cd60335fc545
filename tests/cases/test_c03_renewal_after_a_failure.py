"""C-3: a renewal races with the report of a failure.

Given  a worker that holds a turn and renews its lease from another thread than the one that ends it.
Do     send Fail and a renewal of the same lease: one before the other, in both orders, and at the same
       time.
Expect every renewal after the failure to answer LEASE_ENDED, no timer of a lease to come back, and the turn
       to be ready after its backoff, whatever the old lease still sends.
"""

from __future__ import annotations

import asyncio

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.turn_pb2 import TURN_STATE_BACKOFF
from tests.support.api import CALL_S, Api
from tests.support.stored import Stored
from tests.support.stream import Stream, fail, finish, refusal, started
from tests.support.wait import wait_until

ROUNDS = 10


async def renew(api: Api, turn: pb.LeasedTurn) -> pb.RenewResult:
    """One unary renewal."""
    answer = await api.workers.RenewLeases(pb.RenewLeasesRequest(leases=[turn.lease]), timeout=CALL_S)
    return answer.results[0]


async def race(api: Api, stream: Stream, turn: pb.LeasedTurn, order: str) -> pb.CommandResult:
    """Fail, with its result, and renewals in the order named."""
    failing = [stream.build(turn, fail(delay_ms=60_000))]
    if order == "renewal first":
        assert (await renew(api, turn)).remaining.seconds > 0
        await stream.say(commands=failing)
        return await stream.result()
    if order == "failure first":
        await stream.say(commands=failing)
        result = await stream.result()
        assert dict((await renew(api, turn)).refusal.metadata) == {"how": "failed"}
        return result
    renewals = [asyncio.create_task(renew(api, turn)) for _ in range(3)]
    await stream.say(commands=failing, beat=pb.Beat(number=1, leases=[turn.lease]))
    renewals += [asyncio.create_task(renew(api, turn)) for _ in range(3)]
    for renewal in await asyncio.gather(*renewals):
        assert renewal.remaining.seconds > 0 or dict(renewal.refusal.metadata) == {"how": "failed"}
    return await stream.result()


@pytest.mark.spec("R-LEASE-6")
@pytest.mark.parametrize("order", ["failure first", "renewal first", "together"])
async def test_a_renewal_never_brings_back_a_failed_lease(api: Api, stored: Stored, order: str) -> None:
    async with Stream(api, credits=ROUNDS) as stream:
        for number in range(ROUNDS):
            name = f"i{number}"
            turn = await started(api, stream, name)
            result = await race(api, stream, turn, order)
            assert (result.fail.state, result.fail.retry_delay.seconds) == (TURN_STATE_BACKOFF, 60)
            assert dict((await renew(api, turn)).refusal.metadata) == {"how": "failed"}
            record = stored.record(name)
            assert (record.state, record.failures) == (TURN_STATE_BACKOFF, 1)
            assert stored.due("lease", name) == 0
            assert stored.due("backoff", name) == record.deadline_ms


@pytest.mark.spec("R-LEASE-6", "R-FAIL-1")
async def test_the_retry_comes_after_its_backoff_and_owes_nothing_to_the_old_lease(
    api: Api, stored: Stored
) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        result = await stream.command(turn, fail(delay_ms=100))
        assert result.fail.retry_delay.ToMilliseconds() == 100
        again = await stream.turn()
        assert (again.turn, again.attempt) == (1, 2)
        assert again.lease_time.ToMilliseconds() >= turn.lease_time.ToMilliseconds() + 100
        await wait_until(lambda: stored.accepted("a"))
        before = stored.record("a")
        for _ in range(3):
            assert dict((await renew(api, turn)).refusal.metadata) == {"how": "failed"}
        assert stored.record("a") == before
        assert refusal(await stream.command(turn, finish()))[0] == "LEASE_ENDED"
        assert refusal(await stream.command(again, finish()))[0] == ""
