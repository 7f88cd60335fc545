"""Workers and clients of the SDK in the test's event loop, and a proxy on their way to the server.

Fixtures (imported by conftest.py files): `client`, `proxy`, `start_worker`. They use the folder's `server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pawl import Client, Context, Worker, Workflow, workflow
from pawl_server.app import Handle
from tests.support.fault_proxy import FaultProxy

StartWorker = Callable[..., Worker]


@pytest.fixture
async def client(server: Handle) -> AsyncIterator[Client]:
    """A client that does not go through the proxy."""
    async with Client(server.address) as client:
        yield client


@pytest.fixture
async def proxy(server: Handle) -> AsyncIterator[FaultProxy]:
    """A proxy between workers and server."""
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


class Long:
    """Workflow of three steps; the second waits for the test. `ran` are the steps that ran, in order."""

    def __init__(self, name: str = "long") -> None:
        self.ran: list[str] = []
        self.go = asyncio.Event()
        self.cancelled = 0

        @workflow(name, version="v1")
        async def long(ctx: Context, state: Any, message: Any) -> Any:
            try:
                for key in ("a", "b", "c"):
                    await ctx.step(key, lambda key=key: self._step(key))
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return ctx.done(None, result=ctx.attempt)

        self.workflow = long

    async def _step(self, key: str) -> None:
        self.ran.append(key)
        if key == "b":
            await self.go.wait()


def current_stream(worker: Worker) -> object:
    """The stream that a worker uses now; None while it has none."""
    runtime = worker._runtime
    return runtime and next(iter(runtime._links.live), None)
