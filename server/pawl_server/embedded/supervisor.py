"""The private server of `pawl dev`: starts it, keeps it running, stops it.

Everything it acknowledges is on disk (`appendfsync always`). It listens on a unix socket in its folder and on
no port, ends with the process that started it however that ends, and is started again, on the same data, when
it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pawl_server import log_lines as lines
from pawl_server.embedded.binary import find_binary
from pawl_server.embedded.errors import EmbeddedError, FolderInUse, ServerDidNotStart
from pawl_server.embedded.folder import Folder
from pawl_server.embedded.process import Guard, ServerProcess, ask

log = logging.getLogger(__name__)

CONFIGURATION = {
    "port": "0",
    "unixsocketperm": "700",
    "dir": ".",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "always",
    # Any version of Redis and Valkey opens such a folder; with the preamble most pairs refuse each other's.
    "aof-use-rdb-preamble": "no",
    "auto-aof-rewrite-min-size": "512mb",
    "auto-aof-rewrite-percentage": "200",
    "save": "",
    # Long listpacks are slow: with up to 512 entries a turn took 115 us of Redis, with 64 it took 102.
    "hash-max-listpack-entries": "64",
    "hash-max-listpack-value": "1024",
    "maxmemory-policy": "noeviction",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """Times are seconds, sizes bytes.

    `binary` overrides the search of binary.py. `start_timeout` bounds the time until the socket answers at
    all (loading data may take longer), `orphan_timeout` the wait for a server that outlived its supervisor,
    `stop_timeout` the time to end in good order. Below `low_disk` free bytes admissions should be refused.
    """

    folder: Path = Path(".pawl")
    binary: Path | None = None
    start_timeout: float = 20.0
    stop_timeout: float = 30.0
    orphan_timeout: float = 20.0
    backoff_min: float = 0.05
    backoff_max: float = 5.0
    low_disk: int = 256 << 20
    disk_interval: float = 1.0
    guard: Guard = "auto"
    virtual_time: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What runs."""

    name: str
    version: str
    binary: Path
    folder: Path
    socket: Path
    pid: int

    def __str__(self) -> str:
        return f"{self.name} {self.version}, pid {self.pid}, data in {self.folder} ({self.binary})"


