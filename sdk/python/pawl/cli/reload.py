"""`pawl worker --reload`: a worker that is replaced whenever the source of its workflows changes.

The parent imports none of that source. It starts the worker as a child, which reports the files of the
modules it has loaded, and looks at their times. After a change it starts a second child. Once that one runs,
the first is told to stop: it finishes its turns, or gives them back, and ends. Code that can't be imported
replaces nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

INTERVAL_S = 0.3
"""How often files are looked at. A change is acted on when the next look finds no further one."""
REPORT_S = 1.0
"""How often a child looks whether it has loaded further modules."""

Stamps = dict[str, tuple[int, int]]
"""By path: time of the last change in ns, and size."""
Names = dict[str, frozenset[str]]
"""By folder: the Python files in it."""


# The child's side


class Reports:
    """Tells the parent, over a pipe, which files this process has loaded, and that it runs."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._files: set[str] = set()

    def loaded(self, error: BaseException | None = None) -> None:
        """Reports files that are new since the last time, those that an error came from included."""
        files = {*own_sources(), *(sources_of(error) if error is not None else ())} - self._files
        if files:
            self._files |= files
            self._send({"files": sorted(files)})

    def running(self) -> None:
        """Reports that turns will be taken, and that SIGTERM stops the worker in good order."""
        self._send({"running": True})

    def _send(self, report: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, json.dumps(report).encode() + b"\n")


def own_sources() -> Iterator[str]:
    """Files of all modules that are loaded, but for installed ones and Pawl's own."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and path.endswith(".py") and name.partition(".")[0] not in ("pawl", "pawl_server"):
            full = os.path.abspath(path)
            if not _installed(full):
                yield full


def sources_of(error: BaseException) -> Iterator[str]:
    """Files that an error, or what led to it, came from."""
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, SyntaxError) and one.filename and os.path.exists(one.filename):
            yield os.path.abspath(one.filename)
        trace = one.__traceback__
        while trace is not None:
            path = trace.tb_frame.f_code.co_filename
            if os.path.exists(path) and not _installed(path) and not path.startswith(_HERE):
                yield os.path.abspath(path)
            trace = trace.tb_next
        one = one.__cause__ or one.__context__


_HERE = str(Path(__file__).resolve().parents[1]) + os.sep
_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def _installed(path: str) -> bool:
    return path.startswith(_INSTALLED) or f"{os.sep}site-packages{os.sep}" in path


# The parent's side


class Watch:
    """Looks at files, and at which Python files there are in some folders."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._stamps: Stamps = {}
        self._names: Names = {}

    def add(self, files: Iterable[str], since_ns: int) -> None:
        """Watches further files; what was written after `since_ns` counts as changed."""
        new = set(files) - self.files
        self.files |= new
        self._stamps |= {path: at for path, at in _stamps(new).items() if at[0] <= since_ns}

    def look_at_folders(self, names: Names) -> None:
        """Watches which Python files are in these folders, and in no others; `names` are those that were."""
        self._names = dict(names)

    def names(self) -> Names:
        """The Python files beside those that are watched, and in the working folder."""
        folders = {os.path.dirname(path) for path in self.files} | {os.getcwd()}
        return {folder: _python_files(folder) for folder in folders}

    def changed(self) -> list[str]:
        """Paths that have changed, come or gone since the last look."""
        stamps = _stamps(self.files)
        names = {folder: _python_files(folder) for folder in self._names}
        found = {path for path in self.files if stamps.get(path) != self._stamps.get(path)}
        for folder, now in names.items():
            found |= {os.path.join(folder, name) for name in now ^ self._names[folder]}
        self._stamps, self._names = stamps, names
        return sorted(found)


def _stamps(files: Iterable[str]) -> Stamps:
    found: Stamps = {}
    for path in files:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _python_files(folder: str) -> frozenset[str]:
    try:
        return frozenset(name for name in os.listdir(folder) if name.endswith(".py"))
    except OSError:
        return frozenset()


