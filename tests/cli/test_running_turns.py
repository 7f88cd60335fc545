"""What turns wait for and do, as commands show it, answer it and decide about it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pawl import Progress, ProgressView
from pawl.cli.exits import Exit
from pawl.cli.live import running_line
from pawl.cli.running import progress_text
from tests.cli.conftest import ROOT, Run
from tests.cli.test_client_commands import ok, rows, value
from tests.cli.test_control_commands import fail, state
from tests.cli.test_events_commands import Watch, watches
from tests.support.wait import wait_until_sync

__all__ = ["watches"]


@pytest.fixture
def name(pawl: Run) -> Iterator[str]:
    """An instance id that no other test uses; deleted in the end."""
    made = f"run-{uuid.uuid4().hex}"
    yield made
    pawl("delete", made, "--yes")


def begin(pawl: Run, name: str, kind: str, until: str, message: str = "null") -> None:
    """Sends a message to a new instance, and waits for a state of its turn."""
    ok(pawl("send", name, message, "--type", kind, "--version", "v1"))
    wait_until_sync(lambda: state(pawl, name) == until, 20, f"the turn is {until}")


def result(pawl: Run, name: str) -> Any:
    """What turn 1 returned, once it has."""
    wait_until_sync(lambda: state(pawl, name) == "COMPLETED", 20, "the turn completes")
    return value(pawl("turns", name, "1", "--json"))["reply"]


@pytest.mark.spec("R-CLI-2")
def test_an_approval(pawl: Run, name: str) -> None:
    begin(pawl, name, "asking", "WAITING", '"whales"')
    shown = dict(rows(pawl("respond", name)))
    assert shown["waits for"].startswith("signal approve, until ")
    assert (shown["message"], shown["last step"]) == ('"whales"', 'draft: "about whales"')
    assert shown["answer with"] == f"pawl respond {name} VALUE"
    asked = value(pawl("respond", name, "--json"))
    assert (asked["turn"], asked["wait"]["signal"], asked["wait"]["callback"]) == (1, "approve", False)
    assert asked["last_step"] == {"key": "draft", "output": "about whales"}
    assert f"is WAITING for {shown['waits for']}: 'pawl respond {name}'" in ok(pawl("get", name))
    assert ["waits for", shown["waits for"]] in rows(pawl("turns", name, "1"))
    listed = {row[0]: row for row in rows(pawl("respond", "--type", "asking"))}
    assert listed[name][1:3] == ["1", "signal approve"]
    assert name in [one["instance_id"] for one in value(pawl("respond", "--type", "asking", "--json"))]
    noted = f"note: turn 1 of {name} waits for {shown['waits for']}: 'pawl respond {name}'"
    assert noted in pawl("doctor").stdout
    refused = pawl("respond", name, "--reject", "NO")
    assert (refused.exit_code, "only a callback" in refused.stderr) == (Exit.FAILED, True)
    done = ok(pawl("respond", name, '{"go": true}', "--id", "a-1", "--sender", "ann"))
    assert done == f"turn 1 of {name} took it as step 2, signal a-1\n"
    assert result(pawl, name) == {"go": True}
    turn = value(pawl("turns", name, "1", "--json"))
    assert turn["steps"][1]["wait_outcome"] == "RECEIVED"
    assert [(one["signal_id"], one["consumed_position"], one["sender"]) for one in turn["signals"]] == [
        ("a-1", 2, {"name": "ann", "kind": "PERSON"}),
    ]
    assert "ann (PERSON)" in ok(pawl("turns", name, "1"))
    assert "signal approve by ann" in ok(pawl("events", name, "--type", "signal-received"))
    late = pawl("respond", name, "1")
    assert (late.exit_code, "its inbox is empty" in late.stderr) == (Exit.FAILED, True)
    assert "its inbox is empty" in ok(pawl("respond", name))
    assert value(pawl("respond", name, "--json")) is None
    assert pawl("respond", f"{name}x").exit_code == Exit.NOT_FOUND


def test_signals(pawl: Run, name: str, tmp_path: Path) -> None:
    ok(pawl("create", name, "--type", "asking", "--version", "v1"))
    first = ok(pawl("signal", name, "other", "--id", "s-1"))
    assert first == f"turn 1 of {name} keeps it until it waits, signal s-1\n"
    assert ok(pawl("signal", name, "other", "--id", "s-1")) == first
    conflict = pawl("signal", name, "other", "2", "--id", "s-1")
    assert (conflict.exit_code, "BODY_CONFLICT" in conflict.stderr) == (Exit.FAILED, True)
    begin(pawl, name, "asking", "WAITING")
    page = tmp_path / "value.json"
    page.write_text('{"from": "file"}')
    sent = value(pawl("signal", name, "other", "--turn", "1", "--file", str(page), "--json"))
    assert (sent["turn"], sent["consumed_position"]) == (1, None)
    ok(pawl("signal", name, "other", "--file", "-", given="[1]"))
    ok(pawl("signal", name, "other", "said so", "--text"))
    took = value(pawl("signal", name, "approve", "-", "--json", given="5"))
    assert took["consumed_position"] == 2
    assert result(pawl, name) == 5
    kept = value(pawl("turns", name, "1", "--json"))["signals"]
    assert [one["value"] for one in kept] == [None, {"from": "file"}, [1], "said so", None]
    over = pawl("signal", name, "other", "--turn", "1")
    assert (over.exit_code, "WRONG_STATE" in over.stderr) == (Exit.FAILED, True)


@pytest.mark.parametrize("reject", [True, False])
def test_a_callback(pawl: Run, name: str, reject: bool) -> None:
    begin(pawl, name, "calling", "WAITING")
    assert dict(rows(pawl("respond", name)))["waits for"] == "a callback, paid"
    assert value(pawl("respond", name, "--json"))["wait"]["callback_token"].endswith(".paid")
    assert pawl("respond", name, "1", "--id", "x").exit_code == Exit.USAGE
    words = ("--reject", "TOO_DEAR", "--message", "at most 3") if reject else ('{"amount": 3}',)
    assert ok(pawl("respond", name, *words)) == f"turn 1 of {name} has its answer\n"
    assert result(pawl, name) == (["TOO_DEAR", "at most 3"] if reject else {"amount": 3})
    step = value(pawl("turns", name, "1", "--json"))["steps"][0]
    if reject:
        assert (step["wait_outcome"], step["output"]) == ("REJECTED", None)
        assert step["failure"]["reason"] == "TOO_DEAR"
        assert "rejected: TOO_DEAR: at most 3" in ok(pawl("turns", name, "1"))
    else:
        assert (step["wait_outcome"], step["output"], step["failure"]) == ("RECEIVED", {"amount": 3}, None)


@pytest.mark.parametrize(
    ("decision", "end"),
    [
        (("--output", '{"paid": 3}'), "COMPLETED"),
        (("--fail", "LOST", "--message", "the bank says no"), "FAILED"),
        (("--retry",), "UNCERTAIN"),
    ],
)
def test_a_step_that_may_have_happened(pawl: Run, name: str, decision: tuple[str, ...], end: str) -> None:
    begin(pawl, name, "paying", "UNCERTAIN")
    found = pawl("doctor")
    assert found.exit_code == Exit.FAILED
    stuck = found.stdout[found.stdout.index(f"{name} is blocked") :]
    assert "step pay may or may not have happened: HEARTBEAT_TIMEOUT" in stuck
    command = f"pawl resolve {name} 1 --key pay --attempt 1"
    assert f"  try: {command} --retry\n" in stuck
    assert "is UNCERTAIN: step pay may or may not" in dict(rows(pawl("get", name)))["blocked by"]
    waited = pawl("send", name, "--wait", "0.01")
    assert waited.exit_code == Exit.UNFINISHED
    other = pawl("resolve", name, "1", "--key", "other", "--retry")
    assert (other.exit_code, "WRONG_STATE" in other.stderr) == (Exit.FAILED, True), other.stderr
    told = ok(pawl(*command.split()[1:], *decision, "--comment", "asked the bank"))
    assert told.startswith(f"turn 1 of {name} is ")
    wait_until_sync(lambda: state(pawl, name) == end, 20, f"the turn is {end}")
    turn = value(pawl("turns", name, "1", "--json"))
    if end == "COMPLETED":
        assert (turn["reply"], turn["steps"][0]["resolved"]) == ({"paid": 3}, True)
        assert "(by resolve)" in ok(pawl("turns", name, "1"))
    elif end == "FAILED":
        failure = turn["last_failure"]
        assert (failure["reason"], failure["message"]) == ("LOST", "the bank says no")
    decided = value(pawl("events", name, "--type", "step-resolved", "--json"))[0]
    assert (decided["key"], decided["comment"]) == ("pay", "asked the bank")
    assert decided["decision"] == {"COMPLETED": "SAVE", "FAILED": "FAIL", "UNCERTAIN": "RETRY"}[end]


@pytest.mark.spec("R-CLI-3")
def test_progress_while_watching(
    pawl: Run, dev_server: str, name: str, watches: list[Watch], tmp_path: Path
) -> None:
    done = tmp_path / "done"
    begin(pawl, name, "reading", "RUNNING", f'{{"until": "{done}"}}')
    wait_until_sync(lambda: value(pawl("get", name, "--json"))["progress"], 20, "progress is reported")
    shown = value(pawl("get", name, "--json"))
    assert (shown["progress"]["phase"], shown["progress"]["total"]) == ("reading", 97)
    cells = dict(rows(pawl("get", name)))
    assert cells["progress"] == "reading, 40 of 97 pages"
    assert "step read (tool) runs, reading, 40 of 97 pages" in cells["head turn"]
    assert "step read (tool) runs" in dict(rows(pawl("turns", name, "1")))["operation"]
    assert dict(rows(pawl("turns", name, "1")))["checkpoint"] == "40"
    operation = value(pawl("turns", name, "1", "--json"))["operation"]
    assert (operation["key"], operation["active"], operation["details"]) == ("read", True, {"shelf": 7})
    watches.append(Watch(dev_server, name, "--until-idle"))
    line = "Running  turn 1  reading, 40 of 97 pages"
    wait_until_sync(lambda: any(line in one for one in watches[0].lines), 20, "progress is shown")
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "pawl.cli", "watch", name, "--from-start", "--until-idle"]
    terminal = subprocess.Popen([*words, "--address", dev_server], cwd=ROOT, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        text = ""
        while "[########------------]" not in text:
            text += os.read(ours, 4096).decode()
        done.touch()
        assert terminal.wait(30) == Exit.OK
        assert watches[0].end() == Exit.OK
        text += os.read(ours, 65_536).decode()
    finally:
        terminal.kill()
        terminal.wait()
        os.close(ours)
    assert "Running  reading, 40 of 97 pages  [########------------]  0:0" in text
    assert "\r\x1b[K" in text
    assert "TURN_COMPLETED" in text.rsplit("\x1b[K", 1)[1]
    assert next(one for one in watches[0].lines if "Running" in one).endswith("0:00")
    assert value(pawl("get", name, "--json"))["progress"] is None


def test_redriving_all_of_a_type(pawl: Run, name: str) -> None:
    for at in (1, 2):
        fail(pawl, f"{name}-{at}")
        ok(pawl("park", f"{name}-{at}", "1"))
    only = ("--all", "failing", "--instance", f"{name}-1")
    none = value(pawl("redrive", *only, "--reason", "OTHER", "--json"))
    assert none == {"seen": 1, "redriven": 0, "skipped": 1, "refused": 0, "last_refusal": None}
    done = pawl("redrive", *only, "--reason", "BROKEN", "--comment", "mended")
    assert (done.exit_code, done.stdout) == (0, "1 of 1 parked turns redriven, 0 left out, 0 refused\n")
    wait_until_sync(lambda: state(pawl, f"{name}-1", 2) == "FAILED", 20, "the new turn fails as well")
    dropping = ("redrive", "--all", "failing", "--instance", f"{name}-2", "--discard")
    asked = pawl(*dropping)
    assert (asked.exit_code, "--yes" in asked.stderr) == (Exit.USAGE, True)
    assert ok(pawl(*dropping, "--yes")) == "1 of 1 parked turns discarded, 0 left out, 0 refused\n"
    for at in (1, 2):
        ok(pawl("delete", f"{name}-{at}", "--yes"))


@pytest.mark.parametrize(
    "words",
    [
        ("respond",),
        ("respond", "a", "--type", "t"),
        ("respond", "a", "1", "--reject", "NO"),
        ("respond", "a", "1", "--message", "x"),
        ("respond", "a", "{"),
        ("signal", "a"),
        ("signal", "a", "go", "1", "--file", "-"),
        ("signal", "a", "go", "--file", "no-such-file"),
        ("resolve", "a", "1", "--retry"),
        ("resolve", "a", "1", "--key", "k"),
        ("resolve", "a", "1", "--key", "k", "--retry", "--output", "1"),
        ("resolve", "a", "1", "--key", "k", "--retry", "--message", "x"),
        ("redrive",),
        ("redrive", "a"),
        ("redrive", "a", "1", "--all", "t"),
        ("redrive", "a", "1", "--reason", "R"),
        ("redrive", "--all", "t", "--request-id", "r"),
    ],
)
def test_usage(pawl: Run, words: tuple[str, ...]) -> None:
    assert pawl(*words).exit_code == Exit.USAGE


def test_progress_in_words() -> None:
    for progress, text in (
        (Progress("thinking", 0, None, ""), "thinking"),
        (Progress("reading", 3, None, "pages"), "reading, 3 pages"),
        (Progress("reading", 0, 9, "pages"), "reading, 0 of 9 pages"),
        (Progress("reading", 3, 9, ""), "reading, 3 of 9"),
    ):
        assert progress_text(progress) == text
    start = datetime(2030, 1, 1, tzinfo=UTC)
    late = ProgressView(Progress("reading", 30, 20, "pages"), start, start + timedelta(seconds=3_700))
    assert running_line(late, timedelta(seconds=5)) == (
        f"Running  reading, 30 of 20 pages  [{'#' * 20}]  1:01:45"
    )
    unknown = ProgressView(Progress("thinking", 0, None, ""), start, start + timedelta(seconds=61))
    assert running_line(unknown, timedelta(0)) == "Running  thinking  1:01"
