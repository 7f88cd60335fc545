"""The server's log: names, fields and levels are fixed, and what comes again and again is told seldom."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pawl_server import log_lines, logs
from pawl_server.app import running
from pawl_server.log_lines import CLAIM_FAILED, LEASE_ENDED, REQUEST_FAILED, SERVER_LISTENING
from pawl_server.logs import Line
from pawl_server.store.errors import ScriptFailed, StoreUnavailable
from pawl_server.store.outage import Outage, Part, reason
from tests.support.fault_proxy import FaultProxy
from tests.support.server import settings_for
from tests.support.wait import wait_until

SERVER = Path(__file__).parents[2] / "server/pawl_server"
LINES = {name: line for name, line in vars(log_lines).items() if isinstance(line, Line)}
LOG = logging.getLogger("pawl_server.test")


@pytest.fixture(autouse=True)
def kept_handlers() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def told(kept_handlers: None) -> list[logging.LogRecord]:
    """Every record of the server from now on."""
    handler = Kept()
    handler.addFilter(lambda record: record.name.startswith("pawl_server"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG)
    return handler.records


class Kept(logging.Handler):
    """Keeps every record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call in the sources of the server."""
    for path in sorted(SERVER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path, node


# Fixed names, fields and levels


def test_names_say_which_constant_they_are() -> None:
    assert {line.event: name for name, line in LINES.items()} == {name.lower(): name for name in LINES}


@pytest.mark.spec("R-LOG-1")
def test_every_line_is_written_with_its_own_fields() -> None:
    used = set()
    for path, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in LINES:
            given = {keyword.arg for keyword in call.keywords}
            own = {"incident"} if LINES[name].incident else set()
            assert given | own == set(LINES[name].fields), f"{path.name}, line {call.lineno}: {name}"
            used.add(name)
    assert used | {"STORE_AWAY", "STORE_BACK", "LOOP_FAILS", "LOOP_WORKS"} == set(LINES)


@pytest.mark.spec("R-LOG-1")
def test_nothing_is_logged_past_the_catalogue() -> None:
    words = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    found = [
        f"{path.name}, line {call.lineno}"
        for path, call in calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in words
        and getattr(call.func.value, "id", "") in {"log", "logging", "logger"}
        and path.name != "logs.py"
    ]
    assert found == []


def test_an_outage_has_the_fields_of_its_lines(told: list[logging.LogRecord]) -> None:
    now = [0.0]
    for begin, end in (
        (log_lines.STORE_AWAY, log_lines.STORE_BACK),
        (log_lines.LOOP_FAILS, log_lines.LOOP_WORKS),
    ):
        outage = Outage(begin, end, clock=lambda: now[0])
        outage.failed("one", "why")
        outage.works("one")
        first, last = told[-2:]
        assert set(begin.fields) <= vars(first).keys()
        assert set(end.fields) <= vars(last).keys()
        assert (vars(first)["event"], vars(last)["event"]) == (begin.event, end.event)


# Formats


def written(form: str, stream: io.StringIO, level: str = "info") -> str:
    """What three records look like."""
    logs.set_up(level, form, stream)
    LEASE_ENDED(LOG, instance="a", turn=3, outcome="expired", conn="")
    SERVER_LISTENING(
        LOG, address="127.0.0.1:1", version="1", server="s", run="r", store="valkey 9", at="embedded",
        folder=None, durability="fsync", namespace="n", partitions=2,
    )  # fmt: skip
    logging.getLogger("other").warning("said %s", "x")
    return stream.getvalue()


@pytest.mark.spec("R-LOG-1")
def test_json_lines() -> None:
    first, second, third = map(json.loads, written("json", io.StringIO()).splitlines())
    time = first.pop("time")
    assert (len(time), time[-1]) == (24, "Z")
    assert first == {
        "level": "info", "event": "lease_ended", "logger": "pawl_server.test",
        "message": "lease of a turn 3 ended: expired",
        "instance": "a", "turn": 3, "outcome": "expired", "conn": "",
    }  # fmt: skip
    assert (second["event"], second["partitions"], second["folder"]) == ("server_listening", 2, None)
    assert (third["event"], third["level"], third["message"]) == (None, "warning", "said x")


def test_text_lines_repeat_no_field() -> None:
    first, second, third = written("text", io.StringIO()).splitlines()
    assert first[24:] == ' info    test: lease of a turn 3 ended: expired conn=""'
    assert 'listening on 127.0.0.1:1 version=1 server=s run=r store="valkey 9" at=embedded dur' in second
    assert third[24:] == " warning other: said x"


def test_auto_is_text_on_a_terminal_and_else_json() -> None:
    assert written("auto", Terminal())[10] == "T"
    assert written("auto", io.StringIO())[0] == "{"
    assert written("text", io.StringIO())[10] == "T"
    assert written("json", Terminal())[0] == "{"


def test_what_is_less_important_is_not_told() -> None:
    assert [
        json.loads(line)["logger"] for line in written("json", io.StringIO(), "warning").splitlines()
    ] == ["other"]


def test_an_incident_has_an_id_and_a_traceback() -> None:
    out = io.StringIO()
    logs.set_up("info", "json", out)
    try:
        raise KeyError("broken")
    except KeyError as error:
        incident = REQUEST_FAILED(LOG, error, where="a test")
    line = json.loads(out.getvalue())
    assert line["incident"] == incident
    assert len(incident) == 12
    assert (line["message"], line["exception"].splitlines()[-1]) == ("a test failed", "KeyError: 'broken'")


# Repetition


def test_a_kind_of_line_comes_a_number_of_times_in_a_while() -> None:
    now = [0.0]
    repetitions = logs.Repetitions(lambda: now[0])

    def passes(line: Line, times: int = 1, name: str = "x") -> list[int]:
        records = []
        for _ in range(times):
            extra = {"event": line.event, "burst": line.burst}
            records.append(LOG.makeRecord(name, line.level, "", 1, line.text, (), None, extra=extra))
        return [vars(record).get("left_out", 0) for record in records if repetitions.filter(record)]

    assert passes(CLAIM_FAILED, 5) == [0]
    assert passes(LEASE_ENDED, logs.BURST + 7) == [0] * logs.BURST
    assert passes(REQUEST_FAILED, 100) == [0] * 100, "an answer names the incident"
    now[0] = logs.EVERY_S
    assert passes(CLAIM_FAILED, 2) == [4]
    assert passes(LEASE_ENDED, 2) == [7, 0]
    now[0] += logs.EVERY_S
    assert passes(LEASE_ENDED) == [0]


def test_what_was_left_out_is_in_the_line() -> None:
    out = io.StringIO()
    logs.set_up("info", "text", out)
    for _ in range(3):
        CLAIM_FAILED(LOG, partition=1, why="refused")
    assert out.getvalue().count("claim in partition 1: refused") == 1


# Outages


@pytest.mark.spec("R-LOG-2")
def test_an_outage_is_told_once_for_all_its_parts(told: list[logging.LogRecord]) -> None:
    now = [100.0]
    outage = Outage(clock=lambda: now[0])
    part = Part("beats 0", outage)
    outage.works("hot")
    outage.failed("hot", TimeoutError())
    for _ in range(3):
        part.failed(StoreUnavailable("no connection"))
    now[0] += 12.5
    assert outage.seconds == 12.5
    outage.works("hot")
    part.works()
    part.works()
    loud = [record for record in told if record.levelno > logging.DEBUG]
    assert [record.getMessage() for record in loud] == [
        "the store is away for hot: no answer in time",
        "the store is back after 12.5 s",
    ]
    assert (vars(loud[0])["part"], vars(loud[1])["part"], vars(loud[1])["errors"]) == ("hot", "beats 0", 4)
    assert (outage.count, outage.errors, outage.seconds, part.errors) == (1, 4, 0.0, 3)
    outage.failed("bulk", "once more")
    outage.works("bulk")
    assert (outage.count, outage.errors, vars(told[-1])["errors"]) == (2, 5, 1)


@pytest.mark.spec("R-LOG-2")
def test_other_trouble_of_a_loop_is_told_when_it_begins_and_ends(told: list[logging.LogRecord]) -> None:
    part = Part("sweep 1")
    for _ in range(3):
        part.failed(ScriptFailed("sweep", "broken"))
    part.failed(ValueError("a bug"))
    part.works()
    loud = [record for record in told if record.levelno > logging.DEBUG]
    assert [vars(record)["event"] for record in loud] == ["loop_fails", "loop_broke", "loop_works"]
    assert (loud[0].getMessage(), loud[1].exc_info is not None) == ("sweep 1: sweep: broken", True)
    assert (vars(loud[2])["errors"], part.errors) == (3, 4)


def test_an_error_without_text_has_a_reason() -> None:
    assert reason(TimeoutError()) == "no answer in time"
    assert reason(ConnectionResetError()) == "ConnectionResetError"
    assert reason(OSError("so")) == "so"


@pytest.mark.spec("R-LOG-2")
async def test_redis_is_away_for_a_while(redis_url: str, told: list[logging.LogRecord]) -> None:
    async with FaultProxy(redis_url) as proxy:
        settings = settings_for(proxy.url, poll_interval_ms=50, store_timeout_ms=1_000)
        async with running(settings) as server:
            outage = server.engine.store.outage
            proxy.refuse()
            proxy.cut()

            def noticed_by() -> set[str]:
                return {each.split()[0] for each in outage.parts}

            await wait_until(lambda: {"hot", "bulk", "listener", "poll", "beats", "timers"} <= noticed_by())
            proxy.accept()
            await wait_until(lambda: not outage.parts)
            about = [record for record in told if record.levelno > logging.INFO and _about_store(record)]
            assert [vars(record)["event"] for record in about] == ["store_away", "store_back"]
            assert (outage.count, vars(about[1])["errors"]) == (1, outage.errors)


def _about_store(record: logging.LogRecord) -> bool:
    ready: tuple[Any, ...] = ("not_ready", "ready", "durability_risk", "server_listening")
    return vars(record)["event"] not in ready


@pytest.mark.spec("R-LOG-2")
async def test_a_redis_that_does_not_answer_is_named_with_a_reason(redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy:
        settings = settings_for(proxy.url, store_timeout_ms=500, poll_interval_ms=50)
        async with running(settings) as server:
            proxy.up.hold()
            await wait_until(lambda: "hot" in server.engine.store.outage.parts)

            async def said() -> str:
                try:
                    await server.engine.store.ping()
                except StoreUnavailable as error:
                    return error.why
                return ""

            why = await wait_until(lambda: _until_no_connection(said))
            assert why == "no connection: no answer in time"
            proxy.up.release()


async def _until_no_connection(said: Any) -> str:
    why = await said()
    return why if why.startswith("no connection: no answer") else ""
