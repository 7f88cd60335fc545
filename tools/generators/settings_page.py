"""docs/reference/settings.md, from the fields of the settings and limits and the text below each."""

import ast
import dataclasses
from pathlib import Path
from typing import Any

from tools.generators.markdown import note, table

SOURCES = "server/pawl_server/settings.py and server/pawl_server/domain/limits.py"


def generate(root: Path) -> dict[str, str]:
    """Returns the page."""
    from pawl_server.domain.limits import FIXED, Limits
    from pawl_server.settings import Settings, limit_variable, variable

    settings = texts(root / "server/pawl_server/settings.py", "Settings")
    limits = texts(root / "server/pawl_server/domain/limits.py", "Limits")
    rows = []
    for field in dataclasses.fields(Settings):
        if field.name != "limits":
            names = (f"`{field.name}`", f"`{variable(field.name)}`")
            rows.append((*names, default_of(field), range_of(field), settings[field.name]))
    limit_rows = []
    for field in dataclasses.fields(Limits):
        variable_name = f"`{limit_variable(field.name)}`"
        limit_rows.append(
            (f"`{field.name}`", default_of(field), range_of(field), variable_name, limits[field.name])
        )
    parts = [
        "# Settings and limits",
        note(SOURCES),
        "Options of the command line win over variables, these over keys of the file, and these over the"
        " defaults. The file is TOML: the one that `--config` or `PAWL_CONFIG` names, else `pawl.toml` in the"
        " working folder if there is one. A value that can't be read or is out of range, and a key that is"
        " none of these, end the start with their place. `pawl config` shows what is in force.",
        table(("key", "variable", "default", "range", "meaning"), rows),
        "## Limits",
        "Named as in LIMIT_EXCEEDED and GetServerInfo; keys of the file's table `[limits]`. The maximum is"
        " accepted, one more is refused.",
        table(("limit", "default", "range", "variable", "counts"), limit_rows),
        "## Fixed limits",
        table(("limit", "value"), [(f"`{name}`", f"{value:,}") for name, value in FIXED.items()]),
    ]
    return {"docs/reference/settings.md": "\n\n".join(parts) + "\n"}


def texts(path: Path, owner: str) -> dict[str, str]:
    """Returns the text below each field of a class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    named: dict[str, str] = {}
    for field, text in zip(found.body, found.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            named[field.target.id] = str(text.value.value)
    return named


def default_of(field: dataclasses.Field[Any]) -> str:
    """Returns the default as it would be written; empty for none."""
    value = field.default
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) and value > 9_999 else str(value)


def range_of(field: dataclasses.Field[Any]) -> str:
    """Returns what is allowed; empty where the type says it all."""
    if field.metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in field.metadata["choices"])
    low, high = field.metadata.get("min"), field.metadata.get("max")
    return "" if low is None else f"{low:,} to {high:,}"
