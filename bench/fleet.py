"""The processes of a benchmark: one server with its embedded store, one worker; and what they use."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.slots import Slots
from pawl import Client
from pawl.errors import PawlError

TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> tuple[int, float]:
    """Parent and CPU seconds (reaped children included) of a process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15]) / TICK


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children. Linux only."""
    total, parents = 0.0, {pid}
    rows: dict[int, tuple[int, float]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                rows[int(entry)] = _stat(int(entry))
            except OSError:
                continue
    while parents:
        for one in parents:
            total += rows.get(one, (0, 0.0))[1]
        parents = {child for child, (parent, _) in rows.items() if parent in parents}
    return total


def machine_seconds() -> float:
    """Busy CPU seconds of the whole machine since boot. Linux only."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(values) - values[3] - values[4]) / TICK


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Fleet:
    """Server and worker of one benchmark, in a folder of their own."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pawl-bench-")
        self.path = Path(self._folder.name)
        self.slots = Slots(self.path / "slots", create=True)
        self.address = f"127.0.0.1:{_free_port()}"
        self._env = {
            **os.environ,
            **(env or {}),
            "BENCH_SLOTS": str(self.slots.path),
            "PAWL_ADDRESS": self.address,
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self) -> Client:
        """Starts the server and returns a client of it."""
        port = self.address.rpartition(":")[2]
        data = self.path / "data"
        self._spawn("server", "-m", "pawl.cli", "dev", "--data-dir", str(data), "--port", port)
        client = Client(self.address)
        end = time.monotonic() + 30
        while True:
            self.alive()
            try:
                await client.info(timeout=1)
                return client
            except PawlError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)

    def start_worker(self, name: str = "worker", *, index: int = 0, concurrency: int = 64) -> None:
        """Starts a worker process; it begins when slot GO is set."""
        self._spawn(name, "-m", "bench.worker_main", str(index), str(concurrency))

    def pid(self, name: str) -> int:
        """Process id of a process that runs."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """Kills a process with SIGKILL and reaps it."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def _spawn(self, name: str, *arguments: str) -> None:
        log = (self.path / f"{name}.log").open("ab")
        self._processes[name] = subprocess.Popen(
            [sys.executable, *arguments], env=self._env, stdout=log, stderr=log
        )

    def alive(self) -> None:
        """Raises RuntimeError with the log of a process that has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self.path / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{log}")

    def cpu(self) -> dict[str, float]:
        """CPU seconds by role: server (Python), store (Redis), worker, client (this process), machine."""
        usage = {"store": 0.0, "server": 0.0, "worker": 0.0}
        for name, process in self._processes.items():
            everything = cpu_seconds(process.pid)
            own = _stat(process.pid)[1]
            if name == "server":
                usage["server"] += own
                usage["store"] += everything - own
            else:
                usage["worker"] += everything
        usage["client"] = sum(os.times()[:2])
        usage["machine"] = machine_seconds()
        return usage

    def memory(self, name: str) -> int:
        """Resident bytes of a process, without its children. Linux only."""
        pages = Path(f"/proc/{self.pid(name)}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def store_bytes(self) -> int:
        """Bytes of the store's append-only files on disk."""
        return sum(file.stat().st_size for file in (self.path / "data").rglob("*.aof"))

    def stop(self) -> None:
        """Stops everything that was started."""
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._processes.clear()
        self._folder.cleanup()
