"""Lines of the log that would come again and again."""

from __future__ import annotations

import logging
import time

EVERY = 10.0
"""Seconds between two lines of one kind."""


class Seldom:
    """Logs the first line of a kind at once, then at most one in ten seconds, with the number left out."""

    __slots__ = ("_left_out", "_log", "_next")

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._left_out = 0
        self._next = 0.0

    def __call__(self, level: int, text: str, *args: object) -> None:
        """Logs the line, or counts it."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        if self._left_out:
            text, args = text + " (and %d times like this before)", (*args, self._left_out)
        self._log.log(level, text, *args)
        self._left_out = 0
        self._next = now + EVERY
