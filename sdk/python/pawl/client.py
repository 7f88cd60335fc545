"""Talking to a Pawl server."""

from __future__ import annotations

from types import TracebackType

from pawl._client.aio.admin import AdminCalls
from pawl._client.aio.events import EventCalls
from pawl._client.aio.handle import InstanceHandle
from pawl._client.aio.instances import InstanceCalls
from pawl._client.aio.messages import MessageCalls
from pawl._client.aio.signals import SignalCalls
from pawl._client.aio.turns import TurnCalls
from pawl._requests import UNSET, Message, NewInstance
from pawl._runtime.coalesce import Coalescer
from pawl._transport import Transport, resolve_address

__all__ = ["UNSET", "Client", "InstanceHandle", "Message", "NewInstance"]


class Client(InstanceCalls, MessageCalls, TurnCalls, SignalCalls, EventCalls, AdminCalls):
    """A connection to a server, for use in one event loop. Code without one takes `pawl.sync.Client`.

    ```python
    async with Client() as client:
        await client.send("counter-1", {"add": 1}, create=counter)
    ```

    Every call may be repeated exactly, so the client itself repeats calls that met a broken connection, a
    stopping or overloaded server, with jittered backoff, until the call's timeout. Sends made in one tick
    travel together. All calls raise subclasses of ServerError; those that take values raise PayloadError for
    what can't be encoded.

    Args:
        address: `host:port` or `unix:/path`; default is `PAWL_ADDRESS`, else 127.0.0.1:7295.
        timeout: seconds that a call may take, repeats included, where it gives none of its own. Time to wait
            for a turn comes on top.
    """

    def __init__(self, address: str | None = None, *, timeout: float = 30.0) -> None:
        self.address = resolve_address(address)
        self.timeout = timeout
        self._transport = Transport(self.address)
        self._coalescer = Coalescer(self._send_batch)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls under way raise Unavailable or asyncio.CancelledError."""
        await self._coalescer.close()
        await self._transport.close()

    def instance(self, instance_id: str) -> InstanceHandle:
        """Gives a handle on an instance, which need not exist yet. Makes no call."""
        return InstanceHandle(self, instance_id)
