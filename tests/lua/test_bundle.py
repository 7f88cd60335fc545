"""The bundler: headers, includes, shaking, expansion, flags, and errors that name file and line."""

from __future__ import annotations

import re
from hashlib import sha1
from pathlib import Path
from typing import Any, cast

import pytest
from lupa import lua51

from pawl_server.store.bundle import Bundle, LuaError, load_bundles
from pawl_server.store.lua_header import Field, Move, Reply
from tests.lua.samples import BASE, FILES, PROBE, UNIT, write
from tests.support.lua_guard import guarded_bundles


@pytest.fixture
def bundles(tmp_path: Path) -> dict[str, Bundle]:
    return load_bundles(write(tmp_path))


def test_header_is_parsed(bundles: dict[str, Bundle]) -> None:
    header = bundles["probe"].header
    assert (header.name, header.kind, header.summary) == ("probe", "transition", "counts things.")
    assert header.prose == "It has a second line of prose."
    assert header.keyspaces == ("meta", "i")
    assert header.args[2] == Field("dry", "bool", "whether to write nothing")
    assert [field.name for field in header.items] == ["id", "turn", "blob"]
    assert header.replies[0] == Reply(
        "OK", (Field("turn", "int"), Field("note", "str", optional=True), Field("more", "bool"))
    )
    assert [reply.word for reply in header.replies] == ["OK", "NOT_FOUND", "GAP"]
    assert header.moves == (Move(("QUEUED",), ("RUNNING",)),)
    assert (header.oom, header.emits, header.specs) == ("allow", ("STARTED",), ("R-LEASE-1", "R-LEASE-2"))
    assert (header.priority, header.bulk, header.direct_writes) == (0, False, False)


def test_bundle_text(bundles: dict[str, Bundle]) -> None:
    text = bundles["probe"].text
    assert text.startswith("#!lua flags=allow-oom\nlocal T = string.sub(KEYS[1], 1, -5)\n")
    assert "local now_ms, server, dry = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1'\n" in text
    assert "local FIRST, STRIDE, LAST = 4, 3, #ARGV\n" in text
    assert "  local id, turn, blob = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]\n" in text
    assert "--" not in text
    assert bundles["probe"].sha1 == sha1(text.encode()).hexdigest()


