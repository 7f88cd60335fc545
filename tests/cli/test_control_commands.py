"""The commands that control instances and turns, and show what waits."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from pawl.cli.exits import Exit
from tests.cli.conftest import Run
from tests.cli.test_client_commands import ok, rows, value
from tests.support.wait import wait_until_sync

HANG_S = 60.0
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


def detached(*words: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """Runs one command; its standard input is "empty", "closed", or "piped": says yes and stays open."""
    line = [sys.executable, "-m", "pawl.cli", *words]
    if stdin == "closed":
        line = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *line]
    readable, writable = os.pipe()
    os.write(writable, b"y\n")
    try:
        return subprocess.run(
            line,
            stdin=readable if stdin == "piped" else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    finally:
        os.close(readable)
        os.close(writable)


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


@pytest.mark.spec("R-PARK-3")
def test_a_discarded_message(pawl: Run, name: str) -> None:
    fail(pawl, name)
    ok(pawl("park", name, "1"))
    assert ok(pawl("redrive", name, "1", "--discard")) == "the message of turn 1 is dropped\n"
    cells = dict(rows(pawl("turns", name, "1")))
    assert (cells["state"], cells["message"]) == ("PARKED", "discarded")
    shown = value(pawl("turns", name, "1", "--json"))
    assert (shown["message"], shown["discarded"], shown["trimmed"]) == (None, True, False)


@pytest.mark.spec("R-DEFER-3")
def test_why_a_turn_is_put_off(pawl: Run, name: str) -> None:
    ok(pawl("send", name, "--type", "full", "--version", "v1"))
    wait_until_sync(lambda: state(pawl, name) == "DEFERRED", 10, "the turn is put off")
    assert value(pawl("turns", name, "1", "--json"))["defer_reason"] == "capacity"
    assert dict(rows(pawl("turns", name, "1")))["deferred for"] == "capacity"
    assert "is DEFERRED (capacity) until" in dict(rows(pawl("get", name)))["head turn"]
    for words in (("turns", name), ("inbox", name), ("backlog", "full")):
        assert "DEFERRED (capacity)" in ok(pawl(*words))
    ok(pawl("pause", name))
    assert "is DEFERRED (capacity), and the instance is paused" in dict(rows(pawl("get", name)))["head turn"]
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
    for words in ((), ("--message", "m0", "--force"), ("1", "--message", "m0")):
        assert pawl("cancel", name, *words).exit_code == Exit.USAGE
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


@pytest.mark.spec("R-CLI-1")
@pytest.mark.parametrize("stdin", ["empty", "closed", "piped"])
def test_delete_asks_nobody_who_can_not_answer(pawl: Run, dev_server: str, name: str, stdin: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    shown = detached("delete", name, "--address", dev_server, stdin=stdin)
    assert (shown.returncode, shown.stdout) == (Exit.USAGE, "")
    (line,) = shown.stderr.splitlines()
    assert line.startswith("error: USAGE: ")
    assert "--yes" in line
    assert pawl("get", name).exit_code == Exit.OK
    shown = detached("delete", name, "--yes", "--address", dev_server, stdin=stdin)
    assert (shown.returncode, shown.stdout) == (Exit.OK, f"{name} is deleted\n")


@pytest.mark.spec("R-CLI-1")
def test_delete_asks_on_a_terminal(pawl: Run, dev_server: str, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    for answer, code in ((b"n\n", Exit.INTERRUPTED), (b"\x04", Exit.INTERRUPTED), (b"y\n", Exit.OK)):
        ours, theirs = os.openpty()
        try:
            os.write(ours, answer)
            words = [sys.executable, "-m", "pawl.cli", "delete", name, "--address", dev_server]
            shown = subprocess.run(
                words, stdin=theirs, capture_output=True, text=True, timeout=HANG_S, check=False
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert shown.returncode == code, shown.stderr
        assert f"Delete {name}" in shown.stderr
    assert pawl("get", name).exit_code == Exit.NOT_FOUND


@pytest.mark.spec("R-CLI-1")
@pytest.mark.parametrize("words", [("-",), ("--text", "-"), ("--binary",)])
def test_send_without_standard_input(words: tuple[str, ...]) -> None:
    shown = detached("send", "a", *words, "--address", "127.0.0.1:1", stdin="closed")
    assert shown.returncode == Exit.USAGE
    assert shown.stderr == "error: USAGE: standard input is closed (see 'pawl send --help')\n"


@pytest.mark.spec("R-CONTROL-4")
def test_delete_of_another_life(pawl: Run, name: str) -> None:
    created = value(pawl("create", name, "--type", "nobody", "--version", "v1", "--json"))
    there = created["incarnation"]
    shown = pawl("delete", name, "--yes", "--incarnation", str(there + 1))
    assert shown.exit_code == Exit.NOT_FOUND
    says = f"no instance {name} of incarnation {there + 1}: the instance has incarnation {there}"
    assert shown.stderr == f"error: NOT_FOUND: {says}\n"
    ok(pawl("delete", name, "--yes", "--incarnation", str(there)))


def test_usage(pawl: Run, name: str) -> None:
    refused = pawl("send", name, *FAILING, "--delay", "1", "--wait", "1")
    assert (refused.exit_code, "exclude each other" in refused.stderr) == (Exit.USAGE, True)
    listed = pawl("list", "--tag", "x")
    assert (listed.exit_code, "need TYPE" in listed.stderr) == (Exit.USAGE, True)
