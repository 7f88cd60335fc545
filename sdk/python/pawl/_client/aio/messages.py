"""Messages, and waiting for their turns."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from time import monotonic
from typing import Any

from pawl._client.aio_connection import Connection, each
from pawl._convert import backlog_of, inbox_of, seconds_of, set_span, turn_of
from pawl._requests import Message, NewInstance, new_id, request_of, sent_of, type_name
from pawl.errors import PawlError
from pawl.models import BacklogEntry, InboxEntry, InboxPage, Page, Sent, Turn
from pawl.v1 import message_service_pb2 as messages
from pawl.workflow import Workflow

_WAIT_SLICE = 55.0
"""Longest wait of one call, in seconds: below the idle limits of common proxies."""


class MessageCalls(Connection):
    """Calls of MessageService."""

    async def send(
        self,
        instance_id: str,
        message: Any,
        *,
        id: str | None = None,  # noqa: A002 - the word of the API
        create: NewInstance | Workflow | None = None,
        origin: bytes = b"",
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        wait: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> Sent:
        """Admits a message to an inbox, where it becomes a turn.

        Messages that this client sends to one instance are admitted in the order of the calls.

        Args:
            instance_id: instance to send to.
            message: value, at most 32 KiB encoded.
            id: idempotency id, unique per instance; default is a new UUID. Sending the same again gives the
                first answer; give an id of your own if the sender may itself be restarted.
            create: creates the instance in the same transition if it is absent.
            origin: bytes about the sender, at most 1 KiB.
            delay: seconds or timedelta, 1 ms to 365 days, after which the message is admitted; until then it
                has no turn and holds up nobody. Not together with `wait`.
            ttl: seconds or timedelta, 1 ms to 365 days: if no attempt has begun this long after admission,
                the turn ends EXPIRED.
            wait: seconds or timedelta to wait for the turn to finish, fail for good or become UNCERTAIN; the
                turn is `outcome` of the answer, finished or not.
            timeout: seconds that the call itself may take.

        Raises NotFound, BodyConflict, LimitExceeded, InvalidField and other ServerErrors, PayloadError.
        """
        request = request_of(Message(instance_id, message, id, create, origin, delay, ttl))
        if wait is not None:
            return await self._send_and_wait(request, seconds_of(wait), timeout)
        return sent_of(request, await self._submit(request, timeout))

    async def send_many(
        self, batch: Iterable[Message], *, timeout: float | None = None
    ) -> list[Sent | PawlError]:
        """Admits messages, each on its own, in batches of at most 256.

        Gives for each message, in order, its answer or the exception that `send` would have raised.
        """
        given: list[messages.SendMessageRequest | PawlError] = []
        for message in batch:
            try:
                given.append(request_of(message))
            except PawlError as error:
                given.append(error)
        requests = [item for item in given if not isinstance(item, PawlError)]
        answers = iter(await self._submit_all(requests, timeout))
        outcomes: list[Sent | PawlError] = []
        for item in given:
            if isinstance(item, PawlError):
                outcomes.append(item)
            else:
                answer = next(answers)
                outcomes.append(answer if isinstance(answer, PawlError) else sent_of(item, answer))
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
        """Waits at most `wait` seconds until a turn is finished, has failed for good or is UNCERTAIN.

        Gives the turn without its steps, as it stands, there yet or not; `Turn.result` tells. With
        `incarnation`, raises NotFound unless the instance id still has that life. Raises NotFound, Pruned.
        """
        clock = monotonic
        end = clock() + seconds_of(wait)
        while True:
            turn_now = await self._await_once(
                instance_id, turn, max(0.0, end - clock()), incarnation, timeout or self.timeout
            )
            assert turn_now is not None, "a turn that has a number is there"
            if _over(turn_now) or clock() >= end:
                return turn_now

    async def await_message(
        self,
        instance_id: str,
        message_id: str,
        *,
        wait: float | timedelta = 30.0,
        incarnation: int = 0,
        timeout: float | None = None,
    ) -> Turn | None:
        """Same as `await_turn` for the turn of a message; None if it is still delayed after `wait` seconds.

        A delayed message that is cancelled meanwhile gives its CANCELLED turn. Raises NotFound, Pruned.
        """
        clock = monotonic
        end = clock() + seconds_of(wait)
        while True:
            left = max(0.0, end - clock())
            turn_now = await self._await_once(
                instance_id, message_id, left, incarnation, timeout or self.timeout
            )
            if clock() >= end or (turn_now is not None and _over(turn_now)):
                return turn_now

    async def cancel_message(
        self,
        instance_id: str,
        message_id: str,
        *,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Takes back a message that has not started; its turn, which one that was delayed gets by that.

        Raises NotFound, with `incarnation` also if the id has another life, and WrongState if its turn has
        started or is finished.
        """
        request = messages.CancelMessageRequest(
            instance_id=instance_id,
            message_id=message_id,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        return (await self._call(self._stubs.messages.CancelMessage, request, timeout)).turn

    async def inbox_page(
        self,
        instance_id: str,
        *,
        page_size: int = 0,
        page_token: str = "",
        include_payloads: bool = False,
        timeout: float | None = None,
    ) -> InboxPage:
        """Reads one page of an inbox: unfinished turns, oldest first, then delayed messages.

        Raises NotFound.
        """
        request = messages.ListInboxRequest(
            instance_id=instance_id,
            page_size=page_size,
            page_token=page_token,
            include_payloads=include_payloads,
        )
        return inbox_of(await self._call(self._stubs.messages.ListInbox, request, timeout))

    def inbox(
        self, instance_id: str, *, page_size: int = 0, include_payloads: bool = False
    ) -> AsyncIterator[InboxEntry]:
        """Iterates over an inbox: unfinished turns, oldest first, then delayed messages."""
        return each(
            lambda token: self.inbox_page(
                instance_id, page_size=page_size, page_token=token, include_payloads=include_payloads
            )
        )

    async def backlog_page(
        self,
        workflow: Workflow | str,
        *,
        version: str = "",
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> Page[BacklogEntry]:
        """Reads one page of the instances of a type that have unfinished turns; see `list_page`."""
        request = messages.ListBacklogRequest(
            workflow_type=type_name(workflow), version=version, page_size=page_size, page_token=page_token
        )
        answer = await self._call(self._stubs.messages.ListBacklog, request, timeout)
        return Page([backlog_of(item) for item in answer.entries], answer.next_page_token)

    def backlog(
        self, workflow: Workflow | str, *, version: str = "", page_size: int = 0
    ) -> AsyncIterator[BacklogEntry]:
        """Iterates over the instances of a type that have unfinished turns."""
        return each(
            lambda token: self.backlog_page(workflow, version=version, page_size=page_size, page_token=token)
        )

    async def _send_and_wait(
        self, request: messages.SendMessageRequest, wait: float, timeout: float | None
    ) -> Sent:
        clock = monotonic
        end = clock() + wait

        def with_wait(_: float) -> messages.SendMessageRequest:
            set_span(request.wait, min(max(0.0, end - clock()), _WAIT_SLICE))
            return request

        limit = min(wait, _WAIT_SLICE) + (timeout or self.timeout)
        answer = await self._call(self._stubs.messages.SendMessage, with_wait, limit)
        sent = sent_of(request, answer)
        left = end - clock()
        if sent.outcome is None or _over(sent.outcome) or left <= 0:
            return sent
        turn = await self.await_turn(
            sent.instance_id, sent.turn, wait=left, incarnation=sent.incarnation, timeout=timeout
        )
        return dataclasses.replace(sent, outcome=turn)

    async def _await_once(
        self, instance_id: str, which: int | str, left: float, incarnation: int, timeout: float
    ) -> Turn | None:
        clock = monotonic
        end = clock() + min(left, _WAIT_SLICE)

        def request(_: float) -> messages.AwaitTurnRequest:
            body = messages.AwaitTurnRequest(instance_id=instance_id, incarnation=incarnation)
            if isinstance(which, str):
                body.message_id = which
            else:
                body.turn = which
            set_span(body.wait, max(0.0, end - clock()))
            return body

        limit = min(left, _WAIT_SLICE) + timeout
        answer = await self._call(self._stubs.messages.AwaitTurn, request, limit)
        return turn_of(answer.turn) if answer.HasField("turn") else None


def _over(turn: Turn) -> bool:
    return turn.finished or turn.blocked
