"""All scripts of a set of Lua sources, and what becomes of them when one source changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pawl_server.store.bundle import Bundle, Lib, make_bundle, parse_lib
from pawl_server.store.lua_header import Header, LuaError
from tools.lua_bytecode import CompileError, global_uses
from tools.mutating.operators import Mutant

LIB, TRANSITIONS, QUERIES = "lib/", "transitions/", "queries/"

Guard = Callable[[Header], str]


class Scripts(Mapping[str, Bundle]):
    """The bundles of transitions and queries by name, each made when it is asked for. Raises LuaError then.

    `sources` are texts by file name below lua/.
    """

    def __init__(self, sources: Mapping[str, str], guard: Guard | None = None) -> None:
        self.sources = sources
        self._guard = guard
        self._files = {Path(file).stem: file for file in sources if file.startswith((TRANSITIONS, QUERIES))}
        self._libs: dict[str, Lib] = {}
        self._made: dict[str, Bundle] = {}
        self._globals: dict[str, set[str]] = {}
        for file in sources:
            if file.startswith(LIB):
                self._libs[Path(file).stem] = parse_lib(Path(file), sources[file])

    def __getitem__(self, name: str) -> Bundle:
        if name not in self._made:
            file = self._files[name]
            kind = "transition" if file.startswith(TRANSITIONS) else "query"
            self._made[name] = make_bundle(
                Path(file), self.sources[file], kind, self._libs, guard=self._guard
            )
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def transitions(self) -> list[str]:
        """Names of the transitions."""
        return [name for name, file in self._files.items() if file.startswith(TRANSITIONS)]

    def changed(self, file: str, text: str) -> Scripts:
        """Returns the scripts with another text of one file. Raises LuaError for one that can't be read."""
        other = Scripts({}, self._guard)
        other.sources = {**self.sources, file: text}
        other._files, other._libs = self._files, dict(self._libs)
        if file.startswith(LIB):
            other._libs[Path(file).stem] = parse_lib(Path(file), text)
        other._made = {
            name: bundle for name, bundle in self._made.items() if Path(file) not in _paths(bundle)
        }
        return other

    def of(self, mutant: Mutant) -> list[str]:
        """The transitions that a mutant changes, sorted; none for code that only queries use."""
        if mutant.file.startswith(TRANSITIONS):
            return [Path(mutant.file).stem]
        reached = (mutant.function, Path(mutant.file))
        return sorted(
            name
            for name in self.transitions
            if any((one.name, one.path) == reached for one in self[name].definitions)
        )

    def viable(self, mutant: Mutant) -> bool:
        """Whether the changed code is another one that compiles, without a global that is not there."""
        name = self.of(mutant)[0]
        try:
            bundle = self.changed(mutant.file, mutant.apply(self.sources[mutant.file]))[name]
            return bundle.text != self[name].text and _globals(bundle) <= self._globals_of(name)
        except (LuaError, CompileError):
            return False

    def _globals_of(self, name: str) -> set[str]:
        if name not in self._globals:
            self._globals[name] = _globals(self[name])
        return self._globals[name]


def _paths(bundle: Bundle) -> set[Path]:
    return {bundle.header.path, *(one.path for one in bundle.definitions)}


def _globals(bundle: Bundle) -> set[str]:
    return {use.name for use in global_uses(bundle.text)}
