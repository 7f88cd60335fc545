"""The streams of a worker: one to each of a few servers, and always one somewhere.

The first stream goes *home*, to the address that the worker was given; a load balancer may be there. Streams
name the servers of the namespace with their own addresses, and the worker opens further streams to some of
them, so that its turns come from all. A server is not taken to be the one it was named as unless it says so,
and one that can't be reached from here is left alone: its work comes by the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

from pawl._runtime.leases import MAX_LEASES
from pawl._runtime.seldom import Seldom
from pawl._runtime.stream import Receiver, WorkStream
from pawl._transport import Backoff, WorkCall
from pawl.errors import InvalidField, ServerError, Unavailable, Unimplemented
from pawl.v1.worker_service_pb2 import WorkHello

log = logging.getLogger("pawl.worker")

MAX_STREAMS = 4
OPEN_TIMEOUT = 10.0
PEER_TIMEOUT = 3.0
"""Seconds for a stream to open where there is another way to try."""
STEADY = 5.0
"""Seconds after which a stream counts as working, so that the next reconnect starts with a short delay."""
AGAIN_FIRST, AGAIN_LAST = 1.0, 300.0
"""Seconds until a server is tried again that a stream was lost to, or could not be opened to: doubling."""


class Host(Receiver, Protocol):
    """The worker, as far as its streams are concerned."""

    def held(self) -> list[bytes]:
        """Leases that the first frame of a stream that goes home names."""
        ...

    def spare(self) -> int:
        """How many turns it could take now."""
        ...

    def joined(self, stream: WorkStream) -> None:
        """A stream is open, and its server is the right one."""

    def leaving(self, stream: WorkStream, *, gone: bool) -> None:
        """A stream is to be left; `gone` if its server may not answer any more."""

    def lost(self, stream: WorkStream) -> None:
        """A stream has ended."""


class Links:
    """Opens, spreads and replaces streams until it is closed.

    `live` are the open ones that are not being left. `newest` is the highest number of a decision about where
    leases belong: each stream and each move takes the next one.
    """

    def __init__(
        self, host: Host, dial: Callable[[str], WorkCall], home: str, hello: WorkHello, width: int
    ) -> None:
        self.live: list[WorkStream] = []
        self.newest = 0
        self._host = host
        self._dial = dial
        self._home = home
        self._hello = hello
        self._width = min(width, MAX_STREAMS)
        self._loop = asyncio.get_running_loop()
        self._open: dict[WorkStream, asyncio.Task[None]] = {}
        self._servers: dict[str, str] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, tuple[float, float]] = {}
        self._changed = asyncio.Event()
        self._welcome = False
        self._closing = False
        self._down_since: float | None = None
        self._report_down = Seldom(log)
        self._report_again = Seldom(log)

    def decide(self) -> int:
        """The number of a new decision."""
        self.newest += 1
        return self.newest

    @property
    def leaving(self) -> list[WorkStream]:
        """Open streams that are being left."""
        return [stream for stream in self._open if stream.draining]

    @property
    def granted(self) -> int:
        """Credits that servers may still use."""
        return sum(stream.outstanding for stream in self._open if not stream.draining)

    def usable(self, stream: WorkStream | None) -> bool:
        """Whether commands can be sent on a stream."""
        return stream in self._open and stream.opened.done()

    def best(self) -> WorkStream | None:
        """The live stream with the least to do; None if there is none."""
        return min(self.live, key=lambda stream: stream.load, default=None)

    # Life

    async def run(self) -> None:
        """Stays connected for ever.

        Raises InvalidField or Unimplemented if a server refuses the first hello; nothing else ends it.
        """
        backoff = Backoff(0.05, 5.0)
        tries = 0
        while True:
            self._changed.clear()
            if self.live:
                tries = 0
                await self._until_changed(self._spread())
                continue
            if self.newest:
                await asyncio.sleep(backoff.next())
                if self.live:
                    continue
            try:
                stream = await self._connect(tries)
            except ServerError as error:
                if isinstance(error, InvalidField | Unimplemented) and not self._welcome:
                    raise
                tries += 1
                self._down(error)
            else:
                self._report_up(stream)
                self._welcome = True
                backoff.ease(0.2)
                self._loop.call_later(STEADY, self._steady, stream, backoff)

    async def close(self, timeout: float) -> None:
        """Ends all streams in good order."""
        self._closing = True
        for dial in self._dials.values():
            dial.cancel()
        tasks = list(self._open.values())
        for stream in self._open:
            stream.end()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def cancel(self) -> None:
        """Drops what is left."""
        self._closing = True
        for task in [*self._dials.values(), *self._open.values()]:
            task.cancel()

    async def _until_changed(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _steady(self, stream: WorkStream, backoff: Backoff) -> None:
        if stream in self.live:
            backoff.reset()

    # Opening

    async def _connect(self, tries: int) -> WorkStream:
        """Opens a stream home, or every other time to a server that is known. Raises ServerError."""
        known = [run for run in self._ranked() if self._due(run)]
        if tries % 2 and known:
            run = known[tries // 2 % len(known)]
            return await self._open_stream(self._servers[run], run, PEER_TIMEOUT)
        return await self._open_stream(self._home, "", PEER_TIMEOUT if known else OPEN_TIMEOUT)

    def _spread(self) -> float | None:
        """Begins to open the streams that are missing; seconds until one is to be tried again, if any."""
        have = {stream.server for stream in self.live}
        count = min(self._width, len(self._servers)) - len(have)
        waits: list[float] = []
        for run in self._ranked():
            if count <= 0:
                break
            if run in have:
                continue
            count -= 1
            if run in self._dials:
                continue
            if self._due(run):
                self._dials[run] = self._loop.create_task(self._extend(run, self._servers[run]))
            else:
                waits.append(self._again[run][0] - self._loop.time())
        return max(0.01, min(waits)) if waits else None

    def _ranked(self) -> list[str]:
        """The servers in this worker's own order, so that workers spread evenly over more than it uses."""
        return sorted(self._servers, key=lambda run: _weight(self._hello.session, run))

    async def _extend(self, run: str, address: str) -> None:
        try:
            await self._open_stream(address, run, PEER_TIMEOUT)
            log.info("also connected to %s (server run %s)", address, run)
        except ServerError as error:
            first = run not in self._again
            self._later(run)
            log.log(
                logging.INFO if first else logging.DEBUG,
                "server run %s can't be reached at %s, its work comes by the others: %s",
                run,
                address,
                error,
            )
        finally:
            del self._dials[run]
            self._changed.set()

    async def _open_stream(self, address: str, run: str, timeout: float) -> WorkStream:
        """Opens a stream and returns once it is live; only if the server is `run`, if that is given.

        Raises ServerError.
        """
        named = [] if run else self._host.held()[:MAX_LEASES]
        stream = WorkStream(self._dial(address), self.decide(), self._host, run)
        hello = WorkHello()
        hello.CopyFrom(self._hello)
        hello.stream_ordinal = stream.ordinal
        hello.leases.extend(named)
        stream.named = frozenset(named)
        # A server that may be a stranger is promised nothing before it has said who it is.
        stream.begin(hello, 0 if run else self._host.spare())
        task = self._open[stream] = self._loop.create_task(self._serve(stream))
        await asyncio.wait({task, stream.opened}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not stream.opened.done():
            await stream.cut("the server did not answer")
            await task
            raise stream.error or Unavailable("the stream ended at once")
        if stream.stranger:
            raise Unavailable(f"another server answers there, run {stream.server}")
        return stream

    async def _serve(self, stream: WorkStream) -> None:
        try:
            await stream.run()
        except ServerError as error:
            stream.error = error
            if self.live == [stream] and not self._closing:
                self._down(error)
            else:
                log.debug("work stream %d ended: %s", stream.ordinal, error)
        except Exception:
            log.exception("work stream %d broke", stream.ordinal)
        finally:
            self._ended(stream)

    def _ended(self, stream: WorkStream) -> None:
        del self._open[stream]
        if stream in self.live:
            self.live.remove(stream)
            self._later(stream.server)
        self._host.lost(stream)
        self._changed.set()

    # What streams say

    def opened(self, stream: WorkStream) -> None:
        """The server has said hello."""
        if stream.stranger:
            stream.draining = True
            stream.end()
            return
        twins = [other for other in self.live if other.server == stream.server]
        self.live.append(stream)
        self._host.joined(stream)
        for other in twins:
            self.leave(other)
        self._again.pop(stream.server, None)
        self._changed.set()

    def leave(self, stream: WorkStream, *, gone: bool = False) -> None:
        """Moves to other streams, of which one is opened if there is none."""
        stream.draining = True
        if stream in self.live:
            self.live.remove(stream)
            self._later(stream.server)
        self._host.leaving(stream, gone=gone)
        self._changed.set()

    def learn(self, servers: dict[str, str], stream: WorkStream) -> None:
        """A stream named the servers. One that it no longer names is left: its leases are at risk."""
        if stream.stranger:
            return
        missed = stream.servers.keys() - servers.keys()
        stream.servers = self._servers = servers
        for run in [run for run in self._again if run not in servers]:
            del self._again[run]
        for other in list(self._open):
            if other.server in missed and other is not stream:
                if not other.draining:
                    log.info("the servers miss run %s; leaving it", other.server)
                    self.leave(other, gone=True)
                if other.silent:
                    self._loop.create_task(other.cut("its server is gone"))
        self._changed.set()

    # When to try again

    def _due(self, run: str) -> bool:
        return run not in self._again or self._again[run][0] <= self._loop.time()

    def _later(self, run: str) -> None:
        """Leaves a server alone for a while, longer each time."""
        pause = min(2 * self._again[run][1], AGAIN_LAST) if run in self._again else AGAIN_FIRST
        self._again[run] = self._loop.time() + random.uniform(pause / 2, pause), pause

    # Log

    def _down(self, error: ServerError) -> None:
        """Says that there is no stream: at once, then now and then."""
        if self._down_since is None:
            self._down_since = self._loop.time()
        self._report_down(logging.WARNING, "not connected to %s, trying on: %s", self._home, error)

    def _report_up(self, stream: WorkStream) -> None:
        after = ""
        if self._down_since is not None:
            after = f" after {self._loop.time() - self._down_since:.1f} s"
            self._down_since = None
        if self._welcome:
            self._report_again(
                logging.INFO, "connected again to %s (server run %s)%s", self._home, stream.server, after
            )
        else:
            log.info("connected to %s (server run %s)%s", self._home, stream.server, after)


def _weight(session: str, run: str) -> bytes:
    return blake2b(f"{session}/{run}".encode(), digest_size=8).digest()
