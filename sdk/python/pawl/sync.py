"""Talking to a Pawl server from code without an event loop.

```python
from pawl.sync import Client

with Client() as client:
    client.send("counter-1", {"add": 1}, create=counter)
```
"""

from __future__ import annotations

from types import TracebackType

from pawl._client.sync.admin import AdminCalls
from pawl._client.sync.events import EventCalls
from pawl._client.sync.handle import InstanceHandle
from pawl._client.sync.instances import InstanceCalls
from pawl._client.sync.messages import MessageCalls
from pawl._client.sync.signals import SignalCalls
from pawl._client.sync.turns import TurnCalls
from pawl._requests import UNSET, Message, NewInstance
from pawl._transport import SyncTransport, resolve_address

__all__ = ["UNSET", "Client", "InstanceHandle", "Message", "NewInstance"]


class Client(InstanceCalls, MessageCalls, TurnCalls, SignalCalls, EventCalls, AdminCalls):
    """A connection to a server for code without an event loop, for use by any number of threads.

    It has the calls of `pawl.Client` under the same names, with the same parameters. What is awaited there is
    called here and blocks; what is iterated with `async for` there is iterated with `for` here. Ctrl-C ends a
    call that waits with KeyboardInterrupt.

    A process may be forked until the first call, and later if it has `GRPC_ENABLE_FORK_SUPPORT=1` in its
    environment and no event loop of it has called Pawl; calls in the child then make their own connection. In
    any other child they raise RuntimeError.

    Args:
        address: `host:port` or `unix:/path`; default is `PAWL_ADDRESS`, else 127.0.0.1:7295.
        timeout: seconds that a call may take, repeats included, where it gives none of its own. Time to wait
            for a turn comes on top.
    """

    def __init__(self, address: str | None = None, *, timeout: float = 30.0) -> None:
        self.address = resolve_address(address)
        self.timeout = timeout
        self._transport = SyncTransport(self.address)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls under way in other threads raise Unavailable."""
        self._transport.close()

    def instance(self, instance_id: str) -> InstanceHandle:
        """Gives a handle on an instance, which need not exist yet. Makes no call."""
        return InstanceHandle(self, instance_id)
