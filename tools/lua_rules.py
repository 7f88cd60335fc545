"""The rules that tools/check_lua.py checks, as functions from parsed sources to findings."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pawl_server.store.bundle import Bundle, Definition, Lib, code_lines, without_strings
from tools.lua_bytecode import CompileError, global_uses

REPLY_WORDS = frozenset(
    {
        *(
            "OK",
            "ALREADY",
            "BODY_CONFLICT",
            "COMPACTED",
            "DONE",
            "FIRED",
            "GAP",
            "HELD",
            "LEASE_ENDED",
            "LIMIT_EXCEEDED",
        ),
        *(
            "DAMAGED",
            "DELETING",
            "INSTANCE_DELETED",
            "NEXT",
            "NOT_FOUND",
            "PENDING",
            "PRUNED",
            "REVISION_CONFLICT",
            "REWOUND",
            "SCHEMA_NEWER",
            "STALE",
        ),
        *("STALE_FENCE", "SUPERSEDED", "WRONG_PARTITIONS", "WRONG_STATE"),
    }
)
"""Every word a script may answer. IMPLIED ones hold for all scripts and stand in no header."""

IMPLIED = frozenset({"DAMAGED", "DELETING"})

READ_COMMANDS = frozenset(
    {
        *(
            "EXISTS",
            "GET",
            "HEXISTS",
            "HGET",
            "HGETALL",
            "HKEYS",
            "SCAN",
            "HLEN",
            "HMGET",
            "HRANDFIELD",
            "HSCAN",
            "HSTRLEN",
            "LINDEX",
        ),
        *("LLEN", "LRANGE", "SCARD", "SISMEMBER", "SMISMEMBER", "SSCAN", "TIME", "XLEN", "XRANGE"),
        *("XREVRANGE", "ZCARD", "ZRANK", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE"),
        *("ZLEXCOUNT", "ZREVRANGE", "ZSCAN", "ZSCORE"),
    }
)
WRITE_COMMANDS = frozenset(
    {
        *("DEL", "HDEL", "HINCRBY", "HSET", "LTRIM", "RPUSH", "SADD", "SPUBLISH", "SREM", "UNLINK", "XADD"),
        *("PEXPIRE", "XDEL", "XTRIM", "ZADD", "ZREM", "ZREMRANGEBYSCORE"),
    }
)
GLOBALS = frozenset(
    {
        *("ARGV", "KEYS", "cmsgpack", "error", "pcall", "ipairs", "math", "next", "pairs", "redis", "select"),
        *("string", "table", "tonumber", "tostring", "type", "unpack"),
    }
)
WRITERS = frozenset({"commit"})
"""Libs that may write; scripts may with `@writes direct`."""
STATE_WRITERS = frozenset({"wake", "inbox", "view"})
"""Libs that may assign the state of a head: `transition`, the inbox for a new one, the view of queries."""

_CALL = re.compile(r"redis\.call\(\s*'(?P<command>[A-Z]+)'")
_ANY_CALL = re.compile(r"redis\.\s*(?P<function>\w+)")
_PRODUCED = re.compile(r"\{\s*'(?P<word>[A-Z][A-Z0-9_]+)'")
_EMITTED = re.compile(
    r"\bledger_add\(\w+, (?P<event>[A-Z_]+)\b"
    r"|\bhead_end\((?:\w+, ){4}(?P<head>[A-Z_]+)\b|\bqueued_end\((?:\w+, ){5}(?P<queued>[A-Z_]+)\b"
)
_KEY = re.compile(
    r"(?:\bT \.\. |\bunit_mark\(|\bmend_mark\(|\bborn_index\(|\bor |\bname = |\bkind == )"
    r"'(?P<name>[a-z]+)(?:'|:)"
)
_JOINED = re.compile(r"\w*(?:fence|seq|_ms|_us)\b\]?\s*\.\.|\.\.\s*[\w.]*(?:fence|seq|_ms|_us)\b(?!\()", re.I)
_WHILE = re.compile(r"\bwhile\b(?P<condition>.*)\bdo\b")
_STATE_SET = re.compile(r"\[STATE\]\s*=(?!=)|\br\.state\s*=(?!=)")


class Finding(NamedTuple):
    """A broken rule; warnings do not fail the check."""

    path: Path
    line: int
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Code:
    """Lines of one file, or part of one, without comments."""

    path: Path
    lines: tuple[tuple[int, str], ...]

    @classmethod
    def of_file(cls, path: Path) -> "Code":
        text = path.read_text(encoding="utf-8")
        return cls(path, tuple(code_lines(path, enumerate(text.splitlines(), start=1))))

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> list["Code"]:
        """The script's own code, and that of each definition it reaches."""
        return [cls.of_file(bundle.header.path), *(cls(one.path, one.lines) for one in bundle.definitions)]


def check_file(code: Code, *, is_lib: bool, direct: bool) -> Iterator[Finding]:
    """Rules that a file keeps or breaks on its own."""
    name, wrote = code.path.stem, 0
    may_write = direct or (is_lib and name in WRITERS)
    for number, line in code.lines:
        for match in _ANY_CALL.finditer(line):
            if match["function"] not in ("call", "sha1hex"):
                yield Finding(
                    code.path, number, f"redis.{match['function']}: only redis.call with a literal command"
                )
        calls = [match["command"] for match in _CALL.finditer(line)]
        if len(calls) < line.count("redis.call") and not (is_lib and name in WRITERS):
            yield Finding(code.path, number, "redis.call needs its command as a literal on the same line")
        for command in calls:
            yield from _check_command(code.path, number, command, may_write)
            if command in WRITE_COMMANDS:
                wrote = wrote or number
            elif direct and wrote:
                yield Finding(
                    code.path, number, f"reads after the write in line {wrote}: compute, then write"
                )
        yield from _check_line(code.path, number, line, is_lib)


