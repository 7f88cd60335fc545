"""A fake server, and workers that are stopped at the end of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pawl import Client, Worker, Workflow
from tests.sdk.fake_server import FakeServer, fake_server

StartWorker = Callable[..., Worker]


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as fake:
        yield fake


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with Client(server.address, timeout=10) as made:
        yield made


@pytest.fixture
async def start_worker(server: FakeServer) -> AsyncIterator[StartWorker]:
    started: list[tuple[Worker, asyncio.Task[None]]] = []

    def start(*workflows: Workflow, **options: Any) -> Worker:
        worker = Worker(server.address, workflows=workflows, **options)
        started.append((worker, asyncio.get_running_loop().create_task(worker.run())))
        return worker

    yield start
    for worker, task in started:
        await worker.stop(0)
        await asyncio.wait_for(task, 10)
