"""The commands that control instances and turns, and show what waits."""

from __future__ import annotations

import uuid

import pytest

from pawl.cli.exits import Exit
from tests.cli.conftest import Run
from tests.cli.test_client_commands import ok, rows, value
from tests.support.wait import wait_until_sync

FAILING = ("--type", "failing", "--version", "v1")


@pytest.fixture
def name() -> str:
    """An instance id that no other test uses."""
    return f"ctl-{uuid.uuid4().hex}"


def fail(pawl: Run, name: str, count: int = 1) -> None:
    """Sends messages; the first turn fails for good, the others wait behind it."""
    first = pawl("send", name, *FAILING, "--wait", "10")
    assert first.exit_code == Exit.FAILED
    for _ in range(count - 1):
        ok(pawl("send", name))


def state(pawl: Run, name: str, turn: int = 1) -> str:
    return value(pawl("turns", name, str(turn), "--json"))["state"]


def wait_failed(pawl: Run, name: str, turn: int) -> None:
    wait_until_sync(lambda: state(pawl, name, turn) == "FAILED", 10, f"turn {turn} fails")


def test_pause_and_resume(pawl: Run, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    ok(pawl("send", name))
    assert ok(pawl("pause", name, "--comment", "for lunch")) == f"{name} is paused\n"
    assert ok(pawl("pause", name)) == f"{name} is paused already\n"
    cells = dict(rows(pawl("get", name)))
    assert (cells["status"], cells["paused"]) == ("PAUSED", "yes")
    assert f"pawl resume {name}" in cells["head turn"]
    assert [one["id"] for one in value(pawl("list", "nobody", "--status", "paused", "--json"))] == [name]
    assert value(pawl("resume", name, "--json")) == {"resumed": True}
    assert ok(pawl("resume", name)) == f"{name} was not paused\n"
    assert ok(pawl("wake", name)) == f"the head of {name} waits for no delay\n"
    assert ok(pawl("delete", name, "--yes")) == f"{name} is deleted\n"


@pytest.mark.spec("R-CONTROL-2")
def test_commands_for_one_life_of_an_id(pawl: Run, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    ok(pawl("send", name, "--id", "m1"))
    life = value(pawl("get", name, "--json"))["incarnation"]
    about_turns = ((command, "1") for command in ("retry", "skip", "park", "redrive", "cancel"))
    about_all = (("pause",), ("resume",), ("wake",), ("cancel", "--message", "m1"), ("delete", "--yes"))
    for command, *words in (*about_turns, *about_all):
        refused = pawl(command, name, *words, "--incarnation", str(life + 1))
        assert (refused.exit_code, f"of incarnation {life + 1}" in refused.stderr) == (Exit.NOT_FOUND, True)
    assert ok(pawl("pause", name, "--incarnation", str(life))) == f"{name} is paused\n"
    assert ok(pawl("delete", name, "--yes", "--incarnation", str(life))) == f"{name} is deleted\n"


def test_retry_skip_and_park(pawl: Run, name: str) -> None:
    fail(pawl, name, 3)
    late = pawl("retry", name, "1", "--attempt", "7")
    assert (late.exit_code, "attempt 1" in late.stderr) == (Exit.FAILED, True)
    assert ok(pawl("retry", name, "1")) == f"turn 1 of {name} is tried again, up to attempt 4\n"
    wait_failed(pawl, name, 1)
    assert ok(pawl("skip", name, "1")) == f"turn 1 of {name} is skipped\n"
    wait_failed(pawl, name, 2)
    assert ok(pawl("park", name, "2")) == f"turn 2 of {name} is parked\n"
    assert [state(pawl, name, turn) for turn in (1, 2)] == ["SKIPPED", "PARKED"]
    shown = value(pawl("parked", "failing", "--instance", name, "--json"))
    assert [(one["turn"], one["last_failure"]["reason"]) for one in shown] == [(2, "BROKEN")]
    assert rows(pawl("parked", "failing", "--instance", name))[1][:2] == [name, "2"]
    assert ok(pawl("redrive", name, "2")) == f"turn 4 of {name}\n"
    assert ok(pawl("parked", "failing", "--instance", name)) == "no turn of type failing is parked\n"
    again = pawl("redrive", name, "2", "--discard")
    assert (again.exit_code, "PARKED" in again.stderr) == (Exit.FAILED, True), again.stderr
    ok(pawl("delete", name, "--yes"))


def test_cancel(pawl: Run, name: str) -> None:
    words = ("--tag", name, "--correlation-key", f"k-{name}")
    ok(pawl("create", name, "--type", "nobody", "--version", "v1", *words))
    for at in range(3):
        ok(pawl("send", name, "--id", f"m{at}"))
    later = value(pawl("send", name, "--id", "later", "--delay", "60", "--json"))
    assert (later["turn"], later["due_time"] is not None) == (0, True)
    assert ok(pawl("inbox", name)).count("\n") == 5
    assert "DELAYED" in ok(pawl("inbox", name))
    assert ok(pawl("cancel", name, "2")) == f"turn 2 of {name}, which was QUEUED, is cancelled\n"
    assert ok(pawl("cancel", name, "--message", "m2")) == "message m2, turn 3, is cancelled\n"
    assert ok(pawl("cancel", name, "--message", "later")) == "message later, turn 4, is cancelled\n"
    assert [one["message_id"] for one in value(pawl("inbox", name, "--json"))] == ["m0"]
    assert pawl("cancel", name).exit_code == Exit.USAGE
    for by in (("--tag", name), ("--correlation-key", f"k-{name}")):
        assert [one["id"] for one in value(pawl("list", "nobody", *by, "--json"))] == [name]
    entry = {one["id"]: one for one in value(pawl("backlog", "nobody", "--limit", "0", "--json"))}[name]
    assert (entry["pending_turns"], entry["head"]["turn"]) == (1, 1)
    kinds = {one["type"]: one for one in value(pawl("backlog", "--json"))}
    assert kinds["nobody"]["ready_turns"] >= 1
    assert any(row[0] == "nobody" for row in rows(pawl("backlog")))
    assert value(pawl("delete", name, "--json")) == {"deleted": True}
    assert ok(pawl("delete", name, "--yes")) == f"there is no {name}\n"
    assert pawl("get", name).exit_code == Exit.NOT_FOUND


def test_usage(pawl: Run, name: str) -> None:
    refused = pawl("send", name, *FAILING, "--delay", "1", "--wait", "1")
    assert (refused.exit_code, "exclude each other" in refused.stderr) == (Exit.USAGE, True)
    listed = pawl("list", "--tag", "x")
    assert (listed.exit_code, "need TYPE" in listed.stderr) == (Exit.USAGE, True)
