"""Every story has a server, a client, and a way to let workflows run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from pawl import Client, Worker, Workflow
from pawl_server.app import Handle
from tests.support.processes import WorkerProcess
from tests.support.redis_server import redis_server, redis_url
from tests.support.server import server

__all__ = ["redis_server", "redis_url", "server"]

Working = Callable[..., AbstractAsyncContextManager[Worker]]
Launch = Callable[..., WorkerProcess]


@pytest.fixture
async def client(server: Handle) -> AsyncIterator[Client]:
    """A client of the test's server."""
    async with Client(server.address) as client:
        yield client


@pytest.fixture
def working(client: Client) -> Working:
    """`async with working(workflow, …):` runs workflows inside the block."""

    @asynccontextmanager
    async def working(*workflows: Workflow, concurrency: int = 16) -> AsyncIterator[Worker]:
        worker = Worker(client, workflows=workflows, concurrency=concurrency)
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            await worker.stop(grace=1)
            await task

    return working


@pytest.fixture
async def launch(server: Handle, tmp_path: Path) -> AsyncIterator[Launch]:
    """`launch("module:workflow")` starts a worker process; it ends with the test."""
    launched: list[WorkerProcess] = []

    def launch(*names: str) -> WorkerProcess:
        launched.append(WorkerProcess(server.address, *names, folder=tmp_path))
        return launched[-1]

    yield launch
    for process in launched:
        await process.stop()


@pytest.fixture
def story_folder(tmp_path: Path) -> Path:
    """Where the workflows of `launch` leave their traces; empty."""
    return tmp_path
