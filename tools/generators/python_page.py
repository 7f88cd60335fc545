"""docs/reference/python.md, from the signatures and docstrings of the SDK's public names.

The sources are parsed, not imported: the page is the same under every Python, and needs nothing installed.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.generators.markdown import note, plain, table

SDK = "sdk/python/pawl"
SECTIONS = {
    "Declaring workflows": ("pawl.workflow",),
    "In a handler": ("pawl.context", "pawl.effects"),
    "Worker": ("pawl.worker",),
    "Client": ("pawl.client", "pawl._requests", "pawl._unset"),
    "Values": ("pawl.models", "pawl._running", "pawl._events"),
    "Errors": ("pawl.errors",),
}
"""Modules of `pawl`'s names by section. A module that is missing here ends the generation."""

INNER = ("pawl._client.", "pawl.testing.")
"""Modules whose definitions belong to the module that imports them."""

WITH_TEXT = ("pawl.payloads", "pawl.errors", "pawl.testing", "pawl.sync")
"""Modules whose docstring is part of the page."""

_LISTS = {"Args": "Parameters:", "Attributes": "Attributes:", "Raises": "Raises:"}
_ENTRY = re.compile(r"([A-Za-z_][\w, ]*): (.*)")
_MAPS = re.compile(r"(Maps to )(([A-Z]\w+)(?:\.\w+)?)")
_WIDTH = 100

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.AnnAssign


@dataclass(frozen=True)
class _Module:
    text: str
    definitions: dict[str, tuple[Definition, str]]
    """Top-level definitions in order, each with its text."""
    constants: Mapping[str, ast.expr]
    """Values of the module's plain constants, to be shown in place of their names."""


def generate(root: Path) -> dict[str, str]:
    """Returns the page. Raises ValueError for a public name that belongs to no section."""
    modules: dict[str, _Module] = {}
    names = _public(root)
    missing = {module for module in names.values() if not any(module in of for of in SECTIONS.values())}
    if missing:
        raise ValueError(f"tools/generators/python_page.py names no section for {sorted(missing)}")
    for name in [*names.values(), *WITH_TEXT]:
        modules.setdefault(name, _read(root, name))
    parts = [
        "# Python SDK",
        note(SDK),
        "Every public name, with its docstring. [Writing workflows](../workflows.md) is the introduction.",
    ]
    for title, members in SECTIONS.items():
        parts.append(f"## {title}")
        parts += [_prose(modules[member].text) for member in members if member in WITH_TEXT]
        for member in members:
            public = {name for name, module in names.items() if module == member}
            parts += _definitions(modules[member], public)
    parts += ["## Synchronous client", "Module `pawl.sync`.", _prose(modules["pawl.sync"].text)]
    parts += _head(modules["pawl.sync"], "Client", "sync.")
    parts += ["## Payloads", "Module `pawl.payloads`.", _prose(modules["pawl.payloads"].text)]
    testing = modules["pawl.testing"]
    parts += ["## Testing", "Module `pawl.testing`.", _prose(testing.text)]
    parts += _definitions(testing, set(_exported(_tree(root, "pawl.testing"))), "testing.")
    return {"docs/reference/python.md": "\n\n".join(part for part in parts if part) + "\n"}


