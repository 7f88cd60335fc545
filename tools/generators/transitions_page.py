"""docs/reference/transitions.md, from the script headers."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

from pawl_server.store.bundle import load_bundles
from pawl_server.store.lua_header import Field, Header
from tools.generators.markdown import note, table
from tools.generators.states import SOURCE, read_states

_OOM = {
    "allow": "runs although Redis is at maxmemory",
    "deny": "is refused while Redis is at maxmemory",
    "reads": "only reads",
}
_INTRO = """
Every state change is one Lua script under `server/pawl_server/lua`, run atomically in one partition. A script
answers one reply per item: a word, then its fields. Any script may answer `DAMAGED` for an item
whose instance can't be read, and `DELETING` for one that is being deleted.
"""


def generate(root: Path) -> dict[str, str]:
    """Returns the page. Raises LuaError."""
    headers = [bundle.header for bundle in load_bundles(root / "server/pawl_server/lua").values()]
    _, moves = read_states(root / SOURCE)
    return {"docs/reference/transitions.md": transitions_page(headers, frozenset(moves))}


def transitions_page(headers: Iterable[Header], moves: frozenset[tuple[str, str]]) -> str:
    """One section per script, transitions first, after the diagram of turn states."""
    headers = list(headers)
    parts = ["# Transitions", note("the headers of server/pawl_server/lua"), _INTRO.strip()]
    parts += ["## Turn states", diagram(headers, moves)]
    for title, kind in (("## Transitions", "transition"), ("## Queries", "query")):
        chosen = [header for header in headers if header.kind == kind]
        if chosen:
            parts += [title, *(_section(header) for header in chosen)]
    return "\n\n".join(parts) + "\n"


def diagram(headers: Iterable[Header], moves: frozenset[tuple[str, str]]) -> str:
    """The mermaid state diagram of all @from/@to lines. Of lists only the moves that exist are drawn."""
    edges: dict[tuple[str, str], list[str]] = {}
    for header in headers:
        for move in header.moves:
            for edge in product(move.sources or ("[*]",), move.targets or ("[*]",)):
                if edge in moves or not move.sources or move.sources == move.targets:
                    edges.setdefault(edge, []).append(header.name)
    lines = [
        f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in sorted(edges.items())
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _section(header: Header) -> str:
    parts = [f"### {header.name}", header.summary[:1].upper() + header.summary[1:]]
    if header.prose:
        parts.append(header.prose)
    for title, fields in (("argument", header.args), ("item field", header.items)):
        if fields:
            parts.append(
                table((title, "type", "meaning"), ((f"`{one.name}`", one.type, one.doc) for one in fields))
            )
    parts.append(
        table(("reply", "fields"), ((f"`{one.word}`", _fields(one.fields)) for one in header.replies))
    )
    facts = [f"At maxmemory: {_OOM[header.oom]}."]
    if header.moves:
        facts.append(f"Turn: {'; '.join(_move(move.sources, move.targets) for move in header.moves)}.")
    facts.append(f"Keys: {', '.join(f'`{name}`' for name in header.keyspaces) or 'none'}.")
    if header.emits:
        facts.append(f"Events: {', '.join(f'`{name}`' for name in header.emits)}.")
    if header.specs:
        facts.append(f"Rules: {', '.join(header.specs)}.")
    return "\n\n".join([*parts, "  \n".join(facts)])


def _move(sources: Iterable[str], targets: Iterable[str]) -> str:
    before, after = ", ".join(sources) or "none", ", ".join(targets) or "none"
    return f"{before} → {after}"


def _fields(fields: Iterable[Field]) -> str:
    return ", ".join(f"`{one.name}` {one.type}{' or nothing' if one.optional else ''}" for one in fields)
