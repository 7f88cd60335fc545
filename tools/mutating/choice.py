"""Which scripts a mutant is part of, which tests have to notice it, and which of them are likely to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pawl_server.store.bundle import Bundle, Lib, make_bundle, parse_lib
from pawl_server.store.lua_header import LuaError
from tools.lua_bytecode import CompileError, global_uses
from tools.mutating.operators import Mutant
from tools.mutating.worker import Outcome

LIB, TRANSITIONS = "lib/", "transitions/"


class Scripts:
    """The transitions made from a set of sources, given as text by file name below lua/."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources
        libs = [name for name in sources if name.startswith(LIB)]
        self._libs = {Path(name).stem: parse_lib(Path(name), sources[name]) for name in libs}
        files = [Path(name) for name in sources if name.startswith(TRANSITIONS)]
        self.bundles = {file.stem: self._bundle(file.stem, self._libs, sources) for file in files}
        self._globals = {name: _globals(bundle) for name, bundle in self.bundles.items()}

    def _bundle(self, name: str, libs: Mapping[str, Lib], sources: Mapping[str, str]) -> Bundle:
        file = f"{TRANSITIONS}{name}.lua"
        return make_bundle(Path(file), sources[file], "transition", libs)

    def of(self, mutant: Mutant) -> list[str]:
        """The transitions that a mutant changes, sorted; none for code that only queries use."""
        if mutant.file.startswith(TRANSITIONS):
            return [Path(mutant.file).stem]
        reached = (mutant.function, Path(mutant.file))
        found = [
            name
            for name, bundle in self.bundles.items()
            if any((one.name, one.path) == reached for one in bundle.definitions)
        ]
        return sorted(found)

    def viable(self, mutant: Mutant) -> bool:
        """Whether the changed code is another one that compiles, without a global that is not there."""
        name, text = self.of(mutant)[0], mutant.apply(self.sources[mutant.file])
        libs = dict(self._libs)
        try:
            if mutant.file.startswith(LIB):
                libs[Path(mutant.file).stem] = parse_lib(Path(mutant.file), text)
            bundle = self._bundle(name, libs, {**self.sources, mutant.file: text})
            return bundle.text != self.bundles[name].text and _globals(bundle) <= self._globals[name]
        except (LuaError, CompileError):
            return False


def _globals(bundle: Bundle) -> set[str]:
    return {use.name for use in global_uses(bundle.text)}


@dataclass
class Choice:
    """The tests that have to notice a mutant, in the order in which they run."""

    scripts: Scripts
    tested: Mapping[str, Outcome]
    killers: dict[str, str]
    """Mutant → test that noticed it last."""
    _functions: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, test in self.killers.items():
            file, function = name.partition(":")[0].split(" ")
            self._functions.setdefault((file, function), Counter())[test] += 1

    def order(self, mutant: Mutant) -> list[str]:
        """The tests that call a transition which the mutant changes, the likeliest to notice it first."""
        transitions = set(self.scripts.of(mutant))
        tests = [one for one in self.tested.values() if transitions & one.scripts]
        killers = self._functions.get((mutant.file, mutant.function), Counter())
        last = self.killers.get(mutant.name)

        def rank(test: Outcome) -> tuple[bool, int, bool, float]:
            named = any(is_named(test.id, transition) for transition in transitions)
            return (test.id != last, -killers[test.id], not named, test.seconds)

        return [test.id for test in sorted(tests, key=rank)]

    def noticed(self, mutant: Mutant, test: str) -> None:
        """Remembers which test noticed a mutant."""
        self.killers[mutant.name] = test
        self._functions.setdefault((mutant.file, mutant.function), Counter())[test] += 1


def is_named(test: str, transition: str) -> bool:
    """Whether the file of a test has its name from a transition."""
    return bool(re.search(rf"/test_{transition}(_\w+)?\.py", test))
