"""Commands that the pages name exist: make targets, and `pawl` commands with their options."""

from __future__ import annotations

import re
import shlex
import subprocess

import click
import pytest

from tests.docs.pages import ROOT, shell_commands

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def commands_of(program: str) -> list[tuple[str, list[str]]]:
    """Returns place and words of every command line of the program, without comments."""
    found = []
    for place, line in shell_commands():
        if line.split()[0] == program and not re.search("[…<>|]", line):
            found.append((place, shlex.split(line, comments=True)))
    return found


def test_every_make_target_exists() -> None:
    found = commands_of("make")
    assert found
    for place, words in found:
        targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        assert set(targets) <= TARGETS, place


def test_every_target_has_a_line_of_help() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+)", shown, re.MULTILINE)) == TARGETS


def parse(program: click.Command, words: list[str]) -> None:
    """Fails if the program would refuse the words as they stand."""
    context = click.Context(program, info_name="pawl", resilient_parsing=True)
    if not isinstance(program, click.Group):
        known = set()
        for parameter in program.params:
            known.update(parameter.opts, parameter.secondary_opts)
        options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
        assert set(options) <= known | {"--help"}
        return
    rest = [word for word in words if not word.startswith("-")]
    if rest:
        child = program.get_command(context, rest[0])
        assert child is not None, f"no command {rest[0]}"
        parse(child, words[words.index(rest[0]) + 1 :])


def test_every_pawl_command_exists() -> None:
    main = pytest.importorskip("pawl.cli.main")
    for place, words in commands_of("pawl"):
        try:
            parse(main.main, words[1:])
        except AssertionError as error:
            pytest.fail(f"{place}: {' '.join(words)}: {error}")
