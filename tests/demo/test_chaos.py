"""Killing: only what is inside a step, and only with proof."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from pawl.demo import chaos
from pawl.demo.chaos import Kill, kill_worker, until_steps_begin, until_taken_over
from pawl.demo.marks import MarkReader, file_of
from pawl.demo.processes import DemoError, Process, Worker
from tests.support.wait import wait_until_sync


class Stub:
    """Stands for a worker process; `on_freeze` writes what the worker has marked by then."""

    def __init__(self, mark: str, on_freeze: Callable[[int], None] = lambda _: None) -> None:
        self.name, self.mark = f"worker {mark}", mark
        self.freezes = 0
        self.calls: list[str] = []
        self.on_kill: Callable[[], None] = lambda: None
        self._on_freeze = on_freeze

    def freeze(self) -> None:
        self.freezes += 1
        self.calls.append("freeze")
        self._on_freeze(self.freezes)

    def thaw(self) -> None:
        self.calls.append("thaw")

    def kill(self) -> None:
        self.calls.append("kill")
        self.on_kill()


def workers(*stubs: Stub) -> list[Worker]:
    return cast(list[Worker], list(stubs))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], None]:
    """`write("a", "S e1 hash doc 1 7 100")` appends a mark of worker a."""

    def write(worker: str, line: str) -> None:
        with file_of(tmp_path, worker).open("a") as file:
            file.write(line + "\n")

    return write


async def test_a_worker_is_killed_only_inside_a_step_that_others_precede(
    tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    def work(freezes: int) -> None:
        if freezes == 2:
            write("a", "S e1 read doc-1 1 7 100")  # inside a first step: nothing to replay yet
        if freezes == 3:
            write("a", "E e1 read doc-1 1 7 101")
            write("a", "S e2 hash doc-1 1 7 102")

    stub = Stub("a", work)
    victim, kill = await kill_worker(workers(stub), MarkReader(tmp_path))
    assert victim is cast(object, stub)
    assert stub.calls == ["freeze", "thaw", "freeze", "thaw", "freeze", "kill"]
    assert [mark.effect_id for mark in kill.inside] == ["e2"]
    assert kill.held == {"doc-1"}


async def test_the_next_worker_is_looked_at(tmp_path: Path, write: Callable[[str, str], None]) -> None:
    write("b", "S e2 hash doc-1 1 7 102")
    idle, busy = Stub("a"), Stub("b")
    victim, _ = await kill_worker(workers(idle, busy), MarkReader(tmp_path))
    assert victim is cast(object, busy)
    assert idle.calls == ["freeze", "thaw"]


async def test_a_kill_that_hit_no_step_fails_the_demo(
    tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    write("a", "S e2 hash doc-1 1 7 102")
    stub = Stub("a")
    stub.on_kill = lambda: write("a", "E e2 hash doc-1 1 7 103")
    with pytest.raises(DemoError, match="was not killed inside a step"):
        await kill_worker(workers(stub), MarkReader(tmp_path))


async def test_a_worker_that_is_never_inside_a_step_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "HUNT_SECONDS", 0.03)
    stub = Stub("a")
    with pytest.raises(DemoError, match="ever found inside a step"):
        await kill_worker(workers(stub), MarkReader(tmp_path))
    assert "kill" not in stub.calls


async def test_recovery_is_when_the_last_turn_is_taken_over(
    tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    write("a", "S e1 hash doc-1 1 7 1000000000")
    write("b", "R - read doc-1 2 8 3000000000")
    write("b", "R - read doc-2 2 9 4500000000")
    write("b", "S e9 read doc-9 1 5 9000000000")
    kill = Kill("worker", 2_000_000_000, held=frozenset({"doc-1", "doc-2"}))
    await until_taken_over(kill, MarkReader(tmp_path))
    assert kill.recovery_seconds == 2.5


async def test_turns_that_nobody_takes_over_fail_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "RECOVERY_SECONDS", 0.03)
    with pytest.raises(DemoError, match="were not taken over"):
        await until_taken_over(Kill("worker", 1, held=frozenset({"doc-1"})), MarkReader(tmp_path))


async def test_after_a_kill_of_the_server_new_steps_must_begin(
    tmp_path: Path, write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "RECOVERY_SECONDS", 0.03)
    monkeypatch.setattr(chaos, "now_ns", lambda: 5_000)
    write("a", "S e1 hash doc-1 1 7 4000")
    write("a", "E e1 hash doc-1 1 7 6000")
    with pytest.raises(DemoError, match="no step began after the server"):
        await until_steps_begin(Kill("server", 3_000), MarkReader(tmp_path))
    write("a", "S e2 extract doc-1 1 7 7000")
    kill = Kill("server", 3_000)
    await until_steps_begin(kill, MarkReader(tmp_path))
    assert kill.recovered_ns == 7_000


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """A process that waits for its input to close."""
    process = Process("the patient", "json.tool", [], tmp_path / "log")
    yield process
    if not process.ended:
        process.kill()


def state_of(process: Process) -> str:
    """State of the process as the system's `ps` shows it."""
    return os.popen(f"ps -o stat= -p {process.pid}").read().strip()[:1]


def test_a_frozen_process_stands_still(process: Process) -> None:
    process.freeze()
    assert state_of(process) == "T"
    assert not process.ended
    process.thaw()
    wait_until_sync(lambda: state_of(process) in "SR", 5)
    process.freeze()
    process.kill()
    assert process.ended


def test_a_process_that_ended_by_itself_was_not_killed(process: Process) -> None:
    os.kill(process.pid, signal.SIGTERM)
    wait_until_sync(lambda: process.ended, 5)
    with pytest.raises(DemoError, match="was not killed: it had ended"):
        process.kill()


async def test_a_process_ends_when_its_input_closes(process: Process) -> None:
    await process.stop()
    assert process.ended
