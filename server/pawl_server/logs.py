"""Logging of the server: one line per record, `key=value` or JSON, on stderr.

Every line of the server is a `Line` of log_lines.py: its name, level and fields are fixed, so that programs
can count on them. A kind of line that comes again and again is told a number of times and then left out for
a while; the next one says how many were.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

EVERY_S = 10.0
"""The time in which a kind of line is told at most `burst` times."""
BURST = 20

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event", "burst"}
_FIELD = re.compile(r"%\((\w+)\)")


class Line:
    """A kind of log line. `event` is its name, `text` is made of its fields, `more` are fields beside those.

    `burst` is how often it is told in EVERY_S seconds, None for always. A line of an `incident` has a field
    of that name with a new id, which leads from an answer to the log.
    """

    def __init__(
        self,
        event: str,
        level: int,
        text: str,
        *,
        more: tuple[str, ...] = (),
        burst: int | None = BURST,
        incident: bool = False,
    ) -> None:
        self.event = event
        self.level = level
        self.text = text
        self.burst = None if incident else burst
        self.incident = incident
        own = ("incident",) if incident else ()
        self.fields = tuple(dict.fromkeys((*_FIELD.findall(text), *more, *own)))

    def __call__(self, log: logging.Logger, error: BaseException | None = None, /, **fields: Any) -> str:
        """Writes the line, with the traceback of `error`; the incident's id, if the line has one."""
        incident = ""
        if self.incident:
            incident = fields["incident"] = new_incident()
        if log.isEnabledFor(self.level):
            extra = {"event": self.event, "burst": self.burst, **fields}
            args = (fields,) if fields else ()
            log.log(self.level, self.text, *args, exc_info=error, extra=extra, stacklevel=2)
        return incident


def new_incident() -> str:
    """An id that leads from an answer to the log: 12 hex digits."""
    return secrets.token_hex(6)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value …`, a traceback below it; no field is told twice."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        name = record.name.removeprefix("pawl_server.")
        line = f"{_when(record)} {record.levelname.lower():7} {name}: {record.getMessage()}"
        told = _FIELD.findall(str(record.msg))
        for key, value in _fields(record).items():
            if key not in told and value is not None:
                text = str(value)
                line += f" {key}={json.dumps(text) if ' ' in text or not text else text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One object per record: time, level, event (null for other libraries), logger, message, the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        entry: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", None),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


class Repetitions(logging.Filter):
    """Lets a kind of line through `burst` times in EVERY_S; the next one says in `left_out` what was not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes."""
        burst: int | None = getattr(record, "burst", None)
        if burst is None:
            return True
        event: str = getattr(record, "event", "")
        now = self._clock()
        seen = self._seen.setdefault(event, [now, 0])
        if now - seen[0] >= EVERY_S:
            if seen[1] > burst:
                record.left_out = int(seen[1]) - burst
            seen[:] = now, 0
        seen[1] += 1
        return seen[1] <= burst


class Processes(logging.Filter):
    """Names the process in each line, as field `proc`, where there are several."""

    def __init__(self, proc: str) -> None:
        super().__init__()
        self._proc = proc

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes."""
        record.proc = self._proc
        return True


def set_up(level: str, form: str, stream: TextIO | None = None, *, proc: str = "") -> None:
    """Sends the log of the whole process to `stream` (stderr); `level` and `form` as in Settings.

    `proc` names the process where there are several.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    as_json = form == "json" or (form == "auto" and not handler.stream.isatty())
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(Repetitions())
    if proc:
        handler.addFilter(Processes(proc))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
