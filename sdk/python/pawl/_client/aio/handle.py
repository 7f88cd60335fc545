"""Handles: what a client can do with one instance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pawl.models import Instance, Sent, Turn

if TYPE_CHECKING:
    from pawl._requests import NewInstance
    from pawl.client import Client
    from pawl.workflow import Workflow


class InstanceHandle:
    """An instance seen through a client."""

    def __init__(self, client: Client, instance_id: str) -> None:
        self.client = client
        self.id = instance_id

    async def send(
        self,
        message: Any,
        *,
        id: str | None = None,  # noqa: A002 - the word of the API
        create: NewInstance | Workflow | None = None,
        wait: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> Sent:
        """Same as `Client.send`."""
        return await self.client.send(self.id, message, id=id, create=create, wait=wait, timeout=timeout)

    async def get(self) -> Instance:
        """Same as `Client.get`."""
        return await self.client.get(self.id)

    async def turn(self, number: int) -> Turn:
        """Same as `Client.get_turn`."""
        return await self.client.get_turn(self.id, number)

    async def wait(self, turn: int, *, wait: float | timedelta = 30.0) -> Turn:
        """Same as `Client.await_turn`."""
        return await self.client.await_turn(self.id, turn, wait=wait)

    def turns(self, *, include_payloads: bool = False) -> AsyncIterator[Turn]:
        """Same as `Client.list_turns`."""
        return self.client.list_turns(self.id, include_payloads=include_payloads)
