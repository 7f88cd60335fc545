"""Each static rule finds its violation; the shipped scripts have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lua.samples import FILES, READ, write
from tools.check_lua import check
from tools.lua_bytecode import CompileError, global_uses
from tools.lua_rules import Finding

_KEYS = frozenset({"meta", "i"})
_UNUSED = {f"no script uses {name}" for name in ("unused", "helper_of_unused", "TABLE", "MOVES")}


def _findings(folder: Path) -> list[Finding]:
    return [one for one in check(folder, _KEYS) if one.text not in _UNUSED]


def test_the_shipped_scripts_are_clean() -> None:
    assert [one for one in check() if not one.warning] == []


def test_the_sample_is_clean_but_for_unused_definitions(tmp_path: Path) -> None:
    found = list(check(write(tmp_path), _KEYS))
    assert {one.text for one in found} == _UNUSED


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "text"),
    [
        ("transitions/probe.lua", "-- @oom   allow", "-- @oom   often", 15, "@oom is one of"),
        (
            "lib/base.lua",
            "redis.call('HGET', T .. 'i:'",
            "redis.call('HSET', T .. 'i:'",
            11,
            "HSET writes: only lib/commit",
        ),
        ("lib/base.lua", "redis.call('HGET'", "redis.pcall('HGET'", 11, "only redis.call with a literal"),
        ("lib/base.lua", "redis.call('HGET'", "redis.call(name", 11, "its command as a literal"),
        ("lib/base.lua", "redis.call('HGET'", "redis.call('OBJECT'", 11, "OBJECT is in neither command list"),
        (
            "lib/base.lua",
            "redis.call('HGET', T .. 'i:' .. id, 'r')",
            "redis.call('TIME')",
            11,
            "only lib/clock.lua",
        ),
        ("lib/base.lua", "'x', 0", "'x' .. now_ms, 0", 12, "string.format"),
        ("lib/base.lua", "'x', 0", "r.fence .. 'x', 0", 12, "string.format"),
        ("lib/base.lua", "'x', 0", "r[SEQ] .. 'x', 0", 12, "string.format"),
        (
            "lib/base.lua",
            "  return { 'GAP'",
            "  while id do find() end\n  return { 'GAP'",
            14,
            "needs a bound",
        ),
        (
            "lib/base.lua",
            "  return { 'GAP'",
            "  id[STATE] = 1\n  return { 'GAP'",
            14,
            "a state is set by transition()",
        ),
        ("lib/base.lua", "  return { 'GAP'", "  lost = 1\n  return { 'GAP'", 14, "assigns the global 'lost'"),
        ("lib/base.lua", "{ 'GAP', SMALL }", "{ 'GAP', SMALLER }", 14, "reads the global 'SMALLER'"),
        ("lib/base.lua", "{ 'GAP', SMALL }", "{ 'GAP', SMALL", 15, "does not compile in probe"),
        (
            "lib/base.lua",
            "{ 'GAP'",
            "{ 'GONE'",
            1,
            "@reply GAP is declared, but nothing in reach produces it",
        ),
        (
            "lib/base.lua",
            "{ 'GAP'",
            "{ 'GONE'",
            1,
            "@reply GONE is produced in reach of the script, but not declared",
        ),
        ("transitions/probe.lua", "| GAP(", "| GAPE(", 1, "reply word GAPE is not in REPLY_WORDS"),
        ("transitions/probe.lua", "-- @emits STARTED", "-- @emits ENDED", 1, "@emits ENDED is declared"),
        (
            "transitions/probe.lua",
            "-- @keyspace meta i",
            "-- @keyspace meta i e",
            1,
            "e is not in the catalogue",
        ),
        (
            "transitions/probe.lua",
            "-- @keyspace meta i",
            "-- @keyspace meta i e",
            1,
            "nothing in reach touches it",
        ),
        ("transitions/probe.lua", "-- @from  QUEUED", "-- @from  ASLEEP", 1, "ASLEEP is no state"),
        ("transitions/probe.lua", "-- @from  QUEUED", "-- @from  QUEUED RUNNING", 1, None),
        (
            "transitions/probe.lua",
            "-- @to    RUNNING",
            "-- @to    QUEUED",
            1,
            "no header has the move QUEUED -> RUNNING",
        ),
        ("lib/states.lua", "-- QUEUED -> RUNNING", "-- RUNNING -> QUEUED", 4, "the numbers differ"),
    ],
)
def test_a_broken_rule_is_found(
    tmp_path: Path, name: str, old: str, new: str, line: int, text: str | None
) -> None:
    assert old in FILES[name]
    found = _findings(write(tmp_path, {name: FILES[name].replace(old, new)}))
    if text is None:
        assert found == []
    else:
        assert any(text in one.text and one.line == line and not one.warning for one in found), found


def test_direct_writes_come_last(tmp_path: Path) -> None:
    direct = READ.replace("reads\n", "allow\n-- @writes direct\n").replace(
        "return", "redis.call('HSET', T .. 'meta', 'a', 1)\nreturn"
    )
    folder = write(tmp_path, {"transitions/put.lua": direct.replace("--- read", "--- put")})
    assert _findings(folder) == []
    late = direct.replace("return", "redis.call('HGET', T .. 'meta', 'a')\nreturn").replace(
        "--- read", "--- put"
    )
    [found] = _findings(write(tmp_path, {"transitions/put.lua": late}))
    assert "reads after the write in line 7" in found.text


def test_sizes_are_warnings(tmp_path: Path) -> None:
    found = _findings(write(tmp_path, {"lib/long.lua": "-- a line\n" * 61}))
    assert [(one.line, one.warning) for one in found] == [(61, True)]


def test_globals_are_found_in_nested_functions() -> None:
    uses = global_uses("local a = 1\nlocal function f()\n  return function() b = c + a end\nend\nreturn f")
    assert sorted((use.name, use.line, use.assigned) for use in uses) == [("b", 3, True), ("c", 3, False)]


def test_limits_of_the_compiler_are_errors() -> None:
    with pytest.raises(CompileError, match="200"):
        global_uses("".join(f"local v{n} = {n}\n" for n in range(201)))
    with pytest.raises(CompileError) as error:
        global_uses("#!lua\nlocal x = = 1")
    assert error.value.line == 2
