"""Channels and calls of grpc.aio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from pawl._transport import forks
from pawl._transport.options import channel_options
from pawl._transport.retry import CLOSED, Tries
from pawl._transport.status import error_from_call
from pawl._transport.stubs import AioStubs
from pawl.errors import Unavailable
from pawl.v1.worker_service_pb2 import WorkRequest, WorkResponse
from pawl.v1.worker_service_pb2_grpc import WorkerServiceStub

DEFAULT_ADDRESS = "127.0.0.1:7295"

Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S")
Request_contra = TypeVar("Request_contra", contravariant=True)
Response_co = TypeVar("Response_co", covariant=True)


class Method(Protocol[Request_contra, Response_co]):
    """A unary call of a stub."""

    def __call__(
        self, request: Request_contra, /, *, timeout: float | None = ...
    ) -> Awaitable[Response_co]: ...


def resolve_address(address: str | None) -> str:
    """Gives the address to connect to: the argument, else `PAWL_ADDRESS`, else 127.0.0.1:7295.

    `host:port`, or `unix:/path` of a socket.
    """
    return address or os.environ.get("PAWL_ADDRESS") or DEFAULT_ADDRESS


class StreamMethod(Protocol[Request_contra, Response_co]):
    """A call of a stub that is answered by a stream."""

    def __call__(
        self, request: Request_contra, /, *, timeout: float | None = ...
    ) -> ServerStream[Response_co]: ...


class ServerStream(Protocol[Response_co]):
    """Such a stream."""

    def __aiter__(self) -> AsyncIterator[Response_co]: ...

    def cancel(self) -> bool: ...


class Transport:
    """One connection to a server and its stubs. Belongs to the event loop of its first call.

    With `own` it shares its socket with nobody.
    """

    def __init__(self, address: str, *, own: bool = False) -> None:
        self.address = address
        self._own = own
        self._closed = False
        self._given_up: set[asyncio.Task[None]] = set()
        self._channel: grpc.aio.Channel | None = None

    @property
    def stubs(self) -> AioStubs:
        """The stubs. Raises Unavailable once the connection is closed."""
        self._open()
        return self._stubs

    def _open(self) -> None:
        if self._closed:
            raise Unavailable(CLOSED)
        if self._channel is None:
            forks.use(asyncio=True)
            options = channel_options(own_connection=self._own)
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
            self._stubs = AioStubs(self._channel)

    def stub(self, kind: Callable[[grpc.aio.Channel], S]) -> S:
        """Gives the stub of a service that is not among them. Raises Unavailable once closed."""
        self._open()
        assert self._channel is not None
        return kind(self._channel)

    async def call(
        self,
        method: Method[Q, R],
        request: Q | Callable[[float], Q],
        *,
        timeout: float,
        retry: bool = True,
    ) -> R:
        """Makes a unary call, repeated with jittered backoff within `timeout` seconds while that can succeed.

        `request` may be a function of the seconds that are left, called for each try. Raises ServerError;
        when the time is up, the last failure rather than DeadlineExceeded, because it says more.
        """
        tries = Tries(timeout, retry=retry)
        while True:
            left = tries.left()
            body: Any = request(left) if callable(request) else request
            try:
                return await method(body, timeout=left)
            except grpc.aio.AioRpcError as error:
                problem = error_from_call(error)
            await asyncio.sleep(tries.pause_after(problem))

    async def stream(
        self, method: StreamMethod[Q, R], request: Q, *, timeout: float | None = None
    ) -> AsyncGenerator[R, None]:
        """Reads a server stream to its end, at most for `timeout` seconds. Raises ServerError.

        Leaving the iterator cancels the call.
        """
        call = method(request, timeout=timeout)
        try:
            async for item in call:
                yield item
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error) from None
        finally:
            call.cancel()

    def connect_anew(self) -> None:
        """Gives the connection up: the next call makes another one. Calls under way fail."""
        if self._channel is not None:
            closing = asyncio.get_running_loop().create_task(self._channel.close())
            self._given_up.add(closing)
            closing.add_done_callback(self._given_up.discard)
            self._channel = None

    async def close(self) -> None:
        """Closes the connection; calls under way fail."""
        self._closed = True
        if self._given_up:
            await asyncio.wait(self._given_up)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


class WorkCall:
    """One work stream on a connection of its own, so that a reconnect never meets the old socket."""

    def __init__(self, address: str) -> None:
        forks.use(asyncio=True)
        self._channel = grpc.aio.insecure_channel(address, options=channel_options(own_connection=True))
        self._call = WorkerServiceStub(self._channel).Work()
        self._closed = False

    async def write(self, frame: WorkRequest) -> bool:
        """Sends a frame; False if the stream is over, for the reason that `read` tells."""
        try:
            await self._call.write(frame)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            return False
        return True

    async def read(self) -> WorkResponse | None:
        """Gives the next frame, or None when the server has ended the stream with OK. Raises ServerError."""
        try:
            frame: Any = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error) from None
        except asyncio.CancelledError:
            # Cancelling the call shows in its reader like cancelling the task that reads.
            if self._closed and not _being_cancelled():
                raise Unavailable("the stream was cut") from None
            raise
        return None if frame is grpc.aio.EOF else frame

    async def close(self) -> None:
        """Cuts the stream and its connection."""
        self._closed = True
        self._call.cancel()
        await self._channel.close()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
