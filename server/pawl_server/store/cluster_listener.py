"""The private channels of a server in a cluster: each on the node that has its partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pawl_server.store.cluster import Cluster
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.partition import PartitionHandle
from pawl_server.store.pubsub import Listener, ListenerOptions, OnMessage


class ClusterListener:
    """One Listener per node. The channel of a partition moves with it; see Listener for the callbacks."""

    def __init__(
        self,
        cluster: Cluster,
        channels: Sequence[str],
        on_message: OnMessage,
        *,
        on_subscribed: Callable[[], None] | None = None,
        options: ListenerOptions | None = None,
    ) -> None:
        self._cluster = cluster
        self._channels = channels
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._options = options
        self._listeners: dict[str, Listener] = {}
        self._places: dict[int, str] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._complete = asyncio.Event()
        self._begun = False
        cluster.watchers.append(self._placed)
        for home in cluster.homes:
            if address := cluster.address(home):
                self._placed(home, address)

    @property
    def ready(self) -> bool:
        """Whether every channel is subscribed on the node of its partition."""
        return len(self._places) == len(self._channels) and all(
            listener.ready for listener in self._listeners.values()
        )

    @property
    def connections(self) -> list[Listener]:
        """The listeners of the nodes."""
        return list(self._listeners.values())

    async def wait_ready(self, timeout: float) -> None:
        """Returns once all channels are subscribed. Raises StoreUnavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self.ready:
                    self._complete.clear()
                    await self._complete.wait()
        except TimeoutError:
            errors = ", ".join(each.last_error for each in self._listeners.values() if not each.ready)
            why = f"the channels could not be subscribed in {timeout:g} s: {errors}"
            raise StoreUnavailable(why, maybe_applied=False) from None

    async def close(self) -> None:
        """Ends all connections; no message is delivered after this returns."""
        if self._placed in self._cluster.watchers:
            self._cluster.watchers.remove(self._placed)
        await asyncio.gather(*(listener.close() for listener in self._listeners.values()), *self._ends)

    def _placed(self, home: PartitionHandle, address: str) -> None:
        """A partition is served by a node now, perhaps another one."""
        channel = self._channels[home.index]
        former = self._places.get(home.index)
        self._places[home.index] = address
        if former is not None and former != address:
            listener = self._listeners[former]
            listener.drop(channel)
            if not listener.channels:
                self._end(former)
        if address in self._listeners:
            self._listeners[address].add(home.index, channel)
        else:
            self._listeners[address] = self._listen(address, {home.index: channel})

    def _listen(self, address: str, channels: dict[int, str]) -> Listener:
        return Listener(
            self._cluster.endpoint(address),
            channels,
            self._on_message,
            on_subscribed=self._subscribed,
            on_moved=lambda text: self._cluster.elsewhere_by_slot(address, text),
            options=self._options,
            outage=self._cluster.outage,
            name=f"listener {address}",
        )

    def _end(self, address: str) -> None:
        """Closes the listener of a node that has no channel any more."""
        task = asyncio.get_running_loop().create_task(self._close(self._listeners.pop(address)))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _close(self, listener: Listener) -> None:
        await listener.close()
        self._cluster.outage.works(listener.name)

    def _subscribed(self) -> None:
        """A node has all of its channels; what it published before may be lost."""
        self._complete.set()
        self._begun = self._begun or self.ready
        if self._begun and self._on_subscribed is not None:
            self._on_subscribed()
