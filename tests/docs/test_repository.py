"""What the repository promises to those who clone it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8")


def normal(name: str) -> str:
    """Returns a package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: list[str]) -> set[str]:
    """Returns the names of the packages that the requirements ask for."""
    return {normal(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in requirements}


def test_every_dependency_has_a_tested_version() -> None:
    pinned = {normal(name) for name in re.findall(r"^([\w.-]+)==", CONSTRAINTS, re.MULTILINE)}
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    assert names_of(wanted) - pinned == set()


def test_a_bare_install_stays_small() -> None:
    assert names_of(PROJECT["dependencies"]) == {"grpcio", "protobuf", "click", "rich"}


TOP = ["README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml", "buf.yaml", ".ci/run"]


@pytest.mark.parametrize("name", TOP)
def test_the_top_of_the_tree_is_complete(name: str) -> None:
    assert (ROOT / name).is_file()


Nested = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what a function does itself, not what functions inside it do: a handler may take its time."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Nested):
            yield child
            yield from own_nodes(child)


def is_wait(node: ast.AST) -> bool:
    """Says whether a call waits for a fixed time; 0 only yields."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr != "sleep"
    ):
        return False
    yields = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return isinstance(node.func.value, ast.Name) and node.func.value.id in ("time", "asyncio") and not yields


def waits(path: Path) -> list[str]:
    """Returns where tests of a file wait for a fixed time instead of for a condition, and give no reason."""
    text = path.read_text(encoding="utf-8")
    excused = {number for number, line in enumerate(text.splitlines(), 1) if "noqa: ASYNC251 - " in line}
    found = []
    for test in ast.walk(ast.parse(text)):
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            lines = [getattr(node, "lineno", 0) for node in own_nodes(test) if is_wait(node)]
            found += [f"{path.relative_to(ROOT)}:{line}" for line in lines if line not in excused]
    return found


def test_no_test_waits_for_a_fixed_time() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    assert [place for path in files for place in waits(path)] == []
