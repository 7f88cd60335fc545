"""Options of all channels."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Largest message either way; the server's own limits are far below."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Finds a connection that died silently. Servers accept pings at least 10 s apart, also without a call.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Calls fail fast and are repeated by the SDK, so the channel itself must not sit out long delays.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
)


def channel_options(*, own_connection: bool = False, idle: bool = False) -> list[tuple[str, int]]:
    """Gives the options of a channel.

    `own_connection` keeps it from sharing a socket with others, `idle` from pinging while it has no call.
    """
    options = dict(_OPTIONS)
    if own_connection:
        options["grpc.use_local_subchannel_pool"] = 1
    if idle:
        options["grpc.keepalive_permit_without_calls"] = 0
    return list(options.items())
