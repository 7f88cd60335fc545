"""One connection to Redis: bytes out, replies in, in order. It knows nothing of retries: see lane.py."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Any, Protocol, cast

import hiredis

from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.script_call import URGENT, Arg, Script
from pawl_server.store.tally import ScriptTally

_NOTHING = object()


def pack(args: tuple[Arg, ...]) -> bytes:
    """The bytes of one command. Raises TypeError for an argument that is not bytes, str or int."""
    return hiredis.pack_command(cast(Any, args))


class Home:
    """Where scripts run. `keys` is the number of keys that a call declares, then the keys."""

    __slots__ = ("keys",)

    def __init__(self, keys: tuple[Arg, ...]) -> None:
        self.keys = keys


class Call:
    """A command, from the caller to its reply. `script` is None for commands of the connection's set-up.

    `deadline` is in the loop's seconds, `sent` in those of `time.monotonic`. `home` is None for what is no
    script. `retried` says that an earlier connection ended before it answered, so that the command may have
    run already; `reloads` counts NOSCRIPT answers. `tally` counts the answer of a script.
    """

    __slots__ = ("data", "deadline", "future", "home", "reloads", "retried", "script", "sent", "tally")

    def __init__(
        self,
        data: bytes,
        future: asyncio.Future[Any],
        script: Script[Any] | None,
        deadline: float,
        home: Home | None = None,
        tally: ScriptTally | None = None,
    ) -> None:
        self.data = data
        self.future = future
        self.script = script
        self.deadline = deadline
        self.home = home
        self.retried = False
        self.reloads = 0
        self.sent = 0.0
        self.tally = tally

    @property
    def priority(self) -> int:
        """Its place in a flush."""
        return self.script.priority if self.script is not None else URGENT


def fail(call: Call, error: Exception) -> None:
    """Answers a call by an error, unless its caller is gone."""
    if not call.future.done():
        call.future.set_exception(error)


def load_call(loop: asyncio.AbstractEventLoop, script: Script[Any]) -> Call:
    """A SCRIPT LOAD whose result nobody awaits: if it fails, the next EVALSHA says so."""
    future = loop.create_future()
    future.add_done_callback(_seen)
    return Call(pack((b"SCRIPT", b"LOAD", script.text)), future, None, 0.0)


def _seen(done: asyncio.Future[Any]) -> None:
    """Keeps the loop from reporting an error that nobody asked for."""
    if not done.cancelled():
        done.exception()


class Owner(Protocol):
    """What a wire tells its lane. All calls come from the event loop."""

    def on_error(self, wire: Wire, call: Call, error: hiredis.ReplyError) -> None:
        """A call was answered by an error."""

    def on_progress(self, wire: Wire) -> None:
        """Replies were delivered."""

    def on_lost(self, wire: Wire, why: str) -> None:
        """The connection ended or cannot be understood any more; `unanswered` has what is left."""


class Wire(asyncio.Protocol):
    """A connection whose replies resolve the futures of `unanswered` in the order of sending.

    `flights` holds, for each flush under way, how many of its replies are missing and when it was sent.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self.unanswered: deque[Call] = deque()
        self.flights: deque[list[int]] = deque()
        self.progress_at = 0.0
        self.client_id = 0
        self.run_id = b""
        self.open = False
        self._owner = owner
        self._loop = loop
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None

    def send(self, calls: list[Call]) -> None:
        """Writes the calls as one flush."""
        if not self.flights:
            self.progress_at = self._loop.time()
        now = monotonic()  # the loop's time has whole ms under uvloop
        for call in calls:
            call.sent = now
        self.unanswered.extend(calls)
        self.flights.append([len(calls)])
        if self._transport is not None:
            self._transport.write(b"".join([call.data for call in calls]))

    def execute(self, *args: Arg) -> asyncio.Future[Any]:
        """One command of the set-up. Its future raises hiredis.ReplyError or StoreUnavailable."""
        future = self._loop.create_future()
        future.add_done_callback(_seen)  # the caller may give up at the first error of several
        if self.open:
            self.send([Call(pack(args), future, None, 0.0)])
        else:
            future.set_exception(StoreUnavailable("the connection is closed", maybe_applied=False))
        return future

    def abort(self) -> None:
        """Closes the connection at once; what is buffered is not sent. The owner is not told."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.open:
            self._lost(f"Redis closed the connection ({exc})" if exc else "Redis closed the connection")

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        gets, answered = reader.gets, self.unanswered.popleft
        now = monotonic()
        count = 0
        try:
            while (reply := gets()) is not _NOTHING:
                call = answered()
                count += 1
                if reply.__class__ is hiredis.ReplyError:
                    self._owner.on_error(self, call, cast(hiredis.ReplyError, reply))
                    if not self.open:
                        return
                else:
                    if call.tally is not None:
                        call.tally.add(reply, now - call.sent)
                    if not call.future.done():
                        call.future.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self._lost(f"Redis sent what cannot be understood: {error}")
            return
        if count:
            self._account(count)

    def _account(self, count: int) -> None:
        flights = self.flights
        while count:
            flight = flights[0]
            if flight[0] > count:
                flight[0] -= count
                break
            count -= flight[0]
            flights.popleft()
        self.progress_at = self._loop.time()
        self._owner.on_progress(self)

    def _lost(self, why: str) -> None:
        self.abort()
        self._owner.on_lost(self, why)
