"""Bounds of the server as a whole: calls in flight, memory of the store, stopping."""

from __future__ import annotations

import asyncio

import pytest

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1.instance_pb2 import Instance
from pawl_server.app import Handle, running
from tests.support.api import Api, refusal_of, spec
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until


async def get(api: Api) -> Instance:
    """Reads instance `a`."""
    return (await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))).instance


async def test_calls_in_flight_are_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings_for(redis_url, max_calls_in_flight=2)) as server, Api(server.address) as api:
        await api.create("a")
        go_on = asyncio.Event()

        async def slow(instance_id: str) -> Instance:
            await go_on.wait()
            return Instance(id=instance_id)

        monkeypatch.setattr(server.engine.instances, "get", slow)
        under_way = [asyncio.ensure_future(get(api)) for _ in range(2)]
        await wait_until(lambda: server.gate.in_flight == 2)
        problem = await refusal_of(api.send("a", "m"))
        assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert problem.retry_ms
        info = await api.admin.GetServerInfo(admin.GetServerInfoRequest())
        assert info.server_run == server.engine.server_run, "descriptions are never shed"
        go_on.set()
        await asyncio.gather(*under_way)
        assert (await api.send("a", "m")).turn == 1
        assert server.gate.in_flight == 0


async def test_calls_that_only_wait_keep_no_others_out(redis_url: str) -> None:
    async with running(settings_for(redis_url, max_calls_in_flight=1)) as server, Api(server.address) as api:
        await api.create("a")
        await api.send("a", "m")
        request = messages.AwaitTurnRequest(instance_id="a", turn=1)
        waiting = []
        for count in range(1, 11):
            waiting.append(api.messages.AwaitTurn(request))
            await wait_until(lambda: server.gate.waiting == count)  # noqa: B023
        assert (await api.send("a", "n")).turn == 2
        problem = await refusal_of(api.messages.AwaitTurn(request))
        assert problem.reason == "OVERLOADED", "they have a bound of their own"
        for call in waiting:
            call.cancel()
        await wait_until(lambda: server.gate.waiting == server.gate.in_flight == 0)


@pytest.mark.spec("R-STORE-8")
async def test_admissions_stop_before_redis_is_full() -> None:
    with RedisServer(settings={"maxmemory-policy": "noeviction"}) as redis:
        async with running(settings_for(redis.url)) as server, Api(server.address) as api:
            await api.create("a")
            await api.send("a", "m")
            used = next(
                int(line.split(b":")[1])
                for line in redis.call("INFO", "memory").splitlines()
                if line.startswith(b"used_memory:")
            )
            redis.call("CONFIG", "SET", "maxmemory", used * 105 // 100)
            await wait_until(lambda: server.engine.store.memory_pressure)
            batch = messages.SendMessagesRequest(
                messages=[messages.SendMessageRequest(instance_id="a", message_id="n")]
            )
            for call in (
                api.send("a", "n"),
                api.send("b", "n", create_if_absent=spec()),
                api.create("b"),
                api.messages.SendMessages(batch),
            ):
                problem = await refusal_of(call)
                assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
                assert problem.retry_ms
            await get(api)
            redis.call("CONFIG", "SET", "maxmemory", 0)
            await wait_until(lambda: not server.engine.store.memory_pressure)
            assert (await api.send("a", "n")).turn == 2


async def test_admissions_stop_before_the_disk_is_full(api: Api, server: Handle) -> None:
    await api.create("a")
    server.engine.low_disk = lambda: True
    problem = await refusal_of(api.send("a", "m"))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    server.engine.low_disk = lambda: False
    assert (await api.send("a", "m")).turn == 1


async def test_a_stopping_server_ends_what_it_began_and_takes_nothing_new(
    api: Api, server: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.create("a")
    began, go_on = asyncio.Event(), asyncio.Event()
    read = server.engine.instances.get

    async def slow(instance_id: str) -> Instance:
        began.set()
        await go_on.wait()
        return await read(instance_id)

    monkeypatch.setattr(server.engine.instances, "get", slow)
    under_way = asyncio.ensure_future(get(api))
    await began.wait()
    stopping = asyncio.ensure_future(server.stop())
    await wait_until(lambda: server.gate.draining)
    go_on.set()
    assert (await under_way).id == "a"
    await stopping
    assert (await refusal_of(get(api))).code == "UNAVAILABLE"


async def test_a_draining_gate_refuses_with_its_reason(api: Api, server: Handle) -> None:
    await api.create("a")
    gate = server.gate
    gate.draining = True
    problem = await refusal_of(get(api))
    assert (problem.code, problem.reason) == ("UNAVAILABLE", "DRAINING")
    assert problem.retry_ms
    await api.admin.GetServerInfo(admin.GetServerInfoRequest())
    gate.draining = False
    await get(api)


@pytest.mark.spec("R-LIMIT-1")
async def test_a_burst_of_waits_is_not_cancelled_by_the_transport(server: Handle, api: Api) -> None:
    """gRPC itself sheds some of more than a thousand calls at once, without a reason, unless told not to."""
    await api.create("a")
    await api.send("a", "m")
    request = messages.AwaitTurnRequest(instance_id="a", turn=1)
    calls = [asyncio.ensure_future(api.messages.AwaitTurn(request)) for _ in range(2_500)]
    await wait_until(lambda: server.gate.waiting == len(calls) or any(call.done() for call in calls))
    try:
        assert not any(call.done() for call in calls)
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
