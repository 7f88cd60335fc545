"""A blocking channel of its own, for the watchdog thread."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from pawl._transport.options import channel_options
from pawl._transport.status import error_from_call
from pawl.v1.worker_service_pb2 import RenewLeasesRequest, RenewResult
from pawl.v1.worker_service_pb2_grpc import WorkerServiceStub


class SyncRenewer:
    """Renews leases without an event loop. The connection is made by the first call."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.Channel | None = None

    def renew(self, leases: Sequence[bytes], timeout: float) -> Sequence[RenewResult]:
        """Renews up to 256 leases; one result for each, in order. Raises ServerError."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._address, options=channel_options(own_connection=True))
        try:
            stub = WorkerServiceStub(self._channel)
            return stub.RenewLeases(RenewLeasesRequest(leases=leases), timeout=timeout).results
        except grpc.RpcError as error:
            raise error_from_call(error) from None

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
