"""The commands of one stream: those of a lease one after the other, each answered exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery import commands
from pawl_server.delivery.actions import ACTIONS, UNNUMBERED, command_n, fill_finish, unknown
from pawl_server.delivery.frames import fill_refusal
from pawl_server.delivery.held import MAY_RIDE, NO_NUMBER, NO_RIDE, RIDES, LeaseState
from pawl_server.domain.errors import Reason, Refused
from pawl_server.engine.refusals import OVER, refused
from pawl_server.store.scripts_gen import FinishOk

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery
    from pawl_server.delivery.sessions import WorkSession

RIDES_IN_A_ROW = 8
"""How many finishes in a row claim in their own partition before it is asked whether others fall behind."""


class Commanding:
    """Applies commands.

    `pending` counts those not answered yet, `stacked` those of them that wait behind another one of their
    lease, `leaving` finishes that are not sent yet.
    """

    def __init__(self, session: WorkSession, delivery: Delivery) -> None:
        self.pending = 0
        self.stacked = 0
        self.leaving = 0
        self._session = session
        self._outbox = session.outbox
        self._held = session.held
        self._leases = delivery.engine.leases
        self._dispatcher = delivery.dispatcher
        self._orphan = delivery.orphan
        self._ended = delivery.ended
        self._rides = 0
        # Bound once: these are handed out with every command.
        self._on_finish = self._finished
        self._on_other = self._applied
        self._on_leave = self._ride

    def take_in(self, frame: Iterable[pb.Command]) -> None:
        """The commands of a frame, in order."""
        states = self._held.states
        for command in frame:
            self.pending += 1
            state = states.get(command.lease)
            if state is None:
                state = self._stranger(command)
                if state is None:
                    continue
            if state.command or state.queue:
                if state.queue is None:
                    state.queue = deque()
                state.queue.append(command)
                self.stacked += 1
            else:
                self._start(state, command)

    def _stranger(self, command: pb.Command) -> LeaseState | None:
        """A lease that the stream does not hold: a repeat from another stream, or one that has ended."""
        try:
            lease = self._leases.decode(command.lease)
        except Refused as why:
            self._refuse(command.lease, command.n, why, command)
            return None
        state = LeaseState(command.lease, lease, self._session.conn, held=False)
        self._held.add(state)
        return state

    def _start(self, state: LeaseState, first: pb.Command) -> None:
        """Applies the next command of a lease; where it can't be sent at all, the one behind it."""
        command: pb.Command | None = first
        while command is not None:
            try:
                self._send(state, command)
            except Refused as why:
                self._refuse(state.key, command.n, why, command)
                if command.WhichOneof("action") not in UNNUMBERED:
                    self._refuse_queue(state, command.n - 1)
                command = self._behind(state)
                continue
            if not state.accepted and state.held:
                state.accept(self._session.heard_at + self._held.write_in(state))
            return
        self._settle(state)

    def _behind(self, state: LeaseState) -> pb.Command | None:
        """Takes what waits behind a command that is answered."""
        if not state.queue:
            return None
        self.stacked -= 1
        return state.queue.popleft()

    def _send(self, state: LeaseState, command: pb.Command) -> None:
        """Queues a command for the end of the tick; raises Refused if it can't be applied."""
        lease = state.lease
        action = command.WhichOneof("action")
        if action == "finish":
            n = commands.check_n(command.n)
            item = commands.finish(lease, n, command.finish, self._session.conn)
            size = commands.finish_bytes(item)
            self._leases.finish(lease.partition, item, self._on_finish, state, self._on_leave, size)
            state.ride = MAY_RIDE
            self.leaving += 1
        else:
            n = command_n(action, command.n)
            kind = ACTIONS.get(action or "")
            if kind is None or action is None:
                raise unknown()
            item = kind.build(lease, n, getattr(command, action))
            kind.send(self._leases, lease.partition, item, self._on_other, state)
            state.action = action
            if not n:
                n, state.told = NO_NUMBER, command
        state.command = n

    def _ride(self, state: LeaseState) -> str:
        """The type:version to claim with a finish that leaves now."""
        session = self._session
        self.leaving -= 1
        state.ride = NO_RIDE
        if session.room <= 0:
            return ""
        tv = state.tv or session.hello.types[0]
        if self._rides >= RIDES_IN_A_ROW:
            self._rides = 0
            if self._dispatcher.behind(session, state.lease.partition, tv):
                self._dispatcher.offer(session)
                return ""
        self._rides += 1
        session.reserved += 1
        state.ride = RIDES
        return tv

    # Answers

    def _finished(self, state: LeaseState, reply: Any, _: int) -> None:
        session = self._session
        ride, state.ride = state.ride, NO_RIDE
        if ride == RIDES:
            session.reserved -= 1
        elif ride == MAY_RIDE:
            self.leaving -= 1
        if reply.__class__ is not FinishOk:
            self._other(state, reply)
        else:
            n = state.command
            if not session.closed:
                result = self._outbox.result()
                result.lease = state.key
                result.n = n
                fill_finish(result.finish, reply)
            if not state.held:
                self._ended(state.key, "completed")
            self._answered(state, over=True)
            if reply.turns:
                self._dispatcher.served(state.lease.partition, state.tv, len(reply.turns))
                for view in reply.turns:
                    session.deliver(state.lease.partition, view)
                return
        if ride:
            if reply.__class__ is FinishOk:
                self._dispatcher.registered(state.lease.partition, state.tv)
            self._dispatcher.offer(session)

    def _applied(self, state: LeaseState, reply: Any, _: int) -> None:
        """The answer to any command but a finish."""
        if isinstance(reply, Exception) or reply.word != "OK":
            self._other(state, reply)
            return
        kind = ACTIONS[state.action]
        how = kind.how and kind.ends(reply)
        if not self._session.closed:
            result = self._outbox.result(kind.bytes_of(reply))
            result.lease = state.key
            if state.told is None:
                result.n = state.command
            else:
                _name(result, state.told)
            if kind.fill is not None:
                kind.fill(getattr(result, state.action), reply)
        if how and not state.held:
            self._ended(state.key, how)
        self._answered(state, over=bool(how))

    def _other(self, state: LeaseState, reply: Any) -> None:
        """Any answer but OK."""
        if not isinstance(reply, Exception) and reply.word == "ALREADY":
            if not self._session.closed:
                result = self._outbox.result()
                result.lease = state.key
                result.n = state.command
                result.already = True
            self._answered(state, over=False)
            return
        why = refused(state.lease, reply)
        self.pending += 1  # _answered counts it, and so does _refuse
        if state.told is not None:
            self._refuse(state.key, 0, why, state.told)
        else:
            self._refuse(state.key, state.command, why)
            last = int(why.metadata["last"]) if why.reason == Reason.GAP else state.command - 1
            self._refuse_queue(state, last)
        self._answered(state, over=why.reason in OVER)

    def _answered(self, state: LeaseState, *, over: bool) -> None:
        """A command has its answer: the next one of the lease follows."""
        self.pending -= 1
        state.command, state.told = 0, None
        if over:
            self._held.over(state)
        command = self._behind(state)
        if command is not None:
            self._start(state, command)
        else:
            self._settle(state)
        self._session.wake()

    def _settle(self, state: LeaseState) -> None:
        """The last command of a lease, so far, has its answer."""
        if not state.held:
            self._held.drop_idle(state)
        elif self._session.closed:
            self._held.over(state)
            self._orphan([state.orphan()], self._session)

    def _refuse(self, key: bytes, n: int, why: Refused, command: pb.Command | None = None) -> None:
        """Answers with a refusal; `command` is needed where that alone tells which one is meant."""
        self.pending -= 1
        if not self._session.closed:
            result = self._outbox.result()
            result.lease = key
            result.n = n
            if command is not None:
                _name(result, command)
            fill_refusal(result.refusal, why)
            self._session.wake()

    def _refuse_queue(self, state: LeaseState, last: int) -> None:
        """Numbered commands behind one that was not applied are refused; the others keep their place."""
        if not state.queue:
            return
        queue, state.queue = state.queue, deque()
        for command in queue:
            if command.WhichOneof("action") in UNNUMBERED:
                state.queue.append(command)
                continue
            self.stacked -= 1
            gap = Refused(Reason.GAP, f"command {last + 1} was not applied", {"last": str(max(last, 0))})
            self._refuse(state.key, command.n, gap)


def _name(result: pb.CommandResult, command: pb.Command) -> None:
    """Says which command is answered, if that has no number."""
    action = command.WhichOneof("action")
    kind = ACTIONS.get(action or "")
    if action is not None and kind is not None and kind.name is not None:
        kind.name(getattr(result, action), getattr(command, action))
