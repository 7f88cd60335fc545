"""Python code of the pages runs as it stands, and prints what the page says it prints."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pawl import effect_id
from pawl_server.app import Handle
from tests.docs.pages import ROOT, Block, blocks

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
addopts = -p no:valkey
filterwarnings = error
"""


def promised_output(block: Block) -> str | None:
    """Returns the text block that directly follows a Python block on its page, which is what it prints."""
    rest = block.page.read_text(encoding="utf-8").split(block.text, 1)[1].removeprefix("```\n").lstrip("\n")
    return rest.removeprefix("```text\n").split("```", 1)[0] if rest.startswith("```text\n") else None


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.name)
async def test_python_block_runs(block: Block, server: Handle, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(block.text, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(program)]
    if "def test_" in block.text:
        (tmp_path / "pytest.ini").write_text(INI, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", str(program)]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env={"PAWL_ADDRESS": server.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(50):
        output, errors = await process.communicate()
    assert process.returncode == 0, output.decode() + errors.decode()
    promised = promised_output(block)
    if promised is not None:
        assert output.decode() == promised


def test_the_readme_promises_an_output() -> None:
    first = next(block for block in blocks("python") if block.page == ROOT / "README.md")
    assert promised_output(first)


def test_the_effect_id_for_other_languages_is_that_of_the_sdk() -> None:
    page = ROOT / "docs/other-languages.md"
    (vector,) = (block for block in blocks("python") if block.page == page and "blake2b" in block.text)
    assert promised_output(vector) == effect_id("default", 1, "order-7", "pay-1", "charge") + "\n"
