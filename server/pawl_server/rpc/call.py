"""What surrounds every unary call: bounds, errors, metadata.

One decorator instead of interceptors, which would cost each call a few more coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from pawl_server.domain.errors import Reason, Refused
from pawl_server.domain.tally import CallTally, StreamTally
from pawl_server.rpc.status import abort

S = TypeVar("S", bound="Guarded")
Q = TypeVar("Q")
P = TypeVar("P")

Context = grpc.aio.ServicerContext[Any, Any]

DURABILITY = "pawl-durability"
MARGIN_S = 0.5
"""How long before the end of the caller's time a call is answered, at most a fifth of what it has left."""
WAITERS_PER_CALL = 10


class Gate:
    """Lets calls in. Shared by the services of one server.

    `limit` bounds the unary calls in flight; calls that only wait for a turn have a bound of their own, ten
    times as high. `durability` goes into the trailing metadata of each answer. `calls` and `streams` count
    what ended, and streams that are open, by method.
    """

    def __init__(self, limit: int, durability: str) -> None:
        self.limit = limit
        self.in_flight = 0
        self.waiting = 0
        self.draining = False
        self.metadata = ((DURABILITY, durability),)
        self.calls: dict[str, CallTally] = {}
        self.streams: dict[str, StreamTally] = {}
        self._empty = asyncio.Event()

    def enter(self) -> None:
        """Counts a call."""
        self.in_flight += 1

    def leave(self) -> None:
        """Counts the end of a call."""
        self.in_flight -= 1
        if self.draining and not self.in_flight and not self.waiting:
            self._empty.set()

    def count(self, method: str, context: Context, began: float) -> None:
        """Counts a unary call that ended."""
        tally = self.calls.get(method)
        if tally is None:
            tally = self.calls[method] = CallTally()
        tally.add(code_of(context), time.monotonic() - began)

    @contextlib.contextmanager
    def stream(self, method: str, context: Context) -> Iterator[None]:
        """While a stream is open; it is counted by the code that it ended with."""
        tally = self.streams.setdefault(method, StreamTally())
        tally.begin()
        try:
            yield
        finally:
            tally.end(code_of(context))

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """While a call waits for a turn it is not in flight. Raises Refused(OVERLOADED)."""
        if self.waiting >= self.limit * WAITERS_PER_CALL:
            raise Refused(Reason.OVERLOADED, f"{self.waiting} calls wait for turns")
        self.waiting += 1
        self.in_flight -= 1
        try:
            yield
        finally:
            self.in_flight += 1
            self.waiting -= 1

    async def drain(self, seconds: float) -> None:
        """Lets no more calls in; returns once those under way have ended, or after `seconds`."""
        self.draining = True
        if self.in_flight or self.waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()

    def check(self, *, sheds: bool, while_draining: bool) -> None:
        """Raises Refused(DRAINING) or Refused(OVERLOADED)."""
        if self.draining and not while_draining:
            raise Refused(Reason.DRAINING, "the server is stopping")
        if self.in_flight >= self.limit and sheds:
            raise Refused(Reason.OVERLOADED, f"{self.in_flight} calls are in flight")


def code_of(context: Context) -> str:
    """Name of the code that a call ended with; only to be asked while the call's handler ends."""
    code: grpc.StatusCode | None = context.code()
    if code is not None:
        return code.name
    return "CANCELLED" if sys.exception() is not None or context.cancelled() else "OK"


class Guarded(Protocol):
    """A service whose calls go through a gate."""

    @property
    def gate(self) -> Gate: ...


Handler = Callable[[S, Q, Context], Awaitable[P]]


def time_left(context: Context) -> float | None:
    """Seconds in which a call must have its answer so that the caller still gets it; None without limit."""
    left: float | None = context.time_remaining()
    return None if left is None else max(0.0, left - min(MARGIN_S, left / 5))


def unary(
    *, sheds: bool = True, while_draining: bool = False
) -> Callable[[Handler[S, Q, P]], Handler[S, Q, P]]:
    """Makes a handler of a unary call: whatever it raises becomes a status with a reason.

    `sheds` False lets the call in above the bound, `while_draining` also when the server stops: for calls
    that end work instead of bringing it.
    """

    def decorate(handler: Handler[S, Q, P]) -> Handler[S, Q, P]:
        where = handler.__name__

        @functools.wraps(handler)
        async def call(self: S, request: Q, context: Context) -> P:
            gate = self.gate
            began = time.monotonic()
            context.set_trailing_metadata(gate.metadata)
            counted = False
            try:
                gate.check(sheds=sheds, while_draining=while_draining)
                if isinstance(request, Refused):
                    raise request
                gate.enter()
                counted = True
                async with asyncio.timeout(time_left(context)):
                    return await handler(self, request, context)
            except TimeoutError:
                await abort(context, Refused(Reason.STORE_UNAVAILABLE, "the store did not answer in time"))
            except Exception as error:
                await abort(context, error, where)
            finally:
                gate.count(where, context, began)
                if counted:
                    gate.leave()

        return call

    return decorate
