"""Refusals: what a request gets instead of an answer.

Refused                    any reason of pawl.v1.Reason
├── InvalidField           a field has a bad value; names it
├── LimitExceeded          names the limit, the value and the maximum
├── NotFound               names the kind of thing and its name
└── BodyConflict           the id was used before with another body

Everything below rpc/ raises these; rpc/status.py alone knows the gRPC code of a reason and whether a repeat
can succeed. Bugs and failures of the store are other exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """Names of pawl.v1.Reason without their prefix; the meaning of each is in error.proto."""

    INVALID_FIELD = "INVALID_FIELD"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    PRUNED = "PRUNED"
    BODY_CONFLICT = "BODY_CONFLICT"
    STALE_FENCE = "STALE_FENCE"
    LEASE_ENDED = "LEASE_ENDED"
    GAP = "GAP"
    WRONG_STATE = "WRONG_STATE"
    DRAINING = "DRAINING"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    OVERLOADED = "OVERLOADED"
    MOVING = "MOVING"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    DEADLINE = "DEADLINE"
    DURABILITY_NOT_MET = "DURABILITY_NOT_MET"
    UNDELIVERABLE = "UNDELIVERABLE"
    WORKER_LOST = "WORKER_LOST"
    SUPERSEDED = "SUPERSEDED"
    CURSOR_STALE = "CURSOR_STALE"
    INSTANCE_DELETING = "INSTANCE_DELETING"
    INSTANCE_DELETED = "INSTANCE_DELETED"
    COMPACTED = "COMPACTED"
    REWOUND = "REWOUND"


class Refused(Exception):
    """A request was refused and changed nothing.

    `reason` is a name of `Reason`, `message` is for people, `metadata` holds the keys that error.proto
    promises for the reason.
    """

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = Reason(reason)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})


class InvalidField(Refused):
    """A field has a bad value. `field` is its path in the request, for example `messages[3].message_id`."""

    def __init__(self, field: str, why: str = "is not valid") -> None:
        super().__init__(Reason.INVALID_FIELD, f"{field} {why}", {"field": field})
        self.field = field
        self.why = why


class LimitExceeded(Refused):
    """`value` is above `maximum`; `limit` is a name of domain/limits.py."""

    def __init__(self, limit: str, value: int, maximum: int) -> None:
        metadata = {"limit": limit, "value": str(value), "max": str(maximum)}
        super().__init__(Reason.LIMIT_EXCEEDED, f"{limit} would be {value}, at most {maximum}", metadata)
        self.limit = limit
        self.value = value
        self.maximum = maximum


class NotFound(Refused):
    """There is no such thing. `resource` is "instance" or "turn", `name` its name.

    `asked` is the incarnation that the request named, `current` the one that there is instead; 0 for none.
    """

    def __init__(self, resource: str, name: str, asked: int = 0, current: int = 0) -> None:
        text, metadata = f"no {resource} {name}", {"resource": resource, "name": name}
        if asked:
            text += f" of incarnation {asked}"
        if current:
            text += f": the instance has incarnation {current}"
            metadata["incarnation"] = str(current)
        super().__init__(Reason.NOT_FOUND, text, metadata)


class BodyConflict(Refused):
    """The id was used before with another body. `resource` is what the id names."""

    def __init__(self, resource: str, name: str, why: str = "was used before with another body") -> None:
        super().__init__(
            Reason.BODY_CONFLICT, f"{resource} {name} {why}", {"resource": resource, "name": name}
        )


def another_type(instance_id: str, stored: str, wanted: str) -> BodyConflict:
    """An instance has another type or version, given as `type:version`, than the request wants."""
    is_now, is_not = (each.replace(":", " ", 1) for each in (stored, wanted))
    return BodyConflict("instance", instance_id, f"is {is_now}, not {is_not}")


def instance_deleted(instance_id: str) -> Refused:
    """The request belongs to a life of the id that was deleted within the last day."""
    return Refused(
        Reason.INSTANCE_DELETED,
        f"instance {instance_id} was deleted, and this request belongs to its former life",
        {"resource": "instance", "name": instance_id},
    )
