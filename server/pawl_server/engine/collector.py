"""Lists of items that one script call carries: what one tick brings for one partition and transition.

There is no task, future or lock per item: an item waits in a list, leaves with the others at the end of the
tick, and its answer is handed to a plain callback. While `IN_FLIGHT` calls of a collector are unanswered,
what comes meanwhile waits and leaves together: under load the lists grow by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pawl_server.log_lines import CALLBACK_FAILED
from pawl_server.store.errors import StoreError
from pawl_server.store.script_call import Arg, Result, Script

if TYPE_CHECKING:
    from pawl_server.store.client import PartitionHandle

log = logging.getLogger(__name__)

IN_FLIGHT = 2
CUT_BYTES = 512 << 10
"""Payload bytes from which a list is cut."""

Done = Callable[[Any, Any, int], None]
"""Gets the context given with the item, its reply (or the exception that took its place), and engine ms."""


class Kind(NamedTuple):
    """A transition that takes lists.

    `args` makes ARGV from items, `cut` is the most items of one call. `complete` gets the last word on an
    item when it leaves, `observe` sees each item with its reply before the item's own callback does.
    """

    script: Script[Any]
    args: Callable[[list[Any]], list[Arg]]
    decode: Callable[[Sequence[Any]], Result[Any]]
    cut: int
    complete: Callable[[Any, Any], Any] | None = None
    observe: Callable[[PartitionHandle, Any, Any, int], None] | None = None


def call(
    partition: PartitionHandle,
    script: Script[Any],
    argv: list[Arg],
    decode: Callable[[Sequence[Any]], Result[Any]],
    answered: Callable[[Result[Any] | Exception], None],
) -> None:
    """Runs a script; `answered` gets the decoded result, or the exception that took its place."""
    try:
        future = cast("asyncio.Future[Any]", partition.call(script, argv))
    except Exception as error:
        CALLBACK_FAILED(log, error, what=f"a call of {script.name}")
        answered(error)
        return
    future.add_done_callback(partial(_settled, decode, answered))


def _settled(
    decode: Callable[[Sequence[Any]], Result[Any]],
    answered: Callable[[Result[Any] | Exception], None],
    future: asyncio.Future[Any],
) -> None:
    result: Result[Any] | Exception
    try:
        result = decode(future.result())
    except StoreError as error:
        result = error
    except asyncio.CancelledError:
        result = asyncio.InvalidStateError("the call was cancelled")
    except Exception as error:
        CALLBACK_FAILED(log, error, what="reading a reply")
        result = error
    answered(result)


class Tick:
    """What happens at the end of this tick: due collectors leave, then `after` runs, once."""

    def __init__(self) -> None:
        self.after: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: list[Collector] = []
        self._armed = False

    def arm(self) -> None:
        """Makes the end of this tick happen."""
        if not self._armed:
            self._armed = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._run)

    def add(self, collector: Collector) -> None:
        """Lets a collector leave at the end of this tick."""
        self._due.append(collector)
        if not self._armed:
            self.arm()

    def _run(self) -> None:
        self._armed = False
        due, self._due = self._due, []
        for collector in due:
            collector.leave()
        if self.after is not None:
            self.after()


class Collector:
    """Collects the items of one kind for one partition."""

    __slots__ = ("_bytes", "_due", "_flying", "_kind", "_on_ready", "_partition", "_tick", "_waiting")

    def __init__(
        self,
        tick: Tick,
        partition: PartitionHandle,
        kind: Kind,
        on_ready: Callable[[PartitionHandle, list[str]], None],
    ) -> None:
        self._tick = tick
        self._partition = partition
        self._kind = kind
        self._on_ready = on_ready
        self._waiting: list[tuple[Any, Done, Any, int]] = []
        self._bytes = 0
        self._flying = 0
        self._due = False

    def add(self, item: Any, done: Done, context: Any = None, size: int = 0) -> None:
        """Queues an item for the end of this tick; `size` is about how many bytes it has."""
        self._waiting.append((item, done, context, size))
        self._bytes += size
        if not self._due:
            self._due = True
            self._tick.add(self)

    def leave(self) -> None:
        """Sends what waits, as far as the calls in flight allow."""
        self._due = False
        while self._waiting and self._flying < IN_FLIGHT:
            self._send(self._take())

    def _take(self) -> list[tuple[Any, Done, Any, int]]:
        waiting, count = self._waiting, self._kind.cut
        if self._bytes > CUT_BYTES:
            count, total = 0, 0
            for entry in waiting[: self._kind.cut]:
                total += entry[3]
                if count and total > CUT_BYTES:
                    break
                count += 1
        if count >= len(waiting):
            self._waiting, self._bytes = [], 0
            return waiting
        taken = waiting[:count]
        del waiting[:count]
        self._bytes -= sum(entry[3] for entry in taken)
        return taken

    def _send(self, entries: list[tuple[Any, Done, Any, int]]) -> None:
        kind = self._kind
        complete = kind.complete
        self._flying += 1
        answered = partial(self._answered, entries)
        try:
            if complete is None:
                argv = kind.args([entry[0] for entry in entries])
            else:
                argv = kind.args([complete(entry[0], entry[2]) for entry in entries])
        except Exception as error:
            CALLBACK_FAILED(log, error, what=f"making a call of {kind.script.name}")
            answered(error)
            return
        call(self._partition, kind.script, argv, kind.decode, answered)

    def _answered(self, entries: list[tuple[Any, Done, Any, int]], result: Result[Any] | Exception) -> None:
        self._flying -= 1
        if isinstance(result, Exception):
            for _, done, context, _ in entries:
                _deliver(done, context, result, 0)
        else:
            now_ms, replies, ready = result
            observe, partition = self._kind.observe, self._partition
            for (item, done, context, _), reply in zip(entries, replies, strict=True):
                try:
                    if observe is not None:
                        observe(partition, item, reply, now_ms)
                    done(context, reply, now_ms)
                except Exception as error:
                    CALLBACK_FAILED(log, error, what=f"what follows {self._kind.script.name}")
            if ready:
                self._on_ready(partition, ready)
        if self._waiting and not self._due:
            self._due = True
            self._tick.add(self)


def _deliver(done: Done, context: Any, reply: Any, now_ms: int) -> None:
    try:
        done(context, reply, now_ms)
    except Exception as error:
        CALLBACK_FAILED(log, error, what="what follows a failed call")
