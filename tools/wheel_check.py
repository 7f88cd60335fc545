"""Builds the wheel and proves that a stranger can use it: an empty environment, an empty folder, only pip.

    python tools/wheel_check.py [--documents N]

Checks, in this order: the wheel holds the scripts, stubs and type markers and nothing of the repository
besides; the bare install imports `pawl` without the server's packages; the install with `[server]` runs
`pawl demo` to its end from an empty folder. Prints what each part took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
EXPECTED = (
    "pawl/__init__.py",
    "pawl/py.typed",
    "pawl/testing/v1/clock_service_pb2.py",
    "pawl/v1/turn_service_pb2.py",
    "pawl/v1/turn_service_pb2.pyi",
    "pawl/v1/turn_service_pb2_grpc.pyi",
    "pawl_server/__init__.py",
    "pawl_server/lua/transitions/finish.lua",
    "pawl_server/store/scripts_gen.py",
)


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns its standard output; ends this program, outputs shown, if it fails."""
    done = subprocess.run(
        [str(word) for word in command], check=False, cwd=cwd, env=env, capture_output=True, text=True
    )
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        sys.exit(f"wheel-check: {' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Prints how long the block took."""
    started = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - started:.1f} s", flush=True)


def build(folder: Path) -> Path:
    """Builds the wheel of the working tree into a folder."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Fails if the wheel lacks a file that it needs at run time or carries one that is not its own."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in EXPECTED if name not in names]
    scripts = (ROOT / "server/pawl_server/lua").rglob("*.lua")
    lua_here = {str(path.relative_to(ROOT / "server")) for path in scripts}
    missing += sorted(lua_here - set(names))
    strays = [name for name in names if not name.startswith(("pawl/", "pawl_server/", "pawl_workflows-"))]
    if missing or strays:
        sys.exit(f"wheel-check: missing from the wheel: {missing}; does not belong there: {strays}")


def new_environment(folder: Path, requirement: str) -> Path:
    """Makes an environment with nothing but the requirement and returns its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    quiet = ("--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS)
    run(programs / "python", "-m", "pip", "install", *quiet, requirement)
    return programs


def clean_environment() -> dict[str, str]:
    """Returns this process's variables without those that could lead into the repository."""
    kept = dict(os.environ)
    for name in os.environ:
        if name.startswith("PAWL_") or name in ("PYTHONPATH", "VIRTUAL_ENV"):
            del kept[name]
    return kept


def run_demo(programs: Path, folder: Path, documents: int | None) -> None:
    """Runs the demo from an empty folder and checks its report."""
    folder.mkdir()
    words: list[str | Path] = [programs / "pawl", "demo", "--json"]
    if documents is not None:
        words += ["--documents", str(documents)]
    report = json.loads(run(*words, cwd=folder, env=clean_environment()))
    print(json.dumps(report))
    if report["lost"] or report["duplicated"] or not report["workers_killed"]:
        sys.exit("wheel-check: the demo's report is not the one of a good run")


def main() -> None:
    """Runs all checks; the exit code is 0 only if each of them held."""
    options = argparse.ArgumentParser(description="Proves that the wheel works in an empty environment.")
    options.add_argument("--documents", type=int, default=None, help="documents of the demo, all by default")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="pawl-wheel-") as name:
        folder = Path(name)
        with timed("build"):
            wheel = build(folder / "dist")
            check_contents(wheel)
        with timed("install without the server"):
            bare = new_environment(folder / "bare", str(wheel))
            run(bare / "python", "-W", "error", "-c", "import pawl, pawl.v1", env=clean_environment())
            run(bare / "pawl", "--version", env=clean_environment())
        with timed("install with the server"):
            programs = new_environment(folder / "full", f"{wheel}[server]")
        with timed("demo"):
            run_demo(programs, folder / "empty", chosen.documents)
    print("wheel-check: all held")


if __name__ == "__main__":
    main()
