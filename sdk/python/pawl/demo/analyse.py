"""What the steps of a document do: plain functions over text."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

MAX_TEXT_BYTES = 48 * 1024
"""Text that is kept of one document, measured as JSON: a step's output is at most 64 KiB."""

_PYTHON = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_HEADING = re.compile(r"^(?:#{1,6}[ \t]+(\S.*)|(\S.*)\n(?:={3,}|-{3,})[ \t]*)$", re.MULTILINE)
_LINK = re.compile(r"\bhttps?://[^\s<>\"'`)\]}]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_SENTENCE = re.compile(r"[^\n.!?][^.!?]{15,240}[.!?](?=\s|$)")
_COMMON = frozenset({"that", "this", "with", "from", "which", "self", "return", "none", "true", "false"})


def read(path: Path) -> dict[str, Any]:
    """Reads a file: its text, cut where it is too long for one step, and its size in bytes."""
    data = path.read_bytes()
    text = data.decode("utf-8", errors="replace")
    kept = text
    while len(json.dumps(kept, ensure_ascii=False).encode()) > MAX_TEXT_BYTES:
        kept = kept[: min(len(kept) * 3 // 4, MAX_TEXT_BYTES)]
    return {"bytes": len(data), "text": kept, "cut": len(kept) < len(text)}


def digest(text: str) -> str:
    """Gives the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def extract(text: str, *, python: bool) -> dict[str, Any]:
    """Finds what a text defines (classes and functions, or headings) and links to; names 100 of each."""
    pattern = _PYTHON if python else _HEADING
    definitions = [match.group(match.lastindex or 0) for match in pattern.finditer(text)]
    links = sorted(set(_LINK.findall(text)))
    return {
        "definitions": len(definitions),
        "links": len(links),
        "names": [name[:80] for name in definitions[:100]],
        "targets": [link[:200] for link in links[:100]],
    }


def count(text: str) -> dict[str, Any]:
    """Counts lines and words, and names the words that say most."""
    words = [word.lower() for word in _WORD.findall(text)]
    telling = Counter(word for word in words if len(word) > 3 and word not in _COMMON)
    return {
        "lines": text.count("\n") + 1,
        "words": len(words),
        "top": [word for word, _ in telling.most_common(8)],
    }


def summarise(text: str, top: list[str]) -> str:
    """Picks the sentence that holds most of the telling words; the first of equals."""
    best, score = "", -1
    for sentence in _SENTENCE.findall(text[:16_384]):
        lower = sentence.lower()
        hits = sum(word in lower for word in top)
        if hits > score:
            best, score = sentence, hits
    return " ".join(best.split())[:240]
