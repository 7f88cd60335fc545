"""The server's log: what comes again and again is not told each time."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from pawl_server import logs


@pytest.fixture(autouse=True)
def kept_handlers() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_of_a_loop_comes_once_in_a_while() -> None:
    now = [0.0]
    repetitions = logs.Repetitions(lambda: now[0])

    def passes(name: str, text: str, level: int = logging.WARNING) -> int | None:
        record = logging.LogRecord(f"pawl_server.{name}", level, "", 1, text, ("x",), None)
        return getattr(record, "left_out", 0) if repetitions.filter(record) else None

    assert [passes("store.lane", "lost %s") for _ in range(5)] == [0, None, None, None, None]
    assert passes("store.lane", "other %s") == 0
    assert passes("store.lane", "lost %s", logging.ERROR) == 0
    assert [passes("app", "said %s") for _ in range(2)] == [0, 0], "no loop"
    now[0] = logs.EVERY_S
    assert passes("store.lane", "lost %s") == 4
    assert passes("store.lane", "lost %s") is None


def test_what_was_left_out_is_in_the_line() -> None:
    out = io.StringIO()
    logs.set_up("info", "text", out)
    loop = logging.getLogger("pawl_server.store.lane")
    for _ in range(3):
        loop.info("not connected: %s", "refused")
    assert out.getvalue().count("not connected: refused") == 1
