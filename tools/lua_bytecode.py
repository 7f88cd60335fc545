"""Which globals a Lua 5.1 chunk reads and writes, from its compiled form."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from lupa import lua51

_GETGLOBAL, _SETGLOBAL = 5, 7
_DUMP = b"""
local chunk, why = loadstring(..., '=[c]')
if chunk then
  return string.dump(chunk)
end
return nil, why
"""


class GlobalUse(NamedTuple):
    """One access of a global: its name, the line of the chunk, and whether it is assigned."""

    name: str
    line: int
    assigned: bool


class CompileError(Exception):
    """The chunk is not valid Lua 5.1; `line` is the line of the chunk."""

    def __init__(self, message: str) -> None:
        text = message.split("]:", 1)[-1]
        number, _, why = text.partition(":")
        self.line = int(number) if number.isdigit() else 0
        super().__init__(why.strip() or message)


def global_uses(chunk: str) -> list[GlobalUse]:
    """Compiles `chunk` and lists its uses of globals, nested functions included. Raises CompileError.

    The limits of the compiler (200 locals, 60 upvalues per function) count as errors too.
    """
    runtime = cast(Any, lua51.LuaRuntime)(encoding=None)
    # A shebang line is a comment to Redis only.
    source = ("--" + chunk if chunk.startswith("#!") else chunk).encode()
    answer = runtime.execute(_DUMP, source)
    if isinstance(answer, tuple):
        raise CompileError(answer[1].decode())
    return list(_uses(_Reader(answer)))


@dataclass
class _Reader:
    data: bytes
    at: int = 12
    """Begins behind the header: Lua 5.1, little endian, int 4, size_t 8, instruction 4, number 8."""

    size_t: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_t = self.data[8]

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        return self.take(self.number(self.size_t))[:-1].decode("utf-8", "replace")


def _uses(reader: _Reader) -> Iterator[GlobalUse]:
    """Walks one function of the dump: source, lines, four bytes, code, constants, functions, debug data."""
    reader.text()
    reader.take(12)
    code = struct.unpack(f"<{(size := reader.number())}I", reader.take(4 * size))
    constants = [_constant(reader) for _ in range(reader.number())]
    inner = [use for _ in range(reader.number()) for use in _uses(reader)]
    lines = struct.unpack(f"<{(size := reader.number())}i", reader.take(4 * size))
    for _ in range(reader.number()):
        reader.text()
        reader.take(8)
    for _ in range(reader.number()):
        reader.text()
    for at, instruction in enumerate(code):
        operation = instruction & 0x3F
        if operation in (_GETGLOBAL, _SETGLOBAL):
            yield GlobalUse(constants[instruction >> 14], lines[at], operation == _SETGLOBAL)
    yield from inner


def _constant(reader: _Reader) -> str:
    kind = reader.number(1)
    if kind == 4:
        return reader.text()
    reader.take({0: 0, 1: 1, 3: 8}[kind])
    return ""
