"""A blocking channel of its own, for the watchdog thread."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from pawl._transport.options import channel_options
from pawl._transport.status import error_from_call
from pawl.v1.worker_service_pb2 import RenewLeasesRequest, RenewResult
from pawl.v1.worker_service_pb2_grpc import WorkerServiceStub


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

    def warm(self, timeout: float) -> None:
        """Connects, within `timeout` seconds, so that a later call is quick."""
        try:
            grpc.channel_ready_future(self._open()).result(timeout)
        except grpc.FutureTimeoutError:
            pass

    def _open(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = grpc.insecure_channel(
                self._address, options=channel_options(own_connection=True, idle=True)
            )
        return self._channel

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
