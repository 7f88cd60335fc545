"""The private channels of a server: hints from scripts, one channel per partition.

Losing messages is fine: they are hints, the poll repairs what is lost. What is not fine is a listener that
hears nothing for ever, so the connection is pinged and given up when it is silent.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import hiredis

from pawl_server.log_lines import HINT_LOST
from pawl_server.store.connection import Endpoint
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.outage import Outage, reason
from pawl_server.store.wire import pack

log = logging.getLogger(__name__)

OnMessage = Callable[[int, bytes], None]

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Times in seconds: a ping each `ping_interval`, given up after `silence_limit` without any byte."""

    ping_interval: float = 1.0
    silence_limit: float = 3.0
    connect_timeout: float = 5.0
    backoff_min: float = 0.05
    backoff_max: float = 1.0


@dataclass(slots=True)
class ListenerMetrics:
    """Counters since start."""

    messages: int = 0
    connects: int = 0
    resets: int = 0
    resubscribed: int = 0


class _Ear(asyncio.Protocol):
    """One subscribed connection. `lost` gets the reason when it ends; `refused` may forgive an error."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[list[Any]], None],
        refused: Callable[[hiredis.ReplyError], bool],
    ) -> None:
        self.lost: asyncio.Future[str] = loop.create_future()
        self.silent_rounds = 0
        self._hear = hear
        self._refused = refused
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None

    def send(self, *args: str | bytes | int) -> None:
        if self._transport is not None:
            self._transport.write(pack(args))

    def end(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if not self.lost.done():
            self.lost.set_result(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"Redis closed the connection ({exc})" if exc else "Redis closed the connection")

    def data_received(self, data: bytes) -> None:
        self.silent_rounds = 0
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                if isinstance(reply, hiredis.ReplyError):
                    if self._refused(reply):
                        continue
                    self.end(f"Redis answered {reply}")
                    return
                if isinstance(reply, list):
                    self._hear(reply)
        except hiredis.ProtocolError as error:
            self.end(f"Redis sent what cannot be understood: {error}")


class Hearing(Protocol):
    """Listening, on one connection or on several."""

    @property
    def ready(self) -> bool:
        """Whether every channel is subscribed."""
        ...

    async def wait_ready(self, timeout: float) -> None:
        """Returns once all channels are subscribed. Raises StoreUnavailable after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Ends it; no message is delivered after this returns."""
        ...


class Listener:
    """Subscribed to `channels`, by their index, on one node for ever, through reconnections.

    `on_message` gets the channel's index and the message, in the event loop; it must not block, and an
    exception in it is logged. `on_subscribed` is called whenever all channels have been subscribed: what was
    published before that may be lost. In a cluster, `on_moved` gets what the node says about a channel whose
    slot it does not have.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        channels: Sequence[str] | Mapping[int, str],
        on_message: OnMessage,
        *,
        on_subscribed: Callable[[], None] | None = None,
        on_moved: Callable[[str], None] | None = None,
        options: ListenerOptions | None = None,
        outage: Outage | None = None,
        name: str = "listener",
    ) -> None:
        self.outage = outage or Outage()
        self.metrics = ListenerMetrics()
        self.last_error: str = ""
        self._endpoint = endpoint
        numbered = channels.items() if isinstance(channels, Mapping) else enumerate(channels)
        self._index = {channel.encode(): at for at, channel in numbered}
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._on_moved = on_moved
        self._options = options or ListenerOptions()
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._missing: set[bytes] = set(self._index)
        self._ear: _Ear | None = None
        self._subscribed = asyncio.Event()
        self._task = self._loop.create_task(self._run(), name=name)

    @property
    def ready(self) -> bool:
        """Whether every channel is subscribed on an open connection."""
        return self._subscribed.is_set()

    async def wait_ready(self, timeout: float) -> None:
        """Returns once all channels are subscribed. Raises StoreUnavailable after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._subscribed.wait(), timeout)
        except TimeoutError:
            why = f"the channels could not be subscribed in {timeout:g} s: {self.last_error}"
            raise StoreUnavailable(why, maybe_applied=False) from None

    def add(self, index: int, channel: str) -> None:
        """Subscribes one more channel, or one that the node took away."""
        name = channel.encode()
        if name in self._index and name not in self._missing:
            return
        self._index[name] = index
        self._missing.add(name)
        self._subscribed.clear()
        if self._ear is not None:
            self._ear.send("SSUBSCRIBE", name)

    def drop(self, channel: str) -> None:
        """Forgets a channel."""
        name = channel.encode()
        if self._index.pop(name, None) is not None:
            self._missing.discard(name)
            if self._ear is not None:
                self._ear.send("SUNSUBSCRIBE", name)
                self._check_complete()

    @property
    def connections(self) -> list[Listener]:
        """Itself."""
        return [self]

    @property
    def channels(self) -> int:
        """How many channels it is to listen to."""
        return len(self._index)

    async def close(self) -> None:
        """Ends the connection; no message is delivered after this returns."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        options = self._options
        pause = options.backoff_min
        while True:
            try:
                await self._listen()
                pause = options.backoff_min
            except Exception as error:
                self.last_error = reason(error)
            self.outage.failed(self.name, self.last_error)
            pause = min(pause * 2, options.backoff_max)
            await asyncio.sleep(random.uniform(options.backoff_min, pause))

    async def _listen(self) -> None:
        """One connection, from dialling to its end. Raises if it could not be opened."""
        ear = _Ear(self._loop, self._hear, self._refused)
        self._missing = set(self._index)
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                await self._endpoint.dial(lambda: ear)
            self._ear = ear
            self._introduce(ear)
            self.metrics.connects += 1
            limit = math.ceil(self._options.silence_limit / self._options.ping_interval)
            while not ear.lost.done():
                # Rounds and not time: while this process stood still, Redis may have answered.
                ear.silent_rounds += 1
                if ear.silent_rounds > limit:
                    ear.end(f"Redis was silent for {self._options.silence_limit:g} s")
                ear.send("PING")
                await asyncio.wait([ear.lost], timeout=self._options.ping_interval)
            self.last_error = ear.lost.result()
            self.metrics.resets += 1
        finally:
            self._ear = None
            self._subscribed.clear()
            ear.end("closed")

    def _introduce(self, ear: _Ear) -> None:
        endpoint = self._endpoint
        if endpoint.password or endpoint.username:
            ear.send("AUTH", *((endpoint.username,) if endpoint.username else ()), endpoint.password)
        # One command per channel: each may be in another slot.
        for channel in self._index:
            ear.send("SSUBSCRIBE", channel)

    def _hear(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == b"smessage":
            self.metrics.messages += 1
            index = self._index.get(message[1])
            if index is None:
                return  # a channel that was dropped
            try:
                self._on_message(index, message[2])
            except Exception as error:
                HINT_LOST(log, error, hint=message[2].decode(errors="replace"))
        elif kind == b"ssubscribe":
            self._missing.discard(message[1])
            self._check_complete()
        elif kind == b"sunsubscribe" and message[1] in self._index and self._ear is not None:
            # The slot has moved away, or someone removed the channel: subscribe again at once.
            self.metrics.resubscribed += 1
            self._missing.add(message[1])
            self._subscribed.clear()
            self._ear.send("SSUBSCRIBE", message[1])

    def _check_complete(self) -> None:
        if not self._missing and not self._subscribed.is_set():
            self._subscribed.set()
            self.outage.works(self.name)
            if self._on_subscribed is not None:
                self._on_subscribed()

    def _refused(self, error: hiredis.ReplyError) -> bool:
        """Whether an error is about one channel, so that the connection can be kept."""
        text = str(error)
        if self._on_moved is None or not text.startswith("MOVED "):
            return False
        self._on_moved(text)
        return True
