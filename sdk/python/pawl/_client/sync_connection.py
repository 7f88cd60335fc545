"""What the calls of the synchronous client go through. `aio_connection` is its twin for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from pawl._runtime.batches import send_in_batches
from pawl._transport import SyncMethod, SyncStreamMethod, SyncTransport
from pawl.errors import ServerError
from pawl.models import Page
from pawl.v1.message_service_pb2 import (
    SendMessageRequest,
    SendMessageResponse,
    SendMessagesRequest,
    SendResult,
)

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")


class Connection:
    """A connection and how calls are made on it."""

    timeout: float
    _transport: SyncTransport

    @property
    def _stubs(self):
        """The stubs, by service. Raises Unavailable if the client is closed."""
        return self._transport.stubs

    def _call(self, method: SyncMethod[Q, R], request: Q | Callable[[float], Q], timeout: float | None) -> R:
        """Makes a unary call, repeated while that can succeed; see `Transport.call`. Raises ServerError."""
        return self._transport.call(method, request, timeout=timeout or self.timeout)

    def _stream(
        self, method: SyncStreamMethod[Q, R], request: Q, timeout: float | None = None
    ) -> Generator[R, None, None]:
        """Reads a server stream once, without repeating it; see `Transport.stream`. Raises ServerError."""
        return self._transport.stream(method, request, timeout=timeout)

    def _sleep(self, seconds: float) -> None:
        """Waits; raises Unavailable if the client is closed meanwhile."""
        self._transport.sleep(seconds)

    def _submit(self, request: SendMessageRequest, timeout: float | None) -> SendMessageResponse:
        """Admits a message. Raises ServerError."""
        return self._call(self._stubs.messages.SendMessage, request, timeout)

    def _submit_all(
        self, requests: Sequence[SendMessageRequest], timeout: float | None
    ) -> list[SendMessageResponse | ServerError]:
        """Admits messages, each on its own; answers or refusals, in order."""
        return send_in_batches(requests, self._send_batch, self._sleep, timeout or self.timeout)

    def _send_batch(self, batch: Sequence[SendMessageRequest], timeout: float) -> Sequence[SendResult]:
        request = SendMessagesRequest(messages=batch)
        send = self._stubs.messages.SendMessages
        return self._transport.call(send, request, timeout=timeout, retry=False).results


def each(page: Callable[[str], Page[T]]) -> Iterator[T]:
    """Iterates over the items of all pages."""
    token = ""
    while True:
        answer = page(token)
        yield from answer.items
        token = answer.next_page_token
        if not token:
            return
