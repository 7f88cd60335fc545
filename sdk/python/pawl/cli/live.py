"""Progress of the turn that runs, while its instance is watched."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

import click

from pawl.cli.running import progress_text
from pawl.cli.waiting import head_of
from pawl.errors import PawlError

if TYPE_CHECKING:
    from pawl._events import Event
    from pawl._running import Progress, ProgressView
    from pawl.client import Client

LOOK_S = 1.0
"""How often the instance is read while a registered step runs."""
_BAR = 20
_GOES_ON = frozenset({"OPERATION_STARTED", "SIGNAL_RECEIVED", "TURN_CANCELLING"})
"""Events of the turn that runs which do not end its step."""


class Live:
    """Says how far the registered step is: on a terminal in one line below the events, elsewhere in lines.

    An async context manager. `told` is called with each event before it is printed. Without `instance_id` it
    says nothing.
    """

    def __init__(self, client: Client, instance_id: str) -> None:
        self._client = client
        self._id = instance_id
        self._active = asyncio.Event()
        self._turn = 0
        self._drawn = False
        self._last: Progress | None = None
        self._seen_at = 0.0
        self._terminal = sys.stdout.isatty()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Live:
        if self._id:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    def told(self, event: Event) -> None:
        """Begins to look when a step is registered, and ends when it is over."""
        self.clear()
        if event.type == "OPERATION_STARTED":
            self._begin(event.turn)
        elif event.type == "DELETED" or (event.turn == self._turn and event.type not in _GOES_ON):
            self._active.clear()

    def clear(self) -> None:
        """Takes the line off the terminal."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False)
            self._drawn = False

    def _begin(self, turn: int) -> None:
        self._turn, self._last = turn, None
        self._active.set()

    async def _look(self) -> None:
        """Looks while there is something to see, until it is cancelled."""
        await self._look_for_one()
        while True:
            await self._active.wait()
            try:
                instance = await self._client.get(self._id)
            except PawlError:
                instance = None  # the watch itself tells what is the matter
            if self._active.is_set() and instance is not None and instance.progress is not None:
                self._show(instance.progress)
            await asyncio.sleep(LOOK_S)

    async def _look_for_one(self) -> None:
        """Finds the step that was registered before the watch began."""
        try:
            head = await head_of(self._client, await self._client.get(self._id))
        except PawlError:
            return
        if head is not None and head.operation is not None and head.operation.active and not self._turn:
            self._begin(head.turn)

    def _show(self, view: ProgressView) -> None:
        news = view.progress != self._last
        if news:
            self._last, self._seen_at = view.progress, monotonic()
        if self._terminal:
            self.clear()
            line = running_line(view, timedelta(seconds=monotonic() - self._seen_at))
            click.echo(line, nl=False)
            self._drawn = True
        elif news:
            click.echo(running_line(view, timedelta(0), bar=False, turn=self._turn))


def running_line(view: ProgressView, since: timedelta, *, bar: bool = True, turn: int = 0) -> str:
    """Phase, amount, elapsed time and, where the total is known, a bar.

    The time is by the engine's clock up to the report, and by this machine's `since` then.
    """
    parts = ["Running", progress_text(view.progress)]
    if bar and view.progress.total:
        done = round(_BAR * min(1.0, view.progress.done / view.progress.total))
        parts.append(f"[{'#' * done}{'-' * (_BAR - done)}]")
    parts.append(_elapsed(view.start_time, view.report_time, since))
    if turn:
        stamp = view.report_time.astimezone().strftime("%H:%M:%S.%f")[:-3] if view.report_time else ""
        parts = [stamp, parts[0], f"turn {turn}", *parts[1:]]
    return "  ".join(part for part in parts if part)


def _elapsed(start: datetime | None, report: datetime | None, since: timedelta) -> str:
    if start is None:
        return ""
    whole = int(((report or start) - start + since).total_seconds())
    minutes, seconds = divmod(max(0, whole), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
