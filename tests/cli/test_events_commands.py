"""`pawl events` and `pawl watch`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from pawl.cli.exits import Exit
from tests.cli.conftest import ROOT, Run
from tests.cli.test_client_commands import COUNTER, ok, rows, value
from tests.support.wait import wait_until_sync


class Watch:
    """`pawl watch …` as a process; its lines as they come."""

    def __init__(self, address: str, *words: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pawl.cli", "watch", *words, "--address", address],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def end(self) -> int:
        """Waits for the end of the process; its exit code."""
        code = self.process.wait(30)
        self._reader.join(10)
        return code


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    """Watches of the test; what still runs at its end is killed."""
    running: list[Watch] = []
    yield running
    for one in running:
        one.process.kill()
        one.end()
        for pipe in (one.process.stdout, one.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def name() -> str:
    """An instance id that no other test uses."""
    return f"evt-{uuid.uuid4().hex}"


def test_events(pawl: Run, name: str) -> None:
    ok(pawl("send", name, '{"add": 2}', *COUNTER, "--wait", "10"))
    ok(pawl("pause", name, "--comment", "for lunch"))
    found = value(pawl("events", name, "--json"))
    assert [one["seq"] for one in found] == list(range(1, len(found) + 1))
    assert [one["type"] for one in found] == [
        *("CREATED", "TURN_ADMITTED", "ATTEMPT_STARTED", "STEP_SAVED", "TURN_COMPLETED", "PAUSED"),
    ]
    assert (found[3]["key"], found[3]["actor"], found[-1]["comment"]) == ("add", "WORKER", "for lunch")
    assert (found[-1]["status"], found[-1]["actor"]) == ("PAUSED", "OPERATOR")
    table = rows(pawl("events", name, "--limit", "2"))
    assert [row[0] for row in table] == ["SEQ", "5", "6"]
    only = value(pawl("events", name, "--type", "turn-completed", "--json"))
    assert [one["seq"] for one in only] == [5]
    assert [one["seq"] for one in value(pawl("events", name, "--after", "4", "--json"))] == [5, 6]
    bad = pawl("events", name, "--type", "nothing")
    assert (bad.exit_code, "--type" in bad.stderr) == (Exit.USAGE, True)
    assert pawl("events", f"{name}x").exit_code == Exit.NOT_FOUND


def test_watch_until_idle(pawl: Run, dev_server: str, name: str, watches: list[Watch]) -> None:
    ok(pawl("create", name, *COUNTER))
    watches.append(Watch(dev_server, name, "--from-start", "--json"))
    wait_until_sync(lambda: len(watches[0].lines) >= 1, 20, "the watch has begun")
    ok(pawl("send", name, '{"add": 2}', "--wait", "10"))
    wait_until_sync(lambda: len(watches[0].lines) >= 5, 20, "everything was told")
    seen = [json.loads(line) for line in watches[0].lines]
    assert [one["type"] for one in seen] == [
        *("CREATED", "TURN_ADMITTED", "ATTEMPT_STARTED", "STEP_SAVED", "TURN_COMPLETED"),
    ]
    watches.append(Watch(dev_server, name, "--from-start", "--until-idle"))
    assert watches[1].end() == Exit.OK
    assert [line.split("  ")[1] for line in watches[1].lines] == [one["type"] for one in seen]
    assert "turn 1 attempt 1" in watches[1].lines[-1]
    ok(pawl("delete", name, "--yes"))
    assert watches[0].end() == Exit.OK
    assert json.loads(watches[0].lines[-1])["type"] == "DELETED"


def test_watch_everything_and_stop(pawl: Run, dev_server: str, name: str, watches: list[Watch]) -> None:
    watches.append(Watch(dev_server, "--type", "created", "--workflow", "counter"))
    made: list[str] = []

    def told() -> bool:
        made.append(f"{name}-{len(made)}")
        ok(pawl("create", made[-1], *COUNTER))
        return any(name in line for line in watches[0].lines)

    wait_until_sync(told, 20, "an event of the namespace")
    watches[0].process.send_signal(signal.SIGINT)
    assert watches[0].end() == Exit.OK
    assert all("CREATED" in line for line in watches[0].lines)
    refused = pawl("watch", "--until-idle")
    assert (refused.exit_code, "need ID" in refused.stderr) == (Exit.USAGE, True)
