"""The real server on a private embedded store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pawl.client import Client
from pawl.worker import Worker
from pawl.workflow import Workflow


class Server:
    """A running server and a client of it."""

    def __init__(self, address: str, client: Client) -> None:
        self.address = address
        self.client = client

    @asynccontextmanager
    async def worker(self, *workflows: Workflow, grace: float = 5.0, **options: Any) -> AsyncIterator[Worker]:
        """Runs a worker until the block ends. `options` are those of `Worker`."""
        worker = Worker(self.address, workflows=workflows, grace=grace, **options)
        task = asyncio.get_running_loop().create_task(worker.run())
        try:
            yield worker
        finally:
            await worker.stop()
            await task


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Server]:
    """Runs a real server in this event loop, on a free port, its data in a temporary folder.

    Args:
        settings: fields of `pawl_server.settings.Settings`, for example `namespace` or `redis_url`.

    Raises RuntimeError if the extra `[server]` is not installed.
    """
    try:
        from pawl_server.app import running
        from pawl_server.settings import Settings
    except ImportError as error:
        raise RuntimeError("pawl.testing.server needs: pip install 'pawl-workflows[server]'") from error
    with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
        chosen = {"port": 0, "data_dir": Path(folder), "stop_grace_ms": 1_000, **settings}
        async with running(Settings(**chosen)) as handle, Client(handle.address) as client:
            yield Server(handle.address, client)
