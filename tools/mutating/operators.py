"""What is taken out of a Lua source, one thing at a time.

Refusals: the condition of a branch that refuses or ends early never holds; each of its operands is left out;
a refusal that ends a block with other ends is left out; a refusal that was found is not heeded.

Writes: each statement that changes something is left out, be it a call for its effect, one variable of an
assignment, or one field of a list of fields.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tools.mutating.lua_syntax import Clause, Expression, Statement, parse

BODY = "body"
"""Stands for the name of a function in the code of a transition outside of its functions."""

_ANSWERS = frozenset(("reply", "replies"))
"""Variables that hold what a call answers: a script without an answer is noticed by any test."""
_REFUSAL = re.compile(r"'(?!OK'|FIRED'|NEXT')[A-Z][A-Z0-9_]+'")
_FIELD = re.compile(r"'[a-z_]+'")
_ROOT = re.compile(r"\w+")


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the text from `start` to `end` becomes `text`.

    `name` says what is changed, without a line number so that it outlives other changes; it is unique. `kind`
    is "refusal" or "write". `function` is BODY or the name of the innermost named function.
    """

    name: str
    kind: str
    file: str
    function: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Returns the changed source; other lines keep their numbers."""
        lost = source.count("\n", self.start, self.end) - self.text.count("\n")
        return source[: self.start] + self.text + "\n" * lost + source[self.end :]


def mutants_of(sources: Mapping[str, str]) -> list[Mutant]:
    """Returns all mutants of the files, given as text by name, in their order. Raises SyntaxFault."""
    parsed = {file: parse(text) for file, text in sources.items()}
    refusing = frozenset(name for statements in parsed.values() for name in _refusing_functions(statements))
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for file, statements in parsed.items():
        for mutant in _File(file, sources[file], refusing).mutants(statements, BODY):
            seen[mutant.name] += 1
            again = seen[mutant.name]
            found.append(replace(mutant, name=f"{mutant.name} ({again})") if again > 1 else mutant)
    return found


def _refusing_functions(statements: Iterable[Statement]) -> Iterator[str]:
    """Names of the functions that do nothing but make refusals."""
    for one in statements:
        if one.kind == "function":
            returns = list(_returns(one.block))
            if returns and all(each.values and _is_refusal_table(each.values[0]) for each in returns):
                yield one.name


def _returns(block: Iterable[Statement]) -> Iterator[Statement]:
    for one in block:
        if one.kind == "return":
            yield one
        yield from _returns(one.block)
        for clause in one.clauses:
            yield from _returns(clause.block)


def _is_refusal_table(value: Expression) -> bool:
    return value.is_table and bool(value.items) and bool(_REFUSAL.fullmatch(value.items[0].text))


Edit = tuple[str, str, int, int, str]
"""Kind, description, start, end, text."""


@dataclass
class _File:
    """Finds the mutants of one file; `refusing` are the functions that only make refusals."""

    file: str
    text: str
    refusing: frozenset[str]

    def mutants(self, block: tuple[Statement, ...], function: str) -> Iterator[Mutant]:
        for one in block:
            for edit in self.edits(one):
                yield self.mutant(function, *edit)
            yield from self.mutants(one.block, one.name or function)
            for clause in one.clauses:
                yield from self.mutants(clause.block, function)
        # A block with one return only is nothing but that refusal, and its condition decides.
        last = block[-1] if len(list(_returns(block))) > 1 else None
        if last and last.kind == "return" and any(self.refuses(value) for value in last.values):
            text = self.text[last.start : last.end]
            yield self.mutant(function, "refusal", f"without {text}", last.start, last.end, "")

    def mutant(self, function: str, kind: str, description: str, start: int, end: int, text: str) -> Mutant:
        name = f"{self.file} {function}: {' '.join(description.split())}"
        line = self.text.count("\n", 0, start) + 1
        return Mutant(name, kind, self.file, function, line, start, end, text)

    def edits(self, one: Statement) -> Iterator[Edit]:
        for clause in one.clauses:
            if clause.condition:
                yield from self.condition(clause.condition, clause)
        if one.kind in ("local", "assign", "return"):
            for value in one.values:
                yield from self.choice(value)
        if one.kind == "call":
            yield from self.call(one)
        elif one.kind == "assign":
            yield from self.assignment(one)
        elif one.kind == "local":
            for value in one.values:
                yield from self.pairs(value.items)

    def refuses(self, value: Expression) -> bool:
        return _is_refusal_table(value) or value.callee in self.refusing

    def ends(self, one: Statement) -> bool:
        """Whether a statement refuses, or ends early."""
        if one.kind in ("return", "break"):
            return True
        return any(self.refuses(value) or value.callee == "error" for value in one.values)

    def condition(self, condition: Expression, clause: Clause) -> Iterator[Edit]:
        start, end = condition.start, condition.end
        if condition.text == "not reply":
            yield "refusal", "whatever reply", start, end, "true"
        elif condition.text == "reply" or any(self.ends(one) for one in clause.block):
            yield "refusal", f"never {condition.text}", start, end, "false"
            yield from self.operands(condition, condition)

    def operands(self, whole: Expression, part: Expression) -> Iterator[Edit]:
        """Leaves out each operand of `part`, a piece of `whole`."""
        for at, one in enumerate(part.parts):
            rest = [other.text for other in (*part.parts[:at], *part.parts[at + 1 :])]
            text = rest[0] if len(rest) == 1 else f"({f' {part.operator} '.join(rest)})"
            description = f"{whole.text} without {part.operator} {one.text}"
            yield "refusal", description, part.start, part.end, text
            yield from self.operands(whole, one)

    def choice(self, value: Expression) -> Iterator[Edit]:
        """`a and b or refusal` becomes `b`."""
        if value.operator == "or" and self.refuses(value.parts[-1]):
            granted = value.parts[-2].parts[-1:] or value.parts[-2:-1]
            yield "refusal", f"never {value.parts[-1].text}", value.start, value.end, granted[0].text

    def call(self, one: Statement) -> Iterator[Edit]:
        [call] = one.values
        if call.callee != "error":
            yield "write", f"without {call.text}", one.start, one.end, ""
        if call.arguments[:1] and call.arguments[0].text == "'HSET'":
            yield from self.pairs(call.arguments[2:])

    def pairs(self, values: tuple[Expression, ...]) -> Iterator[Edit]:
        """Leaves out each pair of a list of field names and values, if it is one of several."""
        names = [bool(_FIELD.fullmatch(one.text)) for one in values]
        if len(values) < 4 or len(values) % 2 or not all(names[::2]) or all(names[1::2]):
            return
        for at in range(0, len(values), 2):
            last = at + 2 == len(values)
            start = values[at - 1].end if last else values[at].start
            end = values[at + 1].end if last else values[at + 2].start
            yield "write", f"without {values[at].text}, {values[at + 1].text}", start, end, ""

    def assignment(self, one: Statement) -> Iterator[Edit]:
        sides = [(left.text, right.text) for left, right in zip(one.targets, one.values, strict=False)]
        if len(one.targets) != len(one.values):
            yield "write", f"without {self.text[one.start : one.end]}", one.start, one.end, ""
            return
        for at, (left, right) in enumerate(sides):
            root = _ROOT.match(left)
            if not root or root[0] not in _ANSWERS:
                lefts, rights = (
                    zip(*sides[:at], *sides[at + 1 :], strict=True) if len(sides) > 1 else ((), ())
                )
                text = f"{', '.join(lefts)} = {', '.join(rights)}" if lefts else ""
                yield "write", f"without {left} = {right}", one.start, one.end, text
