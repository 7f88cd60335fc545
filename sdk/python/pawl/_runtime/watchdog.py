"""Renews leases from a thread when the event loop is blocked, by a handler that computes without a pause."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pawl._reasons import refusal_error
from pawl._runtime.leases import chunks
from pawl._runtime.operation import Operation
from pawl.errors import ServerError
from pawl.v1.worker_service_pb2 import Command, RenewResult

log = logging.getLogger("pawl.worker")

MAX_BLOCKED = 2.0
"""Seconds after which a blocked loop is helped, however long its leases are.

Well below the 5 s in which the server wants to hear that a turn was received: a handler may block at once.
"""
CALL_TIMEOUT = 2.0
WARM_TIMEOUT = 1.0


class Renewer(Protocol):
    """A blocking connection to the server."""

    def renew(self, leases: Sequence[bytes], timeout: float) -> Sequence[RenewResult]:
        """Renews leases. Raises ServerError."""
        ...

    def step(self, command: Command, timeout: float) -> None:
        """Sends what a step has to say: StartOperation or ReportProgress. Raises ServerError."""

    def warm(self, timeout: float) -> None:
        """Connects, within `timeout` seconds."""

    def close(self) -> None:
        """Closes the connection."""


def patience(lease_timeout: float) -> float:
    """Seconds that the loop may stay silent, for a lease of so many seconds."""
    return min(MAX_BLOCKED, lease_timeout / 3)


class Watchdog:
    """Watches for the loop's ticks; without them, renews the leases of attempts whose task is alive.

    It never adopts, so it can't take a lease from a stream.
    """

    def __init__(
        self,
        renewer: Renewer,
        alive: Callable[[], list[bytes]],
        over: Callable[[bytes, ServerError], None],
        steps: Callable[[], list[Operation]] = list,
    ) -> None:
        self._renewer = renewer
        self._alive = alive
        self._over = over
        self._steps = steps
        self._patience = MAX_BLOCKED
        self._last_tick = time.monotonic()
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pawl-watchdog", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self.tick()
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; it closes its connection."""
        self._stopped = True
        self._wake.set()

    def tick(self) -> None:
        """Says that the loop is running."""
        self._last_tick = time.monotonic()

    @property
    def tick_interval(self) -> float:
        """Seconds between two ticks."""
        return self._patience / 4

    def expect(self, lease_timeout: float) -> None:
        """Takes note of a lease of so many seconds; a short one makes ticks and looks more frequent."""
        wanted = patience(lease_timeout)
        if wanted < self._patience:
            self._patience = wanted
            self.tick()
            self._wake.set()

    def _watch(self) -> None:
        # Connecting beside a thread that computes is slow, too slow for a short lease: it is done beforehand.
        self._renewer.warm(WARM_TIMEOUT)
        pause = self.tick_interval
        while not self._stopped:
            self._wake.wait(pause)
            self._wake.clear()
            pause = self.tick_interval
            blocked = time.monotonic() - self._last_tick
            if blocked > self._patience and not self._stopped:
                self._renew(blocked)
                pause = self._patience / 2
            if blocked > 2 * self.tick_interval and not self._stopped:
                self._speak()
        self._renewer.close()

    def _speak(self) -> None:
        """Says for steps what they can't say themselves while the loop is blocked."""
        for operation in self._steps():
            command = operation.blocked()
            if command is None:
                continue
            try:
                self._renewer.step(command, CALL_TIMEOUT)
            except ServerError as error:
                log.debug("not told of step %s: %s", operation.key, error)
            else:
                operation.confirmed(command)

    def _renew(self, blocked: float) -> None:
        leases = self._alive()
        if not leases:
            return
        log.warning("the event loop has been blocked for %.1f s; renewing %d leases", blocked, len(leases))
        try:
            for part in chunks(leases):
                for result in self._renewer.renew(part, max(CALL_TIMEOUT, self._patience)):
                    if result.HasField("refusal"):
                        self._over(result.lease, refusal_error(result.refusal))
        except ServerError as error:
            log.warning("leases not renewed: %s", error)
