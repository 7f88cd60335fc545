"""A second look at leases that streams hold, in case the news of an end or a cancellation was lost.

Streams hear at once when somebody ends a lease of theirs, or cancels its turn, elsewhere through a hint that
may get lost. So each lease that is held for more than a second is read again each second: rarely on a stream
whose turns are short, and never more than a thousand a second in all, so that many of them only come round
more slowly.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pawl_server.delivery.held import LeaseState
from pawl_server.engine.refusals import refused, superseded
from pawl_server.store.script_call import Result
from pawl_server.store.scripts_gen import GetLeasesOk, GetLeasesReply

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery
    from pawl_server.delivery.sessions import WorkSession

ROUND_S = 1.0
PER_SECOND = 1_000
BATCH = 256

_Held = tuple["WorkSession", LeaseState]


class Rereading:
    """Rounds through the leases of all streams. `reread` counts leases that were read, `found` ends."""

    def __init__(self, delivery: Delivery) -> None:
        self.reread = 0
        self.found = 0
        self._delivery = delivery
        self._leases = delivery.engine.leases
        self._round: list[_Held] = []
        self._began = self._last = delivery.loop.time()
        self._flying = 0

    def go_on(self, now: float) -> None:
        """Reads as many leases as the time since the last call allows."""
        enough = min(BATCH, int((now - self._last) * PER_SECOND))
        self._last = now
        if not self._round and now - self._began >= ROUND_S:
            self._began = now
            self._round = self._of_age()
        if self._flying:
            return  # the store is slow: what is due waits
        batch, self._round = self._round[:enough], self._round[enough:]
        self._read([(session, state) for session, state in batch if state.held and not session.closed])

    def _of_age(self) -> list[_Held]:
        """What was there a round ago."""
        found = []
        for session in self._delivery.sessions.values():
            for state in session.held.states.values():
                if state.aged and state.held:
                    found.append((session, state))
                state.aged = True
        return found

    def _read(self, batch: list[_Held]) -> None:
        by_partition: dict[int, list[_Held]] = {}
        for held in batch:
            by_partition.setdefault(held[1].lease.partition, []).append(held)
        for partition, some in by_partition.items():
            self._flying += 1
            self.reread += len(some)
            leases = [state.lease for _, state in some]
            self._leases.look(partition, leases, partial(self._answered, some))

    def _answered(self, batch: list[_Held], result: Result[GetLeasesReply] | Exception) -> None:
        self._flying -= 1
        if isinstance(result, Exception):
            return
        for (session, state), reply in zip(batch, result.replies, strict=True):
            if session.closed or not state.held or state.command or isinstance(reply, Exception):
                continue
            if not isinstance(reply, GetLeasesOk):
                why = refused(state.lease, reply)
            elif reply.conn and not _is(session, reply.conn):
                why = superseded()
            else:
                if not session.renews:
                    state.accepted = bool(reply.accepted)
                if reply.cancel_ms:
                    session.cancel(state.key, reply.cancel_ms)
                continue
            self.found += 1
            session.lost(state.key, why)


def _is(session: WorkSession, conn: str) -> bool:
    """Whether the store means this stream, by whichever ordinal."""
    run, _, rest = conn.partition(".")
    return session.conn.startswith(f"{run}.") and rest.rpartition(".")[2] == str(session.number)
