"""What the scripts of a lane did: calls, items, replies by word, and how long Redis let us wait."""

from __future__ import annotations

from typing import Any


class ScriptTally:
    """Answered calls of one script. Seconds are those from sending to the answer; waiting to be sent is not.

    A call that is repeated counts once, when its answer comes; a repeat of what has been applied before is
    answered as it was, and counted again.
    """

    __slots__ = ("calls", "items", "replies", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.items = 0
        self.seconds = 0.0
        self.replies: dict[bytes, int] = {}

    def add(self, answer: Any, seconds: float) -> None:
        """Counts an answer, `{ now_ms, replies, ready }`; never raises."""
        self.calls += 1
        self.seconds += seconds
        try:
            items, replies = answer[1], self.replies
            self.items += len(items)
            for item in items:
                word = item[0]
                replies[word] = replies.get(word, 0) + 1
        except (TypeError, IndexError):
            pass  # whoever decodes it will say so

    def include(self, other: ScriptTally) -> None:
        """Adds what another tally has counted."""
        self.calls += other.calls
        self.items += other.items
        self.seconds += other.seconds
        for word, count in other.replies.items():
            self.replies[word] = self.replies.get(word, 0) + count
