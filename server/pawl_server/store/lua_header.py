"""The machine-read header of a Lua script: one transition or query.

The header is the block of comment lines at the top of a file. Its first line is `--- name: summary.`; after
it come prose lines and `-- @tag` lines. A comment line without a tag continues the tag above it. Nothing in
it is decoration: the bundler writes the preamble from it, tools/gen.py the typed wrapper and the reference
page.
"""

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ARG_TYPES = ("int", "bool", "str", "bytes")
REPLY_TYPES = (*ARG_TYPES, "list")
OOM_FLAGS = {"allow": "allow-oom", "deny": "", "reads": "no-writes"}
PRIORITIES = {"completion": 0, "claim": 1, "admission": 2}

_REPEATABLE = ("keyspace", "arg", "item", "from", "to", "reply", "emits", "spec")
_TAGS = (*_REPEATABLE, "oom", "writes", "priority", "lane")
_TITLE = re.compile(r"--- (?P<name>[a-z][a-z0-9_]*): (?P<summary>\S.*)")
_TAG = re.compile(r"-- @(?P<tag>[a-z]+)(?:\s+(?P<text>.*))?$")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORD = re.compile(r"[A-Z][A-Z0-9_]*")
_REPLY = re.compile(r"(?P<word>[A-Z][A-Z0-9_]*)\s*(?:\((?P<fields>[^()]*)\))?")
_LUA_KEYWORDS = (
    *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local"),
    *("nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
)
_TUPLE_METHODS = ("count", "index")


class LuaError(Exception):
    """A Lua source file breaks a rule. The text names the file and the line."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}")
        self.path, self.line, self.why = path, line, why


@dataclass(frozen=True)
class Field:
    """One argument, item field or reply field. `optional`: Lua nil or false, in Python None."""

    name: str
    type: str
    doc: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Reply:
    """One reply: its word, then its fields in order."""

    word: str
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Move:
    """Turn states a transition takes a turn from and to; an empty `sources` means that it makes the turn."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Header:
    """What one script says about itself."""

    name: str
    kind: str
    path: Path
    summary: str
    prose: str = ""
    keyspaces: tuple[str, ...] = ()
    args: tuple[Field, ...] = ()
    items: tuple[Field, ...] = ()
    replies: tuple[Reply, ...] = ()
    moves: tuple[Move, ...] = ()
    oom: str = "deny"
    emits: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    direct_writes: bool = False
    priority: int = 2
    bulk: bool = False
    includes: tuple[str, ...] = ()
    body_line: int = 1
    """Number of the first line after the header."""


@dataclass
class _Draft:
    path: Path
    tags: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    prose: list[str] = field(default_factory=list)
    includes: list[str] = field(default_factory=list)

    def fail(self, line: int, why: str) -> LuaError:
        return LuaError(self.path, line, why)


def parse_header(path: Path, text: str, kind: str) -> Header:
    """Reads the header of `text`. `kind` is "transition" or "query". Raises LuaError."""
    draft = _Draft(path)
    lines = text.splitlines()
    title = _TITLE.fullmatch(lines[0]) if lines else None
    if title is None:
        raise draft.fail(1, "the first line must be '--- name: summary.'")
    if title["name"] != path.stem:
        raise draft.fail(1, f"the header names {title['name']!r}, the file {path.stem!r}")
    body_line = _collect(draft, lines)
    args, items = _fields(draft, "arg"), _fields(draft, "item")
    _distinct(draft, [*args, *items])
    oom, priority = _oom_and_priority(draft, kind, title["name"])
    return Header(
        name=title["name"],
        kind=kind,
        path=path,
        summary=title["summary"],
        prose="\n".join(draft.prose).strip(),
        keyspaces=tuple(_words(draft, "keyspace", re.compile(r"[a-z][a-z0-9_]*"))),
        args=args,
        items=items,
        replies=_replies(draft),
        moves=tuple(_moves(draft)),
        oom=oom,
        emits=tuple(_words(draft, "emits", _WORD)),
        specs=tuple(_words(draft, "spec", re.compile(r"[A-Z]+-[A-Z0-9-]+"))),
        direct_writes=_choice(draft, "writes", ("direct",), "") == "direct",
        priority=priority,
        bulk=_choice(draft, "lane", ("hot", "bulk"), "hot") == "bulk",
        includes=tuple(draft.includes),
        body_line=body_line,
    )


def parse_include(path: Path, number: int, line: str) -> list[str]:
    """Returns the names of an `--!include a b` line, [] for any other line. lib/a counts as a."""
    if not line.startswith("--!include"):
        return []
    names = line.removeprefix("--!include").split()
    if not names or not all(re.fullmatch(r"(lib/)?[a-z][a-z0-9_]*", name) for name in names):
        raise LuaError(path, number, "expected '--!include name name'")
    return [name.removeprefix("lib/") for name in names]


def _collect(draft: _Draft, lines: list[str]) -> int:
    """Sorts the comment lines into the draft; returns the number of the first line after the header."""
    last: tuple[int, str] | None = None
    tag = ""
    for number, line in enumerate(lines[1:], start=2):
        if not line.startswith("--"):
            return number
        if line.startswith("--!include"):
            draft.includes += parse_include(draft.path, number, line)
        elif match := _TAG.match(line):
            tag = match["tag"]
            if tag not in _TAGS:
                raise draft.fail(number, f"unknown tag @{tag}")
            last = (number, (match["text"] or "").strip())
            draft.tags.setdefault(tag, []).append(last)
            if tag == "to":
                _close_move(draft, last)
            if tag not in _REPEATABLE and len(draft.tags[tag]) > 1:
                raise draft.fail(number, f"a second @{tag}")
        elif re.match(r"-- *@", line):
            raise draft.fail(number, "a tag line is '-- @tag …'")
        elif last is None:
            draft.prose.append(line.lstrip("-").strip())
        else:
            last = (last[0], f"{last[1]} {line.lstrip('-').strip()}".strip())
            draft.tags[tag][-1] = last
    return len(lines) + 1


def _close_move(draft: _Draft, to: tuple[int, str]) -> None:
    """Makes '@from A' and the '@to B' line after it one move; an @to alone makes a turn."""
    moves = draft.tags.setdefault("from", [])
    if moves and "@to" not in moves[-1][1]:
        moves[-1] = (moves[-1][0], f"{moves[-1][1]} @to {to[1]}")
    else:
        moves.append((to[0], f"@to {to[1]}"))


def _fields(draft: _Draft, tag: str) -> tuple[Field, ...]:
    return tuple(_field(draft, number, text, ARG_TYPES) for number, text in draft.tags.get(tag, []))


def _field(draft: _Draft, number: int, text: str, types: Iterable[str]) -> Field:
    name, _, rest = text.strip().partition(" ")
    kind, _, doc = rest.strip().partition(" ")
    optional = kind.endswith("?")
    kind = kind.removesuffix("?")
    if not _NAME.fullmatch(name):
        raise draft.fail(number, f"{name!r} is not a field name (lower case with underscores)")
    if keyword.iskeyword(name) or name in _LUA_KEYWORDS or name in _TUPLE_METHODS:
        raise draft.fail(number, f"{name!r} can't be a field name: it has a meaning in Lua or Python")
    if kind not in types:
        raise draft.fail(number, f"type {kind!r} of {name!r} is none of {', '.join(types)}")
    if optional and types is ARG_TYPES:
        raise draft.fail(number, f"{name!r}: only reply fields can be optional")
    return Field(name, kind, doc.strip(), optional)


def _distinct(draft: _Draft, fields: Iterable[Field]) -> None:
    seen = {"at", "items"}
    for one in fields:
        if one.name in seen:
            raise draft.fail(1, f"argument {one.name!r} is declared twice or reserved")
        seen.add(one.name)


def _replies(draft: _Draft) -> tuple[Reply, ...]:
    found: dict[str, Reply] = {}
    if "reply" not in draft.tags:
        raise draft.fail(1, "no @reply")
    for number, text in draft.tags["reply"]:
        for part in filter(None, (part.strip() for part in text.split("|"))):
            match = _REPLY.fullmatch(part)
            if match is None:
                raise draft.fail(number, f"reply {part!r} is not 'WORD' or 'WORD(field type, …)'")
            if match["word"] in found:
                raise draft.fail(number, f"reply {match['word']} is declared twice")
            texts = [text for text in (match["fields"] or "").split(",") if text.strip()]
            fields = tuple(_field(draft, number, text, REPLY_TYPES) for text in texts)
            names = [one.name for one in fields]
            if len(set(names)) < len(names) or "word" in names:
                raise draft.fail(number, f"reply {match['word']} has a field twice, or one called 'word'")
            found[match["word"]] = Reply(match["word"], fields)
    return tuple(found.values())


def _moves(draft: _Draft) -> Iterable[Move]:
    for number, text in draft.tags.get("from", []):
        source, found, target = text.partition("@to")
        sources, targets = _split(source), _split(target)
        if not found or not all(_WORD.fullmatch(word) for word in [*sources, *targets]):
            raise draft.fail(number, "expected '@from STATE … @to STATE …'; an @to alone makes a turn")
        yield Move(tuple(sources), tuple(targets))


def _split(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _words(draft: _Draft, tag: str, shape: re.Pattern[str]) -> Iterable[str]:
    seen: dict[str, None] = {}
    for number, text in draft.tags.get(tag, []):
        for word in _split(text.partition(" --")[0]):
            if not shape.fullmatch(word):
                raise draft.fail(number, f"{word!r} does not fit @{tag}")
            seen[word] = None
    return seen


def _choice(draft: _Draft, tag: str, choices: Iterable[str], default: str) -> str:
    for number, text in draft.tags.get(tag, []):
        word = text.split(" ")[0]
        if word not in choices:
            raise draft.fail(number, f"@{tag} is one of {', '.join(choices)}")
        return word
    return default


def _oom_and_priority(draft: _Draft, kind: str, name: str) -> tuple[str, int]:
    oom = _choice(draft, "oom", OOM_FLAGS, "")
    if not oom:
        raise draft.fail(1, "no @oom allow, deny or reads")
    if (oom == "reads") != (kind == "query"):
        raise draft.fail(1, "queries, and only they, are '@oom reads'")
    default = (
        "claim" if name == "claim" or oom == "reads" else "completion" if oom == "allow" else "admission"
    )
    return oom, PRIORITIES[_choice(draft, "priority", PRIORITIES, default)]
