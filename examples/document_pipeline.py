"""A pipeline over documents: one instance per file, one turn per ingestion, one saved step per stage.

```sh
pawl dev
pawl worker examples.document_pipeline:ingest
pawl send readme '{"path": "README.md"}' --type ingest --version v1 --wait 10
```

Kill the worker at any time and start it again: the stages that were done are not done again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pawl import Context, Outcome, workflow

LINK = re.compile(r"https?://[^\s)>\"']+")


@dataclass
class Ingest:
    """The message: which file to read."""

    path: str


@dataclass
class Source:
    """What the first stage saves."""

    text: str
    sha256: str


def read(path: Path) -> Source | None:
    """Reads the file; None if it is not there."""
    try:
        text = path.read_text(errors="replace")[:30_000]
    except FileNotFoundError:
        return None
    return Source(text, hashlib.sha256(text.encode()).hexdigest())


@workflow("ingest", version="v1", initial_state=None)
async def ingest(ctx: Context, state: dict[str, Any] | None, message: Ingest) -> Outcome:
    """Reads a document, finds links and counts words; an unchanged document is done after one stage."""
    path = Path(message.path)
    source = await ctx.step("read", lambda: asyncio.to_thread(read, path), kind="io", returns=Source | None)
    if source is None:
        # An answer, not a WorkflowError: that would block the instance for good.
        return ctx.done(state, result={"error": f"no file {path}"})
    if state is not None and state["sha256"] == source.sha256:
        return ctx.done(state, result={**state, "changed": False})
    links = await ctx.step("links", lambda: sorted(set(LINK.findall(source.text))))
    words = await ctx.step("words", lambda: len(source.text.split()))
    ctx.log.info("%s has %d words and %d links", path, words, len(links))
    found = {"path": message.path, "sha256": source.sha256, "words": words, "links": links}
    return ctx.done(found, result={**found, "changed": True})
