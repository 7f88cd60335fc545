"""Reads Lua 5.1 as far as is needed to take single statements, operands and fields out of it.

`parse` gives statements with the positions of their parts in the text. Precedence is told apart only for
`and`, `or` and the rest: an operand between two of them is one piece.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--\[(?P<a>=*)\[.*?\](?P=a)\]|--[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\[(?P<b>=*)\[.*?\](?P=b)\])
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<operator>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^#<>=(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    ]
)
_BINARY = frozenset(["+", "-", "*", "/", "%", "^", "..", "<", "<=", ">", ">=", "==", "~="])
_UNARY = frozenset(("-", "#", "not"))


class SyntaxFault(Exception):
    """The text is not the Lua that this reads; the message names the line."""


@dataclass(frozen=True)
class Expression:
    """A piece of the text. `operator` is "and" or "or" with two or more `parts`, else "" with none.

    `items` are the fields of an expression that is one table constructor, `arguments` those of one whose last
    suffix is a call; `callee` is the text in front of them.
    """

    start: int
    end: int
    text: str
    operator: str = ""
    parts: tuple["Expression", ...] = ()
    is_table: bool = False
    items: tuple["Expression", ...] = ()
    callee: str = ""
    arguments: tuple["Expression", ...] = ()


@dataclass(frozen=True)
class Clause:
    """One branch of an `if`; the `else` branch has no condition."""

    condition: Expression | None
    block: tuple["Statement", ...]


@dataclass(frozen=True)
class Statement:
    """`kind` is local, assign, call, if, block (loops and do), function, return or break.

    `targets` and `values` are the sides of an assignment; a return and a call have only values.
    """

    kind: str
    start: int
    end: int
    name: str = ""
    targets: tuple[Expression, ...] = ()
    values: tuple[Expression, ...] = ()
    clauses: tuple[Clause, ...] = ()
    block: tuple["Statement", ...] = ()


def parse(text: str) -> tuple[Statement, ...]:
    """Returns the statements of a file. Raises SyntaxFault."""
    reader = _Reader(text, list(_tokens(text)))
    found = reader.block()
    if reader.at < len(reader.tokens):
        raise reader.fault("unexpected")
    return found


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SyntaxFault(f"line {text.count(chr(10), 0, at) + 1}: cannot read {text[at : at + 10]!r}")
        at = match.end()
        if match["skip"] is None:
            kind = next(kind for kind in ("string", "number", "name", "operator") if match[kind])
            word = match[0]
            yield _Token("keyword" if word in _KEYWORDS else kind, word, match.start(), at)


@dataclass
class _Reader:
    text: str
    tokens: list[_Token]
    at: int = field(default=0)

    def fault(self, why: str) -> SyntaxFault:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        line = self.text.count("\n", 0, token.start if token else len(self.text)) + 1
        return SyntaxFault(f"line {line}: {why} {token.text if token else 'end of file'!r}")

    def sees(self, *words: str) -> bool:
        return self.at < len(self.tokens) and self._is(self.tokens[self.at], words)

    @staticmethod
    def _is(token: _Token, words: tuple[str, ...]) -> bool:
        return token.text in words and token.kind in ("keyword", "operator")

    def kind(self) -> str:
        return self.tokens[self.at].kind if self.at < len(self.tokens) else ""

    def take(self, *words: str) -> _Token:
        if words and not self.sees(*words):
            raise self.fault(f"{' or '.join(words)} expected, not")
        if self.at >= len(self.tokens):
            raise self.fault("unexpected")
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, *words: str) -> bool:
        if self.sees(*words):
            self.at += 1
            return True
        return False

    @property
    def last(self) -> int:
        """End of the token read last."""
        return self.tokens[self.at - 1].end

    def piece(self, start: int) -> Expression:
        """What was read since `start`."""
        return Expression(start, self.last, self.text[start : self.last])

    def block(self) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while self.at < len(self.tokens) and not self.sees("end", "else", "elseif", "until"):
            found.append(self.statement())
            self.accept(";")
        return tuple(found)

    def statement(self) -> Statement:
        start = self.tokens[self.at].start
        if self.sees("if"):
            return self.conditional(start)
        if self.sees("while", "for", "do", "repeat"):
            return self.loop(start)
        if self.sees("function", "local"):
            return self.declaration(start)
        if self.accept("break"):
            return Statement("break", start, self.last)
        if self.accept("return"):
            empty = self.at >= len(self.tokens) or self.sees("end", "else", "elseif", "until", ";")
            values = () if empty else self.expressions()
            return Statement("return", start, self.last, values=values)
        first = self.operand()
        if not self.sees("=", ","):
            if not first.callee:
                raise self.fault("an expression is no statement, before")
            return Statement("call", start, self.last, values=(first,))
        targets = [first]
        while self.accept(","):
            targets.append(self.operand())
        self.take("=")
        values = self.expressions()
        return Statement("assign", start, self.last, targets=tuple(targets), values=values)

    def conditional(self, start: int) -> Statement:
        clauses: list[Clause] = []
        self.take("if")
        while True:
            condition = self.expression()
            self.take("then")
            clauses.append(Clause(condition, self.block()))
            if self.accept("else"):
                clauses.append(Clause(None, self.block()))
            elif self.accept("elseif"):
                continue
            self.take("end")
            return Statement("if", start, self.last, clauses=tuple(clauses))

    def loop(self, start: int) -> Statement:
        word = self.take().text
        if word == "for":
            self.names()
            self.take("=", "in")
            self.expressions()
        elif word == "while":
            self.expression()
        if word in ("for", "while"):
            self.take("do")
        block = self.block()
        self.take("until" if word == "repeat" else "end")
        if word == "repeat":
            self.expression()
        return Statement("block", start, self.last, block=block)

    def declaration(self, start: int) -> Statement:
        local = self.accept("local")
        if self.accept("function"):
            name = self.take().text
            while not local and self.accept(".", ":"):
                name += f".{self.take().text}"
            block = self.function()
            return Statement("function", start, self.last, name=name, block=block)
        targets = self.names()
        values = self.expressions() if self.accept("=") else ()
        return Statement("local", start, self.last, targets=targets, values=values)

    def names(self) -> tuple[Expression, ...]:
        found: list[Expression] = []
        while True:
            if self.kind() != "name":
                raise self.fault("a name expected, not")
            found.append(self.piece(self.take().start))
            if not self.accept(","):
                return tuple(found)

    def function(self) -> tuple[Statement, ...]:
        """The rest of a function behind its name."""
        self.take("(")
        while not self.accept(")"):
            self.take()
        block = self.block()
        self.take("end")
        return block

    def expressions(self) -> tuple[Expression, ...]:
        found = [self.expression()]
        while self.accept(","):
            found.append(self.expression())
        return tuple(found)

    def expression(self) -> Expression:
        return self.joined("or")

    def joined(self, operator: str) -> Expression:
        """Operands between `operator`, flat; a single one as it is."""
        parts = [self.joined("and") if operator == "or" else self.compared()]
        while self.accept(operator):
            parts.append(self.joined("and") if operator == "or" else self.compared())
        if len(parts) == 1:
            return parts[0]
        return replace(self.piece(parts[0].start), operator=operator, parts=tuple(parts))

    def compared(self) -> Expression:
        """Everything that binds tighter than `and`."""
        start, first, count = self.tokens[self.at].start if self.kind() else 0, None, 0
        while True:
            while self.sees(*_UNARY):
                self.take()
                count += 1
            one = self.operand()
            first = first or one
            count += 1
            if not self.sees(*_BINARY):
                break
            self.take()
        return first if count == 1 else self.piece(start)

    def operand(self) -> Expression:
        start = self.tokens[self.at].start if self.kind() else 0
        if self.sees("{"):
            return self.table(start)
        if self.kind() in ("string", "number") or self.sees("nil", "true", "false", "..."):
            self.take()
            return self.piece(start)
        if self.accept("function"):
            self.function()
            return self.piece(start)
        inner = None
        if self.accept("("):
            inner = self.expression()
            self.take(")")
        elif self.kind() == "name":
            self.take()
        else:
            raise self.fault("an expression expected, not")
        return self.suffixes(start, inner)

    def suffixes(self, start: int, inner: Expression | None) -> Expression:
        found = self.piece(start)
        if inner is not None:
            found = replace(found, operator=inner.operator, parts=inner.parts)
        while True:
            end = self.last
            if self.accept("."):
                self.take()
            elif self.accept("["):
                self.expression()
                self.take("]")
            elif self.sees("(", "{", ":") or self.kind() == "string":
                if self.accept(":"):
                    self.take()
                    end = self.last
                arguments = self.arguments()
                found = replace(self.piece(start), callee=self.text[start:end], arguments=arguments)
                continue
            else:
                return found
            found = self.piece(start)

    def arguments(self) -> tuple[Expression, ...]:
        if not self.accept("("):
            return (self.operand(),)
        found = () if self.sees(")") else self.expressions()
        self.take(")")
        return found

    def table(self, start: int) -> Expression:
        self.take("{")
        items: list[Expression] = []
        while not self.accept("}"):
            begin = self.tokens[self.at].start
            if self.accept("["):
                self.expression()
                self.take("]")
                self.take("=")
            elif self.kind() == "name" and self._is(self.tokens[self.at + 1], ("=",)):
                self.take()
                self.take("=")
            value = self.expression()
            items.append(value if begin == value.start else self.piece(begin))
            if not self.sees("}"):
                self.take(",", ";")
        return replace(self.piece(start), is_table=True, items=tuple(items))
