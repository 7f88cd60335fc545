"""Gathers the sends of one event-loop tick into few SendMessages calls."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from pawl._runtime.batches import MAX_BYTES, MAX_ITEMS, answer_of
from pawl._transport import CLOSED, Backoff, is_retryable
from pawl.errors import DeadlineExceeded, ServerError, Unavailable
from pawl.v1.message_service_pb2 import SendMessageRequest, SendMessageResponse, SendResult

MAX_IN_FLIGHT = 4

SendBatch = Callable[[list[SendMessageRequest], float], Awaitable[Sequence[SendResult]]]
"""Makes one call within so many seconds, without repeating it. Raises ServerError."""


class _Item:
    __slots__ = ("deadline", "future", "problem", "request", "size", "timer")

    def __init__(self, request: SendMessageRequest, deadline: float, future: asyncio.Future) -> None:
        self.request = request
        self.size = request.ByteSize()
        self.deadline = deadline
        self.future: asyncio.Future[SendMessageResponse] = future
        self.problem: ServerError | None = None

    def fail(self, error: ServerError) -> None:
        if not self.future.done():
            self.future.set_exception(copy.copy(error))


class Coalescer:
    """Sends messages in batches, at most four calls at a time.

    Messages to one instance are admitted in the order in which they were given: while a batch that holds one
    is under way, further ones wait for it.
    """

    def __init__(self, send_batch: SendBatch) -> None:
        self._send_batch = send_batch
        self._queue: deque[_Item] = deque()
        self._busy: dict[str, int] = {}
        self._held: dict[str, deque[_Item]] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._number = 0
        self._scheduled = False
        self._closed = False

    def submit(self, request: SendMessageRequest, timeout: float) -> asyncio.Future[SendMessageResponse]:
        """Queues a message; the future raises ServerError if it is refused or `timeout` seconds pass."""
        if self._closed:
            raise Unavailable(CLOSED)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        item = _Item(request, loop.time() + timeout, future)
        item.timer = loop.call_later(timeout, self._expire, item, timeout)
        future.add_done_callback(lambda _: item.timer.cancel())
        self._queue.append(item)
        self._schedule()
        return future

    async def close(self) -> None:
        """Ends what is under way; its callers see Unavailable."""
        self._closed = True
        for task in self._batches:
            task.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        for item in [*self._queue, *(item for held in self._held.values() for item in held)]:
            item.fail(Unavailable(CLOSED))
        self._queue.clear()
        self._held.clear()

    def _expire(self, item: _Item, timeout: float) -> None:
        # The last failure says more than that the time is up.
        item.fail(item.problem or DeadlineExceeded(f"no answer within {timeout:g} s", reason="DEADLINE"))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        while self._queue and len(self._batches) < MAX_IN_FLIGHT:
            batch = self._take()
            if not batch:
                return
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._ended)

    def _take(self) -> list[_Item]:
        self._number += 1
        number, size = self._number, 0
        batch: list[_Item] = []
        while self._queue and len(batch) < MAX_ITEMS:
            item = self._queue[0]
            if batch and size + item.size > MAX_BYTES:
                break
            self._queue.popleft()
            if item.future.done():
                continue
            instance = item.request.instance_id
            if self._busy.setdefault(instance, number) != number:
                self._held.setdefault(instance, deque()).append(item)
                continue
            size += item.size
            batch.append(item)
        return batch

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        if self._queue and not self._closed:
            self._schedule()

    async def _run(self, batch: list[_Item]) -> None:
        try:
            await self._deliver(batch)
        except asyncio.CancelledError:
            for item in batch:
                item.fail(Unavailable(CLOSED))
            raise
        finally:
            for instance in {item.request.instance_id for item in batch}:
                self._busy.pop(instance, None)
                self._queue.extendleft(reversed(self._held.pop(instance, ())))

    async def _deliver(self, batch: list[_Item]) -> None:
        clock = asyncio.get_running_loop().time
        backoff = Backoff(0.05, 2.0)
        while batch:
            left = max(item.deadline for item in batch) - clock()
            try:
                results = await self._send_batch([item.request for item in batch], max(left, 0.001))
                batch, problem = self._settle(batch, results)
            except ServerError as error:
                problem = error
                if not is_retryable(error):
                    late = isinstance(error, DeadlineExceeded)
                    for item in batch:
                        item.fail(item.problem or error if late else error)
            batch = [item for item in batch if not item.future.done()]
            if batch and problem is not None:
                for item in batch:
                    item.problem = problem
                await asyncio.sleep(backoff.next(problem.retry_after))
                batch = self._overdue(batch, problem, clock())

    def _settle(
        self, batch: list[_Item], results: Sequence[SendResult]
    ) -> tuple[list[_Item], ServerError | None]:
        """Answers the items that are decided; gives back those worth another try, and why."""
        again: list[_Item] = []
        last: ServerError | None = None
        for at, (item, result) in enumerate(zip(batch, results, strict=True)):
            answer = answer_of(result, at)
            if not isinstance(answer, ServerError):
                if not item.future.done():
                    item.future.set_result(answer)
            elif is_retryable(answer):
                again.append(item)
                last = answer
            else:
                item.fail(answer)
        return again, last

    def _overdue(self, batch: list[_Item], problem: ServerError, now: float) -> list[_Item]:
        left: list[_Item] = []
        for item in batch:
            if item.deadline <= now:
                item.fail(problem)
            else:
                left.append(item)
        return left