def test_only_reached_definitions_are_kept_in_order(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["probe"]
    names = [one.name for one in bundle.definitions]
    assert names == ["BIG", "SMALL", "commit", "STARTED", "find", "ledger_add"]
    assert "unused" not in bundle.text
    assert bundles["read"].definitions == ()


def test_number_constants_are_written_in_place_outside_of_strings(bundles: dict[str, Bundle]) -> None:
    text = bundles["probe"].text
    assert "ledger_add(reply, 3, 9000000000, 'BIG')" in text
    assert "{ 'GAP', (-5) }" in text
    assert "local BIG" not in text


def test_shebang_flags(tmp_path: Path) -> None:
    changes = {"transitions/probe.lua": PROBE.replace("-- @oom   allow", "-- @oom   deny")}
    bundles = load_bundles(write(tmp_path, changes))
    assert bundles["probe"].text.startswith("#!lua\n")
    assert bundles["read"].text.startswith("#!lua flags=no-writes\n")
    assert (bundles["probe"].header.priority, bundles["read"].header.priority) == (2, 1)


def test_a_comment_keeps_the_sha(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    changes = {"lib/commit.lua": "-- a new comment\n" + UNIT, "lib/base.lua": BASE + "\n-- another\n"}
    assert load_bundles(write(tmp_path / "other", changes))["probe"].sha1 == bundles["probe"].sha1


def test_lines_lead_back_to_their_sources(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["probe"]
    for number, line in enumerate(bundle.text.splitlines(), start=1):
        path, at = bundle.locate(number)
        if at:
            source = path.read_text().splitlines()[at - 1]
            assert line.split("(")[0].split(" = ")[0].strip() in source or "--!item" in source
    at = 1 + next(n for n, line in enumerate(bundle.text.splitlines()) if "'HGET'" in line)
    assert bundle.explain(f"ERR user_script:{at}: x") == "ERR lib/base.lua:11: x"


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "why"),
    [
        ("transitions/probe.lua", "--- probe: ", "--- prove: ", 1, "names 'prove'"),
        ("transitions/probe.lua", "--- probe: counts", "-- probe: counts", 1, "first line"),
        ("transitions/probe.lua", "-- @emits", "-- @emit", 14, "unknown tag @emit"),
        ("transitions/probe.lua", "-- @emits", "--@emits", 14, "'-- @tag"),
        ("transitions/probe.lua", "dry    bool", "dry    boolean", 6, "type 'boolean'"),
        ("transitions/probe.lua", "dry    bool", "dry    bool?", 6, "only reply fields"),
        ("transitions/probe.lua", "-- @arg   dry ", "-- @arg   end ", 6, "meaning in Lua or Python"),
        ("transitions/probe.lua", "-- @item  id ", "-- @item  server ", 1, "declared twice"),
        ("transitions/probe.lua", "GAP(last int)", "GAP(last int", 12, "is not 'WORD'"),
        ("transitions/probe.lua", "| NOT_FOUND", "| OK", 12, "declared twice"),
        ("transitions/probe.lua", "-- @oom   allow", "-- @oom   maybe", 15, "@oom is one of"),
        ("transitions/probe.lua", "-- @oom   allow", "-- @oom   reads", 1, "queries, and only they"),
        ("transitions/probe.lua", "-- @to    RUNNING\n", "", 10, "@from STATE"),
        ("transitions/probe.lua", "--!include base", "--!include", 17, "--!include name"),
        ("transitions/probe.lua", "--!include base", "--!include nothing", 1, "no lib 'nothing'"),
        ("transitions/probe.lua", "  --!item\n", "  --!item\n  --!item\n", 22, "--!item needs"),
        ("lib/base.lua", "local function unused", "function unused", 6, "a lib holds only"),
        (
            "lib/base.lua",
            "return { 'GAP', SMALL }\nend",
            "return { 'GAP', SMALL }\n  end",
            10,
            "find has no 'end'",
        ),
        ("lib/base.lua", "'x'", "[[x]]", 12, "long brackets"),
        ("lib/commit.lua", "local function commit", "local function find", 10, "also defined in"),
        ("lib/commit.lua", "local SMALL = ", "local BIG = ", 2, "BIG is defined twice"),
        ("lib/commit.lua", "local BIG", "--!include base\nlocal BIG", 1, "include each other"),
    ],
)
def test_errors_name_file_and_line(
    tmp_path: Path, name: str, old: str, new: str, line: int, why: str
) -> None:
    assert old in FILES[name]
    with pytest.raises(LuaError) as error:
        load_bundles(write(tmp_path, {name: FILES[name].replace(old, new)}))
    assert why in str(error.value)
    if "also defined" not in why and "include each other" not in why:
        assert str(error.value).startswith(f"{tmp_path / name}:{line}: ")


def test_names_are_unique_over_transitions_and_queries(tmp_path: Path) -> None:
    with pytest.raises(LuaError, match="the name is taken"):
        load_bundles(write(tmp_path, {"queries/probe.lua": PROBE.replace("allow", "reads")}))


def test_the_shipped_scripts_load_and_differ_from_the_guarded_ones() -> None:
    bundles, guarded = load_bundles(), guarded_bundles()
    assert bundles.keys() == guarded.keys()
    assert len({bundle.sha1 for bundle in (*bundles.values(), *guarded.values())}) == 2 * len(bundles)
    assert all(
        (bundle.header.oom == "reads") == bundle.text.startswith("#!lua flags=no-writes\n")
        for bundle in (*bundles.values(), *guarded.values())
    )


RARE_LIB = """
local COUNT = { made = 0 }

local function often(x)
  return x + 1
end

local function shared_by_rare(x)
  return often(x) * 10
end

--!rare
local function seldom(x, y)
  if x == 0 then
    return y
  end
  COUNT.made = COUNT.made + 1
  return seldom(0, shared_by_rare(y))
end

-- A comment between the mark and the function.
--!rare
local function never(x)
  return shared_by_rare(x) + seldom(0, x)
end
"""

RARE_QUERY = """--- rare: uses what is rare.
-- @reply OK(a int, b int)
-- @oom   reads
-- @spec  R-LEASE-1
--!include rare
return { 1, { { 'OK', often(1), ARGV[1] == 'y' and seldom(1, 2) + seldom(1, 2) or never and 0 } }, {} }
"""


def _run(text: str, *argv: str) -> list[int]:
    lua = cast(Any, lua51.LuaRuntime)()
    body = text.partition("\n")[2]
    given = ", ".join(repr(arg) for arg in argv)
    result = lua.execute(f"local KEYS, ARGV = {{ '{{x}}meta' }}, {{ {given} }}\n{body}")
    return [int(result[2][1][at]) for at in (2, 3)]


def test_rare_helpers_are_made_when_they_are_called(tmp_path: Path) -> None:
    changes = {"lib/rare.lua": RARE_LIB, "queries/rare.lua": RARE_QUERY}
    text = load_bundles(write(tmp_path, changes))["rare"].text
    plain = load_bundles(
        write(tmp_path / "plain", {**changes, "lib/rare.lua": RARE_LIB.replace("--!rare\n", "")})
    )["rare"].text
    assert _run(text, "y") == _run(plain, "y") == [2, 60]
    assert _run(text, "n") == _run(plain, "n") == [2, 0]
    outside = text[: text.index("local function rarely1")]
    assert "local function often" in outside
    assert "shared_by_rare" not in outside, "what only rare helpers use is made with them"
    assert "local COUNT" not in outside
    assert "rarely" not in plain


def test_rare_helpers_that_use_too_much_are_made_in_groups(tmp_path: Path) -> None:
    used = "\n".join(f"local function u{n}() return {n} end" for n in range(90))
    calls = [" + ".join(f"u{n}()" for n in range(first, first + 45)) for first in (0, 45)]
    rare = "\n".join(f"--!rare\nlocal function r{at}() return {call} end" for at, call in enumerate(calls))
    everything = " + ".join(f"u{n}()" for n in range(90))
    query = RARE_QUERY.partition("return")[0] + (
        f"return {{ 1, {{ {{ 'OK', r0(), r1() }} }}, {{ {everything} }} }}\n"
    )
    made = load_bundles(write(tmp_path, {"lib/rare.lua": f"{used}\n{rare}\n", "queries/rare.lua": query}))[
        "rare"
    ].text
    assert _run(made) == [sum(range(45)), sum(range(45, 90))]
    assert "rarely2" in made


@pytest.mark.parametrize(
    ("rare", "why"),
    [
        ("--!rare\nlocal TABLE = {}\n", "rare.lua:1: --!rare stands before a function"),
        (
            "\n".join(f"local function u{n}() return {n} end" for n in range(70))
            + "\n--!rare\nlocal function often(x) return "
            + " + ".join(f"u{n}()" for n in range(70))
            + " end\n",
            "often uses more than 60 helpers",
        ),
    ],
)
def test_what_can_not_be_rare(tmp_path: Path, rare: str, why: str) -> None:
    every = " + ".join(f"u{n}()" for n in range(70)) if "u69" in rare else "TABLE"
    query = RARE_QUERY.partition("return")[0] + (
        f"return {{ 1, {{ {{ 'OK', often and often(1) or 0, 0 }} }}, {{ {every} }} }}\n"
    )
    with pytest.raises(LuaError, match=re.escape(why)):
        load_bundles(write(tmp_path, {"lib/rare.lua": rare, "queries/rare.lua": query}))
