"""Names that clients choose.

Every id is 1 to 128 of `A-Z a-z 0-9 _ . -`: it travels in keys, channels and file names without any quoting.
Prefixes for the server's own use are refused (R-ID-1, R-ID-2). A bad name raises InvalidField with the field.
"""

from __future__ import annotations

import re

from pawl_server.domain.errors import InvalidField

ID_PATTERN = "[A-Za-z0-9_.-]{1,128}"
RESERVED_IDS = ("pawl-", "continue-")
RESERVED_TYPES = ("pawl.",)
MAX_ORDINAL = 1 << 53

_matches = re.compile(ID_PATTERN).fullmatch


def check_id(field: str, value: str) -> str:
    """Any id: returns it."""
    if _matches(value) is None:
        raise _bad(field, value)
    return value


def check_optional_id(field: str, value: str) -> str:
    """An id that may be empty."""
    return value if value == "" else check_id(field, value)


def check_own_id(field: str, value: str) -> str:
    """An instance id or message id: an id without a reserved prefix."""
    if _matches(value) is None:
        raise _bad(field, value)
    if value.startswith(RESERVED_IDS):
        raise InvalidField(field, f"{value!r} begins with a reserved prefix ({', '.join(RESERVED_IDS)})")
    return value


def check_type(field: str, value: str) -> str:
    """A workflow type: an id without a reserved prefix."""
    if _matches(value) is None:
        raise _bad(field, value)
    if value.startswith(RESERVED_TYPES):
        raise InvalidField(field, f"{value!r} begins with a reserved prefix ({', '.join(RESERVED_TYPES)})")
    return value


def check_ordinal(field: str, ordinal: int, least: int = 1) -> int:
    """The number of a session's decision about where leases belong: returns it."""
    if not least <= ordinal < MAX_ORDINAL:
        raise InvalidField(field, f"is {ordinal}, not {least} to {MAX_ORDINAL - 1}")
    return ordinal


def _bad(field: str, value: str) -> InvalidField:
    if not value:
        return InvalidField(field, "is empty")
    if len(value) > 128:
        return InvalidField(field, f"has {len(value)} characters, at most 128")
    return InvalidField(field, f"{value!r} does not match {ID_PATTERN}")
