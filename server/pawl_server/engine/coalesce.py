"""Joins the calls of many requests into lists: one script call for all that is waiting of a partition.

A list of 16 costs Redis and the client far less than 16 calls. Nothing waits on purpose: the first item of an
event-loop tick arranges a flush at the end of the tick, and what comes while that list is under way leaves as
the next list the moment it is answered. So an idle server adds no delay, and a busy one makes long lists.
There is no task, timer or lock per item. For answers to callbacks instead of futures, and for commands that
must not wait for each other, see batches.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from pawl_server.store.client import PartitionHandle
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.script_call import Result

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

MAX_ITEMS = 256
MAX_BYTES = 1 << 20

Start = Callable[[PartitionHandle, list[I]], Awaitable[Any]]
"""Starts the script call for a list; gives the raw answer."""


class Coalescer(Generic[I, R]):
    """One list at a time for each partition, in order of arrival, at most MAX_ITEMS and about MAX_BYTES.

    `start` begins a script call, `decode` reads its raw answer, `on_result` sees each result before the items
    get their replies. If the store fails, the items of the list fail, and so do the ones behind it, which
    have waited as long: each with the error of the store.
    """

    def __init__(
        self,
        start: Start[I],
        decode: Callable[[Sequence[Any]], Result[R]],
        on_result: Callable[[PartitionHandle, Result[R]], None] | None = None,
    ) -> None:
        self._start = start
        self._decode = decode
        self._on_result = on_result
        self._queues: dict[int, _Queue[I, R]] = {}

    def submit(self, partition: PartitionHandle, item: I, size: int = 0) -> asyncio.Future[R]:
        """Queues an item of about `size` bytes; the future gets its reply or a StoreError.

        A future that is cancelled before its list leaves takes its item along.
        """
        queue = self._queues.get(partition.index)
        if queue is None:
            queue = self._queues[partition.index] = _Queue(self, partition)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        queue.add(item, size, future)
        return future

    def _begin(self, partition: PartitionHandle, items: list[I]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._start(partition, items))

    def _end(self, partition: PartitionHandle, raw: Sequence[Any]) -> list[R]:
        result = self._decode(raw)
        if self._on_result is not None:
            self._on_result(partition, result)
        return result.replies


class _Queue(Generic[I, R]):
    """What waits for one partition."""

    def __init__(self, owner: Coalescer[I, R], partition: PartitionHandle) -> None:
        self._owner = owner
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[I, int, asyncio.Future[R]]] = deque()
        self._flight: list[asyncio.Future[R]] | None = None
        self._flush_due = False

    def add(self, item: I, size: int, future: asyncio.Future[R]) -> None:
        self._waiting.append((item, size, future))
        if self._flight is None and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        items: list[I] = []
        futures: list[asyncio.Future[R]] = []
        space = MAX_BYTES
        while self._waiting and len(items) < MAX_ITEMS and space > 0:
            item, size, future = self._waiting.popleft()
            if not future.done():
                items.append(item)
                futures.append(future)
                space -= size
        if not items:
            return
        self._flight = futures
        try:
            call = self._owner._begin(self._partition, items)
        except Exception as error:
            self._fail(error)
            return
        call.add_done_callback(self._answered)

    def _answered(self, call: asyncio.Future[Any]) -> None:
        futures, self._flight = self._flight or [], None
        try:
            replies = self._owner._end(self._partition, call.result())
            for future, reply in zip(futures, replies, strict=True):
                if isinstance(reply, Exception):
                    if not future.done():
                        future.set_exception(reply)
                elif not future.done():
                    future.set_result(reply)
        except (Exception, asyncio.CancelledError) as error:
            self._flight = futures
            self._fail(error)
        if self._waiting and not self._flush_due:
            self._flush()

    def _fail(self, error: BaseException) -> None:
        futures, self._flight = self._flight or [], None
        if isinstance(error, asyncio.CancelledError):
            error = StoreUnavailable("the store was closed")
        for future in futures:
            if not future.done():
                future.set_exception(error)
        if isinstance(error, StoreUnavailable):
            behind = StoreUnavailable(error.why, maybe_applied=False)
            while self._waiting:
                future = self._waiting.popleft()[2]
                if not future.done():
                    future.set_exception(behind)