class Child:
    """A worker process. `runs` says that it takes turns, `stopping` that it was told to end."""

    def __init__(self, words: Sequence[str]) -> None:
        self.runs = False
        self.stopping = False
        self.began_ns = time.time_ns()
        reader, writer = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pawl.cli", "worker", *words, "--report-to", str(writer)],
                stdin=subprocess.PIPE,  # closed by the end of this process, whatever ends it
                pass_fds=(writer,),
                start_new_session=True,  # Ctrl-C reaches the parent alone
                # Compiled files are told apart by whole seconds: two changes in one would run the older code.
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.pipe = reader
        self._rest = b""

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def reports(self) -> Iterator[dict[str, Any]]:
        """What the child has reported since the last time."""
        try:
            while data := os.read(self.pipe, 1 << 16):
                self._rest += data
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def stop(self) -> None:
        """Asks it to end: the first time in good order, then at once."""
        self.stopping = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Gives back what belongs to a process that has ended."""
        os.close(self.pipe)
        if self.process.stdin is not None:
            self.process.stdin.close()


class Reloader:
    """Keeps one worker running with the newest code that can be imported; `say` gets lines for people."""

    def __init__(self, words: Sequence[str], say: Callable[[str], None]) -> None:
        self._words = words
        self._say = say
        self._watch = Watch()
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._newest: Child | None = None
        self._names: Names = {}
        self._pending: set[str] = set()
        self._signals = 0
        self._failed = False

    def run(self) -> int:
        """Runs until SIGINT or SIGTERM; the exit code."""
        former = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            self._start()
            while self._children or not self._signals:
                self._selector.select(INTERVAL_S)
                self._step()
        finally:
            for child in self._children:
                child.process.kill()
                child.process.wait()
                child.close()
            for number, handler in former.items():
                signal.signal(number, handler)
        return 1 if self._failed else 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        for child in self._children:
            child.stop()

    def _start(self) -> None:
        self._names = self._watch.names()
        self._newest = child = Child(self._words)
        self._children.append(child)
        self._selector.register(child.pipe, selectors.EVENT_READ)
        if self._signals:
            child.stop()

    def _step(self) -> None:
        for child in list(self._children):
            self._listen(child)
            if child.process.poll() is not None:
                self._listen(child)
                self._ended(child)
        if self._signals:
            return
        changed = self._watch.changed()
        if changed:
            self._pending.update(changed)
        elif self._pending:
            self._reload(sorted(self._pending))
            self._pending.clear()

    def _listen(self, child: Child) -> None:
        for report in child.reports():
            self._watch.add(report.get("files", ()), child.began_ns)
            if report.get("running"):
                child.runs = True
                self._watch.look_at_folders({})
                self._replaced(child)

    def _replaced(self, by: Child) -> None:
        """The newest worker runs: the others finish what they have."""
        for child in self._children:
            if child is not by and not child.stopping:
                self._say(
                    f"worker {by.pid} runs the new code; worker {child.pid} finishes its turns and ends"
                )
                child.stop()

    def _reload(self, changed: Sequence[str]) -> None:
        names = ", ".join(_short(path) for path in changed[:3]) + (" …" if len(changed) > 3 else "")
        self._say(f"{names} changed; starting a worker with the new code")
        if self._newest is not None and not self._newest.runs:
            self._newest.stop()  # it has begun with code that is old already
        self._start()

    def _ended(self, child: Child) -> None:
        self._selector.unregister(child.pipe)
        self._children.remove(child)
        child.close()
        if child is not self._newest:
            return
        self._newest = None
        if self._signals:
            self._failed = child.runs and child.process.returncode != 0
            return
        # As they were when it began: what is missing may have come meanwhile.
        self._watch.look_at_folders(self._watch.names() | self._names)
        old = next((one for one in self._children if one.runs and not one.stopping), None)
        if old is not None:
            self._newest = old
            self._say(f"the new code does not run; worker {old.pid} goes on with the old one until a change")
        else:
            self._say(f"the worker ended with code {child.process.returncode}; waiting for a change")


def _short(path: str) -> str:
    """A path as seen from the working folder."""
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
