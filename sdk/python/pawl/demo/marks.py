"""What really happened, written outside Redis by the steps themselves.

Each worker process appends to a file of its own, one line per event, and syncs it before the step goes on:

    S <effect id> <step> <instance> <attempt> <fence> <ns>    the body of a step begins
    E <effect id> <step> <instance> <attempt> <fence> <ns>    the effect of the step has happened
    F …                                                       the body raised
    R - …                                                     a saved step was handed back without running

`ns` is the system's monotonic clock, so lines of different processes can be put in order.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

Kind = Literal["S", "E", "F", "R"]
KINDS = get_args(Kind)
_PATTERN = "worker-*.marks"


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of a file of marks."""

    kind: Kind
    effect_id: str
    step: str
    instance_id: str
    attempt: int
    fence: int
    at_ns: int
    worker: str


def file_of(folder: Path, worker: str) -> Path:
    """Gives the path of a worker's marks."""
    return folder / f"worker-{worker}.marks"


def now_ns() -> int:
    """Gives the time that marks carry."""
    return time.monotonic_ns()


class MarkFile:
    """A worker's marks, for writing. Those that are written while the disk syncs share the next sync."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._fd = os.open(file_of(folder, worker), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._syncing: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def write(
        self, kind: Kind, effect_id: str, step: str, instance_id: str, attempt: int, fence: int
    ) -> None:
        """Appends a mark, and returns once it is on disk."""
        line = f"{kind} {effect_id} {step} {instance_id} {attempt} {fence} {now_ns()}\n"
        os.write(self._fd, line.encode())
        if self._next is None:
            self._next = asyncio.create_task(self._sync(self._syncing))
        await asyncio.shield(self._next)

    async def _sync(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._syncing, self._next = self._next, None
        await asyncio.to_thread(os.fsync, self._fd)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


class MarkReader:
    """Reads the marks of all workers of a folder while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.marks: list[Mark] = []
        """All marks read so far; those of one worker in order."""

    def poll(self) -> list[Mark]:
        """Reads what is new, adds it to `marks` and returns it. An unfinished last line is left for later."""
        new: list[Mark] = []
        for path in sorted(self._folder.glob(_PATTERN)):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            worker = path.stem.removeprefix("worker-")
            new += (_parse(line, worker) for line in whole.decode().splitlines())
        self.marks += new
        return new


def _parse(line: str, worker: str) -> Mark:
    kind, effect_id, step, instance_id, attempt, fence, at_ns = line.split(" ")
    if kind not in KINDS:
        raise ValueError(f"marks of {worker}: {line!r}")
    return Mark(cast(Kind, kind), effect_id, step, instance_id, int(attempt), int(fence), int(at_ns), worker)
