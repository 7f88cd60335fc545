"""Logging of the server: one line per record, `key=value` or JSON, on stderr.

What is passed as `extra` becomes keys of its own. What comes again and again while Redis is away is logged
once, then at most every ten seconds with the number of lines left out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

EVERY_S = 10.0
_REPETITIVE = frozenset(
    f"pawl_server.{name}"
    for name in ("store.lane", "store.pubsub", "delivery.dispatcher", "delivery.wakeups", "background.loops")
)
"""Loggers of what is tried again for ever."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`time level logger message key=value …`, a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        name = record.name.removeprefix("pawl_server.")
        line = f"{_when(record)} {record.levelname.lower():7} {name}: {record.getMessage()}"
        for key, value in _extras(record).items():
            text = str(value)
            line += f" {key}={json.dumps(text) if ' ' in text or not text else text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One object per record: time, level, logger, message, the extras, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        entry: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


class Repetitions(logging.Filter):
    """Lets a line of a loop through once in EVERY_S; the next one has `left_out`, how many were not.

    Lines are alike if logger and text before formatting are. Those with a traceback, and errors, always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes."""
        if record.name not in _REPETITIVE or record.levelno >= logging.ERROR or record.exc_info:
            return True
        kind, now = (record.name, str(record.msg)), self._clock()
        due, left_out = self._seen.get(kind, (0.0, 0))
        if now < due:
            self._seen[kind] = due, left_out + 1
            return False
        if left_out:
            record.left_out = left_out
        self._seen[kind] = now + EVERY_S, 0
        return True


def set_up(level: str, form: str, stream: TextIO | None = None) -> None:
    """Sends the log of the whole process to `stream` (stderr); `level` and `form` as in Settings."""
    stream = stream or sys.stderr
    as_json = form == "json" or (form == "auto" and not stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(Repetitions())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
