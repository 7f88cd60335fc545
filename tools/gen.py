"""Generates everything that has its source elsewhere: stubs, script wrappers, turn states, reference pages.

    python tools/gen.py             write
    python tools/gen.py --check     write nothing; list stale files, exit 1 if there are any

The protos need the tool venv (tools/requirements-gen.txt). Started with another Python this continues under
`--tools PYTHON`, else $PAWL_GEN_PYTHON, else `.venv-gen`, which it makes.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "tools/requirements-gen.txt"
# Everything there is generated, so what was not generated this time is stale.
WHOLE_FOLDERS = {
    "sdk/python/pawl/v1": "*_pb2*",
    "sdk/python/pawl/testing/v1": "*_pb2*",
    "sdk/python/pawl/_client/sync": "*.py",
    "docs/reference": "*.md",
}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Generate stubs, script wrappers and reference pages.")
    parser.add_argument("--check", action="store_true", help="write nothing, list stale files, exit 1 if any")
    parser.add_argument("--tools", metavar="PYTHON", help="Python of the tool venv")
    options = parser.parse_args()
    if importlib.util.find_spec("grpc_tools") is None or options.tools:
        python = options.tools or os.environ.get("PAWL_GEN_PYTHON") or str(tool_python())
        check = ["--check"] if options.check else []
        return subprocess.run([python, str(Path(__file__)), *check], check=False).returncode
    sys.path[:0] = [str(ROOT), str(ROOT / "server"), str(ROOT / "sdk/python")]
    from pawl_server.store.lua_header import LuaError

    try:
        wanted = generate(ROOT)
    except LuaError as error:
        print(error, file=sys.stderr)
        return 2
    stale = [path for path, text in wanted.items() if not matches(ROOT / path, text)]
    left = [path for path in leftovers() if path not in wanted]
    if options.check:
        print("".join(f"stale: {path}\n" for path in [*stale, *left]), end="")
        return 1 if stale or left else 0
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    for path in left:
        (ROOT / path).unlink()
        print(f"removed {path}")
    return 0


def generate(root: Path) -> dict[str, str]:
    """Returns the text of every generated file by its path under `root`."""
    from tools.generators import (
        cli_page,
        keys_page,
        logs_page,
        metrics_page,
        protos,
        python_page,
        scripts,
        settings_page,
        states,
        sync_client,
        transitions_page,
    )

    files: dict[str, str] = {}
    pages = (transitions_page, keys_page, cli_page, python_page, settings_page)
    observed = (logs_page, metrics_page)
    for generator in (protos, scripts, states, sync_client, *pages, *observed):
        files.update(generator.generate(root))
    return files


def matches(path: Path, text: str) -> bool:
    """Whether the file has exactly this text."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def leftovers() -> list[str]:
    """The files of the folders that hold nothing else."""
    found = (path for folder, glob in WHOLE_FOLDERS.items() for path in sorted((ROOT / folder).glob(glob)))
    return [path.relative_to(ROOT).as_posix() for path in found]


def tool_python() -> Path:
    """Returns the Python of `.venv-gen`, made and brought up to its requirements if need be."""
    folder = ROOT / ".venv-gen"
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder.name}")
        venv.create(folder, with_pip=True)
    installed = folder / "requirements-gen.txt"
    if not matches(installed, REQUIREMENTS.read_text(encoding="utf-8")):
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], check=True)
        shutil.copyfile(REQUIREMENTS, installed)
    return python


if __name__ == "__main__":
    sys.exit(main())
