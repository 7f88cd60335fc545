"""All that knows gRPC. Above it there are only messages of `pawl.v1` and exceptions of `pawl.errors`."""

import os

# gRPC itself writes ordinary disconnects to stderr unless told otherwise before it is imported. The SDK
# reports them itself.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from pawl._transport.channel import (
    DEFAULT_ADDRESS,
    Method,
    StreamMethod,
    Transport,
    WorkCall,
    resolve_address,
)
from pawl._transport.options import MAX_MESSAGE_BYTES
from pawl._transport.retry import CLOSED, Backoff, Tries, is_retryable
from pawl._transport.sync import SyncMethod, SyncRenewer, SyncStreamMethod, SyncTransport

__all__ = [
    "CLOSED",
    "DEFAULT_ADDRESS",
    "MAX_MESSAGE_BYTES",
    "Backoff",
    "Method",
    "StreamMethod",
    "SyncMethod",
    "SyncRenewer",
    "SyncStreamMethod",
    "SyncTransport",
    "Transport",
    "Tries",
    "WorkCall",
    "is_retryable",
    "resolve_address",
]
