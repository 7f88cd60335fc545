"""The demo as it is run, with few documents: the real server, real workers, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import wait_until_sync

PROMISED = {
    "documents",
    "turns",
    "steps_run",
    "steps_replayed",
    "attempts",
    "workers_killed",
    "recovery_seconds",
    "lost",
    "duplicated",
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in; temporary files go below it as well."""
    with tempfile.TemporaryDirectory(prefix="pawld-") as name:
        monkeypatch.setenv("TMPDIR", f"{name}/tmp")
        (Path(name) / "tmp").mkdir()
        (Path(name) / "here").mkdir()
        yield Path(name)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pawl.cli", "demo", *words]


def demo(folder: Path, *words: str) -> dict[str, Any]:
    """Runs the demo; its report. Nothing may be left behind."""
    done = subprocess.run(
        command("--json", *words), cwd=folder / "here", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert list((folder / "here").iterdir()) == []
    assert list((folder / "tmp").iterdir()) == []
    return json.loads(done.stdout)


def check(report: dict[str, Any], documents: int) -> None:
    assert report.keys() >= PROMISED
    assert report["ok"]
    assert report["problems"] == []
    assert (report["lost"], report["duplicated"]) == (0, 0)
    assert report["documents"] == documents
    assert report["effects_planned"] == 6 * documents
    assert report["steps_run"] == 6 * documents + report["effects_repeated"]
    # Each document's turn, the collector's turn for it, its batches and their continuations.
    assert report["turns"] == 2 * documents + report["batches"]
    assert report["failures_retried"] >= 1


@pytest.mark.timeout(120)
def test_a_worker_is_killed(folder: Path) -> None:
    report = demo(folder, "--documents", "60")
    check(report, 60)
    assert (report["workers_killed"], report["servers_killed"], report["stores_killed"]) == (1, 0, 0)
    assert report["steps_replayed"] >= 1
    assert report["attempts"] > 60
    assert 0 < report["recovery_seconds"] < 30


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_worker_server_and_store_are_killed_in_turn(folder: Path) -> None:
    report = demo(folder, "--documents", "80", "--kill", "store", "--kill", "server", "--kill", "worker")
    check(report, 80)
    assert (report["workers_killed"], report["servers_killed"], report["stores_killed"]) == (1, 1, 1)


@pytest.mark.timeout(120)
def test_a_folder_of_ones_own_without_kills(folder: Path) -> None:
    texts = folder / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number}.md").write_text(
            f"# Page {number}\n\nSee https://pawl.example/{number} for more.\n"
        )
    report = demo(folder, str(texts), "--no-kill")
    check(report, 12)
    assert (report["workers_killed"], report["recovery_seconds"]) == (0, 0.0)
    assert report["attempts"] == 13
    assert report["corpus"] == str(texts)


@pytest.mark.timeout(120)
def test_what_is_kept_and_what_people_see(folder: Path) -> None:
    words = ("--documents", "10", "--no-kill", "--keep", "kept")
    done = subprocess.run(command(*words), cwd=folder / "here", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Every planned effect happened, and no saved step was run again." in done.stdout
    assert "10 documents: the standard library of Python" in done.stderr
    kept = {path.name for path in (folder / "here" / "kept").iterdir()}
    assert {"data", "worker-a.marks", "worker-b.marks", "worker-a.log", "server.log"} <= kept
    assert not (folder / "here" / ".pawl").exists()


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that have to do with the folder, and of their stores."""
    listing = subprocess.check_output(["ps", "-A", "-ww", "-o", "pid=,command="], text=True)
    return [line for line in listing.splitlines() if str(folder) in line and "ps -A" not in line]


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Starts the demo and returns once its workers are at work."""
    process = subprocess.Popen(
        command("--no-kill", "--keep", str(folder / "kept")),
        cwd=folder / "here",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    marks = folder / "kept" / "worker-a.marks"
    wait_until_sync(lambda: marks.exists() and marks.stat().st_size > 1000, 40, "steps have run")
    return process


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(folder: Path, number: signal.Signals) -> None:
    process = start(folder)
    process.send_signal(number)
    assert process.wait(40) == 130
    assert processes_of(folder) == []


@pytest.mark.timeout(120)
def test_a_killed_demo_leaves_no_process(folder: Path) -> None:
    process = start(folder)
    store = json.loads((folder / "kept" / "data" / "server.json").read_text())["pid"]
    process.kill()
    process.wait()
    wait_until_sync(lambda: processes_of(folder) == [], 40, "workers and server have ended")
    with pytest.raises(ProcessLookupError):
        os.kill(store, 0)
