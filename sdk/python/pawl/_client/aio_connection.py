"""What the calls of the asyncio client go through. `sync_connection` is its twin for threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pawl._runtime.coalesce import Coalescer
from pawl._transport import Method, StreamMethod, Transport
from pawl.errors import ServerError
from pawl.models import Page
from pawl.v1.message_service_pb2 import SendMessageRequest, SendMessageResponse, SendMessagesRequest

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")


class Connection:
    """A connection and how calls are made on it."""

    timeout: float
    _transport: Transport
    _coalescer: Coalescer

    @property
    def _stubs(self):
        """The stubs, by service. Raises Unavailable if the client is closed."""
        return self._transport.stubs

    async def _call(
        self, method: Method[Q, R], request: Q | Callable[[float], Q], timeout: float | None
    ) -> R:
        """Makes a unary call, repeated while that can succeed; see `Transport.call`. Raises ServerError."""
        return await self._transport.call(method, request, timeout=timeout or self.timeout)

    def _stream(
        self, method: StreamMethod[Q, R], request: Q, timeout: float | None = None
    ) -> AsyncGenerator[R, None]:
        """Reads a server stream once, without repeating it; see `Transport.stream`. Raises ServerError."""
        return self._transport.stream(method, request, timeout=timeout)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _submit(self, request: SendMessageRequest, timeout: float | None) -> SendMessageResponse:
        """Admits a message, together with others of this tick. Raises ServerError."""
        return await self._coalescer.submit(request, timeout or self.timeout)

    async def _submit_all(
        self, requests: Sequence[SendMessageRequest], timeout: float | None
    ) -> list[SendMessageResponse | ServerError]:
        """Admits messages, each on its own; answers or refusals, in order."""
        given: list[Any] = []
        for request in requests:
            try:
                given.append(self._coalescer.submit(request, timeout or self.timeout))
            except ServerError as error:
                given.append(error)
        answers: list[SendMessageResponse | ServerError] = []
        for item in given:
            try:
                answers.append(item if isinstance(item, ServerError) else await item)
            except ServerError as error:
                answers.append(error)
        return answers

    async def _send_batch(self, batch: list[SendMessageRequest], timeout: float) -> Any:
        request = SendMessagesRequest(messages=batch)
        send = self._stubs.messages.SendMessages
        return (await self._transport.call(send, request, timeout=timeout, retry=False)).results


async def each(page: Callable[[str], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Iterates over the items of all pages."""
    token = ""
    while True:
        answer = await page(token)
        for item in answer.items:
            yield item
        token = answer.next_page_token
        if not token:
            return
