"""`pawl doctor` and `pawl fsck`: what is stuck, and what is wrong."""

from __future__ import annotations

import uuid

import pytest

from pawl.cli.exits import Exit
from tests.cli.conftest import Run
from tests.cli.test_client_commands import ok, value


@pytest.fixture
def name() -> str:
    """An instance id that no other test uses."""
    return f"doc-{uuid.uuid4().hex}"


def test_doctor_names_what_is_stuck_and_the_command_that_helps(pawl: Run, name: str) -> None:
    other = f"{name}-paused"
    assert pawl("send", name, "--type", "failing", "--version", "v1", "--wait", "10").exit_code == Exit.FAILED
    ok(pawl("send", name))
    ok(pawl("create", other, "--type", "failing", "--version", "v1"))
    ok(pawl("pause", other))
    ok(pawl("send", other))
    found = pawl("doctor")
    assert found.exit_code == Exit.FAILED
    blocked = found.stdout.index(f"{name} is blocked, 1 turn waits behind")
    assert "turn 1 has failed for good" in found.stdout[blocked:]
    assert f"pawl skip {name} 1 --attempt 1" in found.stdout[blocked:]
    assert f"pawl resume {other}" in found.stdout
    # What it says helps.
    for command in (f"skip {name} 1 --attempt 1", f"resume {other}", f"delete {other} --yes"):
        ok(pawl(*command.split()))
    problems = pawl("doctor", "--json")
    assert f"pawl skip {name} 1 --attempt 1" not in problems.stdout
    ok(pawl("delete", name, "--yes"))


def test_fsck_of_a_server_that_works(pawl: Run, name: str) -> None:
    ok(pawl("send", name, "--type", "nobody", "--version", "v1", "--delay", "60"))
    assert ok(pawl("fsck", "--page", "7")).endswith(": all is well\n")
    report = value(pawl("fsck", "--json", "--repair"))
    assert (report["findings"], report["instances"] >= 1, report["entries"] >= 1) == ([], True, True)
    stale = pawl("fsck", "--resume", "nonsense")
    assert (stale.exit_code, "CURSOR_STALE" in stale.stderr) == (Exit.FAILED, True)
    ok(pawl("delete", name, "--yes"))


def test_parked_turns_are_noted(pawl: Run, name: str) -> None:
    assert pawl("send", name, "--type", "failing", "--version", "v1", "--wait", "10").exit_code == Exit.FAILED
    ok(pawl("park", name, "1"))
    assert "parked turns can be redriven" in pawl("doctor").stdout
    ok(pawl("delete", name, "--yes"))


def test_a_message_of_a_life_that_is_over(pawl: Run, name: str) -> None:
    ok(pawl("send", name, "--type", "nobody", "--version", "v1", "--id", "once"))
    ok(pawl("delete", name, "--yes"))
    late = pawl("send", name, "--type", "nobody", "--version", "v1", "--id", "once")
    assert (late.exit_code, "another --id" in late.stderr) == (Exit.NOT_FOUND, True)
