"""The leases of one stream, as this server knows them: received, accepted, to be renewed, missing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.domain.lease import Lease
from pawl_server.engine.leases import OrphanedLease

MISSING_BEATS = 3
S = TypeVar("S")

NO_RIDE, MAY_RIDE, RIDES = 0, 1, 2
"""Whether a finish claims a turn: it decides when it leaves for the store."""
RECENT_MAX = 20_000
NO_NUMBER = -1
"""In place of the number of a command that has none."""


class LeaseState:
    """One lease. All times are the loop's seconds.

    `conn` is what the store knows the stream by, for this lease. `held` is false for a lease that a command
    named although the stream does not have it. `accepted` says that the worker has it, `renew_at` when the
    next renewal is due. `command` is the number of the command that is unanswered, NO_NUMBER for one that has
    none, which is then `told`; `action` its kind, `queue` what waits behind it. `ride` is that of the finish
    under way. `term_s` is how long the store keeps the lease after a sign of life. `aged` is for
    rereading.py. `cancelling` says that the worker was told to give the turn up.
    """

    __slots__ = (
        "accepted", "action", "aged", "cancelling", "command", "conn", "held", "key", "lease", "missed",
        "queue", "renew_at", "ride", "term_s", "told", "tv",
    )  # fmt: skip

    def __init__(
        self, key: bytes, lease: Lease, conn: str, tv: str = "", held: bool = True, term_s: float = math.inf
    ) -> None:
        self.key = key
        self.conn = conn
        self.lease = lease
        self.tv = tv
        self.held = held
        self.term_s = term_s
        self.accepted = False
        self.renew_at = math.inf
        self.missed = 0
        self.aged = False
        self.cancelling = False
        self.command = 0
        self.action = ""
        self.told: pb.Command | None = None
        self.queue: deque[pb.Command] | None = None
        self.ride = NO_RIDE

    def orphan(self) -> OrphanedLease:
        """The lease, for when its stream is gone."""
        return OrphanedLease(self.lease, self.conn, self.accepted)

    def accept(self, renew_at: float) -> None:
        """The worker has it; that is to be written by `renew_at`."""
        self.accepted = True
        self.renew_at = renew_at

    def renewed(self, now: float, remaining_s: float) -> None:
        """The store knows about the acceptance and keeps the lease for `remaining_s`.

        Below two thirds of the term a renewal has an effect; the remaining time is at least that after one.
        """
        self.accepted = True
        self.renew_at = now + max(remaining_s / 3, 0.25)


class Held(Generic[S]):
    """Lease states of a stream by the bytes that name them.

    `write_s` is how long an acceptance may be known here only: it is written with the next renewals.
    `holders` has the stream of every lease that is held on this server. Leases that are over are remembered
    for the next beats of the worker, unless it has none.
    """

    def __init__(self, write_s: float, holders: dict[bytes, S], stream: S, *, remembers: bool = True) -> None:
        self.write_s = write_s
        self.states: dict[bytes, LeaseState] = {}
        self._remembers = remembers
        self._holders = holders
        self._stream = stream
        self._unaccepted: deque[tuple[int, LeaseState]] = deque()
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()

    def write_in(self, state: LeaseState) -> float:
        """In how many seconds an acceptance is to be written: in time for a short lease, too."""
        return min(self.write_s, state.term_s / 3)

    def add(self, state: LeaseState) -> None:
        """Takes in a lease."""
        self.states[state.key] = state

    def take(self, key: bytes, lease: Lease, conn: str) -> LeaseState:
        """A lease that is held from now on, known before or not."""
        state = self.states.get(key)
        if state is None:
            state = self.states[key] = LeaseState(key, lease, conn)
        state.held, state.conn = True, conn
        self._holders[key] = self._stream
        return state

    def deliver(self, state: LeaseState, frame: int) -> None:
        """Takes in a lease whose turn leaves with frame `frame`."""
        self.states[state.key] = state
        self._holders[state.key] = self._stream
        self._unaccepted.append((frame, state))

    def accept_through(self, frame: int, now: float) -> None:
        """Everything up to `frame` was received."""
        waiting = self._unaccepted
        while waiting and waiting[0][0] <= frame:
            state = waiting.popleft()[1]
            if not state.accepted:
                state.accepted = True
                state.renew_at = now + self.write_in(state)

    def sent_through(self, frame: int) -> None:
        """Everything up to `frame` was sent; whether it is received is between the worker and the store."""
        waiting = self._unaccepted
        while waiting and waiting[0][0] <= frame:
            waiting.popleft()

    def unsent(self, taken: int) -> list[LeaseState]:
        """Leases of turns whose frame is above `taken`: nobody can have received them."""
        return [state for frame, state in self._unaccepted if frame > taken and state.held]

    def over(self, state: LeaseState) -> None:
        """The lease has ended, or is no longer this stream's."""
        if state.held:
            state.held = False
            if self._holders.get(state.key) is self._stream:
                del self._holders[state.key]
            if self._remembers:
                if len(self._recent) > RECENT_MAX:
                    self._older, self._recent = self._recent, set()
                self._recent.add(state.key)
        state.renew_at = math.inf
        self.drop_idle(state)

    def leave(self) -> None:
        """The stream has closed: no lease is held on it any longer, as far as others are concerned."""
        holders = self._holders
        for key in self.states:
            if holders.get(key) is self._stream:
                del holders[key]

    def drop_idle(self, state: LeaseState) -> None:
        """Forgets a lease that is not held and has no command under way."""
        if not state.held and not state.command and not state.queue:
            self.states.pop(state.key, None)

    def beat(self, keys: Iterable[bytes], now: float) -> tuple[list[bytes], list[LeaseState]]:
        """What a worker's beat says: names that are unknown here, and leases that it no longer holds.

        Names of leases that ended since the last two beats are neither: the beat may have crossed the news.
        """
        named = set(keys)
        unknown = []
        states, recent, older = self.states, self._recent, self._older
        for key in named:
            state = states.get(key)
            if state is None or not state.held:
                if key not in recent and key not in older:
                    unknown.append(key)
            elif not state.accepted:
                state.accept(now + self.write_in(state))
        missing = []
        for state in states.values():
            if state.key in named or not state.held or not state.accepted or state.command:
                state.missed = 0
            else:
                state.missed += 1
                if state.missed >= MISSING_BEATS:
                    missing.append(state)
        self._older, self._recent = recent, set()
        return unknown, missing

    def due(self, now: float) -> list[LeaseState]:
        """Leases whose renewal is due."""
        return [state for state in self.states.values() if state.renew_at <= now and state.held]

    def accepted(self) -> list[LeaseState]:
        """Held leases that the worker has."""
        return [state for state in self.states.values() if state.held and state.accepted]
