"""The limits in force, by the names that LIMIT_EXCEEDED and GetServerInfo use.

Fields of `Limits` can be configured (`PAWL_LIMIT_<NAME>`) and are enforced by the scripts, which get them as
arguments. `FIXED` are part of the API.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

CREDITS = 10_000
BATCH_MESSAGES = 256
BATCH_BYTES = 3 << 20
REQUEST_BYTES = 4 << 20
FRAME_BYTES = 1 << 20
FRAME_ITEMS = 256
FRAME_CUT_BYTES = 256 << 10
LEASES_PER_REQUEST = 256
WORKFLOWS_PER_HELLO = 256
LABELS = 16
LABEL_BYTES = 128
TAGS = 16
PARKED_TURNS = 1_000
"""Of one instance; enforced by lib/ending.lua."""
COMMENT_BYTES = 256
PRINCIPAL_BYTES = 128
"""Of the name of somebody who acts."""
CANCEL_GRACE_MS = 10_000
"""How long the worker of a turn that is to be cancelled has to give it up."""
DELETE_AT_ONCE = 1_000
"""Turns of an instance that a deletion removes before it answers."""
INTERNAL_PENDING = 8
"""Internal admissions are bounded by so many times `pending_messages`."""
PAGE_SIZE = 100
PAGE_SIZE_DEFAULT = 50
CHECK_PAGE = 1_000
CHECK_PAGE_DEFAULT = 200
WAIT_MS = 600_000
AWAIT_DEFAULT_MS = 30_000
POLL_WAIT_MS = 60_000
FAILURE_MESSAGE_BYTES = 2_048
FAILURE_DETAILS_BYTES = 8_192
FAILURE_BYTES = 8_192
"""Of a failure with its causes; what the failure itself leaves of them is for causes."""
FAILURE_CAUSES = 8
RETRY_REASONS = 32
"""Reasons that one retry policy may call final."""
PROGRESS_DETAILS_BYTES = 8_192
RESUME_BYTES = 32_768
ID_CHARS = 128
ENCODING_CHARS = 64
PAYLOAD_DIGEST_BYTES = 32

FIXED: MappingProxyType[str, int] = MappingProxyType(
    {
        "credits": CREDITS,
        "batch_messages": BATCH_MESSAGES,
        "batch_bytes": BATCH_BYTES,
        "request_bytes": REQUEST_BYTES,
        "frame_bytes": FRAME_BYTES,
        "frame_items": FRAME_ITEMS,
        "leases_per_request": LEASES_PER_REQUEST,
        "workflows_per_hello": WORKFLOWS_PER_HELLO,
        "labels": LABELS,
        "label_bytes": LABEL_BYTES,
        "page_size": PAGE_SIZE,
        "tags_per_instance": TAGS,
        "parked_turns": PARKED_TURNS,
        "comment_bytes": COMMENT_BYTES,
        "principal_bytes": PRINCIPAL_BYTES,
        "cancel_grace_ms": CANCEL_GRACE_MS,
        "wait_ms": WAIT_MS,
        "poll_wait_ms": POLL_WAIT_MS,
        "failure_message_bytes": FAILURE_MESSAGE_BYTES,
        "failure_details_bytes": FAILURE_DETAILS_BYTES,
        "failure_bytes": FAILURE_BYTES,
        "failure_causes": FAILURE_CAUSES,
        "retry_reasons": RETRY_REASONS,
        "progress_details_bytes": PROGRESS_DETAILS_BYTES,
        "resume_bytes": RESUME_BYTES,
        "id_chars": ID_CHARS,
        "encoding_chars": ENCODING_CHARS,
        "payload_digest_bytes": PAYLOAD_DIGEST_BYTES,
    }
)
"""Limits that can't be configured."""


def _limit(default: int, low: int, high: int) -> int:
    return dataclasses.field(default=default, metadata={"min": low, "max": high})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that an operator may change. `metadata` of each field has its range."""

    steps_per_turn: int = _limit(64, 1, 2_000)
    """Saved steps of one turn."""
    state_bytes: int = _limit(65_536, 1, 1 << 20)
    """Data of an instance's state."""
    step_output_bytes: int = _limit(65_536, 1, 1 << 20)
    """Data of one step's output."""
    reply_bytes: int = _limit(65_536, 1, 1 << 20)
    """Data of a turn's reply."""
    message_bytes: int = _limit(32_768, 1, 1 << 20)
    """Data of one message."""
    turn_bytes: int = _limit(262_144, 1, 2 << 20)
    """Stored bytes of one turn: its message, signals and steps, encodings included."""
    signals_per_turn: int = _limit(64, 1, 1_000)
    """Signals and results of callbacks that one turn may receive."""
    signal_bytes: int = _limit(32_768, 1, 1 << 20)
    """Data of one signal, or of the result of a callback."""
    pending_messages: int = _limit(128, 1, 100_000)
    """Unfinished turns and delayed messages of one instance, above which sends are refused."""
    defers_per_turn: int = _limit(10_000, 1, 1_000_000)
    """Times that a turn may be put off."""
    origin_bytes: int = _limit(1_024, 0, 65_536)
    """Bytes about the sender."""

    def as_map(self) -> dict[str, int]:
        """All limits by name, the fixed ones included."""
        return {**dataclasses.asdict(self), **FIXED}
