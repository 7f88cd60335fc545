"""C-33: a turn is handed out, and the answer that carries it is lost.

Given  a client that polls, and turns with the longest lease that there is, an hour.
Do     lose the answer to PollTurn: between server and client, and between Redis and server.
Expect the turn to come back when the delivery time is over, not the lease, without an attempt, and to go to
       the next poll.
"""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from pawl.v1.instance_service_pb2 import InstanceSpec
from pawl.v1.turn_pb2 import TURN_STATE_RUNNING
from pawl_server.app import Handle, running
from tests.support.api import TYPE, VERSION, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.raw_worker import ByPolls
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import finish
from tests.support.wait import wait_until

LEASE_S = 3_600
HANG_S = 20.0
MESSAGE = b"a message like no other"


async def given(api: Api) -> None:
    """One turn with a long lease."""
    spec = InstanceSpec(workflow_type=TYPE, version=VERSION)
    spec.lease_timeout.seconds = LEASE_S
    await api.send("a", "m1", MESSAGE, create_if_absent=spec)


async def taken_by_the_next_poll(api: Api, stored: Stored, fence: int) -> None:
    """The turn goes to the next poll, as if it had not been handed out before."""
    worker = ByPolls(api)
    turn = await asyncio.wait_for(worker.turn(), HANG_S)
    assert (turn.turn, turn.attempt, turn.fence > fence) == (1, 1, True)
    assert turn.lease_timeout.seconds == LEASE_S
    record = stored.record("a")
    assert (record.failures, record.lost, record.deliveries) == (0, 0, 1)
    assert record.deadline_ms - record.leased_ms > LEASE_S * 900
    assert (await worker.do(turn, finish())).ok


@pytest.mark.spec("R-POLL-2", "R-LEASE-2", "R-EXPIRE-2")
async def test_an_answer_that_does_not_reach_the_client_costs_no_attempt(
    quick_server: Handle, quick_api: Api, quick_stored: Stored
) -> None:
    async with FaultProxy(quick_server.address) as proxy, Api(proxy.url) as behind:
        proxy.down.drop(1, containing=MESSAGE)
        await given(quick_api)
        with pytest.raises(grpc.aio.AioRpcError):
            await ByPolls(behind).poll()
        assert proxy.down.dropped == 1
        record = quick_stored.record("a")
        assert (record.state, record.accepted) == (TURN_STATE_RUNNING, False)
        await taken_by_the_next_poll(quick_api, quick_stored, record.fence)


@pytest.mark.spec("R-POLL-2", "R-LEASE-2")
async def test_the_turn_is_back_after_five_seconds_and_not_before(
    redis_server: RedisServer, redis_url: str
) -> None:
    """The settings are those that a server has by default; time is virtual."""
    async with (
        running(settings_for(redis_url, virtual_time=True)) as handle,
        Api(handle.address) as api,
        FaultProxy(handle.address) as proxy,
        Api(proxy.url) as behind,
    ):
        stored = Stored(handle, redis_server)
        proxy.down.drop(1, containing=MESSAGE)
        await given(api)
        with pytest.raises(grpc.aio.AioRpcError):
            await ByPolls(behind).poll()
        lost = stored.record("a")
        await api.advance(4_999)
        assert stored.record("a").fence == lost.fence
        assert await ByPolls(api, wait_ms=0).poll() is None
        await api.advance(1)
        await taken_by_the_next_poll(api, stored, lost.fence)
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-POLL-2", "R-LEASE-2", "R-STORE-4")
async def test_an_answer_that_does_not_reach_the_server_costs_no_attempt(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        running(settings_for(proxy.url, delivery_timeout_ms=300)) as handle,
        Api(handle.address) as api,
    ):
        stored = Stored(handle, redis_server)
        poll = asyncio.ensure_future(ByPolls(api).poll())
        await wait_until(lambda: handle.delivery.polls.count)
        proxy.down.drop(1, containing=MESSAGE)
        await given(api)
        turn = await asyncio.wait_for(poll, HANG_S)
        assert (proxy.down.dropped, turn is not None) == (1, True)
        assert turn is not None
        assert turn.attempt == 1
        record = stored.record("a")
        assert (record.failures, record.lost) == (0, 0)
        worker = ByPolls(api)
        assert (await worker.do(await worker.received(turn), finish())).ok
    assert violations_everywhere(redis_server) == []
