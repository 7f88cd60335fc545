"""One server process: started so that it cannot outlive us, watched, asked, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

from pawl_server.embedded import guard

Guard = Literal["auto", "signal", "pipe"]

CHECK_SECONDS = 0.05
"""How often the end of the process is looked for where the kernel cannot report it."""


class ServerProcess:
    """A running program and its guard. `pid` is the guard's where that one stays (`pipe`)."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self._process = process
        self._lifeline = lifeline

    @classmethod
    def spawn(cls, argv: list[str], *, cwd: Path, log: int, keep: int, mode: Guard = "auto") -> ServerProcess:
        """Starts `argv` in `cwd` in a session of its own, so that Ctrl-C reaches only us.

        Output goes to descriptor `log`; `keep` stays open in the program. Raises OSError.
        """
        if mode == "auto":
            mode = "signal" if _parent_death_signal_works() else "pipe"
        lifeline, inherited = -1, [keep]
        if mode == "pipe":
            end, lifeline = os.pipe()
            inherited.append(end)
        number = str(os.getpid() if mode == "signal" else inherited[-1])
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, mode, number, *argv],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError:
            if lifeline >= 0:
                os.close(lifeline)
            raise
        finally:
            for descriptor in inherited[1:]:
                os.close(descriptor)
        return cls(process, lifeline)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    async def exited(self) -> int:
        """Waits for the end; the exit code."""
        with contextlib.suppress(AttributeError, OSError):  # no pidfd: macOS, an old kernel, a sandbox
            await _readable(os.pidfd_open(self._process.pid))
        while (code := self._process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(CHECK_SECONDS)
        self._let_go()
        return code

    async def end(self, timeout: float) -> int:
        """SIGTERM, and SIGKILL after `timeout` seconds; the exit code."""
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.exited(), timeout)
        except TimeoutError:
            self._process.kill()
            return await self.exited()

    def _let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _parent_death_signal_works() -> bool:
    """On Only on Linux and in the main thread: the signal follows the thread that forked."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def ask(socket: str, *command: str, timeout: float = 2.0) -> str:
    """One inline command over a unix socket; its reply as text, errors included. Raises OSError.

    Enough for PING, INFO and SHUTDOWN: the supervisor needs no client library.
    """
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_unix_connection(socket)
        try:
            writer.write(" ".join(command).encode() + b"\r\n")
            line = (await reader.readline()).decode().rstrip("\r\n")
            if line.startswith("$") and line != "$-1":
                return (await reader.readexactly(int(line[1:]))).decode()
            return line
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the server closed the connection") from error
        finally:
            writer.close()
