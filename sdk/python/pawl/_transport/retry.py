"""Which failures are worth repeating, and when."""

from __future__ import annotations

import random
from time import monotonic

from pawl.errors import DeadlineExceeded, Overloaded, ServerError, Unavailable

CLOSED = "the client is closed"

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


class Tries:
    """The tries of one call, which has `timeout` seconds for all of them."""

    __slots__ = ("_backoff", "_deadline", "_last", "_retry", "_timeout")

    def __init__(self, timeout: float, *, retry: bool = True) -> None:
        self._timeout = timeout
        self._retry = retry
        self._deadline = monotonic() + timeout
        self._backoff = Backoff(0.05, 2.0)
        self._last: ServerError | None = None

    def left(self) -> float:
        """Gives the seconds left for the next try.

        Raises, when there are none, the last failure rather than DeadlineExceeded, because it says more.
        """
        left = self._deadline - monotonic()
        if left <= 0:
            raise self._last or DeadlineExceeded(f"no answer within {self._timeout:g} s", reason="DEADLINE")
        return left

    def pause_after(self, problem: ServerError) -> float:
        """Gives the seconds to wait after a try that failed; raises the failure if another try is in vain."""
        if isinstance(problem, DeadlineExceeded) and self._last is not None:
            raise self._last
        if not self._retry or not is_retryable(problem):
            raise problem
        self._last = problem
        return min(self._backoff.next(problem.retry_after), max(0.0, self._deadline - monotonic()))

    def succeeded(self) -> None:
        """Forgets the failures so far, for a call of several parts."""
        self._last = None
        self._backoff.reset()


class Reopening:
    """When a stream that ended is opened again: for ever, once it has worked.

    Before that it is given up after `timeout` seconds, with the last failure.
    """

    __slots__ = ("_backoff", "_pause", "_tries")

    def __init__(self, timeout: float) -> None:
        self._tries: Tries | None = Tries(timeout)
        self._backoff = Backoff(0.05, 5.0)
        self._pause: float | None = None

    def worked(self) -> None:
        """Something came."""
        self._tries = None
        self._backoff.reset()

    def asked(self, seconds: float) -> None:
        """The server asks for another stream after so many seconds."""
        self._pause = seconds

    def failed(self, problem: ServerError) -> None:
        """The stream ended with a failure. Raises it if another try is in vain."""
        if self._tries is not None:
            self._pause = self._tries.pause_after(problem)
            self._tries.left()
        elif is_retryable(problem):
            self._pause = self._backoff.next(problem.retry_after)
        else:
            raise problem

    def pause(self) -> float:
        """Gives the seconds to wait before the next try."""
        pause, self._pause = self._pause, None
        return self._backoff.next() if pause is None else pause
