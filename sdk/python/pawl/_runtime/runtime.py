"""The worker at work: attempts, the current stream, and the way from one stream to the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pawl._reasons import refusal_error
from pawl._runtime.attempt import Attempt
from pawl._runtime.executor import Executor
from pawl._runtime.failures import failure_message
from pawl._runtime.leases import MAX_LEASES, LeaseKeeper
from pawl._runtime.seldom import Seldom
from pawl._runtime.stream import WorkStream
from pawl._runtime.watchdog import Renewer, Watchdog
from pawl._transport import Backoff, Transport, WorkCall
from pawl.errors import InvalidField, ServerError, Unavailable, Unimplemented
from pawl.v1.error_pb2 import REASON_SUPERSEDED
from pawl.v1.worker_service_pb2 import CommandResult, Fail, LeasedTurn, LeaseEvent, WorkHello
from pawl.workflow import Workflow

log = logging.getLogger("pawl.worker")

OPEN_TIMEOUT = 10.0
DETACH_TIMEOUT = 1.0
LAST_WORDS = 2.0
"""Seconds that a stopping worker waits for the answers to what it gave back."""
STEADY = 5.0
"""Seconds after which a stream counts as working, so that the next reconnect starts with a short delay."""


class Runtime:
    """Runs turns from one stream after another until it is stopped.

    `concurrency` slots are at any time either held by running attempts or granted to the server as credits. A
    slot is free again as soon as an attempt's last command is given, so that the server can hand out the next
    turn with the answer.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        dial: Callable[[], WorkCall],
        renewer: Renewer,
        workflows: dict[tuple[str, str], Workflow],
        hello: WorkHello,
        concurrency: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport = transport
        self._address = transport.address
        self._dial = dial
        self._workflows = workflows
        self._hello = hello
        self._concurrency = concurrency
        self._attempts: dict[bytes, Attempt] = {}
        self._by_instance: dict[str, Attempt] = {}
        self._busy = 0
        self._current: WorkStream | None = None
        self._streams: dict[WorkStream, asyncio.Task[None]] = {}
        self._ordinal = 0
        self._welcome = False
        self._down_since: float | None = None
        self._report_down = Seldom(log)
        self._report_again = Seldom(log)
        self._changed = asyncio.Event()
        self._stopping = False
        self._ended = asyncio.Event()
        self._shortest_lease = 60.0
        self._executor = Executor(self.loop, concurrency)
        self._keeper = LeaseKeeper(transport, lambda: list(self._attempts), self._lease_over)
        self._watchdog = Watchdog(renewer, self._alive, self._over_from_thread)
        self._ticker: asyncio.TimerHandle | None = None
        self._helpers: set[asyncio.Task[None]] = set()

    # Life.

    async def run(self) -> None:
        """Works until `stop` has done its part.

        Raises InvalidField or Unimplemented if the server refuses the worker's first hello; nothing else ends
        it.
        """
        self._watchdog.start()
        self._tick()
        connector = self.loop.create_task(self._stay_connected())
        ended = self.loop.create_task(self._ended.wait())
        try:
            await asyncio.wait({connector, ended}, return_when=asyncio.FIRST_COMPLETED)
            if connector.done():
                connector.result()
            connector.cancel()
            await self._say_goodbye()
        finally:
            connector.cancel()
            ended.cancel()
            self._clean_up()

    async def stop(self, grace: float) -> None:
        """Takes no more turns, waits `grace` seconds for the running ones, gives back the others."""
        self._stopping = True
        if self._attempts:
            log.info("stopping: %g s for %d running turns", grace, len(self._attempts))
        try:
            async with asyncio.timeout(grace):
                await self._until_empty()
        except TimeoutError:
            for attempt in list(self._attempts.values()):
                self._give_back(attempt)
            try:
                async with asyncio.timeout(LAST_WORDS):
                    await self._until_empty()
            except TimeoutError:
                log.warning("%d turns are left to their leases", len(self._attempts))
        self._ended.set()

    async def _until_empty(self) -> None:
        while self._attempts:
            self._changed.clear()
            await self._changed.wait()

    def _give_back(self, attempt: Attempt) -> None:
        if attempt.closing or attempt.ended is not None or not attempt.task or not attempt.workflow:
            return
        attempt.ended = "the worker stops"
        if attempt.workflow.is_async:
            # A thread can't be stopped, so its turn is not given back: two handlers must not run at once.
            attempt.releasing = True
            attempt.task.cancel(attempt.ended)

    async def _say_goodbye(self) -> None:
        tasks = list(self._streams.values())
        for stream in self._streams:
            stream.end()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)

    def _clean_up(self) -> None:
        self._watchdog.stop()
        self._keeper.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        for attempt in list(self._attempts.values()):
            attempt.abandon("the worker has stopped")
        for task in [*self._streams.values(), *self._helpers]:
            task.cancel()
        self._executor.close()

    def _tick(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._watchdog.tick()
        self._ticker = self.loop.call_later(self._watchdog.tick_interval, self._tick)

    # Streams.

    async def _stay_connected(self) -> None:
        backoff = Backoff(0.05, 5.0)
        while True:
            if self._current is not None and not self._current.draining:
                self._changed.clear()
                await self._changed.wait()
                continue
            if self._ordinal:
                await asyncio.sleep(backoff.next())
            try:
                stream = await self._open()
            except ServerError as error:
                if isinstance(error, InvalidField | Unimplemented) and not self._welcome:
                    raise
                self._down(error)
            else:
                self._report_up(stream)
                self._welcome = True
                backoff.ease(0.2)
                self.loop.call_later(STEADY, self._steady, stream, backoff)

    def _down(self, error: ServerError) -> None:
        """Says that there is no stream: at once, then now and then."""
        if self._down_since is None:
            self._down_since = self.loop.time()
        self._report_down(logging.WARNING, "not connected to %s, trying on: %s", self._address, error)

    def _report_up(self, stream: WorkStream) -> None:
        after = ""
        if self._down_since is not None:
            after = f" after {self.loop.time() - self._down_since:.1f} s"
            self._down_since = None
        if self._welcome:
            self._report_again(
                logging.INFO, "connected again to %s (server run %s)%s", self._address, stream.server, after
            )
        else:
            log.info("connected to %s (server run %s)%s", self._address, stream.server, after)

    async def _open(self) -> WorkStream:
        """Opens a stream and moves the leases there. Raises ServerError."""
        self._ordinal += 1
        stream = WorkStream(self._dial(), self._ordinal, self)
        # Until the stream is open nothing may change hands: what is held now is what its hello says.
        await self._keeper.ready_to_adopt(DETACH_TIMEOUT)
        held = [attempt.lease for attempt in self._attempts.values() if not attempt.closing]
        hello = WorkHello()
        hello.CopyFrom(self._hello)
        hello.stream_ordinal = self._ordinal
        hello.leases.extend(held[:MAX_LEASES])
        credits_now = 0 if self._stopping else max(0, self._concurrency - self._busy)
        task = self.loop.create_task(self._serve(stream, hello, credits_now))
        self._streams[stream] = task
        await asyncio.wait({task, stream.opened}, timeout=OPEN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not stream.opened.done():
            await stream.cut("the server did not answer")
            await task
            raise stream.error or Unavailable("the stream ended at once")
        self._switch(stream)
        if held[MAX_LEASES:]:
            self._help(self._keeper.adopt(hello.session, stream.ordinal, held[MAX_LEASES:]))
        return stream

    def _steady(self, stream: WorkStream | None, backoff: Backoff) -> None:
        if stream is self._current:
            backoff.reset()

    def _switch(self, stream: WorkStream) -> None:
        """Makes a freshly opened stream the current one."""
        previous, self._current = self._current, stream
        self._keeper.stop()
        # Slots may have become free while the stream was opening.
        self._offer(stream)
        for attempt in list(self._attempts.values()):
            attempt.stream = stream
            if attempt.command is not None and attempt.sent_on not in self._streams:
                stream.send(attempt)
        if previous is not None:
            previous.end()

    async def _serve(self, stream: WorkStream, hello: WorkHello, credits_now: int) -> None:
        try:
            await stream.run(hello, credits_now)
        except ServerError as error:
            stream.error = error
            if self._current is stream and not self._ended.is_set():
                self._down(error)
            else:
                log.debug("work stream %d ended: %s", stream.ordinal, error)
        except Exception:
            log.exception("work stream %d broke", stream.ordinal)
        finally:
            self._lost(stream)

    def _lost(self, stream: WorkStream) -> None:
        del self._streams[stream]
        if self._current is stream:
            self._current = None
            if not self._ended.is_set():
                self._keeper.start(self._shortest_lease)
        for attempt in list(self._attempts.values()):
            if attempt.sent_on is stream:
                attempt.sent_on = None
                if self._current is not None and attempt.command is not None:
                    self._current.send(attempt)
        self._changed.set()

    def _help(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    # From streams.

    def deliver(self, turn: LeasedTurn, stream: WorkStream) -> None:
        """Starts an attempt."""
        known = self._attempts.get(turn.lease)
        if known is not None:
            # Delivered again, because the server could not know that it had arrived.
            known.stream = stream
            self._offer(stream)
            return
        older = self._by_instance.get(turn.instance_id)
        if older is not None:
            older.abandon("the turn was leased anew")
        workflow = self._workflows.get((turn.workflow_type, turn.version))
        lease_timeout = turn.lease_timeout.ToTimedelta().total_seconds() or self._shortest_lease
        limit = turn.attempt_timeout.ToTimedelta().total_seconds() or float("inf")
        attempt = Attempt(turn, workflow, self, stream, self.loop.time() + limit)
        self._attempts[attempt.lease] = attempt
        self._by_instance[turn.instance_id] = attempt
        self._busy += 1
        if lease_timeout < self._shortest_lease:
            self._shortest_lease = lease_timeout
            self._watchdog.expect(lease_timeout)
            self._tick()
        if self._stopping:
            attempt.release()
        elif workflow is None:
            attempt.fail(Fail(failure=failure_message("UNDELIVERABLE", "this worker has no such workflow")))
        else:
            self._executor.start(attempt)

    def answer(self, result: CommandResult, stream: WorkStream) -> None:
        """Passes on the answer to a command."""
        attempt = self._attempts.get(result.lease)
        if attempt is not None:
            attempt.answered(result, stream)

    def lease_event(self, event: LeaseEvent, stream: WorkStream) -> None:
        """Takes note of a lease that was adopted, or stops its attempt."""
        attempt = self._attempts.get(event.lease)
        if attempt is None:
            return
        if attempt.stream is not None and stream.ordinal < attempt.stream.ordinal:
            return
        if event.HasField("ended"):
            if event.ended.reason == REASON_SUPERSEDED and self.superseded(stream):
                return  # by a stream of this worker, which says so itself
            self._lease_over(event.lease, refusal_error(event.ended))
        else:
            attempt.stream = stream

    def drain(self, stream: WorkStream) -> None:
        """Has another stream opened."""
        log.info("the server of work stream %d is stopping; moving to another stream", stream.ordinal)
        self._changed.set()

    def leases_on(self, stream: WorkStream) -> list[bytes]:
        """Leases that a beat names: all of the stream, except those whose last command is under way on it."""
        return [
            attempt.lease
            for attempt in self._attempts.values()
            if attempt.stream is stream and not (attempt.closing and attempt.sent_on is not None)
        ]

    # From attempts.

    def transmit(self, attempt: Attempt) -> None:
        """Sends the attempt's command, now or with the next stream."""
        if self._current is not None:
            self._current.send(attempt)

    def superseded(self, stream: WorkStream | None) -> bool:
        """True if the worker itself has a newer stream than this one, open or about to be."""
        return stream is not None and stream.ordinal < self._ordinal

    def free(self, attempt: Attempt) -> None:
        """Takes back a slot and grants it anew."""
        if attempt.holds_slot:
            attempt.holds_slot = False
            self._busy -= 1
            if self._current is not None:
                self._offer(self._current)

    def forget(self, attempt: Attempt) -> None:
        """Drops an attempt whose lease is over."""
        if self._attempts.get(attempt.lease) is attempt:
            del self._attempts[attempt.lease]
        if self._by_instance.get(attempt.turn.instance_id) is attempt:
            del self._by_instance[attempt.turn.instance_id]
        if not self._attempts:
            self._changed.set()

    def _offer(self, stream: WorkStream) -> None:
        if not self._stopping:
            stream.offer(self._concurrency - self._busy)

    # Leases that ended elsewhere.

    def _lease_over(self, lease: bytes, error: ServerError) -> None:
        attempt = self._attempts.get(lease)
        # A last command under way may be what ended the lease: its own answer tells.
        if attempt is not None and not (attempt.closing and attempt.command is not None):
            attempt.abandon(f"the lease is over: {error}")

    def _alive(self) -> list[bytes]:
        return [a.lease for a in list(self._attempts.values()) if a.task is not None and not a.task.done()]

    def _over_from_thread(self, lease: bytes, error: ServerError) -> None:
        attempt = self._attempts.get(lease)
        if attempt is not None and not attempt.closing:
            # Seen by the next call of the context, even before the loop runs again.
            attempt.ended = attempt.ended or f"the lease is over: {error}"
        self.loop.call_soon_threadsafe(self._lease_over, lease, error)
