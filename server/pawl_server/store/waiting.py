"""Calls that nothing has sent yet, and what becomes of them while nothing can send them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pawl_server.domain.tally import SIZES, Histogram
from pawl_server.store.errors import StoreError, StoreUnavailable
from pawl_server.store.script_call import URGENT, Arg, Script
from pawl_server.store.tally import ScriptTally
from pawl_server.store.wire import Call, Home, fail, pack


@dataclass(slots=True)
class LaneMetrics:
    """Counters since start. `resets` counts connections that ended, `connects` those that became ready.

    `retries` counts unanswered calls that were sent again, `moved` answers of a cluster which say that
    another node has the slot or will have it, `flush_sizes` the calls of each flush, `scripts` what was
    answered, by the script's name.
    """

    calls: int = 0
    flushes: int = 0
    connects: int = 0
    resets: int = 0
    timeouts: int = 0
    noscript: int = 0
    retries: int = 0
    moved: int = 0
    flush_sizes: Histogram = field(default_factory=lambda: Histogram(SIZES))
    scripts: dict[str, ScriptTally] = field(default_factory=dict)


class Waiting:
    """Queues calls by priority. Use it from one event loop only.

    A call fails when its deadline, `call_timeout` seconds after it was made, passes. Once it was down for
    `patience` seconds, calls that admit or read fail at once: their callers wait, and can be told. What ends
    or keeps a lease is held until its deadline.
    """

    def __init__(self, call_timeout: float, patience: float) -> None:
        self.metrics = LaneMetrics()
        self._tallies = self.metrics.scripts
        self._call_timeout = call_timeout
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._queues: tuple[deque[Call], deque[Call], deque[Call]] = (deque(), deque(), deque())
        self._flush_due = False
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._down_since: float | None = None

    @property
    def waiting(self) -> int:
        """Calls that have no answer yet."""
        return sum(map(len, self._queues))

    def call(self, script: Script[Any], home: Home, argv: Iterable[Arg]) -> asyncio.Future[Any]:
        """Queues `EVALSHA script <keys of home> argv…`; the future gets the raw reply.

        The future raises StoreUnavailable, StoreMemory, StoreMoving or ScriptFailed. Cancelling it never
        touches the connection: a queued call is dropped, a reply under way is discarded. Raises TypeError at
        once for an argument that is not bytes, str or int.
        """
        data = pack((b"EVALSHA", script.sha, *home.keys, *argv))
        tally = self._tallies.get(script.name)
        if tally is None:
            tally = self._new_tally(script)
        return self._queue(data, script, home, tally)

    def command(self, *args: Arg) -> asyncio.Future[Any]:
        """Queues a command that is no script and may be repeated, such as INFO; otherwise as `call`."""
        return self._queue(pack(args), Script(str(args[0]), "", "", URGENT), None, None)

    def adopt(self, calls: Iterable[Call]) -> None:
        """Queues calls that another one gave up, behind those that are here."""
        for call in calls:
            if not self._turned_away(call):
                if call.script is not None and call.home is not None:
                    call.tally = self._tallies.get(call.script.name) or self._new_tally(call.script)
                self._queues[call.priority].append(call)
        if not self._flush_due:
            self._schedule_flush()

    def take(self, home: Home | None = None) -> list[Call]:
        """Gives up the queued calls, or those of one home, oldest first."""
        taken: list[Call] = []
        for queue in self._queues:
            kept = [call for call in queue if home is not None and call.home is not home]
            taken += [call for call in queue if home is None or call.home is home]
            queue.clear()
            queue.extend(kept)
        # Each call's deadline is its birth and a constant.
        taken.sort(key=lambda call: call.deadline)
        return taken

    def _new_tally(self, script: Script[Any]) -> ScriptTally:
        tally = self._tallies[script.name] = ScriptTally()
        return tally

    def _queue(
        self, data: bytes, script: Script[Any], home: Home | None, tally: ScriptTally | None
    ) -> asyncio.Future[Any]:
        loop = self._loop
        future = loop.create_future()
        call = Call(data, future, script, loop.time() + self._call_timeout, home, tally)
        if (self._closed or self._down_since is not None) and self._turned_away(call):
            return future
        self._queues[script.priority].append(call)
        self.metrics.calls += 1
        if not self._flush_due:
            self._schedule_flush()
        return future

    def _turned_away(self, call: Call) -> bool:
        """Fails a call that comes too late to wait here."""
        if self._closed:
            fail(call, StoreUnavailable("the store is closed", maybe_applied=call.retried))
        elif self._down_since is not None and self._gives_up_at(call) <= self._loop.time():
            fail(call, self._away(call))
        else:
            return False
        return True

    def _schedule_flush(self) -> None:
        self._flush_due = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._arm_expiry()

    # Giving up

    def _away(self, call: Call) -> StoreError:
        """What a call that found nobody to run it fails with."""
        raise NotImplementedError

    def _gives_up_at(self, call: Call) -> float:
        """When a call that nothing can send fails."""
        if self._down_since is None or call.script is None or call.script.oom == "allow":
            return call.deadline
        return min(call.deadline, self._down_since + self._patience)

    def _arm_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if any(self._queues):
            ends = (self._gives_up_at(call) for queue in self._queues for call in queue)
            self._expiry = self._loop.call_at(min(ends), self._expire)

    def _expire(self) -> None:
        """Fails the queued calls whose time is over."""
        self._expiry = None
        now = self._loop.time()
        for queue in self._queues:
            kept = [call for call in queue if not call.future.done()]
            queue.clear()
            for call in kept:
                if self._gives_up_at(call) <= now:
                    fail(call, self._away(call))
                else:
                    queue.append(call)
        self._arm_expiry()

    def _shut(self) -> None:
        """Fails what is queued, and whatever comes."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for call in self.take():
            fail(call, StoreUnavailable("the store was closed", maybe_applied=call.retried))
