"""Talking to a Pawl server."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from pawl._convert import info_of, instance_of, set_span, turn_of, type_message, type_of
from pawl._requests import UNSET, Message, NewInstance, request_of, sent_of, spec_of
from pawl._runtime.coalesce import Coalescer
from pawl._transport import Method, Transport, resolve_address
from pawl.errors import PawlError, ServerError
from pawl.models import Instance, Page, Sent, ServerInfo, Turn, WorkflowType
from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.workflow import Workflow

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

_WAIT_SLICE = 55.0
"""Longest wait of one call, in seconds: below the idle limits of common proxies."""


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


class Client:
    """A connection to a server, for use in one event loop.

    ```python
    async with Client() as client:
        await client.send("counter-1", {"add": 1}, create=counter)
    ```

    Every call may be repeated exactly, so the client itself repeats calls that met a broken connection, a
    stopping or overloaded server, with jittered backoff, until the call's timeout. All calls raise subclasses
    of ServerError; those that take values raise PayloadError for what can't be encoded.

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

    async def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Describes the server, its store and the limits in force."""
        return info_of(
            await self._call(self._transport.admin.GetServerInfo, admin.GetServerInfoRequest(), timeout)
        )

    async def create(
        self,
        instance_id: str,
        workflow: Workflow | str,
        *,
        version: str | None = None,
        state: Any = UNSET,
        lease_timeout: float | timedelta | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Instance:
        """Creates an instance, or finds it as it was created. Parameters as in `NewInstance`.

        Raises BodyConflict if it exists with another type, version, state or settings.
        """
        new = NewInstance(workflow, version, state, lease_timeout, max_attempts)
        request = instances.CreateInstanceRequest(
            instance_id=instance_id, spec=spec_of(new), request_id=request_id or ""
        )
        return instance_of(
            (await self._call(self._transport.instances.CreateInstance, request, timeout)).instance
        )

    async def get(self, instance_id: str, *, timeout: float | None = None) -> Instance:
        """Reads an instance with its state. Raises NotFound."""
        request = instances.GetInstanceRequest(instance_id=instance_id)
        return instance_of(
            (await self._call(self._transport.instances.GetInstance, request, timeout)).instance
        )

    async def list_page(
        self,
        workflow: Workflow | str,
        *,
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> Page[Instance]:
        """Reads one page of a type's instances in order of creation, without their state.

        `page_size` is 1 to 100, 0 means 50; a page may be shorter, and only an empty `next_page_token` ends
        the list.
        """
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        request = instances.ListInstancesRequest(
            workflow_type=name, page_size=page_size, page_token=page_token
        )
        answer = await self._call(self._transport.instances.ListInstances, request, timeout)
        return Page([instance_of(item) for item in answer.instances], answer.next_page_token)

    def list(self, workflow: Workflow | str, *, page_size: int = 0) -> AsyncIterator[Instance]:
        """Iterates over all instances of a type in order of creation, without their state."""
        return _each(lambda token: self.list_page(workflow, page_size=page_size, page_token=token))

    async def send(
        self,
        instance_id: str,
        message: Any,
        *,
        id: str | None = None,  # noqa: A002 - the word of the API
        create: NewInstance | Workflow | None = None,
        origin: bytes = b"",
        wait: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> Sent:
        """Admits a message to an inbox, where it becomes a turn. Sends made in one tick travel together.

        Messages that this client sends to one instance are admitted in the order of the calls.

        Args:
            instance_id: instance to send to.
            message: value, at most 32 KiB encoded.
            id: idempotency id, unique per instance; default is a new UUID. Sending the same again gives the
                first answer; give an id of your own if the sender may itself be restarted.
            create: creates the instance in the same transition if it is absent.
            origin: bytes about the sender, at most 1 KiB.
            wait: seconds or timedelta to wait for the turn to finish or to fail for good; the turn is
                `outcome` of the answer, finished or not.
            timeout: seconds that the call itself may take.

        Raises NotFound, BodyConflict, LimitExceeded, InvalidField and other ServerErrors, PayloadError.
        """
        request = request_of(Message(instance_id, message, id, create, origin))
        if wait is not None:
            return await self._send_and_wait(request, _seconds(wait), timeout)
        return sent_of(request, await self._coalescer.submit(request, timeout or self.timeout))

    async def send_many(
        self, batch: Iterable[Message], *, timeout: float | None = None
    ) -> list[Sent | PawlError]:
        """Admits messages, each on its own, in batches of at most 256.

        Gives for each message, in order, its answer or the exception that `send` would have raised.
        """
        submitted: list[tuple[messages.SendMessageRequest, Awaitable[Any]] | PawlError] = []
        for message in batch:
            try:
                request = request_of(message)
                submitted.append((request, self._coalescer.submit(request, timeout or self.timeout)))
            except PawlError as error:
                submitted.append(error)
        outcomes: list[Sent | PawlError] = []
        for item in submitted:
            try:
                outcomes.append(item if isinstance(item, PawlError) else sent_of(item[0], await item[1]))
            except ServerError as error:
                outcomes.append(error)
        return outcomes

    async def await_turn(
        self,
        instance_id: str,
        turn: int,
        *,
        wait: float | timedelta = 30.0,
        incarnation: int = 0,
        timeout: float | None = None,
    ) -> Turn:
        """Waits at most `wait` seconds until a turn is finished or has failed for good.

        Gives the turn without its steps, as it stands, there yet or not; `Turn.result` tells. With
        `incarnation`, raises NotFound unless the instance id still has that life. Raises NotFound, Pruned.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + _seconds(wait)
        while True:
            turn_now = await self._await_once(
                instance_id, turn, max(0.0, end - clock()), incarnation, timeout or self.timeout
            )
            if turn_now.finished or turn_now.state == "FAILED" or clock() >= end:
                return turn_now

    async def get_turn(
        self, instance_id: str, turn: int, *, incarnation: int = 0, timeout: float | None = None
    ) -> Turn:
        """Reads a turn with message, steps and reply. Raises NotFound, Pruned."""
        request = turns.GetTurnRequest(instance_id=instance_id, turn=turn, incarnation=incarnation)
        return turn_of((await self._call(self._transport.turns.GetTurn, request, timeout)).turn)

    async def list_turns_page(
        self,
        instance_id: str,
        *,
        page_size: int = 0,
        page_token: str = "",
        include_payloads: bool = False,
        timeout: float | None = None,
    ) -> Page[Turn]:
        """Reads one page of an instance's kept turns, newest first; see `list_page`. Raises NotFound."""
        request = turns.ListTurnsRequest(
            instance_id=instance_id,
            page_size=page_size,
            page_token=page_token,
            include_payloads=include_payloads,
        )
        answer = await self._call(self._transport.turns.ListTurns, request, timeout)
        return Page([turn_of(item) for item in answer.turns], answer.next_page_token)

    def list_turns(
        self, instance_id: str, *, page_size: int = 0, include_payloads: bool = False
    ) -> AsyncIterator[Turn]:
        """Iterates over an instance's kept turns, newest first."""
        return _each(
            lambda token: self.list_turns_page(
                instance_id, page_size=page_size, page_token=token, include_payloads=include_payloads
            )
        )

    async def put_workflow_type(
        self,
        settings: WorkflowType,
        *,
        expected_revision: int | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> WorkflowType:
        """Stores the settings of a type; what is None goes back to its default.

        With `expected_revision` the change applies only to that revision, 0 meaning "must not exist"; raises
        RevisionConflict otherwise. Raises InvalidField for a setting out of range.
        """
        request = admin.PutWorkflowTypeRequest(
            workflow_type=type_message(settings),
            expected_revision=expected_revision,
            request_id=request_id or str(uuid.uuid4()),
        )
        return type_of(
            (await self._call(self._transport.admin.PutWorkflowType, request, timeout)).workflow_type
        )

    async def get_workflow_type(self, name: str, *, timeout: float | None = None) -> WorkflowType:
        """Reads the settings of a type, defaults filled in; revision 0 if it was never stored."""
        request = admin.GetWorkflowTypeRequest(name=name)
        return type_of(
            (await self._call(self._transport.admin.GetWorkflowType, request, timeout)).workflow_type
        )

    async def list_workflow_types_page(
        self, *, page_size: int = 0, page_token: str = "", timeout: float | None = None
    ) -> Page[WorkflowType]:
        """Reads one page of the stored types by name, defaults filled in; see `list_page`."""
        request = admin.ListWorkflowTypesRequest(page_size=page_size, page_token=page_token)
        answer = await self._call(self._transport.admin.ListWorkflowTypes, request, timeout)
        return Page([type_of(item) for item in answer.workflow_types], answer.next_page_token)

    def list_workflow_types(self, *, page_size: int = 0) -> AsyncIterator[WorkflowType]:
        """Iterates over all stored types by name. A type whose settings nobody stored is not among them."""
        return _each(lambda token: self.list_workflow_types_page(page_size=page_size, page_token=token))

    async def _call(self, method: Method[Q, R], request: Q, timeout: float | None) -> R:
        return await self._transport.call(method, request, timeout=timeout or self.timeout)

    async def _send_batch(self, batch: list[messages.SendMessageRequest], timeout: float) -> Any:
        request = messages.SendMessagesRequest(messages=batch)
        send = self._transport.messages.SendMessages
        return (await self._transport.call(send, request, timeout=timeout, retry=False)).results

    async def _send_and_wait(
        self, request: messages.SendMessageRequest, wait: float, timeout: float | None
    ) -> Sent:
        clock = asyncio.get_running_loop().time
        end = clock() + wait

        def with_wait(_: float) -> messages.SendMessageRequest:
            set_span(request.wait, min(max(0.0, end - clock()), _WAIT_SLICE))
            return request

        limit = min(wait, _WAIT_SLICE) + (timeout or self.timeout)
        answer = await self._transport.call(self._transport.messages.SendMessage, with_wait, timeout=limit)
        sent = sent_of(request, answer)
        left = end - clock()
        if sent.outcome is None or sent.outcome.finished or sent.outcome.state == "FAILED" or left <= 0:
            return sent
        turn = await self.await_turn(
            sent.instance_id, sent.turn, wait=left, incarnation=sent.incarnation, timeout=timeout
        )
        return dataclasses.replace(sent, outcome=turn)

    async def _await_once(
        self, instance_id: str, turn: int, left: float, incarnation: int, timeout: float
    ) -> Turn:
        clock = asyncio.get_running_loop().time
        end = clock() + min(left, _WAIT_SLICE)

        def request(_: float) -> messages.AwaitTurnRequest:
            body = messages.AwaitTurnRequest(instance_id=instance_id, turn=turn, incarnation=incarnation)
            set_span(body.wait, max(0.0, end - clock()))
            return body

        call = self._transport.messages.AwaitTurn
        answer = await self._transport.call(call, request, timeout=min(left, _WAIT_SLICE) + timeout)
        return turn_of(answer.turn)


async def _each(page: Callable[[str], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    token = ""
    while True:
        answer = await page(token)
        for item in answer.items:
            yield item
        token = answer.next_page_token
        if not token:
            return


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
