"""How a server learns what became ready elsewhere: its private channel, and a poll for what was lost.

Hints are never trusted with more than a look: what they say is looked up by the script that acts on it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from pawl_server.delivery.dispatcher import Dispatcher
from pawl_server.domain.lease import Lease
from pawl_server.store.outage import Part
from pawl_server.store.scripts_gen import PollOk, poll

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import Hearing, PartitionHandle

JITTER = 0.2


class Wakeups:
    """Feeds the dispatcher. `hints` counts messages of the channel, `polls` polls."""

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        lost: Callable[[str, Lease, str], None],
        cancel: Callable[[str, Lease, int], None],
    ) -> None:
        self.hints = 0
        self.polls = 0
        self._engine = engine
        self._dispatcher = dispatcher
        self._lost = lost
        self._cancel = cancel
        self._partitions = engine.store.partitions
        self._parts = [Part(f"poll {at}", engine.store.outage) for at in range(len(self._partitions))]
        self._listener: Hearing | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def errors(self) -> int:
        """Polls that failed."""
        return sum(part.errors for part in self._parts)

    def start(self) -> None:
        """Listens and polls from now on."""
        self._listener = self._engine.store.subscribe(self._engine.server_run, self._hear)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._poll_for_ever(partition), name=f"poll {partition.index}")
            for partition in self._partitions
        ]

    async def listening(self, timeout: float) -> None:
        """Returns once hints arrive. Raises StoreUnavailable."""
        if self._listener is not None:
            await self._listener.wait_ready(timeout)

    async def stop(self) -> None:
        """Ends both."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._listener is not None:
            await self._listener.close()

    def _hear(self, index: int, message: bytes) -> None:
        """One hint.

        `ready <type:version>`, `done <turn> <id>`, `ended <conn> <inc> <turn> <fence> <how> <id>`,
        `cancelling <conn> <inc> <turn> <fence> <ms> <id>`.
        """
        self.hints += 1
        kind, _, rest = message.decode().partition(" ")
        if kind == "ready":
            self._dispatcher.told(self._partitions[index], rest)
        elif kind == "done":
            turn, _, instance_id = rest.partition(" ")
            self._engine.awaits.notify(instance_id, int(turn))
        elif kind in ("ended", "cancelling"):
            conn, incarnation, turn, fence, what, instance_id = rest.split(" ", 5)
            lease = Lease(index, instance_id, int(incarnation), int(turn), int(fence))
            if kind == "ended":
                self._lost(conn, lease, what)
            else:
                self._cancel(conn, lease, int(what))

    async def _poll_for_ever(self, partition: PartitionHandle) -> None:
        interval = self._engine.settings.poll_interval_ms / 1000
        part = self._parts[partition.index]
        while True:
            await asyncio.sleep(interval * random.uniform(1 - JITTER, 1 + JITTER) / (1 + JITTER))
            try:
                await self._poll(partition)
                part.works()
            except Exception as error:
                part.failed(error)

    async def _poll(self, partition: PartitionHandle) -> None:
        """One look at what is ready for any type, and at what is due next."""
        result = await poll(partition, now_ms=self._engine.now_ms)
        self.polls += 1
        reply: PollOk = result.replies[0]
        self._dispatcher.ready(partition, [tv.decode() for tv in reply.types[::2]])
        self._dispatcher.refresh(partition, asyncio.get_running_loop().time())
        if reply.due_ms:
            self._engine.leases.on_due(partition, reply.due_ms, result.now_ms)
