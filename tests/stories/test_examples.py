"""The examples run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from examples import counter as counter_module
from examples import document_pipeline
from examples.document_pipeline import ingest
from pawl import Client
from pawl.cli.main import main
from tests.stories.conftest import Working


async def test_the_document_pipeline(client: Client, working: Working, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See https://pawl.example/docs and https://pawl.example/docs again.\n")
    async with working(ingest):
        first = (await client.send("page", {"path": str(page)}, create=ingest, wait=20)).result()
        assert first["changed"]
        assert (first["words"], first["links"]) == (5, ["https://pawl.example/docs"])
        again = (await client.send("page", {"path": str(page)}, wait=20)).result()
        assert not again["changed"]
        assert (await client.get_turn("page", 2)).step_count == 1
        page.write_text("Changed.\n")
        changed = (await client.send("page", {"path": str(page)}, wait=20)).result()
        assert (changed["changed"], changed["words"]) == (True, 1)


async def test_the_document_pipeline_answers_for_a_file_that_is_not_there(
    client: Client, working: Working, tmp_path: Path
) -> None:
    page = tmp_path / "late.md"
    async with working(ingest):
        sent = await client.send("late", {"path": str(page)}, create=ingest, wait=20)
        assert sent.result() == {"error": f"no file {page}"}
        page.write_text("Here.\n")
        assert (await client.send("late", {"path": str(page)}, wait=20)).result()["changed"]


@pytest.mark.parametrize("module", [counter_module, document_pipeline])
def test_the_commands_in_the_examples_are_understood(module: object) -> None:
    commands = re.findall(r"^(pawl .*)$", module.__doc__ or "", re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        _, name, *words = shlex.split(command)
        found = main.commands.get(name) or main.get_command(None, name)  # pyright: ignore[reportArgumentType]
        assert found is not None
        found.make_context(name, words)
