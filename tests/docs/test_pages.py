"""Links of the pages lead somewhere, and the index of decisions is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in files if f"]({name})" not in index] == []
    numbers = [name[:4] for name in files]
    assert numbers == [f"{number:04}" for number in range(1, len(files) + 1)]


@pytest.mark.parametrize("path", sorted((ROOT / "docs/adr").glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_decision_says_what_has_to_be_said(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.name[:4]} ")
    for part in ("**Status:**", "**Context.**", "**Decision.**", "**What would change our mind.**"):
        assert part in text


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in reached or not page.is_file():
            continue
        reached.add(page)
        for link in links(page):
            path = link.partition("#")[0]
            if path and not re.match(r"[a-z]+:", link):
                target = (page.parent / path).resolve()
                queue.append(target / "README.md" if target.is_dir() else target)
    docs = {page for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert sorted(str(page.relative_to(ROOT)) for page in docs - reached) == []
