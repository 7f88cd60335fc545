"""A lane: one ordered connection to one Redis node, kept up for ever.

All calls of one event-loop tick become one flush (one write), ordered by the scripts' priorities. At most
`max_flights` flushes are under way; what comes meanwhile waits and leaves together. Replies resolve futures
in order as they arrive. There is no task, lock or timer per call.

When a connection ends, its unanswered calls may or may not have run. Each is sent once more on the next
connection, if that one is ready before the call's deadline; scripts keep receipts, so that a repeat gets the
first answer. Everything else fails with StoreUnavailable; waiting.py says when. A call is never answered by
the reply of another: replies belong to the connection that carried the call, and a connection that is given
up is never read again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from pawl_server.log_lines import STORE_NOT_CONNECTED
from pawl_server.store.errors import ScriptFailed, StoreMemory, StoreMoving, StoreRefused, StoreUnavailable
from pawl_server.store.outage import Outage, reason
from pawl_server.store.script_call import Arg, Script
from pawl_server.store.waiting import LaneMetrics, Waiting
from pawl_server.store.wire import Call, Wire, fail, load_call

__all__ = ["Lane", "LaneMetrics", "LaneOptions", "Link"]

log = logging.getLogger(__name__)

RECONNECT = frozenset(
    ("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "CLUSTERDOWN", "MOVED", "NOAUTH", "WRONGPASS")
)
"""First words of errors that say: nothing was run, and this connection is of no use any more."""

REFUSED = frozenset(("MISCONF", "BUSY", "NOREPLICAS", "NOPERM"))
"""First words of errors that say: nothing was run, and another connection would not help."""

SLOT_MOVES = frozenset(("ASK", "TRYAGAIN"))
"""First words of errors of a slot that is moving; a redirected script would fork the partition."""

REDIRECT = frozenset((*SLOT_MOVES, "MOVED", "CLUSTERDOWN", "NOREPLICAS"))
"""First words of what a node of a cluster says about a slot that it does not serve, or no longer; nothing was
run. A primary whose replica is being promoted says NOREPLICAS at first."""

FATAL = (StoreRefused, ScriptFailed)
"""Errors of the first set-up that waiting does not cure."""

LOOK_AGAIN = 0.05
"""Seconds between the moment a connection seems silent and the moment it is given up."""

MAX_RELOADS = 3
"""How often a call may be answered by NOSCRIPT before it fails."""


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """Times in seconds, sizes in calls and bytes.

    `call_timeout` is a call's whole life, `reply_timeout` the longest silence of a connection that owes
    replies before it is given up, `connect_timeout` the limit of one attempt to connect and set up.
    `retry_unanswered` False fails unanswered calls at once. `patience` is how long a lane without connection
    keeps calls that admit or read.
    """

    call_timeout: float = 10.0
    reply_timeout: float = 5.0
    connect_timeout: float = 5.0
    backoff_min: float = 0.05
    backoff_max: float = 1.0
    patience: float = 1.0
    max_flights: int = 2
    max_flush_calls: int = 256
    max_flush_bytes: int = 1 << 20
    retry_unanswered: bool = True


@dataclass(slots=True)
class Link:
    """How a lane gets a usable connection.

    `dial` opens one with the given protocol factory, `prepare` sets it up (it may raise anything; the lane
    tries again), `scripts` are loaded again after NOSCRIPT. In a cluster, `redirect` takes over each call
    that this node answered by one of REDIRECT, and `lost` is told when a connection in use ends.
    """

    dial: Callable[[Callable[[], Wire]], Awaitable[object]]
    prepare: Callable[[Wire], Awaitable[None]]
    scripts: Sequence[Script[Any]] = field(default=())
    redirect: Callable[[Call, str], None] | None = None
    lost: Callable[[], None] | None = None


class Lane(Waiting):
    """Sends scripts over one connection at a time. Use it from one event loop only."""

    def __init__(
        self, name: str, link: Link, options: LaneOptions | None = None, outage: Outage | None = None
    ) -> None:
        self._options = options or LaneOptions()
        super().__init__(self._options.call_timeout, self._options.patience)
        self.name = name
        self.outage = outage or Outage()
        self.last_error: Exception | None = None
        self._link = link
        self._wire: Wire | None = None
        self._repeats: list[Call] = []
        self._silence: asyncio.TimerHandle | None = None
        self._suspect = 0.0
        self._connecting: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()

    @property
    def wire(self) -> Wire | None:
        """The connection in use."""
        return self._wire

    @property
    def ready(self) -> bool:
        """Whether a prepared connection is open."""
        return self._wire is not None

    @property
    def waiting(self) -> int:
        """Calls that are queued or unanswered."""
        unanswered = len(self._wire.unanswered) if self._wire is not None else 0
        return super().waiting + unanswered

    @property
    def refusal(self) -> BaseException | None:
        """Why no waiting will make the first connection: StoreRefused or ScriptFailed."""
        return self._first.exception() if self._first.done() and not self._first.cancelled() else None

    def begin(self) -> None:
        """Connects in the background; from then on the lane keeps itself connected."""
        self._connect(first=True)

    async def start(self, timeout: float) -> None:
        """Begins, and returns once the lane is connected; raises what `connected` does."""
        self.begin()
        await self.connected(timeout)

    async def connected(self, timeout: float) -> None:
        """Returns once the lane was connected for the first time.

        Raises StoreRefused if the server must not be used, ScriptFailed if a script does not load there,
        StoreUnavailable if no server is usable in `timeout` seconds.
        """
        done, _ = await asyncio.wait([self._first], timeout=timeout)
        if not done:
            raise StoreUnavailable(f"no usable Redis in {timeout:g} s: {self.why}", maybe_applied=False)
        self._first.result()

    async def close(self) -> None:
        """Closes the connection; calls without an answer fail with StoreUnavailable."""
        self._closed = True
        if self._silence is not None:
            self._silence.cancel()
        if self._wire is not None:
            wire, self._wire = self._wire, None
            wire.abort()
            for call in wire.unanswered:
                fail(call, StoreUnavailable("the store was closed"))
        self._shut()
        if not self._first.done():
            self._first.set_exception(StoreUnavailable("the store was closed", maybe_applied=False))
            self._first.exception()  # nobody may be waiting
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])

    def execute(self, *args: Arg) -> asyncio.Future[Any]:
        """A command of the set-up on the connection in use, for what comes after the set-up; never repeated.

        The future raises hiredis.ReplyError or StoreUnavailable.
        """
        if self._wire is None:
            future: asyncio.Future[Any] = self._loop.create_future()
            future.set_exception(StoreUnavailable(f"no connection: {self.why}", maybe_applied=False))
            future.exception()  # the caller may give up at the first error of several
            return future
        future = self._wire.execute(*args)
        if self._silence is None:
            self._watch_silence()
        return future

    # Flushing

    def _flush(self) -> None:
        self._flush_due = False
        wire = self._wire
        if wire is None:
            self._arm_expiry()
            return
        # What does not fit leaves after the next replies: on_progress comes back here.
        while len(wire.flights) < self._options.max_flights and (calls := self._take()):
            self.metrics.flushes += 1
            self.metrics.flush_sizes.add(len(calls))
            wire.send(calls)
            if self._silence is None:
                self._watch_silence()

    def _take(self) -> list[Call]:
        """The next flush: by priority, then in order of arrival, up to the limits of one flush."""
        calls: list[Call] = []
        now = self._loop.time()
        room, space = self._options.max_flush_calls, self._options.max_flush_bytes
        for queue in self._queues:
            while queue and room > 0 and space > 0:
                call = queue.popleft()
                if call.future.done():
                    continue  # cancelled by its caller
                if call.deadline <= now:
                    fail(call, StoreUnavailable("Redis was not reached in time", maybe_applied=call.retried))
                    continue
                calls.append(call)
                room -= 1
                space -= len(call.data)
        return calls

    def on_progress(self, wire: Wire) -> None:
        """Replies came: repeats what met NOSCRIPT; the next flush leaves after the replies' callbacks."""
        if self._repeats:
            self._repeat(wire)
        if not self._flush_due and any(self._queues):
            self._schedule_flush()

    # Errors

    def on_error(self, wire: Wire, call: Call, error: hiredis.ReplyError) -> None:
        """Decides what an error reply means for the call and for the connection."""
        text = str(error)
        word = text.partition(" ")[0]
        if call.script is None:
            fail(call, error)
        elif word == "NOSCRIPT":
            self._missing(call)
        elif word in REDIRECT and self._link.redirect is not None and call.home is not None:
            self.metrics.moved += 1
            self._link.redirect(call, text)
        elif word in RECONNECT:
            # Redis ran nothing of this call, so it does not use up its one repeat.
            wire.abort()
            self.on_lost(wire, f"Redis answered {text}")
            self._queues[call.script.priority].appendleft(call)
            self._arm_expiry()
        elif word == "OOM":
            fail(call, StoreMemory(text))
        elif word in REFUSED:
            fail(call, StoreUnavailable(text, maybe_applied=False))
        elif word in SLOT_MOVES:
            fail(call, StoreMoving(text))
        else:
            fail(call, ScriptFailed(call.script.name, text))

    def _missing(self, call: Call) -> None:
        self.metrics.noscript += 1
        call.reloads += 1
        if call.reloads > MAX_RELOADS:
            fail(call, StoreUnavailable("Redis does not keep the scripts it loads", maybe_applied=False))
        else:
            self._repeats.append(call)

    def _repeat(self, wire: Wire) -> None:
        """Loads all scripts again and repeats, after that, each call that met NOSCRIPT: and only those.

        The other calls of the same flush have run, so a call may now run after one that was sent behind it:
        calls that depend on each other carry command numbers or wait for the answer.
        """
        loads = [load_call(self._loop, script) for script in self._link.scripts]
        calls = [call for call in self._repeats if not call.future.done()]
        self._repeats.clear()
        wire.send([*loads, *calls])
        if self._silence is None:
            self._watch_silence()

    def on_lost(self, wire: Wire, why: str) -> None:
        """A connection ended: one in use is replaced, one being set up fails its set-up."""
        error = StoreUnavailable(why)
        if wire is not self._wire:
            for call in wire.unanswered:
                fail(call, error)
            return
        self._wire = None
        self._down_since = self._loop.time()
        self.last_error = error
        self.metrics.resets += 1
        self.outage.failed(self.name, f"{why}; {len(wire.unanswered)} calls unanswered")
        unanswered = [*self._repeats, *wire.unanswered]
        self._repeats.clear()
        now = self._loop.time()
        for call in reversed(unanswered):
            if (
                call.script is None
                or call.retried
                or call.deadline <= now
                or not self._options.retry_unanswered
            ):
                fail(call, error)
            else:
                call.retried = True
                self.metrics.retries += 1
                self._queues[call.script.priority].appendleft(call)
        if not self._closed:
            self._arm_expiry()
            self._connect()
            if self._link.lost is not None:
                self._link.lost()

    # Time

    def _watch_silence(self) -> None:
        """Gives the connection up when it owes replies and none came for `reply_timeout`."""
        self._silence = None
        wire = self._wire
        if wire is None or not wire.flights:
            return
        due = wire.progress_at + self._options.reply_timeout
        if self._loop.time() < due:
            self._suspect = 0.0
            self._silence = self._loop.call_at(due, self._watch_silence)
            return
        if self._suspect != wire.progress_at:
            # The machine may have stood still, Redis with it: replies get a moment to arrive.
            self._suspect = wire.progress_at
            self._silence = self._loop.call_later(LOOK_AGAIN, self._watch_silence)
            return
        self.metrics.timeouts += 1
        wire.abort()
        self.on_lost(wire, f"Redis was silent for {self._options.reply_timeout:g} s")

    def _away(self, call: Call) -> StoreUnavailable:
        return StoreUnavailable(f"no connection: {self.why}", maybe_applied=call.retried)

    @property
    def why(self) -> str:
        """Why there is no connection."""
        return reason(self.last_error) if self.last_error is not None else "the attempt takes too long"

    def _expire(self) -> None:
        if self._wire is None:
            super()._expire()
        else:
            self._expiry = None

    # Connecting

    def _connect(self, first: bool = False) -> None:
        self._connecting = self._loop.create_task(self._keep_connecting(first), name=f"lane {self.name}")

    async def _keep_connecting(self, first: bool) -> None:
        options = self._options
        pause = options.backoff_min
        if not first:
            await asyncio.sleep(random.uniform(0, options.backoff_min))
        while True:
            try:
                wire = await self._attempt()
                break
            except Exception as error:
                self.last_error = error
                if isinstance(error, FATAL) and not self._first.done():
                    self._first.set_exception(error)
                    self._first.exception()  # `refusal` may be all that is asked
                if self._down_since is None:
                    STORE_NOT_CONNECTED(log, part=self.name, why=reason(error))
                else:
                    self.outage.failed(self.name, error)
            pause = min(pause * 2, options.backoff_max)
            await asyncio.sleep(random.uniform(options.backoff_min, pause))
        self._wire = wire
        self._down_since = None
        self.last_error = None
        self.outage.works(self.name)
        self.metrics.connects += 1
        if not self._first.done():
            self._first.set_result(None)
        if not self._flush_due:
            self._schedule_flush()

    async def _attempt(self) -> Wire:
        """One attempt to open and prepare a connection."""
        wire = Wire(self, self._loop)
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                await self._link.dial(lambda: wire)
                await self._link.prepare(wire)
            if not wire.open:
                raise StoreUnavailable("the connection ended during its set-up", maybe_applied=False)
            return wire
        except BaseException:
            wire.abort()
            raise
