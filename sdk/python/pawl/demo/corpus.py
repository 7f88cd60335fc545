"""The documents: real text that is on this machine already."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENOUGH = 500
"""Documents that the standard library should give; where it gives fewer, its tests are taken as well."""

TOO_FEW = 200
"""Fewer than this in the standard library is an error."""

TOO_FEW_IN_FOLDER = 8
"""Fewer than this in a folder of your own is an error: nothing could be killed half-way."""

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Larger files of a folder are passed over."""

_HEAD_BYTES = 16 * 1024
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})
_DOCSTRING = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:[ \t]*(?:#[^\n]*)?\r?\n)*[rRuU]?[\"']")


class CorpusError(Exception):
    """There is too little to read; the text names the folder."""


@dataclass(frozen=True, slots=True)
class Document:
    """One file, and the id of the instance that will read it."""

    id: str
    path: Path


def documents(folder: Path | None = None, limit: int | None = None) -> list[Document]:
    """Gives the documents of a folder, or of the standard library, in the order of their names.

    Args:
        folder: any folder with text files, searched with its subfolders; None means the standard library's
            source files that have a module docstring.
        limit: take at most so many, spread evenly; None means all.

    Raises CorpusError if there are too few.
    """
    if folder is None:
        root = Path(sysconfig.get_path("stdlib"))
        found, least, kind = standard_library(root), TOO_FEW, "Python files with a module docstring"
    else:
        root = folder.resolve()
        if not root.is_dir():
            raise CorpusError(f"{folder} is not a folder")
        found, least, kind = sorted(text_files(root)), TOO_FEW_IN_FOLDER, "text files"
    if len(found) < least:
        raise CorpusError(f"{root} has {len(found)} {kind}; the demo needs at least {least}")
    if limit is not None and limit < len(found):
        found = [found[at * len(found) // limit] for at in range(limit)]
    return [Document(_id(number, path.relative_to(root)), path) for number, path in enumerate(found, 1)]


def standard_library(root: Path) -> list[Path]:
    """Gives the source files below a folder that have a module docstring, in order.

    Test files only where the others are not ENOUGH; never files of installed packages.
    """
    found: list[Path] = []
    tests: list[Path] = []
    for path in root.rglob("*.py"):
        folders = set(path.relative_to(root).parts[:-1])
        if folders & _FOREIGN or not _has_docstring(path):
            continue
        (tests if folders & _TESTS else found).append(path)
    return sorted(found if len(found) >= ENOUGH else [*found, *tests])


def text_files(root: Path) -> Iterator[Path]:
    """Finds the files below a folder that hold UTF-8 text, without hidden ones and hidden folders."""
    for path in root.rglob("*"):
        if any(part.startswith(".") or part in _FOREIGN for part in path.relative_to(root).parts):
            continue
        if path.is_file() and _is_text(path):
            yield path


def _has_docstring(path: Path) -> bool:
    """True if the first thing in a module, behind comments, is a string."""
    try:
        with path.open("rb") as file:
            return _DOCSTRING.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def _is_text(path: Path) -> bool:
    try:
        if not 0 < path.stat().st_size <= MAX_FILE_BYTES:
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    if b"\0" in head:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character cut in two by the end of the head
    return True


def _id(number: int, name: Path) -> str:
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", ".".join(name.parts), flags=re.ASCII)
    return f"doc-{number:04}-{readable[-100:]}"
