"""Which exception stands for a refusal."""

from __future__ import annotations

from collections.abc import Mapping

from pawl.errors import (
    BodyConflict,
    CommandGap,
    Compacted,
    DeadlineExceeded,
    InstanceDeleted,
    InternalError,
    InvalidField,
    LeaseEnded,
    LimitExceeded,
    NotFound,
    Overloaded,
    Pruned,
    RevisionConflict,
    Rewound,
    ServerError,
    StaleFence,
    Unavailable,
    Unimplemented,
    WrongState,
)
from pawl.v1.error_pb2 import Reason
from pawl.v1.message_service_pb2 import Refusal

REASONS: dict[str, type[ServerError]] = {
    "INVALID_FIELD": InvalidField,
    "LIMIT_EXCEEDED": LimitExceeded,
    "NOT_FOUND": NotFound,
    "PRUNED": Pruned,
    "BODY_CONFLICT": BodyConflict,
    "STALE_FENCE": StaleFence,
    "LEASE_ENDED": LeaseEnded,
    "GAP": CommandGap,
    "WRONG_STATE": WrongState,
    "DRAINING": Unavailable,
    "STORE_UNAVAILABLE": Unavailable,
    "OVERLOADED": Overloaded,
    "MOVING": Unavailable,
    "REVISION_CONFLICT": RevisionConflict,
    "UNIMPLEMENTED": Unimplemented,
    "INTERNAL": InternalError,
    "DEADLINE": DeadlineExceeded,
    "DURABILITY_NOT_MET": Unavailable,
    "SUPERSEDED": StaleFence,
    "CURSOR_STALE": InvalidField,
    "INSTANCE_DELETING": Unavailable,
    "INSTANCE_DELETED": InstanceDeleted,
    "COMPACTED": Compacted,
    "REWOUND": Rewound,
}
"""Exception of each reason that can end a call."""

CODES: dict[str, type[ServerError]] = {
    "INVALID_ARGUMENT": InvalidField,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": BodyConflict,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNIMPLEMENTED": Unimplemented,
    "INTERNAL": InternalError,
    "RESOURCE_EXHAUSTED": LimitExceeded,
}
"""Exception of a status whose reason is absent or newer than this SDK."""


def error_of(
    reason: str,
    message: str,
    *,
    code: str = "",
    metadata: Mapping[str, str] | None = None,
    retry_after: float | None = None,
) -> ServerError:
    """Builds the exception of a refusal: by its reason, else by its gRPC code, else ServerError itself."""
    cls = REASONS.get(reason) or CODES.get(code, ServerError)
    return cls(message, reason=reason, code=code, metadata=metadata, retry_after=retry_after)


def refusal_error(refusal: Refusal) -> ServerError:
    """Builds the exception of a refusal inside a batch or a stream."""
    known = refusal.reason in Reason.values()
    reason = Reason.Name(refusal.reason).removeprefix("REASON_") if known else ""
    return error_of(reason, refusal.message, metadata=refusal.metadata)
