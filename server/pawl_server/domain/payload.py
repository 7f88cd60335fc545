"""Payloads as they are stored, and the digests that exact retry compares.

A stored payload is a *blob*: `encoding NUL data`, or empty where there is none. Nothing below the SDK looks
at the data.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from pawl_server.domain.errors import InvalidField
from pawl_server.domain.limits import PAYLOAD_DIGEST_BYTES

DIGEST_BYTES = 8

_encoding_matches = re.compile(r"[!-~]{0,64}").fullmatch


def check_payload(field: str, encoding: str, digest: bytes) -> None:
    """Raises InvalidField for a bad encoding or digest; `field` is the path of the payload (R-ID-4)."""
    if encoding and _encoding_matches(encoding) is None:
        raise InvalidField(f"{field}.encoding", "is not 0 to 64 printable ASCII characters without spaces")
    if len(digest) > PAYLOAD_DIGEST_BYTES:
        raise InvalidField(f"{field}.digest", f"has {len(digest)} bytes, at most {PAYLOAD_DIGEST_BYTES}")


def to_blob(encoding: str, data: bytes) -> bytes:
    """The stored form of a payload."""
    return b"%b\0%b" % (encoding.encode(), data)


def from_blob(blob: bytes) -> tuple[str, bytes]:
    """Encoding and data of a stored payload."""
    encoding, _, data = blob.partition(b"\0")
    return encoding.decode(), data


def digest_of(*parts: bytes) -> bytes:
    """8 bytes over the parts, each with its length in front, so that no two lists of parts look alike."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(4, "big"))
        state.update(part)
    return state.digest()


def payload_parts(encoding: str, data: bytes, digest: bytes) -> tuple[bytes, bytes]:
    """What a payload adds to a digest: its encoding, and the sender's digest or else the data."""
    return encoding.encode(), b"d" + digest if digest else b"p" + data


def payload_digest(encoding: str, data: bytes, digest: bytes) -> bytes:
    """Digest of a body that is one payload."""
    return digest_of(*payload_parts(encoding, data, digest))
