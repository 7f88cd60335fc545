"""Servers and workers as processes of their own, to be killed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0


class ServerProcess:
    """A running server process; `log` is what it has logged so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line.decode()

    async def listening(self) -> str:
        """Waits until the server listens; the address."""

        def address() -> str | None:
            found = re.search(r"listening on (\S+?)[\s\"]", self.log)
            assert found or not self._reader.done(), f"it ended: {self.log}"
            return found and found[1]

        found = await wait_until(address, START_S)
        assert found is not None
        return found

    async def ended(self) -> int:
        """Waits for the end; the exit code."""
        async with asyncio.timeout(START_S):
            await self._reader
            return await self.process.wait()


@asynccontextmanager
async def serving(folder: Path, **env: str) -> AsyncIterator[ServerProcess]:
    """Starts a server process in `folder`; kills it at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pawl_server",
        cwd=folder,
        env={**os.environ, "PAWL_PORT": "0", "PAWL_STOP_GRACE_MS": "500", **env},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield ServerProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class WorkerProcess:
    """`pawl worker` as a process of its own, to be killed."""

    def __init__(self, address: str, *names: str, folder: Path) -> None:
        self._command = (sys.executable, "-m", "pawl.cli", "worker", *names, "--address", address)
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the process; it may still be on its way when this returns."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=ROOT, env={"PAWL_STORY_FOLDER": str(self._folder)}
        )

    async def kill(self) -> None:
        """Kills the process with -9."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """Ends the process in good order; its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        return await self._process.wait()
