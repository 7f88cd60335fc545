# Generated from ../aio/handle.py by tools/gen.py; do not edit.
"""Handles: what a client can do with one instance."""

from __future__ import annotations

from collections.abc import Iterator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pawl._requests import UNSET
from pawl._running import Principal, Signalled
from pawl.errors import WorkflowError
from pawl.models import Cancellation, InboxEntry, Instance, Sent, Turn

if TYPE_CHECKING:
    from pawl._events import Event, EventCursor
    from pawl._requests import NewInstance
    from pawl.sync import Client
    from pawl.workflow import Workflow


class InstanceHandle:
    """An instance seen through a client."""

    def __init__(self, client: Client, instance_id: str) -> None:
        self.client = client
        self.id = instance_id

    def send(
        self,
        message: Any,
        *,
        id: str | None = None,  # noqa: A002 - the word of the API
        create: NewInstance | Workflow | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        wait: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> Sent:
        """Same as `Client.send`."""
        return self.client.send(
            self.id, message, id=id, create=create, delay=delay, ttl=ttl, wait=wait, timeout=timeout
        )

    def get(self) -> Instance:
        """Same as `Client.get`."""
        return self.client.get(self.id)

    def turn(self, number: int) -> Turn:
        """Same as `Client.get_turn`."""
        return self.client.get_turn(self.id, number)

    def wait(self, turn: int, *, wait: float | timedelta = 30.0) -> Turn:
        """Same as `Client.await_turn`."""
        return self.client.await_turn(self.id, turn, wait=wait)

    def turns(self, *, include_payloads: bool = False) -> Iterator[Turn]:
        """Same as `Client.list_turns`."""
        return self.client.list_turns(self.id, include_payloads=include_payloads)

    def events(
        self, *, after: EventCursor | None = None, types: Iterable[str] = (), until_idle: bool = False
    ) -> Iterator[Event]:
        """Same as `Client.watch`."""
        return self.client.watch(self.id, after=after, types=types, until_idle=until_idle)

    def inbox(self, *, include_payloads: bool = False) -> Iterator[InboxEntry]:
        """Same as `Client.inbox`."""
        return self.client.inbox(self.id, include_payloads=include_payloads)

    def cancel_message(self, message_id: str, *, incarnation: int = 0, comment: str = "") -> int:
        """Same as `Client.cancel_message`."""
        return self.client.cancel_message(self.id, message_id, incarnation=incarnation, comment=comment)

    def pause(self, *, incarnation: int = 0, comment: str = "") -> bool:
        """Same as `Client.pause`."""
        return self.client.pause(self.id, incarnation=incarnation, comment=comment)

    def resume(self, *, incarnation: int = 0, comment: str = "") -> bool:
        """Same as `Client.resume`."""
        return self.client.resume(self.id, incarnation=incarnation, comment=comment)

    def wake(self, *, incarnation: int = 0, comment: str = "") -> bool:
        """Same as `Client.wake`."""
        return self.client.wake(self.id, incarnation=incarnation, comment=comment)

    def retry(self, turn: int, *, attempt: int = 0, incarnation: int = 0, comment: str = "") -> int:
        """Same as `Client.retry_turn`."""
        return self.client.retry_turn(
            self.id, turn, attempt=attempt, incarnation=incarnation, comment=comment
        )

    def skip(self, turn: int, *, attempt: int = 0, incarnation: int = 0, comment: str = "") -> None:
        """Same as `Client.skip_turn`."""
        self.client.skip_turn(self.id, turn, attempt=attempt, incarnation=incarnation, comment=comment)

    def park(self, turn: int, *, attempt: int = 0, incarnation: int = 0, comment: str = "") -> None:
        """Same as `Client.park_turn`."""
        self.client.park_turn(self.id, turn, attempt=attempt, incarnation=incarnation, comment=comment)

    def redrive(
        self, turn: int, *, discard: bool = False, incarnation: int = 0, comment: str = ""
    ) -> int:
        """Same as `Client.redrive_parked`."""
        return self.client.redrive_parked(
            self.id, turn, discard=discard, incarnation=incarnation, comment=comment
        )

    def cancel(
        self, turn: int, *, force: bool = False, incarnation: int = 0, comment: str = ""
    ) -> Cancellation:
        """Same as `Client.cancel_turn`."""
        return self.client.cancel_turn(
            self.id, turn, force=force, incarnation=incarnation, comment=comment
        )

    def signal(
        self,
        name: str,
        value: Any = None,
        *,
        turn: int | None = None,
        id: str | None = None,  # noqa: A002 - the word of the API
        incarnation: int = 0,
        sender: Principal | None = None,
    ) -> Signalled:
        """Same as `Client.signal`."""
        return self.client.signal(
            self.id, name, value, turn=turn, id=id, incarnation=incarnation, sender=sender
        )

    def resolve_step(
        self,
        turn: int,
        key: str,
        *,
        output: Any = UNSET,
        retry: bool = False,
        failure: WorkflowError | None = None,
        attempt: int = 0,
        incarnation: int = 0,
        comment: str = "",
    ) -> str:
        """Same as `Client.resolve_step`."""
        return self.client.resolve_step(
            self.id,
            turn,
            key,
            output=output,
            retry=retry,
            failure=failure,
            attempt=attempt,
            incarnation=incarnation,
            comment=comment,
        )

    def delete(self, *, incarnation: int = 0) -> bool:
        """Same as `Client.delete`."""
        return self.client.delete(self.id, incarnation=incarnation)
