"""Fails if a rule of docs/spec.md has no test: `python tools/spec_coverage.py [-v]`.

A test proves rules with `@pytest.mark.spec("R-LEASE-4", …)` on a function, a class, or as `pytestmark`. With
-v it also prints which test files prove each rule.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_RULE = re.compile(r"^- \*\*(R-[A-Z]+-\d+)\*\*", re.MULTILINE)


def rules(spec: str) -> list[str]:
    """Returns the ids of all rules of the specification, in its order."""
    return _RULE.findall(spec)


def marks(source: str) -> Iterator[str]:
    """Yields the rules that the spec marks of a test file name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.spec":
            yield from (
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )


def proofs(folder: Path) -> dict[str, set[str]]:
    """Returns the test files by the rules they name."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for rule in marks(path.read_text(encoding="utf-8")):
            found.setdefault(rule, set()).add(path.relative_to(folder).as_posix())
    return found


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    known = rules((ROOT / "docs/spec.md").read_text(encoding="utf-8"))
    proved = proofs(ROOT / "tests")
    for rule in known:
        if rule not in proved:
            print(f"{rule}: no test")
        elif "-v" in arguments:
            print(f"{rule}: {', '.join(sorted(proved[rule]))}")
    unknown = sorted(set(proved) - set(known))
    for rule in unknown:
        print(f"{rule}: named by {', '.join(sorted(proved[rule]))}, but not in docs/spec.md")
    without = [rule for rule in known if rule not in proved]
    print(f"spec rules: {len(known) - len(without)} with tests, {len(without)} without")
    return 1 if without or unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
