"""Blocking channels: of the synchronous client, and one of its own for the watchdog thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import grpc

from pawl._transport import forks
from pawl._transport.options import channel_options
from pawl._transport.retry import CLOSED, Tries
from pawl._transport.status import error_from_call
from pawl._transport.stubs import SyncStubs
from pawl.errors import Unavailable
from pawl.v1.worker_service_pb2 import (
    Command,
    RenewLeasesRequest,
    RenewResult,
    ReportProgressRequest,
    StartOperationRequest,
)
from pawl.v1.worker_service_pb2_grpc import WorkerServiceStub

Q = TypeVar("Q")
R = TypeVar("R")
Request_contra = TypeVar("Request_contra", contravariant=True)
Response_co = TypeVar("Response_co", covariant=True)


class SyncMethod(Protocol[Request_contra, Response_co]):
    """A unary call of a stub."""

    def __call__(self, request: Request_contra, /, timeout: float | None = ...) -> Response_co: ...


class SyncServerStream(Protocol[Response_co]):
    """The answer of a call that is answered by a stream."""

    def __iter__(self) -> Iterator[Response_co]: ...

    def cancel(self) -> bool: ...


class SyncStreamMethod(Protocol[Request_contra, Response_co]):
    """A call of a stub that is answered by a stream."""

    def __call__(
        self, request: Request_contra, /, timeout: float | None = ...
    ) -> SyncServerStream[Response_co]: ...


class SyncTransport:
    """One connection to a server and its stubs, for all threads of a process. `Transport` is its twin."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._closed = threading.Event()
        self._opening = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._inherited: list[grpc.Channel] = []
        forks.tell(self)

    def forked(self) -> None:
        """Has the next call make a connection of this process; the parent's is left alone."""
        closed = self._closed.is_set()
        self._closed, self._opening = threading.Event(), threading.Lock()
        if closed:
            self._closed.set()
        if self._channel is not None:
            self._inherited.append(self._channel)
            self._channel = None

    @property
    def stubs(self) -> SyncStubs:
        """The stubs. Raises Unavailable once the connection is closed."""
        with self._opening:
            if self._closed.is_set():
                raise Unavailable(CLOSED)
            if self._channel is None:
                forks.use(asyncio=False)
                self._channel = grpc.insecure_channel(self.address, options=channel_options())
                self._stubs = SyncStubs(self._channel)
            return self._stubs

    def call(
        self,
        method: SyncMethod[Q, R],
        request: Q | Callable[[float], Q],
        *,
        timeout: float,
        retry: bool = True,
    ) -> R:
        """Same as `Transport.call`, and waits."""
        tries = Tries(timeout, retry=retry)
        while True:
            left = tries.left()
            body: Any = request(left) if callable(request) else request
            try:
                return method(body, timeout=left)
            except grpc.RpcError as error:
                problem = error_from_call(error)
            except ValueError:
                if not self._closed.is_set():
                    raise
                raise Unavailable(CLOSED) from None
            self.sleep(tries.pause_after(problem))

    def stream(
        self, method: SyncStreamMethod[Q, R], request: Q, *, timeout: float | None = None
    ) -> Generator[R, None, None]:
        """Same as `Transport.stream`, and waits."""
        call = method(request, timeout=timeout)
        try:
            yield from call
        except grpc.RpcError as error:
            raise error_from_call(error) from None
        finally:
            call.cancel()

    def sleep(self, seconds: float) -> None:
        """Waits; raises Unavailable if the connection is or gets closed."""
        if self._closed.wait(seconds):
            raise Unavailable(CLOSED)

    def close(self) -> None:
        """Closes the connection; calls under way fail."""
        with self._opening:
            self._closed.set()
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class SyncRenewer:
    """Renews leases without an event loop. The connection is made by the first call, or by `warm`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.Channel | None = None

    def renew(self, leases: Sequence[bytes], timeout: float) -> Sequence[RenewResult]:
        """Renews up to 256 leases; one result for each, in order. Raises ServerError."""
        try:
            stub = WorkerServiceStub(self._open())
            return stub.RenewLeases(RenewLeasesRequest(leases=leases), timeout=timeout).results
        except grpc.RpcError as error:
            raise error_from_call(error) from None

    def step(self, command: Command, timeout: float) -> None:
        """Sends StartOperation or ReportProgress. Raises ServerError."""
        try:
            stub = WorkerServiceStub(self._open())
            if command.HasField("start_operation"):
                start = StartOperationRequest(lease=command.lease, start_operation=command.start_operation)
                stub.StartOperation(start, timeout=timeout)
            else:
                report = ReportProgressRequest(lease=command.lease, report_progress=command.report_progress)
                stub.ReportProgress(report, timeout=timeout)
        except grpc.RpcError as error:
            raise error_from_call(error) from None

    def warm(self, timeout: float) -> None:
        """Connects, within `timeout` seconds, so that a later call is quick."""
        try:
            grpc.channel_ready_future(self._open()).result(timeout)
        except grpc.FutureTimeoutError:
            pass

    def _open(self) -> grpc.Channel:
        if self._channel is None:
            forks.use(asyncio=False)
            self._channel = grpc.insecure_channel(
                self._address, options=channel_options(own_connection=True, idle=True)
            )
        return self._channel

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
