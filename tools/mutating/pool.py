"""Worker processes that run tests on changed scripts, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutating.worker import Done, Job, Outcome, work

START_SECONDS = 120.0
"""Longest time until a worker has collected its tests."""
STALL_SECONDS = 5.0
"""A test that takes that much longer than twenty times its usual time runs a script that never ends."""
USUAL_SECONDS = 2.0
"""Usual time of a test that has not run yet."""


class WorkerFailed(Exception):
    """A worker ended by itself; the message is the end of its output."""


@dataclass(frozen=True)
class Ran:
    """What a job came to: how the tests went, in order. `stalled` names one that did not come back."""

    done: Sequence[Outcome]
    spoiled: bool = False
    stalled: str = ""


class Worker:
    """One process with a folder of its own; started at once, and collecting its tests."""

    def __init__(self, root: Path, sources: Mapping[str, str], paths: Sequence[str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._folder = tempfile.mkdtemp(prefix="pawlm-")
        self._connection, other = spawn.Pipe()
        arguments = (other, str(root), self._folder, dict(sources), list(paths))
        self._process = spawn.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def collected(self) -> list[str]:
        """Waits for the ids of its tests. To be called once, before anything else. Raises WorkerFailed."""
        try:
            return self._receive(START_SECONDS)
        except TimeoutError:
            raise WorkerFailed(f"the tests were not collected within {START_SECONDS:.0f} s") from None

    def run(self, job: Job, usual: Mapping[str, float]) -> Ran:
        """Runs a job; `usual` are the seconds that tests usually take. Raises WorkerFailed."""
        self._connection.send(job)
        done: list[Outcome] = []
        while True:
            # The last message may take one more run of the test before.
            running = job.tests[min(len(done), len(job.tests) - 1)]
            try:
                message = self._receive(STALL_SECONDS + 20 * usual.get(running, USUAL_SECONDS))
            except TimeoutError:
                return Ran(done, stalled=running)
            if isinstance(message, Done):
                return Ran(done, spoiled=message.spoiled)
            done.append(message)

    def _receive(self, seconds: float) -> Any:
        try:
            if not self._connection.poll(seconds):
                raise TimeoutError
            return self._connection.recv()
        except (EOFError, ConnectionError):
            log = Path(self._folder) / "log"
            raise WorkerFailed(log.read_text(errors="replace")[-2000:] if log.exists() else "") from None

    def stop(self, *, kill: bool = False) -> None:
        """Ends the process in good order, or at once together with all that it has started."""
        self._connection.close()
        if not kill:
            self._process.join(10)
        if self._process.is_alive() and self._process.pid:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
            self._process.join(10)
        shutil.rmtree(self._folder, ignore_errors=True)


class Pool:
    """`size` workers with the same sources and tests. A context manager: they end with it."""

    def __init__(self, root: Path, sources: Mapping[str, str], paths: Sequence[str], size: int) -> None:
        self._make = lambda: Worker(root, sources, paths)
        self._workers: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._size = size
        self.collected: list[str] = []

    def __enter__(self) -> Pool:
        try:
            self._workers += [self._make() for _ in range(self._size)]
            for worker in self._workers:
                self.collected = worker.collected()
                self._idle.put(worker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop(kill=not self._clean())
        self._workers.clear()

    def _clean(self) -> bool:
        """Whether every worker is idle."""
        return self._idle.qsize() == len(self._workers)

    def run(self, job: Job, usual: Mapping[str, float]) -> Ran:
        """Runs a job on the next idle worker; to be called by at most `size` threads at a time.

        A worker that stalled or whose Redis is spoiled is replaced by a new one. Raises WorkerFailed.
        """
        worker = self._idle.get()
        ran = worker.run(job, usual)
        if ran.stalled or ran.spoiled:
            worker.stop(kill=True)
            self._workers.remove(worker)
            worker = self._make()
            self._workers.append(worker)
            worker.collected()
        self._idle.put(worker)
        return ran

    def run_all(self) -> dict[str, Outcome]:
        """Runs every test once on the sources as they are."""
        files: dict[str, list[str]] = {}
        for one in self.collected:
            files.setdefault(one.partition("::")[0], []).append(one)
        with ThreadPoolExecutor(self._size) as threads:
            runs = threads.map(lambda tests: self.run(Job(tests), {}), files.values())
            return {one.id: one for ran in runs for one in ran.done}