def _check_command(path: Path, number: int, command: str, may_write: bool) -> Iterator[Finding]:
    if command not in READ_COMMANDS | WRITE_COMMANDS:
        yield Finding(path, number, f"{command} is in neither command list of tools/lua_rules.py")
    elif command in WRITE_COMMANDS and not may_write:
        yield Finding(path, number, f"{command} writes: only lib/commit.lua and '@writes direct' scripts may")
    if command == "TIME" and path.stem != "clock":
        yield Finding(path, number, "only lib/clock.lua reads the time")


def _check_line(path: Path, number: int, line: str, is_lib: bool) -> Iterator[Finding]:
    bare = without_strings(line)
    if _JOINED.search(bare) and "string.format" not in bare:
        yield Finding(
            path, number, "numbers that grow large are written with string.format('%.0f', …), not .."
        )
    loop = _WHILE.search(bare)
    if loop and not re.search(r"[<>]|~=", loop["condition"]):
        yield Finding(path, number, "a while loop needs a bound in its condition")
    if _STATE_SET.search(bare) and not (is_lib and path.stem in STATE_WRITERS):
        yield Finding(
            path, number, "a state is set by transition() in lib/wake.lua; new heads by lib/inbox.lua"
        )


def check_bundle(bundle: Bundle, states: frozenset[str], keys: frozenset[str]) -> Iterator[Finding]:
    """Rules about a script and everything it reaches."""
    header, path = bundle.header, bundle.header.path
    text = [line for code in Code.of_bundle(bundle) for _, line in code.lines]
    declared = {reply.word for reply in header.replies}
    yield from _compare(path, "@reply", declared, _found(_PRODUCED, "word", text) - IMPLIED)
    if header.kind == "transition":  # a query settles what it shows, and forgets it
        yield from _compare(path, "@emits", set(header.emits), _found(_EMITTED, "event", text) - {"event"})
    for word in sorted(declared - REPLY_WORDS):
        yield Finding(path, 1, f"reply word {word} is not in REPLY_WORDS of tools/lua_rules.py")
    for name in sorted(set(header.keyspaces) - keys):
        yield Finding(path, 1, f"@keyspace {name} is not in the catalogue, store/keys.py")
    for name in sorted(set(header.keyspaces) - _found(_KEY, "name", text)):
        yield Finding(path, 1, f"@keyspace {name} is declared, but nothing in reach touches it")
    named = {state for move in header.moves for state in (*move.sources, *move.targets)}
    for state in sorted(named - states):
        yield Finding(path, 1, f"@from/@to {state} is no state of lib/states.lua")
    yield from _check_globals(bundle)


def _found(pattern: re.Pattern[str], group: str, lines: Iterable[str]) -> set[str]:
    """What the group matched, or the groups that stand in for it."""
    found = (match for line in lines for match in pattern.finditer(line))
    return {match[group] or next(filter(None, match.groups())) for match in found}


def _compare(path: Path, tag: str, declared: set[str], produced: set[str]) -> Iterator[Finding]:
    for word in sorted(declared - produced):
        yield Finding(path, 1, f"{tag} {word} is declared, but nothing in reach produces it")
    for word in sorted(produced - declared):
        yield Finding(path, 1, f"{tag} {word} is produced in reach of the script, but not declared")


def _check_globals(bundle: Bundle) -> Iterator[Finding]:
    try:
        uses = global_uses(bundle.text)
    except CompileError as error:
        yield Finding(*bundle.locate(error.line), f"does not compile in {bundle.name}: {error}")
        return
    for use in uses:
        if use.assigned or use.name not in GLOBALS:
            verb = "assigns" if use.assigned else "reads"
            yield Finding(*bundle.locate(use.line), f"{verb} the global {use.name!r} (in {bundle.name})")


def check_moves(
    bundles: Iterable[Bundle], moves: Mapping[tuple[str, str], str], source: Path
) -> Iterator[Finding]:
    """Every @from and @to takes part in a move of the table, and every move stands in some header."""
    covered: set[tuple[str, str]] = set()
    for bundle in bundles:
        for move in bundle.header.moves:
            pairs = {(one, other) for one in move.sources for other in move.targets}
            real = {pair for pair in pairs if pair in moves or pair[0] == pair[1]}
            covered |= real
            used = {state for pair in real for state in pair}
            for state in sorted({*move.sources, *move.targets} - used) if move.sources else ():
                yield Finding(bundle.header.path, 1, f"@from/@to {state}: no such move in lib/states.lua")
    for pair in sorted(set(moves) - covered):
        yield Finding(source, 1, f"no header has the move {pair[0]} -> {pair[1]}")


def check_unused(libs: Mapping[str, Lib], bundles: Iterable[Bundle]) -> Iterator[Finding]:
    """Definitions that no script reaches; number constants may stand for values of records."""
    reached: set[Definition] = {one for bundle in bundles for one in bundle.definitions}
    for lib in libs.values():
        for one in lib.definitions:
            if one not in reached and not one.number:
                yield Finding(one.path, one.lines[0][0], f"no script uses {one.name}")


def check_size(path: Path, limit: int) -> Iterator[Finding]:
    """Sizes that ask for a second look."""
    size = len(path.read_text(encoding="utf-8").splitlines())
    if size > limit:
        yield Finding(
            path, size, f"{size} lines, more than {limit}: does this file do one thing?", warning=True
        )
