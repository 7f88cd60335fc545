"""The steps of one turn: saved ones are replayed in order, then new ones are added.

Order and keys are compared with what earlier attempts saved; steps run one after the other. A violation stays
with the journal as `broken`, so that a handler can't swallow it and complete all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from pawl.errors import ReplayError, StepError, WorkflowError
from pawl.v1.step_pb2 import Step

E = TypeVar("E", bound=WorkflowError)

_KEY = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII).fullmatch


class Journal:
    """Steps of one attempt."""

    __slots__ = ("_failed", "_keys", "_saved", "broken", "position", "running")

    def __init__(self, saved: Sequence[Step]) -> None:
        self._saved = saved
        self._keys: set[str] = set()
        self._failed: str | None = None
        self.position = 0
        """Number of steps passed."""
        self.running: str | None = None
        """Key of the step that runs now."""
        self.broken: WorkflowError | None = None
        """First violation, if there was one."""

    @property
    def replaying(self) -> bool:
        """True while saved steps are still to be passed."""
        return self.position < len(self._saved)

    def begin(self, key: str) -> Step | None:
        """Enters a step; gives the saved one, or None if its function is to be run.

        Raises StepError or ReplayError.
        """
        if self.broken is not None:
            raise self.broken
        if self.running is not None:
            raise self.breaks(
                StepError(f"step {key!r} started while {self.running!r} is running; {_ONE_BY_ONE}")
            )
        if self._failed is not None and self._failed != key:
            raise self.breaks(
                StepError(
                    f"step {key!r} follows step {self._failed!r}, which raised and was not saved: a replay "
                    f"could go another way. Handle the exception inside the function of {self._failed!r}"
                )
            )
        if key in self._keys:
            raise self.breaks(StepError(f"step key {key!r} is used twice in one turn"))
        if not isinstance(key, str) or not _KEY(key):
            raise self.breaks(StepError(f"step key must be 1 to 128 of A-Z a-z 0-9 _ . -, not {key!r}"))
        self.running = key
        if self.position >= len(self._saved):
            return None
        saved = self._saved[self.position]
        if saved.key != key:
            raise self.breaks(ReplayError(self.position + 1, saved.key, key))
        return saved

    def end(self, key: str) -> None:
        """Leaves a step that was replayed, or whose function has returned."""
        self.running = self._failed = None
        self.position += 1
        self._keys.add(key)

    def failed(self, key: str) -> None:
        """Leaves a step whose function raised: only the same step may come next."""
        self.running = None
        self._failed = key

    def close(self) -> None:
        """Checks that the handler may return now. Raises StepError or ReplayError."""
        if self.broken is not None:
            raise self.broken
        if self.running is not None:
            raise StepError(f"the handler returned while step {self.running!r} was running; {_ONE_BY_ONE}")
        if self.position < len(self._saved):
            raise ReplayError(self.position + 1, self._saved[self.position].key, None)

    def breaks(self, error: E) -> E:
        """Records a violation, and gives it back to be raised."""
        if self.broken is None:
            self.broken = error
        return error


_ONE_BY_ONE = "await each step before the next one"
