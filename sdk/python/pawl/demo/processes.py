"""The demo's processes: a server with its embedded store, and workers. All of them end when the demo does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 20.0
"""Longest time that a server may need to say that it is ready."""

STOP_SECONDS = 15.0
"""Longest time that a process may need to end in good order; then it is killed."""


class DemoError(Exception):
    """The demo can't go on; the text says why."""


class Process:
    """One child process. It reads from a pipe of ours, and ends when that closes, even if we are killed."""

    def __init__(self, name: str, module: str, args: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            # -P: a module of the caller's folder must not stand in for one of ours.
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    @property
    def ended(self) -> bool:
        """True once the process has ended."""
        return self._child.poll() is not None

    def freeze(self) -> None:
        """Stops the process where it stands, all its threads, and returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        pid, status = os.waitpid(self.pid, os.WUNTRACED)
        if pid != self.pid or not os.WIFSTOPPED(status):
            raise DemoError(f"{self.name} ended by itself: {self.last_words()}")

    def thaw(self) -> None:
        """Lets a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process with -9 and returns when it is dead."""
        self._child.kill()
        code = self._child.wait(STOP_SECONDS)
        self._close()
        if code != -signal.SIGKILL:
            raise DemoError(f"{self.name} was not killed: it had ended with {code}: {self.last_words()}")

    async def stop(self) -> None:
        """Ends the process in good order, by closing its input; kills it if it does not end."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            await asyncio.to_thread(self._child.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            await asyncio.to_thread(self._child.wait)
        self._close()

    def _close(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    async def first_line(self, timeout: float) -> str:
        """Gives the first line that the process prints; empty if it ends, or prints nothing in time."""
        assert self._child.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self._child.stdout.readline), timeout)
        except TimeoutError:
            self._child.kill()
            return ""
        return line.decode(errors="replace")

    def last_words(self) -> str:
        """The end of what the process has written to stderr, on one line."""
        return " ".join(self._log.read_text(errors="replace")[-600:].split()) or "it said nothing"


class Worker(Process):
    """A worker process."""

    def __init__(self, name: str, address: str, folder: Path, concurrency: int) -> None:
        args = [
            "--address",
            address,
            "--folder",
            str(folder),
            "--name",
            name,
            "--concurrency",
            str(concurrency),
        ]
        super().__init__(f"worker {name}", "pawl.demo.worker_main", args, folder / f"worker-{name}.log")
        self.mark = name
        """What its marks are found by."""


class Server:
    """`pawl dev` in a folder of its own; may be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._process: Process | None = None
        self.facts: dict[str, Any] = {}
        """What the server said about itself when it started."""

    @property
    def address(self) -> str:
        """Where it listens; the same after a restart."""
        return self.facts["address"]

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def store_pid(self) -> int:
        """Process id of the embedded store, as its supervisor last wrote it down."""
        return json.loads((self._folder / "data" / "server.json").read_text())["pid"]

    async def start(self) -> None:
        """Starts the server and returns once it can be used. Raises DemoError with its last words."""
        data = str(self._folder / "data")
        args = ["dev", "--data-dir", data, "--port", str(self._port), "--until-stdin-closes", "--json"]
        self._process = Process("the server", "pawl.cli", args, self._folder / "server.log")
        line = await self._process.first_line(START_SECONDS)
        try:
            self.facts = json.loads(line)
        except ValueError:
            await self._process.stop()
            raise DemoError(f"the server did not start: {self._process.last_words()}") from None
        self._port = int(self.address.rpartition(":")[2])

    async def stop(self) -> None:
        """Ends server and store in good order."""
        if self._process is not None and not self._process.ended:
            await self._process.stop()
