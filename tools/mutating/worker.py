"""The process that runs tests of the transitions, again and again, on the scripts that it is told.

It collects the tests and starts its Redis once. A test that failed on a changed script is run once more on
the original: only if it passes then has it noticed the change, and not what another test left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pytest

from tools.mutating.scripts import Scripts


@dataclass(frozen=True)
class Job:
    """Runs `tests` in order, with another text of one source until one fails; `change` is file and text."""

    tests: Sequence[str]
    change: tuple[str, str] | None = None


@dataclass(frozen=True)
class Outcome:
    """How one test went: `why` is empty if it passed. `scripts` are those that it called."""

    id: str
    why: str
    seconds: float
    scripts: frozenset[str]


@dataclass(frozen=True)
class Done:
    """The job has ended. `spoiled` says that the failed test fails without the change as well."""

    spoiled: bool = False


def work(
    connection: Connection, root: str, folder: str, sources: Mapping[str, str], paths: list[str]
) -> None:
    """Serves jobs until the connection is closed. `folder` is empty and takes its log and Redis' files.

    First sends the ids of all tests, then for each Job any number of Outcome and one Done.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(f"{folder}/log", "wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["TMPDIR"] = folder
    os.chdir(root)
    plugins = ("randomly", "cacheprovider", "tests.support.reply_log", "xdist")
    options = [part for plugin in plugins for part in ("-p", f"no:{plugin}")]
    runner = _Runner(connection, sources)
    sys.exit(pytest.main([*options, "--tb=line", "-q", *paths], plugins=[runner]))


class _Runner:
    """The pytest plugin that takes the place of pytest's loop over all tests."""

    def __init__(self, connection: Connection, sources: Mapping[str, str]) -> None:
        self.connection = connection
        self.sources = sources
        self.why = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs what the jobs say."""
        items = {item.nodeid: item for item in session.items}
        self.connection.send(list(items))
        from tests.support.lua_guard import guard

        self.original = Scripts(self.sources, guard)
        while True:
            try:
                job: Job = self.connection.recv()
            except EOFError:
                return True
            self.connection.send(self._serve(items, job))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes why a test fails."""
        if report.failed and not self.why:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longreprtext
            self.why = f"{report.when}: {text.strip().splitlines()[0] if text.strip() else 'failed'}"

    def _serve(self, items: Mapping[str, pytest.Item], job: Job) -> Done:
        from tests.support.lua_harness import use_scripts

        use_scripts(self.original.changed(*job.change) if job.change else self.original)
        for name in job.tests:
            outcome = self._test(items[name])
            self.connection.send(outcome)
            if outcome.why and job.change:
                use_scripts(self.original)
                return Done(spoiled=bool(self._test(items[name]).why))
        return Done()

    def _test(self, item: pytest.Item) -> Outcome:
        from tests.support import reply_log

        self.why = ""
        reply_log.take_called()
        started = time.perf_counter()
        item._initrequest()  # type: ignore[attr-defined]  # as a second run of a test needs
        # Everything up to the session is torn down after each test: what comes next is not known yet.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=item.session)
        seconds = time.perf_counter() - started
        return Outcome(item.nodeid, self.why, seconds, reply_log.take_called())
