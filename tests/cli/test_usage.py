"""What the command line says without a server: help, wrong usage, no answer, parts that are not installed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from google.protobuf.timestamp_pb2 import Timestamp

from pawl._convert import turn_of
from pawl.cli import turns, worker
from pawl.cli.exits import MEANINGS, CommandError, Exit, command_error
from pawl.cli.main import COMMANDS, main
from pawl.errors import DeadlineExceeded, ServerError, Unavailable
from pawl.v1.turn_pb2 import Turn as TurnMessage
from pawl.v1.turn_pb2 import TurnState

NOWHERE = ["--address", "127.0.0.1:1", "--timeout", "0.2"]


def pawl(*words: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, words, input=given)


def test_every_command_has_help() -> None:
    listing = pawl("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in listing
        shown = pawl(name, "--help")
        assert shown.exit_code == 0
        assert "Usage:" in shown.stdout
        assert "--json" in shown.stdout


def test_help_lines_are_whole() -> None:
    assert "..." not in pawl("--help").stdout.partition("Commands:")[2]


def test_version() -> None:
    shown = pawl("--version")
    assert (shown.exit_code, shown.stdout[:5]) == (0, "pawl ")


def test_every_exit_code_is_documented() -> None:
    assert set(MEANINGS) == set(Exit)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["frobnicate"], "No such command 'frobnicate' (see 'pawl --help')"),
        (["get"], "Missing argument 'ID' (see 'pawl get --help')"),
        (["get", "a", "b"], "unexpected extra argument"),
        (["create", "a"], "Missing option '--type'"),
        (["create", "a", "--type", "t", "--version", "v", "--state", "{"], "not JSON at position 1"),
        (
            ["create", "a", "--type", "t", "--version", "v", "--max-attempts", "0"],
            "is not in the range 1<=x<=1000",
        ),
        (["send", "a", "{nope}"], "MESSAGE is not JSON at position 1"),
        (["send", "a", "--type", "t"], "--type needs --version"),
        (["send", "a", "--version", "v"], "--version and --state need --type"),
        (["send", "a", "--state", "1"], "--version and --state need --type"),
        (["send", "a", "--text", "--binary"], "exclude each other"),
        (["send", "a", "x", "--binary"], "--binary reads standard input"),
        (["send", "a", "--wait", "-1"], "is not in the range"),
        (["turns", "a", "0"], "is not in the range"),
        (["list", "t", "--limit", "-1"], "is not in the range"),
        (["get", "a", "--timeout", "0"], "is not in the range"),
        (["worker"], "Missing argument 'MODULE:WORKFLOW"),
        (["demo", "--kill", "worker", "--no-kill"], "exclude each other"),
        (["demo", "--kill", "moon"], "'moon' is not one of"),
    ],
)
def test_wrong_usage_is_one_line(words: Sequence[str], says: str) -> None:
    shown = pawl(*words)
    assert shown.exit_code == Exit.USAGE
    assert shown.stdout == ""
    assert shown.stderr.startswith("error: USAGE: ")
    assert says in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_message_that_is_no_utf8() -> None:
    shown = pawl("send", "a", "-", given=b'"\xff"')
    assert shown.exit_code == Exit.USAGE
    assert "not UTF-8 at position 1" in shown.stderr


def test_a_text_that_is_no_utf8() -> None:
    shown = pawl("send", "a", "-", "--text", given=b"ok\xff")
    assert shown.exit_code == Exit.USAGE
    assert "not UTF-8 at position 2" in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["get", "a"],
        ["list", "t"],
        ["turns", "a"],
        ["turns", "a", "1"],
        ["send", "a"],
        ["send", "a", "--wait", "0"],
        ["create", "a", "--type", "t", "--version", "v"],
        ["info"],
    ],
)
def test_no_server(words: Sequence[str]) -> None:
    shown = pawl(*words, *NOWHERE)
    assert shown.exit_code == Exit.UNAVAILABLE
    assert shown.stderr == (
        "error: UNAVAILABLE: no server answers at 127.0.0.1:1 (Connection refused); 'pawl dev' starts one\n"
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            Unavailable(
                "errors resolving x.y:1: [field:address lookup failed for x.y:1: Domain name not found]"
            ),
            "no server answers at x.y:1 (Domain name not found); 'pawl dev' starts one",
        ),
        (Unavailable("Socket closed"), "the connection to x.y:1 broke (Socket closed)"),
        (DeadlineExceeded("Deadline Exceeded"), "the server at x.y:1 has not answered in time"),
        (Unavailable("the store did not answer", reason="STORE_UNAVAILABLE"), "the store did not answer"),
    ],
)
def test_what_is_said_when_there_is_no_answer(error: ServerError, says: str) -> None:
    shown = command_error(error, "x.y:1")
    assert (shown.message, shown.exit_code) == (says, Exit.UNAVAILABLE)


def test_errors_as_json() -> None:
    shown = pawl("get", "a", "--json", *NOWHERE)
    error = json.loads(shown.stderr)["error"]
    assert (error["reason"], error["exit_code"]) == ("UNAVAILABLE", 3)
    usage = json.loads(pawl("get", "--json").stderr)["error"]
    assert (usage["reason"], usage["exit_code"]) == ("USAGE", 2)


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_ADDRESS", "127.0.0.1:2")
    assert "127.0.0.1:2" in pawl("get", "a", "--timeout", "0.2").stderr
    assert "127.0.0.1:1" in pawl("get", "a", *NOWHERE).stderr


@pytest.mark.parametrize("command", ["dev", "server", "demo"])
def test_commands_that_need_the_server_say_how_to_install_it(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pawl_server.app", None)
    shown = pawl(command)
    assert shown.exit_code == Exit.USAGE
    assert "pip install 'pawl-workflows[server]'" in shown.stderr


def test_production_needs_a_store() -> None:
    shown = pawl("server")
    assert shown.exit_code == Exit.USAGE
    assert "PAWL_REDIS_URL" in shown.stderr


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (["dev", "--redis", "http://x"], "PAWL_REDIS_URL"),
        (["dev", "--host", "0.0.0.0"], "PAWL_HOST"),
        (["server", "--redis", "redis://x", "--namespace", "a b"], "PAWL_NAMESPACE"),
    ],
)
def test_bad_settings_are_named(words: Sequence[str], setting: str) -> None:
    shown = pawl(*words, "--json")
    error = json.loads(shown.stderr)["error"]
    assert (shown.exit_code, error["reason"], error["metadata"]) == (2, "BAD_SETTING", {"setting": setting})


def test_the_demo_names_a_folder_with_too_little(tmp_path: Path) -> None:
    shown = pawl("demo", str(tmp_path))
    assert shown.exit_code == Exit.USAGE
    assert (
        shown.stderr == f"error: TOO_FEW_DOCUMENTS: {tmp_path} has 0 text files; the demo needs at least 8\n"
    )


def test_the_demo_wants_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shown = pawl("demo", "--documents", "8", "--keep", str(tmp_path))
    assert shown.exit_code == Exit.FAILED
    assert "is not empty" in shown.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:x", "no module 'no_such_module'"),
        ("json:dumps", "'dumps' is a function, no workflow in json"),
        ("json:nothing", "'nothing' is no such name in json"),
        ("json", "json declares no workflow"),
        (":x", "not of the form MODULE:WORKFLOW"),
        ("orders.py", "give the module's name, without .py: 'orders'"),
        ("flows/orders.py:order", "give the module's name, without .py: 'flows.orders:order'"),
        ("orders:", "'orders' without the colon stands for all of its workflows"),
    ],
)
def test_what_is_no_workflow(name: str, says: str) -> None:
    shown = pawl("worker", name)
    assert shown.exit_code == Exit.USAGE
    assert says in shown.stderr


def test_workflows_are_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_flows.py").write_text(
        "from pawl import workflow\n"
        "@workflow('one', version='v1')\nasync def one(ctx, state, message): ...\n"
        "@workflow('two', version='v1')\nasync def two(ctx, state, message): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [found.name for found in worker.load("two_flows")] == ["one", "two"]
    assert [found.name for found in worker.load("two_flows:two")] == ["two"]


def test_an_import_that_fails_inside_the_module_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import json\nimport not_installed_anywhere\n")
    (tmp_path / "wrong.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "unfinished.py").write_text("def\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, line in (("needs_more", 2), ("wrong", 2), ("unfinished", 1)):
        shown = pawl("worker", name)
        assert shown.exit_code == Exit.USAGE
        assert shown.stderr.startswith(f"error: IMPORT_FAILED: {name} can't be imported: ")
        assert f"{name}.py, line {line})" in shown.stderr
        assert shown.stderr.count("\n") == 1
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        worker.load("needs_more", verbose=True)


def test_a_log_level_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_LOG_LEVEL", "loud")
    assert "'loud' is none of" in pawl("worker", "json").stderr


def test_nobody_reads_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    redirected: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "dup2", lambda one, two: redirected.append((one, two)))
    monkeypatch.setattr(click.Group, "main", broken)
    shown = pawl("--help")
    assert (shown.exit_code, shown.stderr) == (Exit.FAILED, "")


def test_an_interrupted_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(click.Group, "main", interrupted)
    assert pawl("info").exit_code == Exit.INTERRUPTED


def test_a_text_of_several_lines_becomes_one() -> None:
    @click.command()
    def spoil() -> None:
        raise CommandError("BROKEN", "first\n  second")

    main.add_command(spoil)
    COMMANDS["spoil"] = f"{__name__}:spoil"
    try:
        sys.modules[__name__].spoil = spoil  # pyright: ignore[reportAttributeAccessIssue]
        assert pawl("spoil").stderr == "error: BROKEN: first second\n"
    finally:
        del COMMANDS["spoil"], main.commands["spoil"]


def test_a_time_is_said_to_be_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    stamp = Timestamp()
    stamp.FromDatetime(datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC))
    for state, label in (("RUNNING", "lease until"), ("BACKOFF", "next attempt")):
        turns.show(
            turn_of(
                TurnMessage(
                    instance_id="i",
                    incarnation=1,
                    turn=1,
                    state=TurnState.Value(f"TURN_STATE_{state}"),
                    message_id="m",
                    attempt=1,
                    admit_time=stamp,
                    due_time=stamp,
                )
            )
        )
        assert f"\n{label}" in capsys.readouterr().out
