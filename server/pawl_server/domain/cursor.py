"""Page tokens: opaque to clients, checked when they come back.

A token is base64url of msgpack `[version, kind, scope, position…]` and four check bytes. `kind` and `scope`
tie it to one listing: a token of another one is refused with CURSOR_STALE, as is a damaged one.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from typing import Any, cast

import msgpack

from pawl_server.domain.errors import Reason, Refused

_VERSION = 1
_CHECK_BYTES = 4


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECK_BYTES, person=b"pawl-page").digest()


def page_token(kind: str, scope: str, *position: int | str) -> str:
    """Token that continues listing `kind` of `scope` after `position`."""
    body = cast(bytes, msgpack.packb([_VERSION, kind, scope, *position]))
    return base64.urlsafe_b64encode(body + _check(body)).rstrip(b"=").decode()


def page_position(token: str, kind: str, scope: str, *shape: type, field: str = "page_token") -> list[Any]:
    """Position of a token made for the same `kind` and `scope`, one value for each type of `shape`.

    Raises Refused(CURSOR_STALE), which names the `field` of the request.
    """
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
        if check != _check(body):
            raise ValueError("damaged")
        version, token_kind, token_scope, *position = msgpack.unpackb(body)
    except (ValueError, binascii.Error, msgpack.UnpackException):
        raise _stale(field, "is malformed") from None
    if (version, token_kind, token_scope) != (_VERSION, kind, scope) or [
        type(value) for value in position
    ] != list(shape):
        raise _stale(field, "belongs to another request")
    return position


def same_life(token: int, now: int, field: str = "page_token") -> None:
    """Raises Refused(CURSOR_STALE) if a token of incarnation `token`, 0 for no token, is not of `now`."""
    if token and token != now:
        raise _stale(field, "belongs to an earlier life of the id")


def _stale(field: str, why: str) -> Refused:
    return Refused(Reason.CURSOR_STALE, f"{field} {why}", {"field": field})
