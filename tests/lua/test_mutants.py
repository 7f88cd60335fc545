"""The tool that takes single lines out of transitions: what it takes out, and how it tells who notices."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tools import mutants as tool
from tools.lua_rules import WRITE_COMMANDS
from tools.mutating import pool as pools
from tools.mutating.choice import Choice
from tools.mutating.lua_syntax import Expression, Statement, SyntaxFault, parse
from tools.mutating.operators import Mutant, mutants_of
from tools.mutating.pool import Pool, Ran, WorkerFailed
from tools.mutating.scripts import Scripts
from tools.mutating.worker import Job, Outcome

STORE_TESTS = "tests/transitions/test_store.py"


# What is read.


def kinds(statements: Sequence[Statement]) -> list[str]:
    return [one.kind for one in statements]


def test_statements_are_told_apart() -> None:
    found = parse(
        """
        local a, b = 1, { 'x', [2] = 3, y = f(), 4; 5 }
        a, b.c[1].d = b, a -- if then
        f(a)('x'):g { 1 }
        local function h(...) return ... end
        function m.n:o() end
        if a then b() elseif not c then return else break end;
        for i = 1, 2 do a = i end
        for k, v in pairs(a) do v() end
        while #a > 0 do break end
        repeat a = a - 1 until a == 0
        do end
        --[[ return
        ]] return function() return end, [[ then
        ]], "\\"'", '\\'"', 0x1F, 1.5e-3
        """
    )
    assert kinds(found) == [
        *(
            "local",
            "assign",
            "call",
            "function",
            "function",
            "if",
            "block",
            "block",
            "block",
            "block",
            "block",
        ),
        "return",
    ]
    local, assign, call, function, method, branches = found[:6]
    assert [one.text for one in local.values[1].items] == ["'x'", "[2] = 3", "y = f()", "4", "5"]
    assert [one.text for one in assign.targets] == ["a", "b.c[1].d"]
    assert (call.values[0].callee, call.values[0].arguments[0].text) == ("f(a)('x'):g", "{ 1 }")
    assert (function.name, kinds(function.block), method.name) == ("h", ["return"], "m.n.o")
    assert [clause.condition and clause.condition.text for clause in branches.clauses] == ["a", "not c", None]
    assert [kinds(clause.block) for clause in branches.clauses] == [["call"], ["return"], ["break"]]
    assert len(found[-1].values) == 6


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("a or b and c or d", ["or", "a", ["and", "b", "c"], "d"]),
        ("a and (b or not c)", ["and", "a", ["or", "b", "not c"]]),
        ("not (a or b) and c == d .. e", ["and", "not (a or b)", "c == d .. e"]),
        ("f(a or b)", "f(a or b)"),
        ("(a or b).c and d", ["and", "(a or b).c", "d"]),
        ("a == (b or c)", "a == (b or c)"),
    ],
)
def test_operands_of_a_condition_are_told_apart(text: str, shape: object) -> None:
    def shape_of(one: Expression) -> object:
        return [one.operator, *map(shape_of, one.parts)] if one.parts else one.text

    assert shape_of(parse(f"x = {text}")[0].values[0]) == shape


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\n\nx = = 1", "line 3: an expression expected, not '='"),
        ("if a then\nb()", "line 2: end expected, not 'end of file'"),
        ("a()\nend", "line 2: unexpected 'end'"),
        ("x", "an expression is no statement"),
        ("x = 1 ~ 2", "cannot read '~ 2'"),
        ("local 5 = 1", "a name expected, not '5'"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, why: str) -> None:
    with pytest.raises(SyntaxFault, match=re.escape(why)):
        parse(text)


# What is taken out.

HELPERS = """
local function refuse(name)
  return { 'LIMIT', name }
