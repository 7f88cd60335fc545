"""An outage as one thing: told once when it begins and once when everything works again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pawl_server.log_lines import (
    LOOP_BROKE,
    LOOP_FAILS,
    LOOP_WORKS,
    STORE_AWAY,
    STORE_BACK,
    STORE_STILL_AWAY,
)
from pawl_server.logs import Line
from pawl_server.store.errors import StoreError, StoreMoving, StoreUnavailable

log = logging.getLogger(__name__)


def reason(error: BaseException) -> str:
    """What an error says, or at least what it is: a TimeoutError says nothing."""
    text = str(error)
    if isinstance(error, TimeoutError) and not text:
        return "no answer in time"
    return text or type(error).__name__


class Outage:
    """A trouble that several parts may notice. `count` is how many there were, `errors` what failed in them.

    A part says that it `failed` each time it does, and that it `works` as soon as it does again. The first
    failure begins the outage, the last recovery ends it.
    """

    def __init__(
        self,
        begin: Line = STORE_AWAY,
        end: Line = STORE_BACK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self.errors = 0
        self.parts: set[str] = set()
        self._begin = begin
        self._end = end
        self._clock = clock
        self._began = 0.0
        self._errors_before = 0

    @property
    def seconds(self) -> float:
        """How long it lasts so far; 0.0 if there is none."""
        return self._clock() - self._began if self.parts else 0.0

    def failed(self, part: str, error: BaseException | str) -> None:
        """A part does not work."""
        why = error if isinstance(error, str) else reason(error)
        if self.parts:
            STORE_STILL_AWAY(log, part=part, why=why)
        else:
            self.count += 1
            self._began, self._errors_before = self._clock(), self.errors
            self._begin(log, part=part, why=why)
        self.errors += 1
        self.parts.add(part)

    def works(self, part: str) -> None:
        """A part works; cheap when it did before."""
        if part in self.parts:
            seconds = self.seconds
            self.parts.discard(part)
            if not self.parts:
                self._end(log, part=part, seconds=seconds, errors=self.errors - self._errors_before)


class Part:
    """Something that is tried again for ever, such as a loop over a partition. `errors` counts what failed.

    That the store is away is told by its `outage`, once for all parts. Another error of the store is told
    when it begins and when the part works again; whatever else is raised is a bug and told each time.
    """

    def __init__(self, name: str, outage: Outage | None = None) -> None:
        self.name = name
        self.errors = 0
        self._outage = outage or Outage()
        self._trouble = Outage(LOOP_FAILS, LOOP_WORKS)

    def failed(self, error: Exception) -> None:
        """An attempt raised this."""
        self.errors += 1
        if isinstance(error, (StoreUnavailable, StoreMoving)):
            self._outage.failed(self.name, error)
        elif isinstance(error, StoreError):
            self._trouble.failed(self.name, error)
        else:
            LOOP_BROKE(log, error, part=self.name)

    def works(self) -> None:
        """An attempt succeeded."""
        self._outage.works(self.name)
        self._trouble.works(self.name)
