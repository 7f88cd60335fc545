"""One work stream: what the worker has been given, what it says, and what is to be told to it.

Plain calls in one event loop, no task and no await: rpc/ feeds frames in and takes frames out. Answers of the
store arrive as callbacks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery import commands
from pawl_server.delivery.commanding import Commanding
from pawl_server.delivery.frames import (
    Frame,
    Outbox,
    fill_ms,
    fill_servers,
    fill_turn,
    lease_of,
    turn_size,
)
from pawl_server.delivery.held import Held, LeaseState
from pawl_server.domain.errors import InvalidField, Reason, Refused
from pawl_server.domain.ids import check_ordinal
from pawl_server.domain.lease import Lease
from pawl_server.domain.limits import CREDITS, FRAME_ITEMS
from pawl_server.engine.leases import OrphanedLease
from pawl_server.engine.peers import Peer
from pawl_server.engine.refusals import refused, superseded
from pawl_server.log_lines import STREAM_FORGOT
from pawl_server.store import records, scripts_gen
from pawl_server.store.errors import StoreDamaged

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery

log = logging.getLogger(__name__)

OUT_BYTES = 1 << 20
OUT_TURNS = 256
"""More bytes or turns than that waiting to be sent, and the stream is given no turns."""
BLOCKED_S = 0.25
"""A stream whose write takes longer is given no turns meanwhile."""
PENDING_MAX, STACKED_MAX, ADOPTING_MAX = 1_024, 256, 1_024
"""More unanswered commands, commands behind others of their lease, or adoptions, and no frame is taken in."""
BEAT_LEASES_MAX = 20_000
ADOPT_AGAIN_S = 0.5
ACCEPT_WITHIN_S = 1.0
"""How long an acceptance may be known to this server only, and never long against the delivery timeout."""


class Hello(NamedTuple):
    """A checked WorkHello."""

    session: str
    ordinal: int
    types: tuple[str, ...]
    """type:version of what the worker runs."""
    leases: tuple[bytes, ...]
    max_frame_bytes: int


class _Adoption(NamedTuple):
    """A lease that the stream has asked the store for, by a decision that is part of `conn`."""

    key: bytes
    lease: Lease
    conn: str


class WorkSession:
    """The state of one stream.

    `conn` names it in the store, for leases that it got by its own ordinal. From `old_at` on the worker is to
    move, from `leave_at` on the stream ends as soon as it has no turns. `end` is set when the server wants it
    to end: to a refusal, or to None for an end in good order. `listens` is true where the worker can't say
    anything (listening.py), `renews` where the server keeps the leases.
    """

    listens: ClassVar = False

    def __init__(self, delivery: Delivery, hello: Hello, number: int, outbox: Outbox | None = None) -> None:
        self.hello = hello
        self.types = hello.types
        self.renews = True
        self.conn = f"{delivery.engine.server_run}.{hello.ordinal}.{number}"
        self.number = number
        self.outbox = outbox or Outbox()
        write_s = min(ACCEPT_WITHIN_S, delivery.settings.delivery_timeout_ms / 4_000)
        self.held = Held[WorkSession](write_s, delivery.holders, self, remembers=not self.listens)
        self.heard_at = self.sent_at = delivery.loop.time()
        self.rtt_s: float | None = None
        self.draining = False
        self.old_at = delivery.end_of_youth(self.heard_at)
        self.leave_at = math.inf
        self.ending = False
        self.closed = False
        self.silent = False
        self.end: asyncio.Future[Refused | None] = delivery.loop.create_future()
        # Credits: what the worker granted, what was delivered, what claims under way may still deliver.
        self.credits_total = 0
        self.delivered = 0
        self.reserved = 0
        self.starved = False
        self.write_began = 0.0
        self._delivery = delivery
        self._loop = delivery.loop
        self._leases = delivery.engine.leases
        self._namespace = delivery.engine.namespace
        self._received = 0
        self._beat_seen = 0
        self._probe: tuple[int, float] | None = None
        self._adopting: dict[bytes, _Adoption] = {}
        self._beat_leases: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._reader: asyncio.Future[None] | None = None
        self.commands = Commanding(self, delivery)

    # Credits

    @property
    def granted(self) -> int:
        """How many more turns the worker is ready for."""
        return self.credits_total - self.delivered

    @property
    def room(self) -> int:
        """How many more turns may be claimed for the stream now."""
        room = self.granted - self.reserved
        if room <= 0 or self.closed or self.ending or self.draining:
            return 0
        outbox = self.outbox
        if outbox.bytes > OUT_BYTES or outbox.turns > OUT_TURNS or self.blocked:
            self.starved = True
            return 0
        return room

    @property
    def idle(self) -> int:
        """How many of them no finish that is about to leave has a use for."""
        room = self.room
        return max(0, room - self.commands.leaving) if room else 0

    @property
    def busy(self) -> bool:
        """Whether the worker holds a turn here, or waits for an answer."""
        return (
            self.commands.pending > 0
            or bool(self._adopting)
            or any(s.held for s in self.held.states.values())
        )

    @property
    def at_rest(self) -> bool:
        """Whether all that was sent has arrived, as far as is known, and all that came was answered."""
        received = not self.renews or all(s.accepted for s in self.held.states.values() if s.held)
        return received and self.outbox.empty and not self.commands.pending and not self._adopting

    @property
    def blocked(self) -> bool:
        """Whether the worker does not read what is sent."""
        return self.write_began > 0 and self._loop.time() - self.write_began > BLOCKED_S

    @property
    def choked(self) -> bool:
        """Whether answers have to leave or arrive first: until then frames wait in the transport."""
        commands = self.commands
        return (
            commands.pending >= PENDING_MAX
            or commands.stacked >= STACKED_MAX
            or self.outbox.bytes > 2 * OUT_BYTES
            or len(self._adopting) >= ADOPTING_MAX
        )

    async def relieved(self) -> None:
        """Returns once the next frame can be taken in."""
        while self.choked:
            self._reader = self._loop.create_future()
            await self._reader
        self._reader = None

    def _relieve(self) -> None:
        if self._reader is not None and not self._reader.done() and not self.choked:
            self._reader.set_result(None)

    def _credit(self, total: int) -> None:
        if total < self.credits_total:
            raise InvalidField(
                "credits_total",
                f"fell from {self.credits_total} to {total}: every frame carries the running total",
            )
        if total - self.delivered > CREDITS:
            raise InvalidField(
                "credits_total", f"leaves {total - self.delivered} outstanding, at most {CREDITS}"
            )
        self.credits_total = total
        self._delivery.dispatcher.offer(self)

    # Frames from the worker

    def receive(self, frame: pb.WorkRequest) -> None:
        """One frame after the first. Raises InvalidField, which ends the stream."""
        if frame.HasField("hello"):
            raise InvalidField("hello", "belongs in the first frame only")
        self.take_in(frame)

    def take_in(self, frame: pb.WorkRequest) -> None:
        """Everything of a frame but its hello: adoptions, then the others in the order of the fields."""
        now = self.heard_at = self._loop.time()
        if frame.adoptions:
            self._take_over(frame.adoptions)
        received = frame.received_through
        if received > self._received:
            self._accept_through(received, now)
        elif received < 0:
            raise InvalidField("received_through", f"is {received}, below 0")
        if frame.commands:
            if len(frame.commands) > FRAME_ITEMS:
                raise InvalidField("commands", f"has {len(frame.commands)} entries, at most {FRAME_ITEMS}")
            self.commands.take_in(frame.commands)
        if frame.credits_total != self.credits_total:
            self._credit(frame.credits_total)
        if frame.HasField("beat"):
            self._beat(frame.beat, now)
        if frame.end:
            self.finish()

    def _accept_through(self, frame: int, now: float) -> None:
        if frame > self.outbox.taken:
            raise InvalidField("received_through", f"is {frame}, but only {self.outbox.taken} were sent")
        self._received = frame
        self.held.accept_through(frame, now)
        if self._probe is not None and frame >= self._probe[0]:
            sample, self._probe = now - self._probe[1], None
            if (
                sample < self._delivery.settings.beat_interval_ms / 1000
            ):  # else it may be an idle worker's beat
                self.rtt_s = sample if self.rtt_s is None else min(sample, self.rtt_s)

    def _beat(self, beat: pb.Beat, now: float) -> None:
        leases: Sequence[bytes] = beat.leases
        if beat.partial or self._beat_leases:
            self._beat_leases.extend(leases)
            if len(self._beat_leases) > BEAT_LEASES_MAX:
                raise InvalidField("beat.leases", f"has more than {BEAT_LEASES_MAX} entries in all")
            if beat.partial:
                return
            leases, self._beat_leases = self._beat_leases, []
        self._beat_seen = beat.number
        unknown, missing = self.held.beat(leases, now)
        if missing:
            STREAM_FORGOT(log, conn=self.conn, leases=len(missing))
            for state in missing:
                self.held.over(state)
            self._delivery.orphan([state.orphan() for state in missing], self)
        if unknown:
            self.adopt_named(unknown)
        self.beat()

    def beat(self) -> None:
        """Says that the server is alive, with the next frame."""
        self.outbox.frame().beat.number = self._beat_seen
        self.wake()

    # Turns

    def deliver(self, partition: int, view: list[Any]) -> None:
        """Sends a turn that was claimed for this stream; see claim_view in lib/claim.lua."""
        claimed = records.claimed_turn(view)
        lease = lease_of(partition, claimed)
        key = lease.encode()
        known = self.held.states.get(key)
        if known is not None and known.held:
            return  # repeated by a repeated finish, and on its way already
        if self.closed or self.ending or self.granted <= 0:
            self._give_back(lease)
            return
        size = turn_size(view)
        if size > self.hello.max_frame_bytes and not self._fits(claimed, key):
            item = commands.undeliverable(lease, size, self.hello.max_frame_bytes)
            self._leases.fail(partition, item, _ignore, None)
            self._delivery.dispatcher.offer(self)
            return
        turn, frame = self.outbox.turn(size)
        fill_turn(turn, key, claimed, self._namespace)
        state = LeaseState(key, lease, self.conn, claimed.tv, term_s=claimed.lease_ms / 1000)
        self.held.deliver(state, frame)
        self.delivered += 1
        self._delivery.delivered += 1
        self.wake()

    def _fits(self, claimed: records.ClaimedTurn, key: bytes) -> bool:
        """Whether a turn near the limit is below it after all."""
        frame = pb.WorkResponse(frame=1 << 40)
        fill_turn(frame.turns.add(), key, claimed, self._namespace)
        return frame.ByteSize() <= self.hello.max_frame_bytes

    def _give_back(self, lease: Lease) -> None:
        """Returns a turn that was never sent: costs neither an attempt nor a delivery."""
        self._delivery.returned += 1
        self._leases.release(lease.partition, commands.release(lease, 1), _ignore, None)

    # Leases

    def _take_over(self, adoptions: Sequence[pb.Adoption]) -> None:
        count = sum(len(adoption.leases) for adoption in adoptions)
        if count > FRAME_ITEMS:
            raise InvalidField("adoptions", f"name {count} leases, at most {FRAME_ITEMS}")
        for adoption in adoptions:
            self.adopt_named(adoption.leases, check_ordinal("adoptions.ordinal", adoption.ordinal))

    def adopt_named(self, keys: Iterable[bytes], ordinal: int = 0) -> None:
        """Moves leases that a worker names to this stream, by the ordinal given or by the stream's own.

        Each is answered by a lease event; a name that this service never gave is over at once.
        """
        conn = f"{self._delivery.engine.server_run}.{ordinal}.{self.number}" if ordinal else self.conn
        for key in keys:
            if key in self._adopting and not ordinal:
                continue
            try:
                lease = self._leases.decode(key)
            except InvalidField as why:
                self.outbox.event(key, why)
                self.wake()
            else:
                self._adopting[key] = adoption = _Adoption(key, lease, conn)
                self._leases.adopt(lease, conn, self._adopted, adoption)

    def _adopted(self, adoption: _Adoption, reply: Any, _: int) -> None:
        key, lease, conn = adoption
        if self._adopting.get(key) is not adoption:
            return  # a later decision has taken its place
        if isinstance(reply, Exception) and not isinstance(reply, StoreDamaged):
            self._loop.call_later(ADOPT_AGAIN_S, self._adopt_again, adoption)
            return
        del self._adopting[key]
        self._relieve()
        self.adopted(key, lease, conn, reply)

    def _adopt_again(self, adoption: _Adoption) -> None:
        if self._adopting.get(adoption.key) is not adoption:
            return
        if self.closed or self.ending:
            del self._adopting[adoption.key]
            self.wake()
        else:
            self._leases.adopt(adoption.lease, adoption.conn, self._adopted, adoption)

    def adopted(self, key: bytes, lease: Lease, conn: str, reply: Any) -> None:
        """What the store answered to an adoption by this stream."""
        if isinstance(reply, scripts_gen.AdoptOk):
            if self.closed:
                self._delivery.orphan([OrphanedLease(lease, conn, True)], self)
                return
            before = self._delivery.holders.get(key)
            state = self.held.take(key, lease, conn)
            state.renewed(self._loop.time(), reply.remaining_ms / 1000)
            state.cancelling = reply.cancel_ms > 0
            if before is not None and before is not self:
                before.lost(key, superseded())
            self.outbox.event(key, None, reply.cancel_ms)
        else:
            self.outbox.event(key, refused(lease, reply))
        self.wake()

    def lost(self, key: bytes, why: Refused) -> None:
        """A lease ended without a command of this stream."""
        state = self.held.states.get(key)
        if state is not None and state.held and not self.closed:
            self.held.over(state)
            self.outbox.event(key, why)
            self.wake()

    def cancel(self, key: bytes, grace_ms: int) -> None:
        """A turn is to be cancelled; its worker hears of it once."""
        state = self.held.states.get(key)
        if state is not None and state.held and not state.cancelling and not self.closed:
            state.cancelling = True
            self.outbox.event(key, None, grace_ms)
            self.wake()

    def renew(self, states: Sequence[LeaseState]) -> None:
        """Renews leases; what is found to be over is announced."""
        for state in states:
            state.renew_at = float("inf")
            self._leases.renew(state.lease, self._renewed, state)

    def _renewed(self, state: LeaseState, reply: Any, _: int) -> None:
        if not state.held:
            return
        now = self._loop.time()
        if isinstance(reply, scripts_gen.RenewOk):
            state.renewed(now, reply.remaining_ms / 1000)
            if reply.cancel_ms:
                self.cancel(state.key, reply.cancel_ms)
        elif isinstance(reply, Exception):
            state.renew_at = now + 0.5
        elif not state.command:
            self.lost(state.key, refused(state.lease, reply))

    # The writer's side

    def wake(self) -> None:
        """Something waits to be sent, or the stream may be finished."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._reader is not None:
            self._relieve()

    async def next_frame(self) -> Frame | None:
        """The next frame to send; None once the stream is finished."""
        while True:
            frame = self.outbox.take()
            if frame is not None:
                now = self._loop.time()
                self.sent_at = self.write_began = now
                if self._probe is None:
                    self._probe = (self.outbox.taken, now)
                return frame
            if self.ending and self.commands.pending == 0 and not self._adopting:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter

    def written(self) -> None:
        """The frame taken last was accepted by the transport."""
        self.write_began = 0.0
        if self._reader is not None:
            self._relieve()
        if self.starved:
            self.starved = False
            self._delivery.dispatcher.offer(self)

    # The end

    def finish(self) -> None:
        """No more turns; the stream ends once its commands are answered."""
        self.ending = True
        self.wake()

    def tell_servers(self, servers: Sequence[Peer]) -> None:
        """Says which servers there are."""
        fleet = self.outbox.frame().fleet
        fleet.Clear()
        fleet.SetInParent()
        fill_servers(fleet, servers)
        self.wake()

    def drain(self, leave_at: float, grace_ms: int | None = None) -> None:
        """Asks the worker to move, and hands out no more turns here.

        The stream ends at `leave_at` if it has no turns then, or when it has none left; `grace_ms` is what
        the worker is told about when it ends in any case.
        """
        self.old_at, self.leave_at = math.inf, min(self.leave_at, leave_at)
        self.draining = True
        drain = self.outbox.frame().drain
        drain.SetInParent()
        if grace_ms is not None:
            fill_ms(drain.grace, grace_ms)
        self.wake()

    def stop(self, why: Refused | None) -> None:
        """Has the stream ended by the server."""
        if not self.end.done():
            self.end.set_result(why)

    def close(self) -> None:
        """The stream has ended. What it still holds is orphaned, after its last command."""
        if self.closed:
            return
        self.closed = True
        self.stop(None)
        unsent = self.held.unsent(self.outbox.taken)
        for state in unsent:
            self.held.over(state)
            self._give_back(state.lease)
        left = [state for state in self.held.states.values() if state.held and not state.command]
        self.held.leave()
        self._delivery.closed(self, [state.orphan() for state in left])


def deaf(intervals: int) -> Refused:
    """Why a stream that reads nothing is ended."""
    return Refused(Reason.OVERLOADED, f"nothing was read for {intervals} beat intervals while answers waited")


def silent(intervals: int) -> Refused:
    """Why a stream that says nothing is ended."""
    return Refused(Reason.DEADLINE, f"no frame for {intervals} beat intervals")


def _ignore(*_: object) -> None:
    """Nobody waits for this answer."""
