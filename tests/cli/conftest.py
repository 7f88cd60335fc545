"""One server and one worker, both started by the command line, for all tests of a session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pawl.cli.main import main
from tests.support.wait import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., Result]


class Child:
    """`pawl …` as a process of its own; `facts` is the JSON line with which it says that it runs."""

    def __init__(self, *words: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
        self._errors = (cwd / "stderr.txt").open("w+b") if cwd != ROOT else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pawl.cli", *words, "--json"],
            cwd=cwd,
            env=env or {},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.facts: dict[str, Any] = json.loads(line) if line else {}

    def end(self, number: int = 15) -> int:
        """Sends a signal and waits for the end; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end; the exit code."""
        wait_until_sync(lambda: self.process.poll() is not None, 20, "the process ends")
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self.process.returncode

    def close(self) -> None:
        """Makes sure that nothing is left running."""
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """`start("dev", …)` starts `pawl dev …`; what still runs after the test is killed."""
    children: list[Child] = []

    def start(*words: str, **where: Any) -> Child:
        children.append(Child(*words, **where))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture(scope="session")
def dev_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server started by `pawl dev`, with a worker for the example counter."""
    folder = str(tmp_path_factory.mktemp("dev") / "data")
    server = Child("dev", "--data-dir", folder, "--port", "0", "--until-stdin-closes")
    address = server.facts["address"]
    worker = Child("worker", "examples.counter:counter", "tests.cli.flows", "--address", address)
    yield address
    assert worker.end() == 0
    assert server.end() == 0


@pytest.fixture
def pawl(dev_server: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command against the session's server."""
    monkeypatch.setenv("PAWL_ADDRESS", dev_server)

    def run(*words: str, given: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, words, input=given)

    return run
