"""Keeps leases alive while there is no work stream to carry them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from pawl._reasons import refusal_error
from pawl._transport import Backoff, Transport
from pawl.errors import ServerError
from pawl.v1.worker_service_pb2 import AdoptLeasesRequest, RenewLeasesRequest, RenewResult

log = logging.getLogger("pawl.worker")

MAX_LEASES = 256
CALL_TIMEOUT = 5.0
_ADOPT_TRIES = 5

T = TypeVar("T")


def chunks(items: Sequence[T], size: int = MAX_LEASES) -> list[Sequence[T]]:
    """Cuts a sequence into pieces that one call takes."""
    return [items[at : at + size] for at in range(0, len(items), size)]


class LeaseKeeper:
    """Between two streams: detaches what is held at once, then renews it every third of the lease.

    Detaching parts the leases from the stream that was lost, so that the server, when it notices, does not
    shorten them.
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
        self._detached = asyncio.Event()

    def start(self, lease_timeout: float) -> None:
        """Begins, with the shortest lease held, in seconds."""
        if self._task is None and self._held():
            self._detached.clear()
            self._task = asyncio.get_running_loop().create_task(self._keep(lease_timeout / 3))

    async def ready_to_adopt(self, timeout: float) -> None:
        """Waits until the first detach was answered, at most `timeout` seconds.

        A detach that arrives after the next stream has adopted the leases would part them from that one.
        """
        if self._task is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._detached.wait()
        except TimeoutError:
            pass

    def stop(self) -> None:
        """Ends: a stream has the leases again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _keep(self, interval: float) -> None:
        backoff = Backoff(0.05, 1.0)
        detach = True
        try:
            while leases := self._held():
                if await self._renew(leases, detach):
                    detach = False
                    self._detached.set()
                    backoff.reset()
                    await asyncio.sleep(interval)
                else:
                    await asyncio.sleep(min(backoff.next(), interval))
        finally:
            self._detached.set()
            if self._task is asyncio.current_task():
                self._task = None

    async def _renew(self, leases: list[bytes], detach: bool) -> bool:
        try:
            for part in chunks(leases):
                request = RenewLeasesRequest(leases=part, detach=detach)
                answer = await self._transport.call(
                    self._transport.stubs.workers.RenewLeases, request, timeout=CALL_TIMEOUT, retry=False
                )
                self.apply(answer.results)
        except ServerError as error:
            log.debug("leases not renewed: %s", error)
            return False
        return True

    async def adopt(self, session: str, ordinal: int, leases: list[bytes]) -> None:
        """Moves leases to an open stream of the session: those beyond what its hello could carry.

        What does not get through is left to the stream's beats, which name every lease.
        """
        for part in chunks(leases):
            request = AdoptLeasesRequest(session=session, stream_ordinal=ordinal, leases=part)
            backoff = Backoff(0.05, 1.0)
            for _ in range(_ADOPT_TRIES):
                try:
                    answer = await self._transport.call(
                        self._transport.stubs.workers.AdoptLeases, request, timeout=CALL_TIMEOUT, retry=False
                    )
                except ServerError as error:
                    log.info("leases not adopted: %s", error)
                    await asyncio.sleep(backoff.next(error.retry_after))
                else:
                    self.apply(answer.results)
                    break

    def apply(self, results: Sequence[RenewResult]) -> None:
        """Reports the leases that are over."""
        for result in results:
            if result.HasField("refusal"):
                self._over(result.lease, refusal_error(result.refusal))
