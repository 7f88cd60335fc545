"""The SDK against the real server: one with short beats, and a proxy on the way to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pawl import Client, Worker, Workflow
from pawl_server.app import Handle, running
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer, redis_server, redis_url
from tests.support.server import settings_for

__all__ = ["redis_server", "redis_url"]

StartWorker = Callable[..., Worker]

QUICK: dict[str, Any] = {"beat_interval_ms": 200, "delivery_timeout_ms": 500}


@pytest.fixture
async def server(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Handle]:
    async with running(settings_for(redis_url, **QUICK)) as handle:
        yield handle
    assert violations_everywhere(redis_server) == []


@pytest.fixture
async def client(server: Handle) -> AsyncIterator[Client]:
    """A client that does not go through the proxy."""
    async with Client(server.address) as client:
        yield client


@pytest.fixture
async def proxy(server: Handle) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
async def start_worker(server: Handle) -> AsyncIterator[StartWorker]:
    """Starts workers, on the server or on `address`; they are stopped at the end."""
    started: list[tuple[Worker, asyncio.Task[None]]] = []

    def start(*workflows: Workflow, address: str = "", **options: Any) -> Worker:
        worker = Worker(address or server.address, workflows=workflows, **options)
        started.append((worker, asyncio.get_running_loop().create_task(worker.run())))
        return worker

    yield start
    for worker, task in started:
        await worker.stop(0)
        await asyncio.wait_for(task, 15)
