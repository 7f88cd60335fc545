"""`pawl config`: what is in force and where it comes from, without any server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from pawl.cli import serve
from pawl.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of each test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pawl(*words: str) -> Result:
    """Runs one command."""
    return CliRunner().invoke(main, words)


def settings(*words: str) -> dict[str, Any]:
    """What `pawl config --json` says of each setting."""
    result = pawl("config", "--json", *words)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["settings"]


@pytest.mark.spec("R-SETTING-1")
def test_every_setting_with_its_origin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pawl.toml").write_text("port = 1\nsweep_budget = 7\n[limits]\nstate_bytes = 9\n")
    monkeypatch.setenv("PAWL_PORT", "2")
    found = settings("--host", "localhost")
    expected = {"value": 2, "variable": "PAWL_PORT", "from": "environment", "place": "PAWL_PORT"}
    assert found["port"] == expected
    assert (found["host"]["value"], found["host"]["place"]) == ("localhost", "--host")
    assert found["sweep_budget"]["place"] == "pawl.toml, line 2"
    assert (found["limits.state_bytes"]["value"], found["limits.state_bytes"]["from"]) == (9, "file")
    expected = {"value": None, "variable": "PAWL_REDIS_URL", "from": "default", "place": None}
    assert found["redis_url"] == expected
    assert settings("--changed").keys() == {"port", "sweep_budget", "limits.state_bytes"}


@pytest.mark.spec("R-SETTING-4")
@pytest.mark.parametrize("command", [serve.server, serve.dev])
def test_every_option_of_a_server(command: click.Command) -> None:
    words = {
        "redis_url": "redis://localhost/1",
        "metrics_address": "127.0.0.1:1",
        "data_dir": "here",
        "host": "localhost",
        "port": "1",
        "namespace": "mine",
        "processes": "3",
        "insecure": None,
    }
    given = [
        option for option in command.params if option.name not in ("file", "as_json", "until_stdin_closes")
    ]
    line: list[str] = []
    for option in given:
        word = words[option.name or ""]
        line += [option.opts[0]] if word is None else [option.opts[0], word]
    found = settings(*line)
    for option in given:
        said = found[option.name or ""]
        assert (said["from"], said["place"]) == ("option", option.opts[0])
        assert str(said["value"]) == (words[option.name or ""] or "True")


def test_the_table_and_what_dev_differs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_PROT", "1")
    lines = pawl("config", "--dev").stdout.splitlines()
    rows = [line.split() for line in lines]
    assert lines[0] == "file: none"
    assert ["port", "7295", "default"] in rows
    assert ["log_level", "warning", "default"] in rows
    assert ["insecure", "false", "default"] in rows
    assert pawl("config").stderr == "PAWL_PROT is set, but there is no such setting\n"
    assert settings()["log_level"]["value"] == "info"


@pytest.mark.spec("R-SETTING-3")
def test_passwords_are_masked() -> None:
    result = pawl("config", "--redis", "redis://me:secret@localhost/1")
    assert "redis://me:***@localhost/1" in result.stdout
    assert "secret" not in result.output


@pytest.mark.spec("R-SETTING-2")
@pytest.mark.parametrize("command", ["config", "server", "dev"])
def test_a_bad_file_ends_every_command_alike(folder: Path, command: str) -> None:
    (folder / "pawl.toml").write_text("host = '::1'\nport = -1\n")
    result = pawl(command, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stderr)["error"]
    assert error["reason"] == "BAD_SETTING"
    assert error["message"] == "pawl.toml, line 2: port: -1 is not within 0 to 65,535"
    assert error["metadata"] == {"setting": "PAWL_PORT"}


@pytest.mark.spec("R-SETTING-2")
def test_a_bad_option_and_a_file_that_is_not_there() -> None:
    result = pawl("config", "--metrics", "nowhere")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: BAD_SETTING: --metrics: 'nowhere' is not of the form host:port")
    result = pawl("config", "--config", "absent.toml")
    assert result.exit_code == 2
    assert "absent.toml: can't be read: No such file" in result.stderr


def test_it_needs_neither_the_server_nor_its_packages(folder: Path) -> None:
    """In an interpreter that finds no package of the extra [server]."""
    code = (
        "import sys\n"
        "for name in ('redis', 'hiredis', 'uvloop', 'msgpack'): sys.modules[name] = None\n"
        "from pawl.cli.main import main\n"
        "main(['config', '--changed', '--port', '1'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={k: v for k, v in os.environ.items() if not k.startswith("PAWL_")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["port", "1", "option", "--port"]