class EmbeddedServer:
    """A running private server. Make it with `EmbeddedServer.start`.

    Start it from the main thread where possible: the kernel's parent-death signal, used on Linux, follows the
    thread; elsewhere a small guard process does the same. Processes that you fork without exec inherit the
    folder's lock.
    """

    def __init__(self, settings: EmbeddedSettings, binary: Path, folder: Folder) -> None:
        self.restarts = 0
        self.low_disk = False
        self.folder = folder.path
        self.socket = folder.socket
        self.url = f"unix://{quote(str(folder.socket))}"
        self._settings = settings
        self._binary = binary
        self._folder = folder
        self._process: ServerProcess | None = None
        self._description: Description | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls, settings: EmbeddedSettings | None = None, folder: Folder | None = None
    ) -> EmbeddedServer:
        """Locks the folder, starts the server and returns once it answers.

        A `folder` that is held already stands for the one of the settings; it is given back in any case.
        Raises FolderInUse (folder and holder named), WrongTime, NoServerBinary, ServerDidNotStart,
        EmbeddedError.
        """
        settings = settings or EmbeddedSettings()
        try:
            binary = find_binary(settings.binary).absolute()  # it is run in the data folder
        except EmbeddedError:
            if folder is not None:
                folder.close()
            raise
        server = cls(settings, binary, folder or Folder(settings.folder))
        try:
            server._look_at_disk()
            server._folder.keep_time(virtual=settings.virtual_time)
            await server._launch()
        except BaseException:
            await server.stop()
            raise
        loop = asyncio.get_running_loop()
        server._tasks = [
            loop.create_task(server._keep_running(), name="embedded server"),
            loop.create_task(server._watch_disk(), name="embedded disk"),
        ]
        lines.EMBEDDED_STARTED(log, what=str(server.describe()))
        return server

    def describe(self) -> Description:
        """What runs; after a restart, the newest process."""
        if self._description is None:
            raise EmbeddedError("the embedded server is not running")
        return self._description

    @property
    def running(self) -> bool:
        """Whether the process runs at this moment."""
        return self._process is not None and self._process.code is None

    async def stop(self) -> None:
        """Ends the server in good order and gives the folder back. May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._process is not None:
            process, self._process = self._process, None
            await process.end(self._settings.stop_timeout)
        self._description = None
        self._folder.close()

    # Starting

    async def _launch(self) -> None:
        """Starts one process and waits until it answers. Raises EmbeddedError; then no process is left."""
        keep = await self._server_lock()
        output = self._folder.open_log()
        argv = [str(self._binary)]
        for name, value in {"unixsocket": str(self.socket), **CONFIGURATION}.items():
            argv += [f"--{name}", value]
        try:
            self._process = ServerProcess.spawn(
                argv, cwd=self.folder, log=output, keep=keep, mode=self._settings.guard
            )
        except OSError as error:
            raise EmbeddedError(f"{self._binary} cannot be started: {error}") from None
        finally:
            os.close(keep)
            os.close(output)
        try:
            await self._until_ready(self._process)
            await self._note(self._process)
        except BaseException:
            process, self._process = self._process, None
            await process.end(0.0)
            raise

    async def _server_lock(self) -> int:
        """The lock that the server will hold; waits for a former server that is on its way out.

        The supervisor's death has sent that one SIGTERM. If it is still there after a while (its guard was
        killed too), it is asked over its socket. Raises FolderInUse if it stays.
        """
        start = time.monotonic()
        asked = False
        while (lock := self._folder.lock_for_server()) is None:
            waited = time.monotonic() - start
            if waited > self._settings.orphan_timeout:
                raise FolderInUse(self.folder, int(self._folder.read_note().get("pid", 0)))
            if waited > self._settings.orphan_timeout / 10 and not asked:
                asked = True
                lines.EMBEDDED_WAITS(log, folder=str(self.folder))
                with contextlib.suppress(OSError):
                    await ask(self._folder.former_socket, "SHUTDOWN", "NOSAVE", timeout=1.0)
            await asyncio.sleep(0.02)
        return lock

    async def _until_ready(self, process: ServerProcess) -> None:
        """Waits for PONG. Loading data has no time limit as long as the server says that it loads."""
        deadline = time.monotonic() + self._settings.start_timeout
        while True:
            if process.code is not None:
                why = f"{self._binary} ended with code {process.code} while it was started"
                raise ServerDidNotStart(why, self._folder.log_tail())
            try:
                reply = await ask(str(self.socket), "PING")
            except OSError:
                reply = ""
            if reply == "+PONG":
                return
            if reply.startswith("-LOADING"):
                deadline = time.monotonic() + self._settings.start_timeout
            if time.monotonic() > deadline:
                why = f"{self._binary} did not answer within {self._settings.start_timeout:g} s ({reply})"
                raise ServerDidNotStart(why, self._folder.log_tail())
            await asyncio.sleep(0.005)

    async def _note(self, process: ServerProcess) -> None:
        """Learns what runs and writes it into the folder."""
        answer = await ask(str(self.socket), "INFO", "server")
        info = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
        name = "valkey" if "valkey_version" in info else info.get("server_name", "redis")
        self._description = Description(
            name=name,
            version=info.get("valkey_version", info.get("redis_version", "?")),
            binary=self._binary,
            folder=self.folder,
            socket=self.socket,
            pid=int(info.get("process_id", process.pid)),
        )
        former = self._folder.read_note()
        if former and (former.get("name"), former.get("version")) != (name, self._description.version):
            lines.EMBEDDED_FORMER(log, store=f"{former.get('name')} {former.get('version')}")
        self._folder.write_note(
            {
                "name": name,
                "version": self._description.version,
                "binary": str(self._binary),
                "pid": self._description.pid,
                "socket": str(self.socket),
            }
        )

    # Watching

    async def _keep_running(self) -> None:
        """Starts the server again whenever it ends, with growing pauses while it keeps ending."""
        pause = self._settings.backoff_min
        while True:
            began = time.monotonic()
            if self._process is not None:
                code = await self._process.exited()
                lines.EMBEDDED_ENDED(log, binary=self._binary.name, code=code)
            if time.monotonic() - began > 10 * self._settings.backoff_max:
                pause = self._settings.backoff_min
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._settings.backoff_max)
            self._process = None
            self.restarts += 1
            try:
                await self._launch()
            except EmbeddedError as error:
                lines.EMBEDDED_FAILED(log, why=str(error))

    async def _watch_disk(self) -> None:
        while True:
            await asyncio.sleep(self._settings.disk_interval)
            self._look_at_disk()

    def _look_at_disk(self) -> None:
        """Sets `low_disk`: on a full disk the server ends, so what is left is kept for running turns."""
        try:
            free = self._folder.free_bytes()
        except OSError as error:
            lines.DISK_UNKNOWN(log, folder=str(self.folder), why=str(error))
            return
        low = free < self._settings.low_disk
        if low != self.low_disk:
            self.low_disk = low
            what = "admissions are refused" if low else "admissions go on"
            lines.DISK_LOW(log, mib=free >> 20, folder=str(self.folder), what=what)
