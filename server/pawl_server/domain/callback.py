"""Tokens of callbacks: what a turn's code hands out so that somebody without its number can give a result.

A token is the base of the turn and the key of the callback. The base begins with "cb1", names instance,
incarnation and turn, and ends with a dot; it is the same for every attempt. A checksum over it and the
namespace tells tokens that were cut, mistyped or made elsewhere; it is no secret.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from pawl_server.domain.errors import InvalidField
from pawl_server.domain.ids import check_id

PREFIX = "cb1"
MAX_CHARS = 512
_MAX_NUMBER = 1 << 53
_CRC_BYTES = 4


class Callback(NamedTuple):
    """What a token names."""

    instance_id: str
    incarnation: int
    turn: int
    key: str


def callback_base(namespace: str, instance_id: str, incarnation: int, turn: int) -> str:
    """What comes before the key in the tokens of a turn; at most 256 characters."""
    packed: bytes = msgpack.packb((instance_id, incarnation, turn))  # pyright: ignore[reportAssignmentType]
    packed += crc32(packed, crc32(namespace.encode())).to_bytes(_CRC_BYTES, "big")
    return f"{PREFIX}{urlsafe_b64encode(packed).rstrip(b'=').decode()}."


def read_token(token: str, namespace: str) -> Callback:
    """Reads a token. Raises InvalidField("token")."""
    body, dot, key = token.partition(".")
    if not (dot and body.startswith(PREFIX) and len(token) <= MAX_CHARS):
        raise InvalidField("token", "is not the token of a callback")
    check_id("token", key)
    try:
        raw = urlsafe_b64decode(body[len(PREFIX) :] + "=" * (-len(body[len(PREFIX) :]) % 4))
    except (binascii.Error, ValueError):
        raise _foreign() from None
    packed, checksum = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    if crc32(packed, crc32(namespace.encode())).to_bytes(_CRC_BYTES, "big") != checksum:
        raise _foreign()
    try:
        values = msgpack.unpackb(packed, use_list=True, raw=False)
    except Exception:
        raise _foreign() from None
    if not _plausible(values):
        raise _foreign()
    instance_id, incarnation, turn = values
    return Callback(instance_id, incarnation, turn, key)


def _foreign() -> InvalidField:
    return InvalidField("token", "was not made by this namespace, or is damaged")


def _plausible(values: Any) -> bool:
    if not isinstance(values, list) or len(values) != 3:
        return False
    instance_id, *numbers = values
    return (
        type(instance_id) is str
        and 0 < len(instance_id) <= 128
        and all(type(number) is int and 0 < number < _MAX_NUMBER for number in numbers)
    )
