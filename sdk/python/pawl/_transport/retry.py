"""Which failures are worth repeating, and when."""

from __future__ import annotations

import random

from pawl.errors import Overloaded, ServerError, Unavailable

_TRANSPORT_CODES = frozenset({"UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN"})


def is_retryable(error: ServerError) -> bool:
    """True if repeating the same call can succeed.

    Every call of the API may be repeated exactly, so a connection that broke in the middle is no reason to
    give up: without a reason of the server's own, such codes come from the connection.
    """
    if isinstance(error, Unavailable | Overloaded):
        return True
    return not error.reason and error.code in _TRANSPORT_CODES


class Backoff:
    """Delays with full jitter: between `first` and a ceiling that doubles up to `last` seconds."""

    __slots__ = ("_ceiling", "first", "last")

    def __init__(self, first: float = 0.05, last: float = 5.0) -> None:
        self.first = first
        self.last = last
        self._ceiling = first

    def next(self, at_least: float | None = None) -> float:
        """Gives the next delay in seconds, not below `at_least`."""
        self._ceiling = min(self.last, self._ceiling * 2)
        return max(random.uniform(self.first, self._ceiling), at_least or 0.0)

    def ease(self, ceiling: float) -> None:
        """After a success that may not last: no delay above `ceiling` seconds for the next failure."""
        self._ceiling = min(self._ceiling, ceiling / 2)

    def reset(self) -> None:
        """Starts over after a success."""
        self._ceiling = self.first
