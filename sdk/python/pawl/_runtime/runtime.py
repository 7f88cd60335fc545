"""The worker at work: attempts, the slots they take, and the streams that have their leases."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from pawl._reasons import refusal_error
from pawl._runtime.attempt import Attempt
from pawl._runtime.executor import Executor
from pawl._runtime.failures import failure_message
from pawl._runtime.leases import LeaseKeeper
from pawl._runtime.links import Links
from pawl._runtime.operation import Operation
from pawl._runtime.stream import WorkStream
from pawl._runtime.watchdog import Renewer, Watchdog
from pawl._transport import Transport, WorkCall
from pawl.errors import ServerError
from pawl.v1.error_pb2 import REASON_SUPERSEDED
from pawl.v1.worker_service_pb2 import CommandResult, Fail, LeasedTurn, LeaseEvent, WorkHello
from pawl.workflow import Workflow

log = logging.getLogger("pawl.worker")

ZOMBIE_AFTER = 1.0
"""Seconds that a handler has to stop once its lease is over."""
LAST_WORDS = 2.0
"""Seconds that a stopping worker waits for the answers to what it gave back."""


class Runtime:
    """Runs turns from streams until it is stopped; see links.py for which streams there are.

    `concurrency` slots are at any time either held by running attempts or granted to the server as credits. A
    slot is free again as soon as an attempt's last command is given, so that the server can hand out the next
    turn with the answer.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        dial: Callable[[str], WorkCall],
        renewer: Renewer,
        workflows: dict[tuple[str, str], Workflow],
        hello: WorkHello,
        concurrency: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.zombies = 0
        """Handlers that run on although their lease is over."""
        self._workflows = workflows
        self._concurrency = concurrency
        self._attempts: dict[bytes, Attempt] = {}
        self._by_instance: dict[str, Attempt] = {}
        self._busy = 0
        self._links = Links(self, dial, transport.address, hello, concurrency)
        self._changed = asyncio.Event()
        self._stopping = False
        self._ended = asyncio.Event()
        self._shortest_lease = 60.0
        self._executor = Executor(self.loop, concurrency)
        self._keeper = LeaseKeeper(transport, self._adrift, self._lease_over)
        self._watchdog = Watchdog(renewer, self._alive, self._over_from_thread, self._steps)
        self._ticker: asyncio.TimerHandle | None = None

    # Life.

    async def run(self) -> None:
        """Works until `stop` has done its part.

        Raises InvalidField or Unimplemented if the server refuses the worker's first hello; nothing else ends
        it.
        """
        self._watchdog.start()
        self._tick()
        connector = self.loop.create_task(self._links.run())
        ended = self.loop.create_task(self._ended.wait())
        try:
            await asyncio.wait({connector, ended}, return_when=asyncio.FIRST_COMPLETED)
            if connector.done():
                connector.result()
            connector.cancel()
            await self._links.close(LAST_WORDS)
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

    def _clean_up(self) -> None:
        self._watchdog.stop()
        self._keeper.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        for attempt in list(self._attempts.values()):
            attempt.abandon("the worker has stopped")
        self._links.cancel()
        self._executor.close()

    def _tick(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._watchdog.tick()
        for operation in self._steps():
            operation.nudge()
        self._ticker = self.loop.call_later(self._watchdog.tick_interval, self._tick)

    # Streams: what Links asks and says.

    def held(self) -> list[bytes]:
        """Leases that a stream is to bring home."""
        return [attempt.lease for attempt in self._attempts.values() if not attempt.closing]

    def spare(self) -> int:
        """How many turns there is room for."""
        return 0 if self._stopping else max(0, self._concurrency - self._busy)

    def joined(self, stream: WorkStream) -> None:
        """A stream is open: it takes what is on none of the others, and its share of the slots."""
        self._keeper.stop()
        live = self._links.live
        self._move([a for a in self._attempts.values() if a.stream not in live], stream)
        self._grant()

    def leaving(self, stream: WorkStream, *, gone: bool) -> None:
        """A stream is to be left: its leases go to another one, if there is one by now."""
        to = self._links.best()
        if to is None:
            return
        mine = [attempt for attempt in self._attempts.values() if attempt.stream is stream]
        self._move(mine, to)
        if gone:
            # It may not answer any more; what it answers nevertheless is the same.
            self._send_again(stream, to)
        self._grant()

    def lost(self, stream: WorkStream) -> None:
        """A stream has ended."""
        to = self._links.best()
        if to is not None:
            mine = [attempt for attempt in self._attempts.values() if attempt.stream is stream]
            self._move(mine, to)
            self._grant()
        elif not self._ended.is_set() and (stream.named or stream.opened.done()):
            # It may have got what it named although its answer never came.
            self._keeper.start(self._links.decide())
        self._send_again(stream, to)

    def _move(self, attempts: list[Attempt], to: WorkStream) -> None:
        """Has leases brought to a stream. The one that has them stays open until they are there."""
        leases = []
        for attempt in attempts:
            before, attempt.stream = attempt.stream, to
            if not (attempt.closing and attempt.command is not None):
                if before is not None and self._links.usable(before):
                    before.handing.add(attempt.lease)
                if attempt.lease not in to.named:
                    leases.append(attempt.lease)
            operation = attempt.operation
            if operation is not None and operation.command and not self._links.usable(operation.sent_on):
                to.send_early(operation)
            if attempt.command is not None and not self._links.usable(attempt.sent_on):
                to.send(attempt)
        if leases:
            to.adopt(self._links.decide(), leases)
        self._let_go()

    def _send_again(self, stream: WorkStream, to: WorkStream | None) -> None:
        """Commands that a stream may not answer any more go out on another one, or on the next."""
        for attempt in list(self._attempts.values()):
            operation = attempt.operation
            if operation is not None and operation.sent_on is stream:
                operation.sent_on = None
                if to is not None and operation.command is not None:
                    to.send_early(operation)
            if attempt.sent_on is stream:
                attempt.sent_on = None
                if to is not None and attempt.command is not None:
                    to.send(attempt)

    def _arrived(self, lease: bytes) -> None:
        """A lease has come to another stream, or is over."""
        for stream in self._links.leaving:
            stream.handing.discard(lease)
        self._let_go()

    def _let_go(self) -> None:
        """Ends the streams that have nothing more to hand over, as soon as there is another one."""
        if self._links.live:
            for stream in self._links.leaving:
                if not stream.handing:
                    stream.end()

    # From streams.

    def deliver(self, turn: LeasedTurn, stream: WorkStream) -> None:
        """Starts an attempt."""
        known = self._attempts.get(turn.lease)
        if known is not None:
            # Delivered again, because the server could not know that it had arrived.
            known.stream = stream
            self._grant()
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
        stream.running += 1
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
        """Takes note of a lease that has come to a stream, or stops its attempt."""
        attempt = self._attempts.get(event.lease)
        if event.HasField("ended"):
            if event.ended.reason == REASON_SUPERSEDED and self.superseded(stream):
                return  # by a stream of this worker, which says so itself
            if attempt is not None:
                self._lease_over(event.lease, refusal_error(event.ended))
        elif event.HasField("cancel_grace"):
            if attempt is not None:
                attempt.cancel()
            return
        elif attempt is not None and attempt.stream is not stream:
            return  # it has been asked for by another one since
        self._arrived(event.lease)

    def opened(self, stream: WorkStream) -> None:
        """Passes on that a server has said hello."""
        self._links.opened(stream)

    def drain(self, stream: WorkStream) -> None:
        """Moves to other streams."""
        log.info("work stream %d is asked to move", stream.ordinal)
        self._links.leave(stream)

    def servers(self, servers: dict[str, str], stream: WorkStream) -> None:
        """Passes on which servers there are."""
        self._links.learn(servers, stream)

    def leases_on(self, stream: WorkStream) -> list[bytes]:
        """Leases that a beat names: all of the stream, except those whose last command is under way on it."""
        return [
            attempt.lease
            for attempt in self._attempts.values()
            if attempt.stream is stream and not (attempt.closing and attempt.sent_on is not None)
        ]

    # From attempts.

    def transmit(self, attempt: Attempt) -> None:
        """Sends the attempt's command, on the stream that has its lease, or another one, or the next."""
        stream = attempt.stream if self._links.usable(attempt.stream) else self._links.best()
        if stream is not None:
            stream.send(attempt)

    def transmit_early(self, operation: Operation) -> None:
        """Sends the command of a step that runs, as `transmit` does."""
        stream = operation.attempt.stream
        if not self._links.usable(stream):
            stream = self._links.best()
        if stream is not None:
            stream.send_early(operation)

    def superseded(self, stream: WorkStream | None) -> bool:
        """True if the worker itself has a newer stream than this one, open or about to be."""
        return stream is not None and stream.ordinal < self._links.newest

    def free(self, attempt: Attempt) -> None:
        """Takes back a slot and grants it anew."""
        if attempt.holds_slot:
            attempt.holds_slot = False
            self._busy -= 1
            if attempt.came_on is not None:
                attempt.came_on.running -= 1
            self._grant(attempt.came_on)

    def abandoned(self, attempt: Attempt) -> None:
        """Looks, a little later, whether the handler of an attempt whose lease is over has stopped."""
        if attempt.in_thread or (attempt.task is not None and not attempt.task.done()):
            self.loop.call_later(ZOMBIE_AFTER, self._look_at_zombie, attempt)

    def _look_at_zombie(self, attempt: Attempt, known: bool = False) -> None:
        lives = attempt.in_thread or (attempt.task is not None and not attempt.task.done())
        if lives and not known:
            self.zombies += 1
            log.warning(
                "turn %d of %s: its lease is over (%s), but its handler runs on; %d such handlers now",
                attempt.turn.turn,
                attempt.turn.instance_id,
                attempt.ended,
                self.zombies,
            )
            if attempt.in_thread:
                self._executor.replace_threads()
        elif known and not lives:
            self.zombies -= 1
            log.info("turn %d of %s: its handler has ended", attempt.turn.turn, attempt.turn.instance_id)
        if lives and not self._ended.is_set():
            self.loop.call_later(ZOMBIE_AFTER, self._look_at_zombie, attempt, True)

    def forget(self, attempt: Attempt) -> None:
        """Drops an attempt whose lease is over."""
        if self._attempts.get(attempt.lease) is attempt:
            del self._attempts[attempt.lease]
            if self._links.leaving:
                self._arrived(attempt.lease)
        if self._by_instance.get(attempt.turn.instance_id) is attempt:
            del self._by_instance[attempt.turn.instance_id]
        if not self._attempts:
            self._changed.set()

    def _grant(self, first: WorkStream | None = None) -> None:
        """Gives free slots to the streams that have the least of them; of several, `first` goes first."""
        live = self._links.live
        if self._stopping or not live:
            return
        free = self._concurrency - self._busy - self._links.granted
        while free > 0:
            if len(live) == 1:
                live[0].grant(free)
                return
            least = min(stream.load for stream in live)
            poor = [stream for stream in live if stream.load == least]
            stream = first if first in poor else poor[0]
            count = max(1, free // (2 * len(live)))
            stream.grant(count)
            free -= count

    def _adrift(self) -> list[bytes]:
        """Leases that are on no open stream."""
        return [a.lease for a in self._attempts.values() if not self._links.usable(a.stream)]

    # Leases that ended elsewhere.

    def _lease_over(self, lease: bytes, error: ServerError) -> None:
        attempt = self._attempts.get(lease)
        # A last command under way may be what ended the lease: its own answer tells.
        if attempt is not None and not attempt.may_end:
            attempt.abandon(f"the lease is over: {error}")

    def _alive(self) -> list[bytes]:
        return [a.lease for a in list(self._attempts.values()) if a.task is not None and not a.task.done()]

    def _steps(self) -> list[Operation]:
        """Steps that run, as far as the server may have to hear of them. For the watchdog's thread, too."""
        found = [attempt.long_step() for attempt in list(self._attempts.values())]
        return [operation for operation in found if operation is not None]

    def _over_from_thread(self, lease: bytes, error: ServerError) -> None:
        attempt = self._attempts.get(lease)
        if attempt is not None and not attempt.closing:
            # Seen by the next call of the context, even before the loop runs again.
            attempt.ended = attempt.ended or f"the lease is over: {error}"
        self.loop.call_soon_threadsafe(self._lease_over, lease, error)
