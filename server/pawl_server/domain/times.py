"""Times: whole milliseconds inside, Timestamp and Duration of protobuf outside."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pawl_server.domain.errors import InvalidField

SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
_LAST_SECOND = 253_402_300_799


def timestamp(ms: int) -> Timestamp:
    """Engine time in ms since the epoch as a Timestamp."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def duration(ms: int) -> Duration:
    """A span of ms, not below 0, as a Duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def duration_ms(field: str, value: Duration, low: int, high: int) -> int:
    """A Duration in whole ms, rounded up; raises InvalidField unless it is within `low` to `high` ms."""
    seconds, nanos = value.seconds, value.nanos
    if not -999_999_999 <= nanos <= 999_999_999 or (seconds > 0 > nanos) or (seconds < 0 < nanos):
        raise InvalidField(field, "is not a valid duration")
    ms = seconds * 1000 + -(-nanos // 1_000_000)
    if seconds < 0 or nanos < 0:
        raise InvalidField(field, f"is negative, not within {low} to {high} ms")
    if not low <= ms <= high:
        raise InvalidField(field, f"is {ms} ms, not within {low} to {high} ms")
    return ms


def timestamp_ms(field: str, value: Timestamp) -> int:
    """A Timestamp in whole ms, rounded up; 0 if it is not set. Raises InvalidField for one before 1970."""
    if not 0 <= value.nanos <= 999_999_999 or value.seconds < 0 or value.seconds > _LAST_SECOND:
        raise InvalidField(field, "is not a time from 1970 to 9999")
    return value.seconds * 1000 + -(-value.nanos // 1_000_000)
