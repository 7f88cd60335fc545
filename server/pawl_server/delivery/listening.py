"""A work stream for a client that only listens: the server does the worker's part of it.

It counts the credits (`max_turns` less the turns that the client holds here), and with `renew_while_open` it
receives turns and keeps their leases. The client ends its turns by calls of their own, on any server: what
they have ended frees a place without a word, what ended otherwise is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pawl_server.delivery.actions import ENDINGS
from pawl_server.delivery.frames import Outbox, unnumbered
from pawl_server.delivery.sessions import Hello, WorkSession
from pawl_server.domain.errors import Reason, Refused
from pawl_server.domain.lease import Lease

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery


class ClaimSession(WorkSession):
    """The state of one Claim stream."""

    listens: ClassVar = True

    def __init__(
        self, delivery: Delivery, hello: Hello, number: int, *, max_turns: int, renews: bool
    ) -> None:
        super().__init__(delivery, hello, number, Outbox(unnumbered))
        self.max_turns = max_turns
        self.renews = renews

    @property
    def granted(self) -> int:
        """How many more turns the client may hold."""
        return self.max_turns - len(self.held.states) - len(self._adopting)

    def written(self) -> None:
        """The frame taken last was accepted by the transport, which is as much as can be known of it."""
        if self.renews:
            self.held.accept_through(self.outbox.taken, self._loop.time())
        else:
            self.held.sent_through(self.outbox.taken)
        super().written()

    def adopted(self, key: bytes, lease: Lease, conn: str, reply: Any) -> None:
        """What the store answered to an adoption; one that failed took a place until now."""
        super().adopted(key, lease, conn, reply)
        self._delivery.dispatcher.offer(self)

    def lost(self, key: bytes, why: Refused) -> None:
        """A lease has ended, or is elsewhere: its place is free."""
        state = self.held.states.get(key)
        if state is None or not state.held or self.closed:
            return
        self.held.over(state)
        if why.reason != Reason.LEASE_ENDED or why.metadata["how"] not in ENDINGS:
            self.outbox.event(key, why)
        self.wake()
        self._delivery.dispatcher.offer(self)
