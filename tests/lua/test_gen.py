"""What tools/gen.py makes of headers, states and descriptors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import pawl
import pawl.testing
from pawl_server.domain.states import MOVES, TurnState
from pawl_server.store import scripts_gen
from pawl_server.store.bundle import load_bundles
from pawl_server.store.errors import ScriptFailed
from pawl_server.store.lua_header import LuaError
from tests.lua.samples import FILES, PROBE, write
from tools import spec_coverage
from tools.generators import keys_page, python_page, scripts, states, transitions_page
from tools.generators.api_page import api_page, errors_page
from tools.generators.states import read_states
from tools.reply_coverage import missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository root whose Lua sources are the samples."""
    write(tmp_path / "server/pawl_server/lua")
    return tmp_path


@pytest.fixture
def sample(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generated module of the samples, imported."""
    lua = root / "server/pawl_server/lua"
    path = root / "sample_scripts.py"
    path.write_text(scripts.generate(root)[scripts.TARGET])
    monkeypatch.setattr("pawl_server.store.bundle.load_bundles", lambda: load_bundles(lua))
    spec = importlib.util.spec_from_file_location("sample_scripts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sample_scripts", module)
    spec.loader.exec_module(module)
    return module


def test_arguments_are_flattened(sample: ModuleType) -> None:
    items = [sample.ProbeItem("a", 1, b"x"), sample.ProbeItem(id="b", turn=2, blob=b"y")]
    argv = sample.probe_args(server="s", dry=True, items=items)
    assert argv == [0, "s", 1, "a", 1, b"x", "b", 2, b"y"]
    assert all(type(value) in (int, str, bytes) for value in argv)
    assert sample.read_args() == []


def test_replies_are_decoded(sample: ModuleType) -> None:
    raw = [17, [[b"OK", 5, b"text", 1], [b"OK", 5, None, 0], [b"NOT_FOUND"], [b"GAP", b"12"]], [b"t:v"]]
    result = sample.probe_decode(raw)
    assert (result.now_ms, result.ready) == (17, ["t:v"])
    assert result.replies == [
        sample.ProbeOk(5, "text", True),
        sample.ProbeOk(5, None, False),
        sample.ProbeNotFound(),
        sample.ProbeGap(12),
    ]
    assert [reply.word for reply in result.replies] == ["OK", "OK", "NOT_FOUND", "GAP"]


def test_answers_that_are_no_reply(sample: ModuleType) -> None:
    with pytest.raises(ScriptFailed, match="GONE"):
        sample.probe_decode([1, [[b"GONE"]], []])


async def test_a_call_passes_script_and_arguments(sample: ModuleType) -> None:
    class Partition:
        async def call(self, script: Any, argv: Any) -> Any:
            self.called = (script.name, script.priority, script.oom, list(argv))
            return [1, [[b"NOT_FOUND"]], []]

    partition = Partition()
    result = await sample.probe(partition, now_ms=9, server="s", dry=False, items=[])
    assert partition.called == ("probe", 0, "allow", [9, "s", 0])
    assert result.replies == [sample.ProbeNotFound()]
    assert sample.PROBE.text.startswith("#!lua flags=allow-oom\n")
    assert set(sample.SCRIPTS) == {"probe", "read"}


@pytest.mark.parametrize("word", ["ITEM", "DAMAGED", "DELETING"])
def test_reserved_reply_words(root: Path, word: str) -> None:
    write(root / "server/pawl_server/lua", {"transitions/probe.lua": PROBE.replace("GAP(", f"{word}(")})
    with pytest.raises(LuaError, match="DELETING are taken"):
        scripts.generate(root)


def test_a_script_named_like_a_keyword_can_be_called() -> None:
    assert callable(scripts_gen.await_)


def test_transitions_page(root: Path) -> None:
    page = transitions_page.generate(root)["docs/reference/transitions.md"]
    assert "    QUEUED --> RUNNING: probe\n" in page
    assert "| `OK` | `turn` int, `note` str or nothing, `more` bool |" in page
    assert "### read\n\nReads one value.\n" in page
    assert "Rules: R-LEASE-1, R-LEASE-2." in page


def test_the_diagram_draws_no_move_that_does_not_exist(root: Path) -> None:
    header = PROBE.replace("@from  QUEUED", "@from  QUEUED RUNNING")
    write(root / "server/pawl_server/lua", {"transitions/probe.lua": header})
    page = transitions_page.generate(root)["docs/reference/transitions.md"]
    assert "QUEUED --> RUNNING" in page
    assert "RUNNING --> RUNNING" not in page


def test_states(root: Path) -> None:
    text = states.generate(root)[states.TARGET]
    assert '    TurnState.QUEUED: {\n        TurnState.RUNNING: "probe",\n    },' in text
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    assert namespace["TurnState"](2).name == "RUNNING"


def test_a_move_whose_comment_lies(tmp_path: Path) -> None:
    path = tmp_path / "states.lua"
    path.write_text(FILES["lib/states.lua"].replace("QUEUED ->", "RUNNING ->"))
    with pytest.raises(LuaError, match="numbers differ"):
        read_states(path)


def test_shipped_states_are_those_of_the_proto() -> None:
    from pawl.v1 import turn_pb2

    named = {
        name.removeprefix("TURN_STATE_"): number for name, number in turn_pb2.TurnState.items() if number
    }
    assert named == {state.name: state.value for state in TurnState}
    assert not any(state.finished for state in MOVES)


def test_keys_page_has_every_key() -> None:
    from pawl_server.store.keys import KEYS

    page = keys_page.generate(ROOT)["docs/reference/keys.md"]
    assert all(f"| `{spec.pattern}` | {spec.type} |" in page for spec in KEYS.values())


def test_what_needs_no_protoc_is_fresh() -> None:
    generated: dict[str, str] = {}
    for generator in (scripts, states, transitions_page, keys_page):
        generated.update(generator.generate(ROOT))
    stale = [path for path, text in generated.items() if (ROOT / path).read_text() != text]
    assert stale == [], "run `make gen`"


def test_api_pages_are_fresh(tmp_path: Path) -> None:
    image = tmp_path / "image.binpb"
    subprocess.run([Path(sys.executable).with_name("buf"), "build", "-o", image], cwd=ROOT, check=True)
    descriptors = FileDescriptorSet.FromString(image.read_bytes())
    pages = {"api.md": api_page(descriptors), "errors.md": errors_page(descriptors)}
    stale = [name for name, text in pages.items() if (ROOT / "docs/reference" / name).read_text() != text]
    assert stale == [], "run `make gen`"
    assert "### WorkerService\n" in pages["api.md"]
    assert "| `LEASE_ENDED` | FAILED_PRECONDITION | never succeeds |" in pages["errors.md"]


def test_the_python_page_names_everything_public() -> None:
    (page,) = python_page.generate(ROOT).values()
    assert (ROOT / "docs/reference/python.md").read_text() == page, "run `make gen`"
    headings = set(page.splitlines())
    assert [name for name in pawl.__all__ if f"### {name}" not in headings] == []
    assert {f"### testing.{name}" for name in pawl.testing.__all__} <= headings
    assert "### StepOptions" in headings
    assert "concurrency: int = 64," in page


def test_reply_coverage_names_what_no_test_produced() -> None:
    every = {
        (one.name, word.word) for one in (b.header for b in load_bundles().values()) for word in one.replies
    }
    assert missing(every) == []
    assert missing(every - {("finish", "GAP")}) == [("finish", "GAP")]


def test_spec_coverage_reads_rules_and_marks() -> None:
    assert spec_coverage.rules("# A\n\n- **R-LEASE-1** One MUST.\n- two R-LEASE-2\n") == ["R-LEASE-1"]
    source = '@pytest.mark.spec("R-LEASE-1", "R-LEASE-2")\ndef test_a(): ...\n'
    source += 'pytestmark = pytest.mark.spec("R-ID-1")\n'
    assert sorted(spec_coverage.marks(source)) == ["R-ID-1", "R-LEASE-1", "R-LEASE-2"]
