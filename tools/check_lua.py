"""Static checks of the Lua sources: `python tools/check_lua.py [FOLDER]`.

Prints one line per finding and exits with 1 if any is not a warning. The rules are those of
tools/lua_rules.py: header grammar, where writes may stand, reply words and events as declared, states and
moves that exist, no globals, no large number joined to text, bounded loops, and that every bundle compiles.
"""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from pawl_server.store.bundle import LUA, Bundle, Lib, load_libs, make_bundle
from pawl_server.store.keys import KEYS
from pawl_server.store.lua_header import LuaError
from tools import lua_rules as rules
from tools.generators.states import read_states
from tools.lua_rules import Code, Finding

ROOT = Path(__file__).resolve().parents[1]
MAX_SCRIPT, MAX_LIB = 120, 60


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    folder = Path(arguments[0]).resolve() if arguments else LUA
    findings = sorted(set(check(folder)))
    for one in findings:
        shown = one.path.relative_to(ROOT) if one.path.is_relative_to(ROOT) else one.path
        print(f"{shown}:{one.line}: {'warning: ' if one.warning else ''}{one.text}")
    return 1 if any(not one.warning for one in findings) else 0


def check(folder: Path = LUA, keys: frozenset[str] = frozenset(KEYS)) -> Iterator[Finding]:
    """Yields what is wrong with the sources in `folder`, a folder with transitions/, queries/ and lib/."""
    try:
        libs = load_libs(folder)
        states, moves = read_states(folder / "lib/states.lua")
    except LuaError as error:
        yield Finding(error.path, error.line, error.why)
        return
    for lib in libs.values():
        yield from rules.check_file(Code.of_file(lib.path), is_lib=True, direct=False)
        yield from rules.check_size(lib.path, MAX_LIB)
    bundles: list[Bundle] = []
    for kind, sub in (("transition", "transitions"), ("query", "queries")):
        for path in sorted((folder / sub).glob("*.lua")):
            made = yield from _check_script(path, kind, libs)
            if made is not None:
                bundles.append(made)
                yield from rules.check_bundle(made, frozenset(states), keys)
    yield from rules.check_moves(bundles, moves, folder / "lib/states.lua")
    yield from rules.check_unused(libs, bundles)


def _check_script(path: Path, kind: str, libs: dict[str, Lib]) -> Generator[Finding, None, Bundle | None]:
    try:
        bundle = make_bundle(path, path.read_text(encoding="utf-8"), kind, libs)
    except LuaError as error:
        yield Finding(error.path, error.line, error.why)
        return None
    direct = bundle.header.direct_writes
    yield from rules.check_file(Code.of_file(path), is_lib=False, direct=direct)
    yield from rules.check_size(path, MAX_SCRIPT)
    return bundle


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
