"""Shows how far the demo is: a live bar on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 2.0


class Display:
    """Progress of one run; a context manager."""

    def __init__(self, total: int) -> None:
        from rich.console import Console

        self._total = total
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._next_line = 0.0
        self._shown = (-1, -1)
        if self._console.is_terminal:
            self._bar = _bar(self._console)

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("documents", total=self._total, steps=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def show(self, documents: int, steps: int, *, now: bool = False) -> None:
        """Shows how many documents are done and how many steps have run; as a line now and then, or `now`."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=documents, steps=steps)
        elif (now or time.monotonic() >= self._next_line) and steps and (documents, steps) != self._shown:
            self._next_line = time.monotonic() + _LINE_SECONDS
            self._shown = documents, steps
            self.say(f"{documents} of {self._total} documents, {steps} steps")


def _bar(console: Any) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[steps]} steps"),
        TimeElapsedColumn(),
        console=console,
    )
