"""`pawl worker --reload`: new code replaces a worker, broken code does not, and no turn is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pawl.cli import reload
from pawl.cli.main import main
from tests.support.wait import wait_until_sync

WAIT_S = 30.0

CODE = """
import asyncio
import os
from pathlib import Path

from pawl import workflow
{imports}
HERE = Path(__file__).parent


@workflow({name!r}, version="v1")
async def flow(ctx, state, message):
    async def step():
        (HERE / "began").touch()
        while message == "wait" and not (HERE / "go").exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    pid = await ctx.step("one", step)
    return ctx.done(None, result={{"code": {code}, "pid": pid, "attempt": ctx.attempt}})
"""


class Reloading:
    """`pawl worker flows --reload` in a folder of its own, with a workflow named after the test."""

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.folder = folder
        self.name = name
        self.address = address
        self._log = folder / "stderr.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, code: str, imports: str = "", name: str = "flows.py") -> None:
        """Writes the module; its time is always another one than before."""
        path = self.folder / name
        text = CODE.format(name=self.name, code=code, imports=imports) if name == "flows.py" else code
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_text(text)
        if path.stat().st_mtime_ns <= before:
            os.utime(path, ns=(before + 1, before + 1))

    def start(self) -> None:
        """Starts it."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pawl.cli", "worker", "flows", "--address", self.address, "--reload"],
                cwd=self.folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The parent."""
        assert self._process is not None
        return self._process

    @property
    def said(self) -> str:
        """Everything on stderr."""
        return self._log.read_text()

    def says(self, *words: str) -> None:
        """Waits until every one of the words has been said."""
        wait_until_sync(lambda: all(word in self.said for word in words), WAIT_S, f"stderr says {words}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; the exit code."""
        self.process.send_signal(number)
        wait_until_sync(lambda: self.process.poll() is not None, WAIT_S, "the worker ends")
        return self.process.returncode

    def close(self) -> None:
        """Leaves nothing running."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # Turns

    def send(self, message: str = "", instance: str = "a", *, wait: bool = True) -> dict[str, Any]:
        """Sends a message; the answer of `pawl send`."""
        made = ["--type", self.name, "--version", "v1", *(["--wait", str(WAIT_S)] if wait else [])]
        return self._pawl("send", f"{self.name}-{instance}", json.dumps(message), *made)

    def turn(self, instance: str = "a") -> dict[str, Any]:
        """The first turn of an instance."""
        return self._pawl("turns", f"{self.name}-{instance}", "1")

    def _pawl(self, *words: str) -> dict[str, Any]:
        done = CliRunner().invoke(main, [*words, "--address", self.address, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def reply(self, message: str = "", instance: str = "a") -> dict[str, Any]:
        """What the workflow answers to a message."""
        return self.send(message, instance)["outcome"]["reply"]

    def answers(self, code: int) -> None:
        """Waits until the workflow is that of `code`."""
        wait_until_sync(lambda: self.reply()["code"] == code, WAIT_S, f"code {code} runs")


@pytest.fixture
def reloading(tmp_path: Path, dev_server: str, request: pytest.FixtureRequest) -> Iterator[Reloading]:
    """A worker that is not started yet."""
    one = Reloading(tmp_path, request.node.name.replace("[", "-").replace("]", "")[:60], dev_server)
    yield one
    one.close()


@pytest.mark.spec("R-RELOAD-1")
def test_new_code_replaces_the_worker(reloading: Reloading) -> None:
    reloading.write("1")
    reloading.start()
    reloading.answers(1)
    reloading.write("2")
    reloading.answers(2)
    assert "reload: flows.py changed; starting a worker with the new code" in reloading.said
    assert reloading.end() == 0


@pytest.mark.spec("R-RELOAD-1")
def test_a_module_that_the_workflow_imports(reloading: Reloading) -> None:
    reloading.write("VALUE = 1\n", name="values.py")
    reloading.write("values.VALUE", imports="import values")
    reloading.start()
    reloading.answers(1)
    reloading.write("VALUE = 2\n", name="values.py")
    reloading.answers(2)
    assert reloading.end(signal.SIGINT) == 0


@pytest.mark.spec("R-RELOAD-2")
def test_broken_code_replaces_nothing(reloading: Reloading) -> None:
    reloading.write("1")
    reloading.start()
    first = reloading.reply()
    reloading.write("1 +")
    reloading.says("error: IMPORT_FAILED: flows can't be imported: SyntaxError", "goes on with the old one")
    assert reloading.reply() == first, "the same process"
    reloading.write("3")
    reloading.answers(3)
    reloading.write("4", imports="import absent_module")
    reloading.says("No module named 'absent_module'")
    reloading.write("VALUE = 1", name="absent_module.py")
    reloading.answers(4)
    assert reloading.end() == 0


@pytest.mark.spec("R-RELOAD-2")
def test_broken_from_the_start(reloading: Reloading) -> None:
    reloading.start()
    reloading.says("no module 'flows'", "the worker ended with code 2; waiting for a change")
    reloading.write("1")
    reloading.answers(1)
    assert reloading.end() == 0


@pytest.mark.spec("R-RELOAD-3")
def test_a_running_turn_is_finished_by_the_worker_that_has_it(reloading: Reloading) -> None:
    reloading.write("1")
    reloading.start()
    reloading.send("wait", wait=False)
    wait_until_sync((reloading.folder / "began").exists, WAIT_S, "the step begins")
    reloading.write("2")
    reloading.says("finishes its turns and ends")
    new = reloading.reply("", "other")
    assert new["code"] == 2
    (reloading.folder / "go").touch()
    wait_until_sync(lambda: reloading.turn()["state"] == "COMPLETED", WAIT_S)
    old = reloading.turn()["reply"]
    assert (old["code"], old["attempt"]) == (1, 1)
    assert old["pid"] != new["pid"]
    wait_until_sync(lambda: not _alive(old["pid"]), WAIT_S, "the old worker ends")
    assert _alive(new["pid"])
    assert reloading.end() == 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_end_with_a_parent_that_is_killed(reloading: Reloading) -> None:
    reloading.write("1")
    reloading.start()
    pid = reloading.reply()["pid"]
    assert reloading.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until_sync(lambda: not _alive(pid), WAIT_S, "the worker ends")


# Looking at files


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., reload.Watch]:
    """Makes a watch on files of the test's folder."""

    def make(*names: str, since_ns: int | None = None) -> reload.Watch:
        one = reload.Watch()
        one.add([str(tmp_path / name) for name in names], time.time_ns() if since_ns is None else since_ns)
        return one

    return make


