"""Health, reflection, and where the server listens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pawl.v1 import admin_service_pb2 as admin
from pawl_server.app import CANNOT_START, Handle, running
from pawl_server.domain.limits import Limits
from pawl_server.rpc import health
from pawl_server.rpc.server import AddressInUse
from tests.support.api import Api
from tests.support.fault_proxy import FaultProxy
from tests.support.server import settings_for
from tests.support.wait import wait_until

SERVICES = [f"pawl.v1.{name}Service" for name in ("Instance", "Message", "Turn", "Event", "Admin", "Worker")]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def channel_of(api: Api) -> Any:
    """The channel, for stubs whose types know nothing of grpc.aio."""
    return api.channel


async def statuses(api: Api, services: Sequence[str]) -> set[int]:
    """What the health service says of each."""
    stub: Any = health_pb2_grpc.HealthStub(channel_of(api))
    checks = [stub.Check(health_pb2.HealthCheckRequest(service=each)) for each in services]
    return {(await check).status for check in checks}


@pytest.mark.spec("R-API-2")
async def test_ready_while_redis_answers_and_alive_always(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "INTERVAL_S", 0.02)
    monkeypatch.setattr(health, "PING_TIMEOUT_S", 0.1)

    async def shown(wanted: int) -> bool:
        return await statuses(api, ["", *SERVICES]) == {wanted}

    async with FaultProxy(redis_url) as proxy:
        settings = settings_for(proxy.url, store_timeout_ms=1_000)
        async with running(settings) as server, Api(server.address) as api:
            await wait_until(lambda: shown(SERVING))
            proxy.refuse()
            proxy.half_open()
            await wait_until(lambda: shown(NOT_SERVING))
            assert await statuses(api, ["pawl.liveness"]) == {SERVING}
            proxy.accept()
            await wait_until(lambda: shown(SERVING))


@pytest.mark.spec("R-API-2")
async def test_watchers_hear_of_a_stop(api: Api, server: Handle) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel_of(api))
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))
    heard: list[int] = []

    async def listen() -> None:
        try:
            async for answer in watch:
                heard.append(answer.status)
        except grpc.aio.AioRpcError:
            pass

    listening = asyncio.ensure_future(listen())
    await wait_until(lambda: heard == [SERVING])
    await server.stop()
    await listening
    assert heard == [SERVING, NOT_SERVING]


async def test_an_unknown_service_has_no_health(api: Api) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await statuses(api, ["nobody"])
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_names_the_services_and_their_files(api: Api) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel_of(api))
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="pawl.v1.MessageService"),
    ]
    listed, found = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    names = {service.name for service in listed.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} == names
    files = [
        FileDescriptorProto.FromString(raw) for raw in found.file_descriptor_response.file_descriptor_proto
    ]
    assert "pawl/v1/message_service.proto" in {file.name for file in files}


async def test_what_the_server_says_of_itself(redis_url: str) -> None:
    settings = settings_for(redis_url, namespace="shop", partitions=5, limits=Limits(steps_per_turn=200))
    async with running(settings) as server, Api(server.address) as api:
        info = await api.admin.GetServerInfo(admin.GetServerInfoRequest())
    assert (info.namespace, info.partitions, info.virtual_time) == ("shop", 5, False)
    assert info.limits["steps_per_turn"] == 200
    assert (info.durability, info.durability_assumed) == (admin.DURABILITY_MEMORY, "")
    assert info.server_run == server.engine.server_run
    assert info.server_name.endswith(f"-{server.settings.port}")
    assert info.beat_interval.ToMilliseconds() == 2_000
    assert info.version
    assert info.store
    assert info.engine_time.ToMilliseconds() >= info.start_time.ToMilliseconds() > 1_700_000_000_000


async def test_a_unix_socket(redis_url: str, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    async with running(settings_for(redis_url, host=address)) as server, Api(address) as api:
        assert server.address == address
        assert (await api.create("a")).id == "a"


async def test_an_address_that_is_taken(server: Handle, redis_url: str) -> None:
    with pytest.raises(CANNOT_START, match=str(server.settings.port)) as refused:
        async with running(settings_for(redis_url, port=server.settings.port)):
            raise AssertionError("it runs")
    assert isinstance(refused.value, AddressInUse)
