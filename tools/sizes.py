"""Lists the Python and proto files that have grown so long that they deserve a second look.

Prints a note for each one and never fails: length alone is no fault, but nobody should pass it unseen.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = (
    "sdk/python/pawl/v1/",
    "sdk/python/pawl/testing/v1/",
    "sdk/python/pawl/_client/sync/",
    "server/pawl_server/store/scripts_gen.py",
    "docs/reference/",
)


def limit_of(path: str) -> int | None:
    """Returns the number of lines that asks for a second look, or None for files that have no such number."""
    if path.startswith(GENERATED):
        return None
    if path.endswith(".py"):
        return 500 if path.startswith("tests/") else 400
    return 900 if path.endswith(".proto") else None


def tracked_files() -> list[str]:
    """Returns the files that git knows, relative to the root."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.split("\0") if name]


def main() -> None:
    """Prints one line per long file, longest first."""
    long_files: list[tuple[int, str, int]] = []
    for name in tracked_files():
        limit = limit_of(name)
        path = ROOT / name
        if limit is None or not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > limit:
            long_files.append((lines, name, limit))
    for lines, name, limit in sorted(long_files, reverse=True):
        print(f"{name}: {lines} lines (second look above {limit})")


if __name__ == "__main__":
    main()