def test_what_counts_as_a_change(tmp_path: Path, watch: Callable[..., reload.Watch]) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("1")
    looks = watch("one.py", "two.py")
    assert looks.changed() == []
    os.utime(one, ns=(1, 1))
    assert looks.changed() == [str(one)]
    assert looks.changed() == []
    two.write_text("2")
    assert looks.changed() == [str(two)]
    one.unlink()
    assert looks.changed() == [str(one)]
    assert looks.changed() == []


def test_what_was_written_while_it_was_loaded(tmp_path: Path, watch: Callable[..., reload.Watch]) -> None:
    (tmp_path / "one.py").write_text("1")
    assert watch("one.py", since_ns=0).changed() == [str(tmp_path / "one.py")]


def test_files_that_come_and_go_in_folders(tmp_path: Path, watch: Callable[..., reload.Watch]) -> None:
    looks = watch()
    looks.look_at_folders({str(tmp_path): frozenset(), str(tmp_path / "absent"): frozenset()})
    (tmp_path / "notes.txt").touch()
    assert looks.changed() == []
    (tmp_path / "new.py").touch()
    assert looks.changed() == [str(tmp_path / "new.py")]
    (tmp_path / "new.py").unlink()
    assert looks.changed() == [str(tmp_path / "new.py")]
    looks.look_at_folders({})
    (tmp_path / "more.py").touch()
    assert looks.changed() == []


def test_which_files_are_watched(tmp_path: Path) -> None:
    watched = set(reload.own_sources())
    assert __file__ in watched
    assert not {
        path for path in watched if "site-packages" in path or "/cli/" in path.replace("tests/cli", "")
    }
    broken = tmp_path / "broken.py"
    broken.write_text("x = = 1\n")
    helper = tmp_path / "helper.py"
    helper.write_text("def fail():\n    raise ValueError\n")

    def load() -> None:
        try:
            exec(compile(helper.read_text(), helper, "exec"), space := {})
            space["fail"]()
        except ValueError:
            compile(broken.read_text(), str(broken), "exec")

    with pytest.raises(SyntaxError) as raised:
        load()
    assert {str(broken), str(helper)} <= set(reload.sources_of(raised.value))
