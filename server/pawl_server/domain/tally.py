"""Counting that costs next to nothing: plain numbers in objects, read when somebody asks for metrics."""

from __future__ import annotations

from bisect import bisect_left

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds for how long something took."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds for how many came together."""


class Histogram:
    """How many values were at most each of `bounds`; the last of `counts` is above. `total` is the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class CallTally:
    """Calls of one method: how long they took, and how many ended with each code."""

    __slots__ = ("codes", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.codes: dict[str, int] = {}

    def add(self, code: str, seconds: float) -> None:
        """Counts a call that ended."""
        self.codes[code] = self.codes.get(code, 0) + 1
        self.seconds.add(seconds)


class StreamTally:
    """Streams of one method: how many are open, were opened, and ended with each code."""

    __slots__ = ("codes", "open", "opened")

    def __init__(self) -> None:
        self.open = 0
        self.opened = 0
        self.codes: dict[str, int] = {}

    def begin(self) -> None:
        """A stream opened."""
        self.open += 1
        self.opened += 1

    def end(self, code: str) -> None:
        """A stream ended."""
        self.open -= 1
        self.codes[code] = self.codes.get(code, 0) + 1
