"""The calls of the synchronous client, from those of the asyncio client: without `async` and `await`."""

import re
from pathlib import Path

AIO = "sdk/python/pawl/_client/aio"
SYNC = "sdk/python/pawl/_client/sync"

_CHANGES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\basync (def|for|with)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\bAsync(Iterator|Iterable|Generator)\b", r"\1"),
        (r"\baclosing\b", "closing"),
        (r"\b_client\.aio_connection\b", "_client.sync_connection"),
        (r"\b_client\.aio\b", "_client.sync"),
        (r"\bpawl\.client\b", "pawl.sync"),
    )
)


def generate(root: Path) -> dict[str, str]:
    """Returns a module for each one of the asyncio client."""
    return {f"{SYNC}/{path.name}": _sync(path) for path in sorted((root / AIO).glob("*.py"))}


def _sync(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        text = pattern.sub(replacement, text)
    return f"# Generated from ../aio/{path.name} by tools/gen.py; do not edit.\n{text}"
