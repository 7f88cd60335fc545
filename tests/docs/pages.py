"""Reads the Markdown pages of the repository: links, headings, fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {"build", "dist", "node_modules", "out"}

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: the page it is on, the line it starts at, its language and its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Where the block is, for the ids of tests."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Returns every Markdown page of the repository."""
    found = []
    for path in ROOT.rglob("*.md"):
        parts = path.relative_to(ROOT).parts
        if not any(part in SKIPPED or part.startswith(".") for part in parts):
            found.append(path)
    return sorted(found)


def blocks(*languages: str) -> list[Block]:
    """Returns the fenced blocks in one of the languages, page by page."""
    found: list[Block] = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match[1] in languages:
                found.append(Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


def prose(page: Path) -> str:
    """Returns the page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Returns the targets of the page's links."""
    return LINK.findall(CODE.sub("", prose(page)))


def anchors(page: Path) -> set[str]:
    """Returns the anchors that the headings of a page get on the usual hosts."""
    found = set()
    for heading in HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def shell_commands() -> list[tuple[str, str]]:
    """Returns the `make` and `pawl` commands of shell blocks and of running text, each with its place."""
    found: list[tuple[str, str]] = []
    for block in blocks("", "sh", "bash", "shell", "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            found.append((block.name, line.strip().removeprefix("$ ")))
    for page in pages():
        for text in CODE.findall(prose(page)):
            found.append((str(page.relative_to(ROOT)), text))
    return [(place, line) for place, line in found if line.startswith(("make ", "pawl "))]
