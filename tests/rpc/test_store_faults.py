"""Redis away: at the start, before a call, during a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1.error_pb2 import Reason
from pawl.v1.turn_pb2 import TurnState
from pawl_server.app import CANNOT_START, Handle, running
from pawl_server.store.errors import StoreRefused, StoreUnavailable
from tests.support.api import CALL_S, Api, json, refusal_of
from tests.support.fault_proxy import FaultProxy
from tests.support.hand import Hand
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until

SILENCE_MS = 1_000


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    """Between the server and Redis."""
    async with FaultProxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def server(proxy: FaultProxy) -> AsyncIterator[Handle]:
    """A server that reaches Redis through `proxy` and gives up on silence soon."""
    async with running(settings_for(proxy.url, store_timeout_ms=SILENCE_MS)) as handle:
        yield handle


async def info(api: Api) -> admin.GetServerInfoResponse:
    """GetServerInfo."""
    return await api.admin.GetServerInfo(admin.GetServerInfoRequest())


@pytest.mark.spec("R-STORE-7")
async def test_no_redis_at_the_start_is_said_within_the_start_timeout(tmp_path: object) -> None:
    url = f"unix://{tmp_path}/nobody"
    began = time.monotonic()
    with pytest.raises(CANNOT_START, match="nobody") as refused:
        async with running(settings_for(url, start_timeout_ms=300)):
            raise AssertionError("it runs")
    assert isinstance(refused.value, StoreUnavailable)
    assert time.monotonic() - began < 10


async def test_redis_that_comes_a_little_later_is_waited_for() -> None:
    with RedisServer(start=False) as redis:

        async def later() -> None:
            await asyncio.to_thread(redis.start)

        starting = asyncio.ensure_future(later())
        async with running(settings_for(redis.url)) as server, Api(server.address) as api:
            assert (await api.create("a")).id == "a"
        await starting


@pytest.mark.spec("R-STORE-6")
async def test_a_redis_that_must_not_be_used_is_named() -> None:
    with (
        RedisServer(settings={"maxmemory-policy": "allkeys-lru"}) as redis,
        pytest.raises(StoreRefused, match="maxmemory-policy"),
    ):
        async with running(settings_for(redis.url)):
            raise AssertionError("it runs")


@pytest.mark.spec("R-STORE-7")
async def test_a_silent_redis_during_calls(api: Api, proxy: FaultProxy, server: Handle) -> None:
    await api.create("a")
    proxy.half_open()
    proxy.refuse()
    began = time.monotonic()
    batch = messages.SendMessagesRequest(
        messages=[messages.SendMessageRequest(instance_id="a", message_id=f"b{at}") for at in range(3)]
    )
    calls = [refusal_of(api.send("a", f"m{at}")) for at in range(5)]
    calls += [
        refusal_of(api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))),
        refusal_of(api.create("b")),
    ]
    answer = asyncio.ensure_future(api.messages.SendMessages(batch))
    for problem in await asyncio.gather(*calls):
        assert (problem.code, problem.reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        assert problem.retry_ms
    reasons = {result.refusal.reason for result in (await answer).results}
    assert reasons == {Reason.REASON_STORE_UNAVAILABLE}
    assert time.monotonic() - began < CALL_S
    shown = await info(api)
    assert shown.server_run == server.engine.server_run, "the server can still say what it is"
    assert shown.engine_time.seconds >= shown.start_time.seconds > 0

    proxy.accept()
    await wait_until(lambda: server.engine.store.connected)
    turns = [(await api.send("a", f"m{at}")).turn for at in range(5)]
    assert sorted(turns) == list(range(1, 6)), "each is one turn, whether or not it had arrived"


@pytest.mark.spec("R-STORE-7")
async def test_a_silent_redis_is_told_before_the_callers_time_is_over(proxy: FaultProxy) -> None:
    async with running(settings_for(proxy.url)) as server, Api(server.address) as api:
        await api.create("a")
        proxy.half_open()
        proxy.refuse()
        read = instances.GetInstanceRequest(instance_id="a")
        send = messages.SendMessageRequest(instance_id="a", message_id="m", message=json("1"))
        calls = (
            api.instances.GetInstance(read, timeout=2.5),
            api.messages.SendMessage(send, timeout=2.5),
            api.messages.SendMessages(messages.SendMessagesRequest(messages=[send]), timeout=2.5),
        )
        for problem in await asyncio.gather(*map(refusal_of, calls)):
            assert problem.reason == "STORE_UNAVAILABLE"
        shown = await api.admin.GetServerInfo(admin.GetServerInfoRequest(), timeout=2.5)
        assert (shown.server_run, shown.store_reachable) == (server.engine.server_run, False)


@pytest.mark.spec("R-STORE-7")
async def test_redis_that_has_been_away_is_told_at_once(api: Api, proxy: FaultProxy, server: Handle) -> None:
    assert (await info(api)).store_reachable
    await api.create("a")
    proxy.refuse()
    proxy.cut()
    await wait_until(lambda: not server.engine.store.connected)
    read = instances.GetInstanceRequest(instance_id="a")
    problem = await refusal_of(api.instances.GetInstance(read))
    assert problem.reason == "STORE_UNAVAILABLE"
    began = time.monotonic()
    for _ in range(20):
        assert (await refusal_of(api.send("a", "m"))).reason == "STORE_UNAVAILABLE"
        shown = await info(api)
        assert (shown.store, shown.store_reachable) == (server.engine.store.store_name, False)
    assert time.monotonic() - began < 5, "nobody waits for what has been away for long"


async def test_a_wait_ends_before_the_callers_time_is_over(api: Api) -> None:
    await api.create("a")
    request = messages.SendMessageRequest(
        instance_id="a", message_id="m", message=json("1"), wait=Duration(seconds=60)
    )
    sent = await api.messages.SendMessage(request, timeout=2.5)
    assert sent.outcome.state == TurnState.TURN_STATE_QUEUED


@pytest.mark.spec("R-STORE-4", "R-SEND-2")
async def test_lost_replies_are_asked_for_again(api: Api, proxy: FaultProxy) -> None:
    await api.create("a")
    for at in range(6):
        proxy.down.drop(1)
        assert (await api.send("a", f"m{at}")).turn == at + 1


@pytest.mark.spec("R-STORE-7", "R-AWAIT-1")
async def test_waiters_outlive_an_outage(api: Api, proxy: FaultProxy, server: Handle, redis_url: str) -> None:
    await api.create("a")
    waiting = asyncio.ensure_future(api.send("a", "m", wait=Duration(seconds=20)))
    await wait_until(lambda: server.engine.awaits.count == 1)
    async with running(settings_for(redis_url)) as other:
        proxy.refuse()
        proxy.cut()
        await Hand(other.engine).finish("a", b"meanwhile")
        proxy.accept()
        turn = (await waiting).outcome
    assert (turn.state, turn.reply) == (TurnState.TURN_STATE_COMPLETED, json("meanwhile"))