end
"""


def changes_of(body: str) -> dict[str, str]:
    """Mutants of a function with this body: what is changed → the body afterwards, on one line."""
    text = f"{HELPERS}\nlocal function f(u)\n{textwrap.dedent(body)}\nend\n"
    found = [one for one in mutants_of({"lib/x.lua": text}) if one.function == "f"]
    assert {one.name.partition(": ")[0] for one in found} <= {"lib/x.lua f"}
    bodies = (one.apply(text).partition("function f(u)\n")[2].rpartition("end")[0] for one in found)
    names = (f"{one.kind} {one.name.partition(': ')[2]}" for one in found)
    return dict(zip(names, (" ".join(body.split()) for body in bodies), strict=True))


def test_statements_that_change_something_are_left_out() -> None:
    assert changes_of("unit_set(u, 'a', 1)\nlocal b = read(u)\nDUE[u.id] = b") == {
        "write without unit_set(u, 'a', 1)": "local b = read(u) DUE[u.id] = b",
        "write without DUE[u.id] = b": "unit_set(u, 'a', 1) local b = read(u)",
    }


def test_each_variable_of_an_assignment_is_left_out() -> None:
    assert changes_of("r[A], r[B], r[C] = 1, g(2, 3), 4") == {
        "write without r[A] = 1": "r[B], r[C] = g(2, 3), 4",
        "write without r[B] = g(2, 3)": "r[A], r[C] = 1, 4",
        "write without r[C] = 4": "r[A], r[B] = 1, g(2, 3)",
    }
    assert changes_of("a, b = unpack(u)") == {"write without a, b = unpack(u)": ""}


def test_each_field_of_a_list_of_fields_is_left_out() -> None:
    assert changes_of("local fields = {\n'a', 1,\n'b', f(2, 3),\n'c', 4,\n}") == {
        "write without 'a', 1": "local fields = { 'b', f(2, 3), 'c', 4, }",
        "write without 'b', f(2, 3)": "local fields = { 'a', 1, 'c', 4, }",
        "write without 'c', 4": "local fields = { 'a', 1, 'b', f(2, 3) , }",
    }
    assert changes_of("redis.call('HSET', T .. 'm', 'a', 1, 'b', 2)") == {
        "write without redis.call('HSET', T .. 'm', 'a', 1, 'b', 2)": "",
        "write without 'a', 1": "redis.call('HSET', T .. 'm', 'b', 2)",
        "write without 'b', 2": "redis.call('HSET', T .. 'm', 'a', 1)",
    }
    assert changes_of("local words = { 'a', 'b', 'c', 'd' }") == {}
    assert list(changes_of("redis.call('HSET', key, unpack(fields))")) == [
        "write without redis.call('HSET', key, unpack(fields))"
    ]


def test_branches_that_refuse_or_end_early_are_never_taken() -> None:
    assert changes_of("if a then\nreply = { 'GAP', 1 }\nelseif b then\nreply = refuse('x')\nend") == {
        "refusal never a": "if false then reply = { 'GAP', 1 } elseif b then reply = refuse('x') end",
        "refusal never b": "if a then reply = { 'GAP', 1 } elseif false then reply = refuse('x') end",
    }
    assert set(changes_of("if a then return end\nfor i = 1, 2 do if b then break end end")) == {
        "refusal never a",
        "refusal never b",
    }
    assert changes_of("if a then reply = { 'OK' } end") == {}
    assert set(changes_of("if a then error('x') end")) == {"refusal never a"}


def test_each_operand_of_a_refusal_is_left_out() -> None:
    found = changes_of("if a and (b or c) and d then return nil end")
    assert {
        name.removeprefix("refusal a and (b or c) and d "): body[3:-20] for name, body in found.items()
    } == {
        "refusal never a and (b or c) and d": "false",
        "without and a": "((b or c) and d)",
        "without and (b or c)": "(a and d)",
        "without or b": "a and c and d",
        "without or c": "a and b and d",
        "without and d": "(a and (b or c))",
    }


def test_a_refusal_that_was_found_is_not_heeded() -> None:
    assert changes_of("if not reply then b() end")["refusal whatever reply"] == "if true then b() end"
    assert "refusal never reply" in changes_of("if reply then\n-- nothing\nelseif a then\nb()\nend")


def test_a_refusal_at_the_end_of_a_block_with_other_ends_is_left_out() -> None:
    assert changes_of("if a then return nil end\nreturn { 'STALE' }") == {
        "refusal never a": "if false then return nil end return { 'STALE' }",
        "refusal without return { 'STALE' }": "if a then return nil end",
    }
    nested = "if a then\nif b then return nil end\nreturn { 'GAP' }\nend"
    assert "refusal without return { 'GAP' }" in changes_of(nested)
    assert changes_of("return { 'STALE' }") == {}


def test_a_choice_between_an_answer_and_a_refusal_becomes_the_answer() -> None:
    assert changes_of("replies[1] = u and { 'OK' } or refuse('x')") == {
        "refusal never refuse('x')": "replies[1] = { 'OK' }"
    }
    assert changes_of("local a = { 'OK' } or { 'GAP' }") == {"refusal never { 'GAP' }": "local a = { 'OK' }"}


def test_mutants_of_equal_text_have_names_of_their_own_and_lines_stay() -> None:
    text = "local function f(u)\n  g(u,\n    1)\n  g(u, 1)\nend\n"
    first, second = mutants_of({"lib/x.lua": text})
    assert (first.name, second.name) == (
        "lib/x.lua f: without g(u, 1)",
        "lib/x.lua f: without g(u, 1) (2)",
    )
    assert (first.line, second.line) == (2, 4)
    assert first.apply(text).splitlines()[3] == "  g(u, 1)"


# The scripts as they are.


@pytest.fixture(scope="module")
def scripts() -> Scripts:
    return Scripts(tool.read_sources())


@pytest.fixture(scope="module")
def every(scripts: Scripts) -> list[Mutant]:
    return tool.find_mutants(scripts)


def lines_with(scripts: Scripts, pattern: str) -> Iterator[tuple[str, int]]:
    """Places in code that transitions use; constants of libs are none."""
    for file, text in scripts.sources.items():
        if not file.startswith("queries/") and file != "lib/view.lua":
            for number, line in enumerate(text.splitlines(), start=1):
                if re.search(pattern, line) and line.startswith(" " if file.startswith("lib/") else ""):
                    yield file, number


def test_names_are_unique(every: list[Mutant]) -> None:
    assert len({one.name for one in every}) == len(every)


def test_every_line_that_prepares_or_makes_a_write_has_a_mutant(
    scripts: Scripts, every: list[Mutant]
) -> None:
    calls = "unit_set|unit_touch|transition|ledger_add|lease_end|make_ready|unit_write"
    writes = "|".join(sorted(WRITE_COMMANDS))
    pattern = (
        rf"^\s*({calls})\w*\(|^\s*redis\.call\(('({writes})'|command)"
        r"|^\s*(DUE|BUSY|INDEX|WAITERS|PUBLISH)\[[^=]*\] = |^\s*(u\.)?r\[[A-Z_]+\] = "
    )
    places = set(lines_with(scripts, pattern))
    assert len(places) > 150
    assert places - {(one.file, one.line) for one in every if one.kind == "write"} == set()


def test_every_condition_right_above_a_refusal_has_a_mutant(scripts: Scripts, every: list[Mutant]) -> None:
    places = set(lines_with(scripts, r"^\s*(else)?if .* then$"))
    refusal = re.compile(r"\s*(reply =|return) ({ '(?!OK|FIRED|NEXT)[A-Z_]+'|over\(|unit_absent\(\))")
    refusing = {
        (file, number) for file, number in places if refusal.match(scripts.sources[file].splitlines()[number])
    }
    assert len(refusing) > 30
    assert refusing - {(one.file, one.line) for one in every if one.kind == "refusal"} == set()


def test_nearly_every_mutant_is_viable(scripts: Scripts, every: list[Mutant]) -> None:
    some = every[::10]
    assert len(tool.draw(some, scripts, 0, 0)) > 0.9 * len(some)
    assert {name for one in every for name in scripts.of(one)} == set(scripts.transitions)


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("local index", "{}", "local index = ("),
        ("ledger_add", "0, 0)", "ledger_ad()"),
        ("local index", "local", "local"),
    ],
)
def test_what_does_not_compile_or_changes_nothing_is_not_viable(
    scripts: Scripts, start: str, end: str, text: str
) -> None:
    source = scripts.sources["lib/born.lua"]
    at = source.index(start)
    mutant = Mutant("x", "write", "lib/born.lua", "born", 1, at, source.index(end, at) + len(end), text)
    assert not scripts.viable(mutant)


def test_a_draw_is_repeated_by_its_seed(scripts: Scripts, every: list[Mutant]) -> None:
    drawn = tool.draw(every, scripts, 20, 7)
    assert len(drawn) == 20 == len({one.name for one in drawn})
    assert drawn == tool.draw(every, scripts, 20, 7) != tool.draw(every, scripts, 20, 8)


def test_only_some_transitions(scripts: Scripts) -> None:
    found = tool.find_mutants(scripts, ["settle", "await"])
    files = {one.file for one in found}
    assert {"transitions/settle.lua", "transitions/await.lua", "lib/settle.lua"} <= files
    assert "transitions/claim.lua" not in files
    with pytest.raises(SystemExit):
        tool.parse_options(["--only", "no_such_transition"])


# The list of survivors.


def test_every_survivor_that_is_listed_is_a_mutant_and_has_a_reason(every: list[Mutant]) -> None:
    accepted = tool.read_accepted()
    assert set(accepted) - {one.name for one in every} == set()
    assert all(len(reason) > 20 for reason in accepted.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[survivor]]\nmutants = ["a"]\nreason = " "', "no reason given: a"),
        ('[[survivor]]\nmutants = ["a", "b", "a"]\nreason = "x"', "listed twice: a"),
    ],
)
def test_a_list_with_faults_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "mutants.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        tool.read_accepted(path)


def mutant(name: str) -> Mutant:
    return Mutant(name, "write", "lib/x.lua", "f", 1, 0, 0, "")


def test_survivors_that_are_not_listed_and_listed_ones_that_are_noticed_are_findings() -> None:
    noticed, survived = tool.Verdict(mutant("a"), "test", "why", 0.1), tool.Verdict(mutant("b"), "", "", 0.1)
    assert tool.differences([noticed, survived], {"b": "reason"}) == []
    assert tool.differences([noticed, survived], {"a": "reason"}) == [
        "mutants.toml lists what test notices: a",
        "no test notices b",
    ]


# Who notices.


def outcome(name: str, seconds: float, *scripts: str) -> Outcome:
    return Outcome(name, "", seconds, frozenset(scripts))


def test_the_tests_that_call_a_transition_run_likeliest_first(scripts: Scripts, every: list[Mutant]) -> None:
    runs = [
        outcome("t/test_fail.py::a", 0.3, "fail", "claim"),
        outcome("t/test_fail_more.py::b", 0.2, "fail", "claim"),
        outcome("t/test_claim.py::c", 0.1, "fail", "claim"),
        outcome("t/test_send.py::d", 0.05, "fail", "send"),
        outcome("t/test_trim.py::e", 0.01, "trim"),
    ]
    first, second = [one for one in every if one.file == "transitions/fail.lua"][:2]
    choice = Choice(scripts, {one.id: one for one in runs}, {})
    short = [name.rpartition(":")[2] for name in choice.order(first)]
    assert short == ["b", "a", "d", "c"], "by file name, then by time; not those that never call it"
    choice.noticed(second, "t/test_claim.py::c")
    assert choice.order(first)[0] == "t/test_claim.py::c", "what noticed another one of the function"
    again = Choice(scripts, choice.tested, {second.name: runs[0].id, first.name: runs[3].id})
    assert again.order(first)[:2] == [runs[3].id, runs[0].id], "what noticed this one last time"


def test_code_that_several_transitions_use_has_the_tests_of_all(
    scripts: Scripts, every: list[Mutant]
) -> None:
    runs = [outcome(f"t/test_x.py::{name}", 0.1, name) for name in scripts.transitions]
    choice = Choice(scripts, {one.id: one for one in runs}, {})
    check = next(one for one in every if one.function == "command_check")
    called = {name.rpartition(":")[2] for name in choice.order(check)}
    assert {"checkpoint", "finish", "fail", "release"} <= called
    assert not {"send", "create", "expire"} & called


class FakePool:
    """Answers jobs from a list."""

    def __init__(self, *answers: Ran) -> None:
        self.answers = list(answers)

    def run(self, job: Job, usual: Mapping[str, float]) -> Ran:
        return self.answers.pop(0)


def test_a_test_that_fails_without_the_mutant_has_not_noticed_it(
    scripts: Scripts, every: list[Mutant]
) -> None:
    one = next(one for one in every if one.file == "transitions/fail.lua")
    choice = Choice(scripts, {"t": outcome("t", 0.1, "fail")}, {})
    broken, passed = Outcome("t", "call: broken", 0.1, frozenset()), outcome("t", 0.1)
    spoiled = Ran([broken], spoiled=True)
    verdict = tool.judge(one, choice, cast(Any, FakePool(spoiled, Ran([broken]))))
    assert (verdict.test, verdict.why) == ("t", "call: broken")
    assert tool.judge(one, choice, cast(Any, FakePool(Ran([passed])))).test == ""
    with pytest.raises(WorkerFailed, match="t fails without a mutant as well: call: broken"):
        tool.judge(one, choice, cast(Any, FakePool(spoiled, spoiled)))


def test_mutants_are_noticed_survive_or_never_come_back(
    scripts: Scripts, every: list[Mutant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real worker on a few real tests."""
    one = next(one for one in every if one.name.endswith("put_type.lua body: never revision <= current"))
    harmless = replace(one, text="(revision < current or revision == current)")
    write = next(one for one in every if "put_type.lua body: without redis.call('HSET', key" in one.name)
    source = scripts.sources[one.file]
    endless = replace(write, text=f"while 1 < 2 do end {source[write.start : write.end]}")
    with Pool(tool.ROOT, scripts.sources, [STORE_TESTS], 1) as pool:
        runs = pool.run_all()
        assert {run.why for run in runs.values()} == {""}
        choice = Choice(scripts, runs, {})
        assert "copy_from_the_home_partition" in tool.judge(one, choice, pool).test
        assert tool.judge(harmless, choice, pool).test == ""
        with monkeypatch.context() as patch:
            patch.setattr(pools, "STALL_SECONDS", 1.0)
            assert tool.judge(endless, choice, pool).why == "does not come back"
        noticed = tool.judge(one, choice, pool)
        assert noticed.test, "by a new worker"
        assert pool.run(Job([noticed.test]), {}).done[0].why == "", "nothing is left of a mutant"
