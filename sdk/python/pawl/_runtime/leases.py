"""Keeps leases alive while there is no work stream to carry them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from pawl._reasons import refusal_error
from pawl._transport import Backoff, Transport
from pawl.errors import DeadlineExceeded, ServerError
from pawl.v1.worker_service_pb2 import RenewLeasesRequest, RenewResult

log = logging.getLogger("pawl.worker")

MAX_LEASES = 256
DETACHED = 10.0
"""Seconds that a detached lease lasts at most."""
CALL_TIMEOUT = 2.0
"""Seconds for one call: a fraction of what a detached lease lasts."""

T = TypeVar("T")


def chunks(items: Sequence[T], size: int = MAX_LEASES) -> list[Sequence[T]]:
    """Cuts a sequence into pieces that one call takes."""
    return [items[at : at + size] for at in range(0, len(items), size)]


class LeaseKeeper:
    """While no stream is open: detaches what is held at once, and again at a third of what remains.

    Detaching parts the leases from the stream that was lost, so that the server, when it notices, does not
    shorten them. They are short from then on: if this worker dies now, others soon have its turns.
    """

    def __init__(
        self,
        transport: Transport,
        held: Callable[[], list[bytes]],
        over: Callable[[bytes, ServerError], None],
    ) -> None:
        self._transport = transport
        self._held = held
        self._over = over
        self._task: asyncio.Task[None] | None = None

    def start(self, ordinal: int) -> None:
        """Begins, or begins anew, with all that is held now.

        `ordinal` numbers the decision, so that no stream opened later loses its leases by it.
        """
        self.stop()
        if self._held():
            self._task = asyncio.get_running_loop().create_task(self._keep(ordinal))

    def stop(self) -> None:
        """Ends: a stream has the leases again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _keep(self, ordinal: int) -> None:
        backoff = Backoff(0.05, 1.0)
        try:
            while leases := self._held():
                remaining = await self._detach(leases, ordinal)
                if remaining is None:
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.reset()
                    await asyncio.sleep(remaining / 3)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _detach(self, leases: list[bytes], ordinal: int) -> float | None:
        """Detaches all; the seconds that the shortest of them lasts, None if a call failed."""
        remaining = DETACHED
        try:
            for part in chunks(leases):
                request = RenewLeasesRequest(leases=part, detach=True, ordinal=ordinal)
                answer = await self._transport.call(
                    self._transport.stubs.workers.RenewLeases, request, timeout=CALL_TIMEOUT, retry=False
                )
                remaining = min(remaining, self._apply(answer.results))
        except ServerError as error:
            log.debug("leases not renewed: %s", error)
            if isinstance(error, DeadlineExceeded):
                # A server that hangs: a connection of its own may lead to another one.
                self._transport.connect_anew()
            return None
        return remaining

    def _apply(self, results: Sequence[RenewResult]) -> float:
        """Reports the leases that are over; the seconds that the shortest of the others lasts."""
        shortest = DETACHED
        for result in results:
            if result.HasField("refusal"):
                self._over(result.lease, refusal_error(result.refusal))
            elif result.HasField("remaining"):
                shortest = min(shortest, result.remaining.ToTimedelta().total_seconds())
        return shortest
