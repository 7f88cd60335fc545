"""The name of a lease: opaque bytes to workers, five values to the scripts."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from pawl_server.domain.errors import InvalidField

MAX_BYTES = 256
_MAX_NUMBER = 1 << 53
"""Numbers of the scripts are doubles."""


class Lease(NamedTuple):
    """Names one lease of one turn; no two leases of a namespace have the same name."""

    partition: int
    instance_id: str
    incarnation: int
    turn: int
    fence: int

    def encode(self) -> bytes:
        """The bytes that workers hold: a msgpack array of the five values."""
        packed: bytes = msgpack.packb(self)  # pyright: ignore[reportAssignmentType]
        return packed

    @classmethod
    def decode(cls, raw: bytes, partitions: int) -> Lease:
        """Reads what a worker sent; `partitions` is how many there are. Raises InvalidField("lease")."""
        if not 0 < len(raw) <= MAX_BYTES:
            raise InvalidField("lease", f"has {len(raw)} bytes, not 1 to {MAX_BYTES}")
        try:
            values = msgpack.unpackb(raw, use_list=True, raw=False)
        except Exception:
            raise InvalidField("lease", "was not made by this service") from None
        if not _plausible(values, partitions):
            raise InvalidField("lease", "was not made by this service")
        return cls._make(values)


def _plausible(values: Any, partitions: int) -> bool:
    if not isinstance(values, list) or len(values) != 5:
        return False
    partition, instance_id, *numbers = values
    return (
        type(partition) is int
        and 0 <= partition < partitions
        and type(instance_id) is str
        and 0 < len(instance_id) <= 128
        and all(type(number) is int and 0 < number < _MAX_NUMBER for number in numbers)
    )
