"""Which tests have to notice a mutant, and which of them are likely to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.mutating.operators import Mutant
from tools.mutating.scripts import Scripts
from tools.mutating.worker import Outcome


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
