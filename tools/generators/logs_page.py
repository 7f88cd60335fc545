"""docs/reference/logs.md, from the catalogue of log lines and the text below each."""

import ast
import logging
from itertools import pairwise
from pathlib import Path

from tools.generators.markdown import note, table

SOURCE = "server/pawl_server/log_lines.py"


def generate(root: Path) -> dict[str, str]:
    """Returns the page."""
    from pawl_server import log_lines, logs

    parts = [
        "# Log lines",
        note(SOURCE),
        'One line per record on stderr. With `log_format = "json"`, and by default wherever stderr is no'
        " terminal, each is a JSON object with `time` (UTC), `level`, `event`, `logger`, `message` and the"
        " fields of the event; `exception` has a traceback. Events, their levels and fields are those of"
        " this page; messages may change. What other libraries log has `event` null.",
        f"A kind of event is told at most {logs.BURST} times in {logs.EVERY_S:g} s, or as often as its last"
        " column says; the next one says in `left_out` how many were not told. Events with an `incident` are"
        " told always: the id leads from an answer with the reason INTERNAL to its traceback.",
    ]
    rows: list[tuple[str, ...]] = []
    for title, name, text in texts(root / SOURCE):
        if title:
            parts += [_table(rows), title] if rows else [title]
            rows = []
        line: logs.Line = getattr(log_lines, name)
        fields = ", ".join(f"`{field}`" for field in line.fields)
        level = logging.getLevelName(line.level).lower()
        rows.append((f"`{line.event}`", level, fields, text, _often(line.burst)))
    parts.append(_table(rows))
    return {"docs/reference/logs.md": "\n\n".join(parts) + "\n"}


def _table(rows: list[tuple[str, ...]]) -> str:
    return table(("event", "level", "fields", "meaning", "at most"), rows)


def _often(burst: int | None) -> str:
    from pawl_server import logs

    return "always" if burst is None else "" if burst == logs.BURST else str(burst)


def texts(path: Path) -> list[tuple[str, str, str]]:
    """Returns the heading above, the name and the text below each constant of the catalogue."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    body = ast.parse(source).body
    found = []
    for at, text in pairwise(body):
        if not isinstance(at, ast.Assign) or not isinstance(at.targets[0], ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            above = lines[at.lineno - 3] if at.lineno > 2 else ""
            title = above.replace("# ", "## ", 1) if above.startswith("# ") else ""
            found.append((title, at.targets[0].id, str(text.value.value)))
    return found
