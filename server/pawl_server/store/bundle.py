"""Makes the text that Redis runs from the Lua sources.

One bundle = shebang line, preamble, the top-level definitions of lua/lib that the body reaches, the body. A
helper in a script costs time on every call, used or not, so unused definitions are left out and constants
that are numbers are written in place of their names. Comments and blank lines go too, so that a new comment
keeps the SHA. `Bundle.locate` maps a line that Redis names in an error back to its source line.

To make a closure of a helper costs time on every call, too, whether it is called or not. A helper behind a
line `--!rare` in its lib is made when it is first called, together with everything that only such helpers
use: they stand inside one function, which replaces the stub that stands for each of them until then.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path

from pawl_server.store.lua_header import OOM_FLAGS, Field, Header, LuaError, parse_header, parse_include

LUA = Path(__file__).resolve().parents[1] / "lua"
"""Folder of the Lua sources: transitions/, queries/ and lib/."""

SourceLine = tuple[Path, int]
Numbered = tuple[int, str]

_DEFINITION = re.compile(r"local function (?P<function>[A-Za-z_]\w*)\b|local (?P<value>[A-Za-z_]\w*) *=")
_IDENTIFIER = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_TOKEN = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<comment>--.*)|(?P<long>\[=*\[)""")
_NUMBER = re.compile(r"local [A-Z][A-Z0-9_]* *= *(?P<number>-?\d+(?:\.\d+)?)")
_STRING_OR_NAME = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?<![\w.:])(?P<name>[A-Za-z_]\w*)"""
)
_LOOP = re.compile(r"for at = FIRST, LAST, STRIDE do\b")
_PREAMBLE = Path("<preamble>")

RARE = "--!rare"
"""Stands before a helper that few calls of a script need."""

MAX_UPVALUES = 60
"""Names of outer functions that a function of Lua 5.1 may use."""


@dataclass(frozen=True)
class Definition:
    """One top-level `local` of a lib: its name, its source lines, and the identifiers it uses."""

    name: str
    path: Path
    lines: tuple[Numbered, ...]
    uses: frozenset[str]
    rare: bool = False
    """Whether it is made only when it is called."""

    @property
    def number(self) -> str:
        """The literal of a constant that is a number, else ''."""
        match = _NUMBER.fullmatch(self.lines[0][1])
        if match is None:
            return ""
        return f"({match['number']})" if match["number"].startswith("-") else match["number"]


@dataclass(frozen=True)
class Lib:
    """One file of lua/lib."""

    name: str
    path: Path
    includes: tuple[str, ...]
    definitions: tuple[Definition, ...]


@dataclass(frozen=True)
class Bundle:
    """One script ready to load: EVALSHA `sha1` runs `text`."""

    name: str
    text: str
    sha1: str
    header: Header
    definitions: tuple[Definition, ...]
    origins: tuple[SourceLine, ...]

    def locate(self, line: int) -> SourceLine:
        """Returns the source file and line of line `line` (from 1) of the text; the preamble has no file."""
        return self.origins[line - 1] if 0 < line <= len(self.origins) else (_PREAMBLE, 0)

    def explain(self, message: str) -> str:
        """Replaces each `user_script:LINE` of an error message by the source file and line."""

        def source(match: re.Match[str]) -> str:
            path, line = self.locate(int(match[1]))
            return f"{path.parent.name}/{path.name}:{line}"

        return re.sub(r"user_script:(\d+)", source, message)


def load_bundles(folder: Path = LUA, *, guard: Callable[[Header], str] | None = None) -> dict[str, Bundle]:
    """Returns the bundles of all transitions and queries by name.

    `guard` is for tests: the Lua text that it makes for a script runs before everything else in that script.
    Raises LuaError, which names file and line, for the first rule that a source breaks.
    """
    libs = load_libs(folder)
    bundles: dict[str, Bundle] = {}
    for kind, sub in (("transition", "transitions"), ("query", "queries")):
        for path in sorted((folder / sub).glob("*.lua")):
            bundle = make_bundle(path, path.read_text(encoding="utf-8"), kind, libs, guard=guard)
            if bundle.name in bundles:
                raise LuaError(path, 1, f"the name is taken by {bundles[bundle.name].header.path}")
            bundles[bundle.name] = bundle
    return bundles


def load_libs(folder: Path = LUA) -> dict[str, Lib]:
    """Reads all files of lua/lib. Raises LuaError."""
    paths = sorted((folder / "lib").glob("*.lua"))
    return {path.stem: parse_lib(path, path.read_text(encoding="utf-8")) for path in paths}


def make_bundle(
    path: Path,
    text: str,
    kind: str,
    libs: Mapping[str, Lib],
    *,
    guard: Callable[[Header], str] | None = None,
) -> Bundle:
    """Bundles one script. Raises LuaError."""
    header = parse_header(path, text, kind)
    body = [*enumerate(text.splitlines(), start=1)][header.body_line - 1 :]
    included = list(header.includes)
    kept: list[Numbered] = []
    for number, line in body:
        names = parse_include(path, number, line)
        included += names
        if not names:
            kept.append((number, line))
    expanded = _expand_items(header, code_lines(path, kept))
    available = _available(path, included, libs)
    used = _identifiers(line for _, line in expanded)
    definitions = _shake(used, available)

    flags = OOM_FLAGS[header.oom]
    before = [f"#!lua flags={flags}" if flags else "#!lua", "local T = string.sub(KEYS[1], 1, -5)"]
    before += guard(header).splitlines() if guard else []
    lines: list[tuple[SourceLine, str]] = [((_PREAMBLE, 0), line) for line in before]
    numbers = {one.name: one.number for one in definitions if one.number}
    lines += _emit_apart(path, definitions, used, numbers)
    lines += [((_PREAMBLE, 0), line) for line in _argument_locals(header)]
    lines += [((path, number), _inline(line, numbers)) for number, line in expanded]
    source = "\n".join(line for _, line in lines) + "\n"
    return Bundle(
        name=header.name,
        text=source,
        sha1=sha1(source.encode(), usedforsecurity=False).hexdigest(),
        header=header,
        definitions=tuple(definitions),
        origins=tuple(origin for origin, _ in lines),
    )


def library_text(names: Iterable[str], libs: Mapping[str, Lib]) -> str:
    """Returns the Lua text of the named definitions and all that they use, to run helpers on their own.

    Raises KeyError for a name that no lib defines.
    """
    by_name = {one.name: lib for lib in libs.values() for one in lib.definitions}
    wanted = list(names)
    includes = [by_name[name].name for name in wanted]
    definitions = _shake(wanted, _available(LUA, includes, libs))
    numbers = {one.name: one.number for one in definitions if one.number}
    return "".join(f"{line}\n" for _, line in _emit(definitions, numbers))


def parse_lib(path: Path, text: str) -> Lib:
    """Splits a lib into its top-level definitions. Raises LuaError for anything else at the top level."""
    includes: list[str] = []
    kept: list[Numbered] = []
    marks: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() == RARE:
            marks.append(number)
            continue
        names = parse_include(path, number, line)
        includes += names
        if not names:
            kept.append((number, line))
    definitions: list[Definition] = []
    rest = code_lines(path, kept)
    while rest:
        size, name = _definition_size(path, rest)
        lines = tuple(rest[:size])
        rare = bool(marks) and marks[0] < lines[0][0]
        if rare and not lines[0][1].startswith("local function "):
            raise LuaError(path, marks[0], f"{RARE} stands before a function")
        marks = marks[1:] if rare else marks
        if any(one.name == name for one in definitions):
            raise LuaError(path, lines[0][0], f"{name} is defined twice")
        uses = _identifiers(line for _, line in lines) - {name}
        definitions.append(Definition(name, path, lines, uses, rare))
        rest = rest[size:]
    return Lib(path.stem, path, tuple(includes), tuple(definitions))


def code_lines(path: Path, lines: Iterable[Numbered]) -> list[Numbered]:
    """Drops comments and blank lines; keeps an `--!item` line. Raises LuaError for long brackets."""
    kept: list[Numbered] = []
    for number, line in lines:
        if line.strip() == "--!item":
            kept.append((number, line))
            continue
        code = _without_comment(path, number, line).rstrip()
        if code:
            kept.append((number, code))
    return kept


def without_strings(line: str) -> str:
    """Returns a line of code with the content of its string literals and its comment removed."""
    return _TOKEN.sub(lambda match: '""' if match["text"] else "" if match["comment"] else match[0], line)


def _without_comment(path: Path, number: int, line: str) -> str:
    for match in _TOKEN.finditer(line):
        if match["long"] or (match["comment"] or "").startswith("--[["):
            raise LuaError(path, number, "no [[long brackets]]: the tools read line by line")
        if match["comment"]:
            return line[: match.start()]
    return line


def _definition_size(path: Path, lines: Sequence[Numbered]) -> tuple[int, str]:
    """Returns how many lines the first definition has, and its name."""
    number, first = lines[0]
    match = _DEFINITION.match(first)
    if match is None:
        raise LuaError(
            path, number, "a lib holds only 'local function name(…) … end' and 'local NAME = value'"
        )
    name = match["function"] or match["value"]
    if match["function"]:
        if re.search(r"\bend$", first):
            return 1, name
        closing = "end"
    elif re.search(r"[{(]$", first):
        closing = "}" if first.endswith("{") else ")"
    else:
        return 1, name
    for at, (_, line) in enumerate(lines[1:], start=2):
        if line.startswith(closing):
            return at, name
        if not line[0].isspace():
            break
    raise LuaError(path, number, f"{name} has no '{closing}' in the first column")


def _identifiers(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(word for line in lines for word in _IDENTIFIER.findall(without_strings(line)))


def _available(path: Path, names: Iterable[str], libs: Mapping[str, Lib]) -> list[Definition]:
    """Returns the definitions of the named libs and those they include, each lib after its includes."""
    order: dict[str, Lib] = {}
    found: dict[str, Definition] = {}

    def visit(name: str, user: Path, trail: tuple[str, ...]) -> None:
        if name in trail:
            raise LuaError(user, 1, f"libs include each other: {' → '.join([*trail, name])}")
        if name not in libs:
            raise LuaError(user, 1, f"there is no lib {name!r}")
        if name in order:
            return
        for include in libs[name].includes:
            visit(include, libs[name].path, (*trail, name))
        order[name] = libs[name]

    for name in names:
        visit(name, path, ())
    for lib in order.values():
        for one in lib.definitions:
            if one.name in found:
                other = found[one.name].path
                raise LuaError(one.path, one.lines[0][0], f"{one.name} is also defined in {other.name}")
            found[one.name] = one
    return list(found.values())


def _shake(used: Iterable[str], available: Sequence[Definition]) -> list[Definition]:
    """Keeps the definitions that `used` reaches, in their order."""
    by_name = {one.name: one for one in available}
    reached: set[str] = set()
    todo = [name for name in used if name in by_name]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [use for use in by_name[name].uses if use in by_name]
    return [one for one in available if one.name in reached]


def _emit(definitions: Iterable[Definition], numbers: Mapping[str, str]) -> list[tuple[SourceLine, str]]:
    """The lines of the definitions that remain definitions, with the numbers in place."""
    chosen = ((one.path, number, line) for one in definitions if not one.number for number, line in one.lines)
    return [((path, number), _inline(line, numbers)) for path, number, line in chosen]


def _emit_apart(
    path: Path, definitions: Sequence[Definition], used: Iterable[str], numbers: Mapping[str, str]
) -> list[tuple[SourceLine, str]]:
    """The same, with what only rare definitions use inside a function of its own. Raises LuaError."""
    by_name = {one.name: one for one in definitions if not one.number}
    often: set[str] = set()
    entries: set[str] = set()
    todo = [name for name in used if name in by_name]
    while todo:
        name = todo.pop()
        if by_name[name].rare:
            entries.add(name)
        elif name not in often:
            often.add(name)
            todo += [use for use in by_name[name].uses if use in by_name]
    if not entries:
        return _emit(definitions, numbers)
    names = [one.name for one in definitions if one.name in entries]
    lines = [_apart(f"local {', '.join(names)}")]
    lines += _emit((one for one in definitions if one.name in often), numbers)
    for number, group in enumerate(_groups(path, names, by_name, often), start=1):
        lines.append(_apart(f"local function rarely{number}()"))
        for one in group:
            first, *others = _emit([one], numbers)
            text = first[1].removeprefix("local ") if one.name in entries else first[1]
            lines += [(first[0], text), *others]
        lines.append(_apart("end"))
        lines += [
            _apart(f"{one.name} = function(...) rarely{number}() return {one.name}(...) end")
            for one in group
            if one.name in entries
        ]
    return lines


def _groups(
    path: Path, entries: Sequence[str], by_name: Mapping[str, Definition], often: set[str]
) -> list[list[Definition]]:
    """Rare helpers that are made together, with all that only rare ones use, in the order of their sources.

    A function can use so many names of outer ones, hence several groups. Raises LuaError.
    """
    outside = often | set(entries)
    groups: list[set[str]] = []

    def fits(group: set[str]) -> bool:
        used = {use for name in group for use in by_name[name].uses if use in outside}
        return len(used | {"T"} | (group & outside)) <= MAX_UPVALUES

    for entry in entries:
        alone, todo = {entry}, [*by_name[entry].uses]
        while todo:
            name = todo.pop()
            if name in by_name and name not in outside and name not in alone:
                alone.add(name)
                todo += by_name[name].uses
        if groups and fits(groups[-1] | alone):
            groups[-1] |= alone
        elif fits(alone):
            groups.append(alone)
        else:
            raise LuaError(path, 1, f"{entry} uses more than {MAX_UPVALUES} helpers, too many for a rare one")
    return [[one for one in by_name.values() if one.name in group] for group in groups]


def _apart(text: str) -> tuple[SourceLine, str]:
    return ((_PREAMBLE, 0), text)


def _inline(line: str, numbers: Mapping[str, str]) -> str:
    """Writes each constant of `numbers` in place of its name, outside of strings."""
    return _STRING_OR_NAME.sub(lambda match: numbers.get(match["name"] or "", match[0]), line)


def _value(field: Field, position: str) -> str:
    if field.type == "int":
        return f"tonumber(ARGV[{position}])"
    return f"ARGV[{position}] == '1'" if field.type == "bool" else f"ARGV[{position}]"


def _argument_locals(header: Header) -> list[str]:
    lines: list[str] = []
    if header.args:
        values = (_value(one, str(at)) for at, one in enumerate(header.args, start=1))
        lines.append(f"local {', '.join(one.name for one in header.args)} = {', '.join(values)}")
    if header.items:
        lines.append(f"local FIRST, STRIDE, LAST = {len(header.args) + 1}, {len(header.items)}, #ARGV")
    return lines


def _expand_items(header: Header, lines: Sequence[Numbered]) -> list[Numbered]:
    """Replaces each `--!item` by the locals of the item fields."""
    names = ", ".join(one.name for one in header.items)
    values = ", ".join(_value(one, f"at + {at}" if at else "at") for at, one in enumerate(header.items))
    expanded: list[Numbered] = []
    for at, (number, line) in enumerate(lines):
        if line.strip() == "--!item":
            if not header.items or not at or not _LOOP.search(lines[at - 1][1]):
                why = "--!item needs @item fields and stands right after 'for at = FIRST, LAST, STRIDE do'"
                raise LuaError(header.path, number, why)
            line = line.replace("--!item", f"local {names} = {values}")
        expanded.append((number, line))
    return expanded