def _tree(root: Path, module: str) -> ast.Module:
    path = root / SDK / "/".join(module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _public(root: Path) -> dict[str, str]:
    """Returns the module of each name that `pawl` exports."""
    tree = _tree(root, "pawl")
    origin = {
        alias.asname or alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return {name: origin[name] for name in _exported(tree)}


def _exported(tree: ast.Module) -> list[str]:
    (names,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return ast.literal_eval(names)


def _read(root: Path, name: str) -> _Module:
    tree = _tree(root, name)
    constants = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    definitions = {each: (node, text) for each, node, text in _named(tree)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(INNER):
            definitions |= _read(root, node.module).definitions
    return _Module(ast.get_docstring(tree) or "", definitions, constants)


def _named(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, Definition, str]]:
    """Yields name, node and text of what is defined at one level; fields have their text below them."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | Function):
            if not any(ast.unparse(each) == "overload" for each in node.decorator_list):
                yield node.name, node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            below = after.value if isinstance(after, ast.Expr) else None
            text = below.value if isinstance(below, ast.Constant) and isinstance(below.value, str) else ""
            yield node.target.id, node, text


def _definitions(module: _Module, public: set[str], prefix: str = "") -> Iterator[str]:
    shown: dict[str, str] = {}
    for name, (node, text) in module.definitions.items():
        if name not in public:
            continue
        yield f"### {prefix}{name}"
        if isinstance(node, ast.ClassDef):
            yield from _class(module, node, public, prefix, shown)
        elif isinstance(node, Function):
            yield _code(_signature(module, node, f"{prefix}{name}"))
            yield _prose(text)
        else:
            yield _prose(text)


def _head(module: _Module, name: str, prefix: str) -> Iterator[str]:
    """Yields how a class is made and its text, without its members."""
    node, text = module.definitions[name]
    assert isinstance(node, ast.ClassDef)
    made = next(each for one, each, _ in _named(node) if one == "__init__")
    assert isinstance(made, Function)
    yield f"### {prefix}{name}"
    yield _code(_signature(module, made, prefix + name, method=True, answer=False))
    yield _prose(text)


def _class(
    module: _Module, node: ast.ClassDef, public: set[str], prefix: str, shown: dict[str, str]
) -> Iterator[str]:
    """Yields a class: how it is made, its text, fields and properties as a table, methods one by one.

    Members of a base that has no section of its own are shown with the first class that has them.
    """
    name = prefix + node.name
    bases = [ast.unparse(base) for base in node.bases]
    if any(base in public or base.endswith("Exception") for base in bases):
        yield f"Bases: {', '.join(f'`{base}`' for base in bases)}."
    members = list(_named(node))
    for base in bases:
        if base not in module.definitions or base in public:
            continue
        if base in shown:
            yield f"All other members are those of [{shown[base]}](#{shown[base].lower()})."
        else:
            shown[base] = name
            found, _ = module.definitions[base]
            assert isinstance(found, ast.ClassDef)
            members += _named(found)
    made = next((each for one, each, _ in members if one == "__init__"), None)
    if isinstance(made, Function) and made.args.args[1:] + made.args.kwonlyargs:
        yield _code(_signature(module, made, name, method=True, answer=False))
    yield _prose(ast.get_docstring(node) or "")
    members = [member for member in members if not member[0].startswith("_")]
    yield _attributes(members, node)
    for one, each, text in members:
        if isinstance(each, Function) and not _is_property(each):
            yield f"#### {name}.{one}"
            yield _code(_signature(module, each, one, method=True))
            yield _prose(text)


def _is_property(node: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def _attributes(members: list[tuple[str, Definition, str]], owner: ast.ClassDef) -> str:
    """Returns the table of properties and, for a dataclass, fields."""
    fields = any("dataclass" in ast.unparse(each) for each in owner.decorator_list)
    rows = []
    for name, node, text in members:
        if isinstance(node, ast.AnnAssign):
            kind = ast.unparse(node.annotation)
            if fields and kind != "Decoder":
                rows.append((f"`{name}`", f"`{kind}`", _default(node.value), text))
        elif isinstance(node, Function) and _is_property(node):
            assert node.returns is not None
            rows.append((f"`{name}`", f"`{ast.unparse(node.returns)}`", "", text))
    if not rows:
        return ""
    if any(row[2] for row in rows):
        return table(("attribute", "type", "default", "meaning"), rows)
    return table(("attribute", "type", "meaning"), [(name, kind, text) for name, kind, _, text in rows])


def _default(value: ast.expr | None) -> str:
    return "" if value is None or isinstance(value, ast.Call) else f"`{_source(value)}`"


def _source(value: ast.expr) -> str:
    """Returns the source of a default, strings in double quotes."""
    text = ast.unparse(value)
    return text.replace("'", '"') if isinstance(value, ast.Constant) and '"' not in text else text


def _signature(
    module: _Module, node: Function, name: str, *, method: bool = False, answer: bool = True
) -> str:
    """Returns the head of a function as it is called, a parameter a line where it gets long."""
    words = _parameters(module, node.args, method)
    start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    managed = any(ast.unparse(each) == "asynccontextmanager" for each in node.decorator_list)
    if managed:
        start = "async with "
    end = f" -> {_answer(node, managed)}" if answer and node.returns is not None else ""
    line = f"{start}{name}({', '.join(words)}){end}"
    if len(line) <= _WIDTH:
        return line
    return f"{start}{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"


def _answer(node: Function, managed: bool) -> str:
    assert node.returns is not None
    text = ast.unparse(node.returns)
    return text.removeprefix("AsyncIterator[").removesuffix("]") if managed else text


def _parameters(module: _Module, arguments: ast.arguments, method: bool) -> list[str]:
    words = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = list(zip(positional, [*defaults, *arguments.defaults], strict=True))
    words += [_parameter(module, one, default) for one, default in pairs[1 if method else 0 :]]
    if arguments.vararg:
        words.append(f"*{_parameter(module, arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        words.append("*")
    words += [
        _parameter(module, one, default)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        words.append(f"**{_parameter(module, arguments.kwarg, None)}")
    return words


def _parameter(module: _Module, one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    if default is None:
        return one.arg + kind
    value = module.constants.get(ast.unparse(default), default)
    return f"{one.arg}{kind}{' = ' if kind else '='}{_source(value)}"


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _prose(text: str) -> str:
    """Returns a docstring as Markdown: `Args:` and the like as lists, fragments of code, links to the API."""
    lines: list[str] = []
    entries = fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
            # Fragments: `python` is the language of blocks that run as they stand.
            line = {"```python": "```py", "```": "```text" if fenced else "```"}.get(line, line)
        if not fenced:
            line = plain(line)
        title = _LISTS.get(line.removesuffix(":")) if line.endswith(":") else None
        if fenced:
            lines.append(line)
        elif title:
            entries = True
            lines += [title, ""]
        elif entries and line.startswith("    "):
            found = _ENTRY.fullmatch(line.strip()) if not line.startswith("     ") else None
            lines.append(_entry(found) if found else f"  {line.strip()}")
        else:
            entries = False
            lines.append(line)
    return _MAPS.sub(
        lambda found: f"{found[1]}[{found[2]}](api.md#{found[3].lower()})", "\n".join(lines).strip()
    )


def _entry(found: re.Match[str]) -> str:
    names = ", ".join(f"`{name.strip()}`" for name in found[1].split(","))
    return f"- {names}: {found[2]}"
