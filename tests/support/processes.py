"""Servers and workers as processes of their own, to be killed.

They are started by subprocess.Popen, which executes the program without a fork that runs any code: uvloop
forks, and a fork of a process in which gRPC has threads may crash before it becomes the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 60.0
NAMED = {"PAWL_SERVER_NAME": "dev"}


class PythonProcess:
    """`python -m …`. Its input is a pipe that closes with this process."""

    def __init__(
        self,
        *words: str,
        cwd: Path,
        env: dict[str, str],
        stdout: int | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self.child.pid

    def terminate(self) -> None:
        """Asks the process to end."""
        self.child.terminate()

    async def ended(self) -> int:
        """Waits for the end; the exit code."""
        await wait_until(lambda: self.child.poll() is not None, STOP_S, f"process {self.pid} ends")
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()
        return self.child.returncode

    async def kill(self) -> None:
        """Kills the process with -9."""
        self.child.kill()
        await self.ended()

    async def stop(self) -> int:
        """Ends the process in good order; its exit code."""
        self.thaw()
        self.child.terminate()
        return await self.ended()

    def freeze(self) -> None:
        """Stops the process where it stands, and returns when it has stopped."""
        assert self.child.poll() is None, f"process {self.pid} ended with {self.child.returncode}"
        self.child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Undoes `freeze`."""
        self.child.send_signal(signal.SIGCONT)


class ServerProcess(PythonProcess):
    """`python -m pawl_server` in a folder."""

    def __init__(self, folder: Path, **env: str) -> None:
        env = {**os.environ, "PAWL_PORT": "0", "PAWL_STOP_GRACE_MS": "500", **env}
        self._log = folder / f"server-{len(list(folder.glob('server-*.log')))}.log"
        with self._log.open("wb") as log:
            super().__init__("pawl_server", cwd=folder, env=env, stderr=log)

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text()

    async def listening(self) -> str:
        """Waits until the server listens; the address."""

        def address() -> str | None:
            ended = self.child.poll() is not None
            found = re.search(r"listening on (\S+?)[\s\"]", self.log)
            assert found or not ended, f"it ended: {self.log}"
            return found and found[1]

        found = await wait_until(address, START_S)
        assert found is not None
        return found


@asynccontextmanager
async def serving(folder: Path, **env: str) -> AsyncIterator[ServerProcess]:
    """Starts a server process in `folder`; kills it at the end if it is still there."""
    server = ServerProcess(folder, **env)
    try:
        yield server
    finally:
        await server.kill()


class WorkerProcess(PythonProcess):
    """`pawl worker`; it may still be on its way when this is made."""

    def __init__(self, address: str, *names: str, folder: Path) -> None:
        words = ("pawl.cli", "worker", *names, "--address", address)
        super().__init__(*words, cwd=ROOT, env={"PAWL_STORY_FOLDER": str(folder)})


class DevServer:
    """`pawl dev` on a folder, to be killed and started again.

    Each start takes another port, but has the same name, as one on the same port would.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: PythonProcess | None = None

    @property
    def process(self) -> PythonProcess:
        """The process of the last start."""
        assert self._process is not None
        return self._process

    async def start(self) -> str:
        """Starts the server and returns once it is ready; its address."""
        words = ("--data-dir", str(self._folder / "data"), "--port", "0", "--until-stdin-closes", "--json")
        with (self._folder / "server.log").open("ab") as log:
            self._process = PythonProcess(
                "pawl.cli", "dev", *words, cwd=self._folder, env=NAMED, stdout=subprocess.PIPE, stderr=log
            )
        output = self._process.child.stdout
        assert output is not None
        async with asyncio.timeout(START_S):
            line = await asyncio.to_thread(output.readline)
        assert line, (self._folder / "server.log").read_text()
        return json.loads(line)["address"]

    @property
    def store(self) -> dict[str, Any]:
        """What the server wrote down about its store: `pid` and `socket`."""
        return json.loads((self._folder / "data" / "server.json").read_text())

    async def kill(self) -> None:
        """Kills the server with -9."""
        await self.process.kill()

    async def stop(self) -> int:
        """Ends server and store in good order; the exit code."""
        return await self.process.stop()
