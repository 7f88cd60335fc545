"""Which (script, reply word) pairs a test run produced. A pytest plugin; tools/reply_coverage.py reads it.

Every test process writes one file at the end of its session; files of earlier runs are removed at the start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "replies"

_pairs: set[tuple[str, str]] = set()
_called: set[str] = set()


def called(script: str) -> None:
    """Notes that `script` is called, whatever comes of it."""
    _called.add(script)


def record(script: str, words: Iterable[str]) -> None:
    """Notes that `script` answered each of `words`."""
    _pairs.update((script, word) for word in words)


def take_called() -> frozenset[str]:
    """Returns the scripts that were called since the last call of this, and forgets them."""
    taken = frozenset(_called)
    _called.clear()
    return taken


def read(folder: Path = FOLDER) -> set[tuple[str, str]]:
    """Returns the pairs that the last run noted."""
    lines = (line.split() for path in folder.glob("*.txt") for line in path.read_text().splitlines())
    return {(script, word) for script, word in lines}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Removes the files of the last run, once per run."""
    if not hasattr(session.config, "workerinput"):
        shutil.rmtree(FOLDER, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes this process's pairs."""
    if _pairs:
        worker = getattr(session.config, "workerinput", {}).get("workerid", "main")
        FOLDER.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{script} {word}\n" for script, word in sorted(_pairs))
        (FOLDER / f"{worker}.txt").write_text(lines)
