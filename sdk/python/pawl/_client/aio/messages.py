"""Messages, and waiting for their turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import timedelta
from time import monotonic
from typing import Any

from pawl._client.aio_connection import Connection
from pawl._convert import seconds_of, set_span, turn_of
from pawl._requests import Message, NewInstance, request_of, sent_of
from pawl.errors import PawlError
from pawl.models import Sent, Turn
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
            wait: seconds or timedelta to wait for the turn to finish or to fail for good; the turn is
                `outcome` of the answer, finished or not.
            timeout: seconds that the call itself may take.

        Raises NotFound, BodyConflict, LimitExceeded, InvalidField and other ServerErrors, PayloadError.
        """
        request = request_of(Message(instance_id, message, id, create, origin))
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
        """Waits at most `wait` seconds until a turn is finished or has failed for good.

        Gives the turn without its steps, as it stands, there yet or not; `Turn.result` tells. With
        `incarnation`, raises NotFound unless the instance id still has that life. Raises NotFound, Pruned.
        """
        clock = monotonic
        end = clock() + seconds_of(wait)
        while True:
            turn_now = await self._await_once(
                instance_id, turn, max(0.0, end - clock()), incarnation, timeout or self.timeout
            )
            if turn_now.finished or turn_now.state == "FAILED" or clock() >= end:
                return turn_now

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
        if sent.outcome is None or sent.outcome.finished or sent.outcome.state == "FAILED" or left <= 0:
            return sent
        turn = await self.await_turn(
            sent.instance_id, sent.turn, wait=left, incarnation=sent.incarnation, timeout=timeout
        )
        return dataclasses.replace(sent, outcome=turn)

    async def _await_once(
        self, instance_id: str, turn: int, left: float, incarnation: int, timeout: float
    ) -> Turn:
        clock = monotonic
        end = clock() + min(left, _WAIT_SLICE)

        def request(_: float) -> messages.AwaitTurnRequest:
            body = messages.AwaitTurnRequest(instance_id=instance_id, turn=turn, incarnation=incarnation)
            set_span(body.wait, max(0.0, end - clock()))
            return body

        limit = min(left, _WAIT_SLICE) + timeout
        answer = await self._call(self._stubs.messages.AwaitTurn, request, limit)
        return turn_of(answer.turn)
