"""The numbered rules are well formed, and whoever names one names one that exists."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

RULE = re.compile(r"^- \*\*(R-[A-Z]+-\d+)\*\* (.*?)(?=^- |^#|\Z)", re.MULTILINE | re.DOTALL)
MENTION = re.compile(r"\bR-[A-Z]+-\d+\b")
NAMERS = [("server", "*.lua"), ("server", "*.py"), ("sdk", "*.py"), ("tests", "*.py"), ("docs", "*.md")]
SPEC = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")


def test_ids_are_unique_and_rise_in_their_area() -> None:
    ids = [match[1] for match in RULE.finditer(SPEC)]
    assert ids
    assert len(ids) == len(set(ids))
    last: dict[str, int] = {}
    for rule in ids:
        area, number = rule.rsplit("-", 1)
        assert int(number) > last.get(area, 0), rule
        last[area] = int(number)


def test_every_rule_says_must_in_a_full_sentence() -> None:
    for match in RULE.finditer(SPEC):
        text = " ".join(match[2].split())
        assert "MUST" in text, match[1]
        assert text.endswith("."), match[1]


def test_every_mention_names_a_rule() -> None:
    known = {match[1] for match in RULE.finditer(SPEC)}
    unknown = []
    for folder, pattern in NAMERS:
        for path in (ROOT / folder).rglob(pattern):
            for rule in MENTION.findall(path.read_text(encoding="utf-8")):
                if rule not in known:
                    unknown.append(f"{path.relative_to(ROOT)}: {rule}")
    assert unknown == []
