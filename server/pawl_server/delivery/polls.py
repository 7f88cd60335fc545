"""Calls that poll for one turn each.

Calls for the same types wait in one group, in order. To the dispatcher a group is one more taker beside the
streams, with as many credits as calls wait, so that a thousand of them cost a claim no more than one. A group
without calls stays for a while: what is known of its sources is worth keeping for a client that polls again.

A call whose time is over leaves only when no claim for it is under way, as its turn would have to go back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery import commands
from pawl_server.delivery.frames import fill_turn, lease_of, turn_size
from pawl_server.domain.errors import Reason, Refused
from pawl_server.store import records

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery
    from pawl_server.domain.lease import Lease

MAX_TURN_BYTES = (4 << 20) - (64 << 10)
"""A turn that is larger is more than gRPC clients accept by default."""
LATE_S = 1.0
"""How long a call whose time is over waits for a claim under way."""
LINGER_S = 10.0
LINGERING = 256
"""Most groups without calls that are kept."""

_Call = asyncio.Future[pb.LeasedTurn | None]


class Polls:
    """The polling calls of this server. Use it from the event loop."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._dispatcher = delivery.dispatcher
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._late: dict[_Group, None] = {}
        self._closed = False
        self._dispatcher.answered = self._answered

    @property
    def count(self) -> int:
        """Calls that wait now."""
        return sum(len(group.waiting) for group in self._groups.values())

    async def take(self, types: tuple[str, ...], wait_s: float) -> pb.LeasedTurn | None:
        """A turn of one of the types; None if there was none within the wait.

        Without any wait it is looked for once. Raises Refused(DRAINING).
        """
        if self._closed:
            raise _draining()
        loop = asyncio.get_running_loop()
        group = self._group(types)
        call: _Call = loop.create_future()
        group.join(call, look=wait_s <= 0)
        timer = loop.call_later(wait_s, self._over, group, call)
        try:
            return await call
        except asyncio.CancelledError:
            group.abandon(call)
            raise
        finally:
            timer.cancel()
            group.leave(call, loop.time())

    def close(self) -> None:
        """Ends all waiting with DRAINING."""
        self._closed = True
        for group in self._groups.values():
            for call in group.waiting:
                if not call.done():
                    call.set_exception(_draining())

    def tidy(self, now: float) -> None:
        """Forgets groups that have had no calls for some time, or that are too many."""
        idle = [group for group in self._groups.values() if not group.waiting and not group.reserved]
        idle.sort(key=lambda group: group.left_at)
        for place, group in enumerate(idle, start=LINGERING - len(idle)):
            if place < 0 or now - group.left_at > LINGER_S:
                del self._groups[group.types]
                self._dispatcher.unregister(group)
                group.closed = True

    def _group(self, types: tuple[str, ...]) -> _Group:
        types = tuple(sorted(types))
        group = self._groups.get(types)
        if group is None:
            group = self._groups[types] = _Group(self._delivery, types)
            self._dispatcher.register(group)
        return group

    def _over(self, group: _Group, call: _Call) -> None:
        """The wait of a call is over."""
        if call.done():
            return
        if self._dispatcher.quiet(group):
            call.set_result(None)
            return
        group.late[call] = None
        self._late[group] = None
        asyncio.get_running_loop().call_later(LATE_S, _give_up, call)

    def _answered(self) -> None:
        """A claim was answered: calls that only waited for that can go."""
        for group in list(self._late):
            if group.late and self._dispatcher.quiet(group):
                late, group.late = group.late, {}
                for call in late:
                    _give_up(call)
            if not group.late:
                del self._late[group]


class _Group:
    """The calls that poll for the same types."""

    conn = ""
    """Leases of polls belong to no stream."""

    def __init__(self, delivery: Delivery, types: tuple[str, ...]) -> None:
        self.types = types
        self.reserved = 0
        self.closed = False
        self.waiting: OrderedDict[_Call, None] = OrderedDict()
        self.late: dict[_Call, None] = {}
        self.left_at = 0.0
        self._delivery = delivery
        self._dispatcher = delivery.dispatcher
        self._leases = delivery.engine.leases
        self._namespace = delivery.engine.namespace

    @property
    def idle(self) -> int:
        """How many more turns can be claimed."""
        return max(0, len(self.waiting) - self.reserved)

    def join(self, call: _Call, *, look: bool) -> None:
        """A call waits from now on."""
        self.waiting[call] = None
        if look:
            self._dispatcher.look(self)
        else:
            self._dispatcher.offer(self)

    def leave(self, call: _Call, now: float) -> None:
        """A call has ended, in whatever way."""
        self.waiting.pop(call, None)
        self.late.pop(call, None)
        self.left_at = now

    def abandon(self, call: _Call) -> None:
        """Nobody waits for the call any longer; a turn that it was given goes back."""
        if call.done() and not call.cancelled() and call.exception() is None:
            turn = call.result()
            if turn is not None:
                self._give_back(self._leases.decode(turn.lease))

    def deliver(self, partition: int, view: list[Any]) -> None:
        """Hands a turn that was claimed to the call that has waited longest."""
        claimed = records.claimed_turn(view)
        lease = lease_of(partition, claimed)
        while self.waiting:
            call, _ = self.waiting.popitem(last=False)
            if call.done():
                continue
            size = turn_size(view)
            if size > MAX_TURN_BYTES:
                item = commands.undeliverable(lease, size, MAX_TURN_BYTES)
                self._leases.fail(partition, item, _ignore, None)
                self.waiting[call] = None
                self.waiting.move_to_end(call, last=False)
                self._dispatcher.offer(self)
                return
            turn = pb.LeasedTurn()
            fill_turn(turn, lease.encode(), claimed, self._namespace)
            call.set_result(turn)
            self._delivery.delivered += 1
            return
        self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        """Returns a turn that was never sent."""
        self._delivery.returned += 1
        self._leases.release(lease.partition, commands.release(lease, 1), _ignore, None)


def _give_up(call: _Call) -> None:
    if not call.done():
        call.set_result(None)


def _draining() -> Refused:
    return Refused(Reason.DRAINING, "the server is stopping")


def _ignore(*_: object) -> None:
    """Nobody waits for this answer."""
