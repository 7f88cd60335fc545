"""Delivery: hands ready turns to workers over their streams, and takes back what they did.

    wakeups -> dispatcher -> sessions

`Delivery` holds the streams of this server: it opens and closes them, keeps their leases alive while they say
something, and asks them to leave when the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery.dispatcher import Dispatcher
from pawl_server.delivery.hello import read_claim, read_hello, read_poll, server_hello
from pawl_server.delivery.listening import ClaimSession
from pawl_server.delivery.polls import Polls
from pawl_server.delivery.rereading import Rereading
from pawl_server.delivery.sessions import Hello, WorkSession, deaf, silent
from pawl_server.delivery.wakeups import Wakeups
from pawl_server.domain.errors import Reason, Refused
from pawl_server.domain.lease import Lease
from pawl_server.engine.leases import OrphanedLease
from pawl_server.engine.refusals import ended, superseded
from pawl_server.log_lines import STREAM_DEAF, STREAM_FAILED, STREAM_SILENT
from pawl_server.store.errors import StoreError

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.settings import Settings

__all__ = [
    "LAST_FRAMES_S", "ClaimSession", "Delivery", "WorkSession", "read_claim", "read_hello", "read_poll",
]  # fmt: skip

log = logging.getLogger(__name__)

SILENT_INTERVALS = 3
HEARD_INTERVALS = 1.25
WATCH_S = 0.25
GRACE_MIN_S, GRACE_SILENT_S, GRACE_MAX_S, GRACE_STORM_S = 0.3, 3.0, 5.0, 10.0
RTT_UNKNOWN_S = 0.05
STORM_STREAMS = 20
STORM_SHARE = 0.1
STORM_FEW = 2
AGE_JITTER = 0.2
MOVE_S = 10.0
"""How long the worker of an old stream has to move before the stream ends, if it has no turns."""
LAST_FRAMES_S = 1.0
"""How long streams that the server ends have for their last results."""
GATHER_S = 0.05
"""How long a closed stream waits for others to close with it before its leases are orphaned."""


class Delivery:
    """The streams and polls of this server. Use it from the event loop.

    `sessions` has the streams by number, `holders` the stream of each lease that one of them holds.
    `delivered` counts turns that were handed out, `returned` those that came back unsent or unwanted.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher(engine.leases, engine.store.partitions)
        self.polls = Polls(self)
        self.rereading = Rereading(self)
        self.wakeups = Wakeups(engine, self.dispatcher, self.lost, self.cancel)
        self.sessions: dict[int, WorkSession] = {}
        self.holders: dict[bytes, WorkSession] = {}
        self.draining = False
        self.delivered = 0
        self.returned = 0
        self._stopping = False
        self._empty = asyncio.Event()
        self._by_name: dict[tuple[str, int], WorkSession] = {}
        self._opened = 0
        self._closings: deque[float] = deque()
        self._orphans: list[tuple[WorkSession, list[OrphanedLease]]] = []
        self._watching: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Begins to hand out turns; returns once hints are heard. Raises StoreUnavailable."""
        self.engine.on_ready = self.dispatcher.ready
        self.engine.peers.on_change = self._tell_servers
        self.engine.leases.on_lost = self.lost
        self.wakeups.start()
        self._watching = self.loop.create_task(self._watch(), name="delivery")
        await self.wakeups.listening(self.settings.start_timeout_ms / 1000)

    def leave(self) -> None:
        """Takes no more streams; workers and other servers hear that this server leaves."""
        self.draining = True
        self.engine.peers.leaving = True
        self.engine.peers.refresh()

    async def drain(self, grace_s: float) -> None:
        """Hands out no more turns and asks workers to move; returns once they have, or after the grace."""
        self.leave()
        self.polls.close()
        for session in list(self.sessions.values()):
            session.drain(self.loop.time(), int(grace_s * 1000))
        await self._emptied(grace_s)
        self._stopping = True
        for session in list(self.sessions.values()):
            session.finish()
        await self._emptied(LAST_FRAMES_S)

    def _tell_servers(self) -> None:
        for session in self.sessions.values():
            session.tell_servers(self.engine.peers.servers)

    def end_of_youth(self, now: float) -> float:
        """When a stream that opens now is old enough to be moved."""
        age_s = self.settings.stream_max_age_ms / 1000
        return now + age_s * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER) if age_s else math.inf

    async def _emptied(self, seconds: float) -> None:
        """Returns once no stream is open, or after some time."""
        if self.sessions:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()

    async def stop(self) -> None:
        """Ends all streams that are left. Their workers keep the leases: they are not the ones who left."""
        self.draining = self._stopping = True
        self.polls.close()
        for session in list(self.sessions.values()):
            session.stop(None)
            session.close()
        self._orphan_closed()
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1):
                await self.engine.store.ping()  # answered after everything that was asked for before
        await self.wakeups.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    # Streams

    def open_session(self, first: pb.WorkRequest, hello: Hello) -> WorkSession:
        """Opens a stream by its first frame and the hello in it. Raises InvalidField or Refused(DRAINING)."""
        session = WorkSession(self, hello, self._next_number())
        with self._opening(session):
            session.take_in(first)
        return session

    def open_claim(self, hello: Hello, *, max_turns: int, renews: bool) -> ClaimSession:
        """Opens a stream for a client that only listens. Raises Refused(DRAINING)."""
        session = ClaimSession(self, hello, self._next_number(), max_turns=max_turns, renews=renews)
        with self._opening(session):
            self.dispatcher.offer(session)
        return session

    def _next_number(self) -> int:
        if self.draining:
            raise Refused(Reason.DRAINING, "the server is stopping")
        self._opened += 1
        return self._opened

    @contextlib.contextmanager
    def _opening(self, session: WorkSession) -> Iterator[None]:
        """What begins a stream; one that fails at it is closed again."""
        hello = session.hello
        server_hello(session.outbox.frame().hello, self)
        session.tell_servers(self.engine.peers.servers)
        self.sessions[session.number] = session
        self._by_name[hello.session, hello.ordinal] = session
        self.dispatcher.register(session)
        try:
            session.adopt_named(hello.leases)
            yield
        except BaseException:
            session.close()
            raise

    def find(self, session: str, ordinal: int) -> WorkSession:
        """The open stream of a session. Raises Refused(WRONG_STATE)."""
        found = self._by_name.get((session, ordinal))
        if found is None:
            raise Refused(
                Reason.WRONG_STATE, f"session {session} has no stream {ordinal} here", {"state": "no_stream"}
            )
        return found

    def closed(self, session: WorkSession, leases: list[OrphanedLease]) -> None:
        """A stream has ended; `leases` is what it held."""
        self.sessions.pop(session.number, None)
        name = (session.hello.session, session.hello.ordinal)
        if self._by_name.get(name) is session:
            del self._by_name[name]
        self.dispatcher.unregister(session)
        if not self.sessions:
            self._empty.set()
        self._closings.append(self.loop.time())
        if self._stopping:  # a client that only listens may have received what this server does not know of
            leases = [orphan for orphan in leases if not (orphan.accepted or session.listens)]
        if leases:
            if not self._orphans:
                self.loop.call_later(GATHER_S, self._orphan_closed)
            self._orphans.append((session, leases))

    def _orphan_closed(self) -> None:
        """The leases of streams that closed a moment ago: by now it shows whether many did."""
        orphans, self._orphans = self._orphans, []
        for session, leases in orphans:
            self.orphan(leases, session)

    def orphan(self, leases: Sequence[OrphanedLease], session: WorkSession) -> None:
        """Shortens leases that the stream had to the grace of the moment."""
        grace_s = GRACE_STORM_S if self._storm() else self.grace_s(session)
        self.engine.leases.orphan(leases, int(grace_s * 1000))

    @staticmethod
    def grace_s(session: WorkSession) -> float:
        """How long a worker has to come back: time to open a stream, by the round trip of the last one.

        A client that only listens gives no round trip to measure; it gets the longest time. A worker that
        fell silent may have a blocked event loop and a thread that renews its leases every second or so.
        """
        if session.listens:
            return GRACE_MAX_S
        rtt_s = RTT_UNKNOWN_S if session.rtt_s is None else session.rtt_s
        least_s = GRACE_SILENT_S if session.silent else GRACE_MIN_S
        return min(max(20 * rtt_s + 0.2, least_s), GRACE_MAX_S)

    def _storm(self) -> bool:
        """Whether so many streams closed within a second that it is the network, not the workers."""
        now = self.loop.time()
        while self._closings and now - self._closings[0] > 1.0:
            self._closings.popleft()
        count = len(self._closings)
        return count > STORM_STREAMS or (
            count > STORM_FEW and count > STORM_SHARE * (len(self.sessions) + count)
        )

    # Leases

    def lost(self, conn: str, lease: Lease, how: str) -> None:
        """A lease was ended, or taken by another stream; its stream hears of it.

        `conn` is what the store knew the stream by: news that it was taken may come after it is back.
        """
        session = self._stream_of(conn)
        if session is None:
            return
        key = lease.encode()
        if how != "superseded":
            session.lost(key, ended(how))
        elif key in session.held.states and session.held.states[key].conn == conn:
            session.lost(key, superseded())

    def cancel(self, conn: str, lease: Lease, grace_ms: int) -> None:
        """The turn of a lease is to be cancelled; its stream hears of it."""
        session = self._stream_of(conn)
        if session is not None:
            session.cancel(lease.encode(), grace_ms)

    def _stream_of(self, conn: str) -> WorkSession | None:
        """The open stream of this server that the store knows by that name."""
        run, _, rest = conn.partition(".")
        number = rest.rpartition(".")[2]
        if run == self.engine.server_run and number.isdigit():
            return self.sessions.get(int(number))
        return None

    def ended(self, key: bytes, how: str) -> None:
        """A command of somebody else has ended a lease; the stream that holds it here hears of it."""
        session = self.holders.get(key)
        if session is not None:
            session.lost(key, ended(how))

    def renew_all(self) -> None:
        """Renews every accepted lease of every open stream at once: others believe this server dead."""
        for session in self.sessions.values():
            session.renew(session.held.accepted())

    async def _watch(self) -> None:
        """Beats, silence and renewals of all streams, for ever."""
        interval = self.settings.beat_interval_ms / 1000
        pause = min(WATCH_S, interval / 4, self.settings.delivery_timeout_ms / 8_000)
        responsive_since = expected = self.loop.time()
        while True:
            await asyncio.sleep(pause)
            now = self.loop.time()
            if now - expected > pause + interval / 2:
                responsive_since = now  # it was this loop that was silent
            expected = now
            self.polls.tidy(now)
            self.rereading.go_on(now)
            for session in list(self.sessions.values()):
                try:
                    self._look_after(session, now, interval, now - responsive_since)
                except Exception as error:
                    STREAM_FAILED(log, error, conn=session.conn)

    def _look_after(self, session: WorkSession, now: float, interval: float, responsive_s: float) -> None:
        if session.choked or session.listens:
            if session.blocked and now - session.write_began > SILENT_INTERVALS * interval:
                STREAM_DEAF(log, conn=session.conn)
                session.stop(deaf(SILENT_INTERVALS))
                return
            session.heard_at = now  # it is this server that does not listen, or nothing is expected
        if now - session.heard_at > SILENT_INTERVALS * interval and responsive_s > interval:
            session.silent = True
            STREAM_SILENT(log, conn=session.conn, seconds=now - session.heard_at)
            session.stop(silent(SILENT_INTERVALS))
            return
        if now - session.sent_at >= interval and session.outbox.empty:
            session.beat()
        if now >= session.old_at:
            session.drain(now + MOVE_S)
        if now >= session.leave_at and not session.busy:
            session.finish()
        # A worker that skips its beats is not kept alive: short leases end before the stream does.
        heard = now - session.heard_at <= HEARD_INTERVALS * interval or responsive_s <= interval
        if heard and session.renews:
            due = session.held.due(now)
            if due:
                session.renew(due)
