"""Whether the streams have come to rest: what the clock of virtual time waits for before it moves.

Turns that were polled for are not seen here: their leases run out unless their workers renew them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pawl_server.delivery.held import LeaseState

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery
    from pawl_server.delivery.sessions import WorkSession

LOOK_S = 0.001
RENEW_S = 2.0
"""How long renewals are waited for; the store is on this machine, or tests are not run."""


class Floor:
    """The streams of a server, seen by its clock."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def running(self) -> set[bytes]:
        """Names of the leases that workers hold here."""
        return set(self._delivery.holders)

    @property
    def at_rest(self) -> bool:
        """Whether no turn is on its way to a worker, and no answer on its way back."""
        delivery = self._delivery
        return delivery.dispatcher.at_rest and all(each.at_rest for each in delivery.sessions.values())

    async def renew(self) -> None:
        """Renews the leases of streams whose leases this server keeps, and waits for the store's word."""
        for session in self._renewing():
            session.renew(session.held.accepted())
        for _ in range(round(RENEW_S / LOOK_S)):
            if not any(map(_under_way, self._states())):
                return
            await asyncio.sleep(LOOK_S)

    def _states(self) -> list[LeaseState]:
        return [state for each in self._renewing() for state in each.held.accepted()]

    def _renewing(self) -> list[WorkSession]:
        return [each for each in self._delivery.sessions.values() if each.renews]


def _under_way(state: LeaseState) -> bool:
    return state.renew_at == float("inf") and not state.command
