"""Pure types: ids, payloads, times, cursors."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from pawl_server.domain.cursor import page_position, page_token
from pawl_server.domain.errors import InvalidField, Refused
from pawl_server.domain.ids import check_id, check_optional_id, check_own_id, check_type
from pawl_server.domain.payload import digest_of, from_blob, payload_digest, to_blob
from pawl_server.domain.times import duration, duration_ms, timestamp

ENCODINGS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=64)


@pytest.mark.spec("R-ID-1")
@given(st.text(max_size=140))
def test_an_id_is_what_the_pattern_says(value: str) -> None:
    good = 1 <= len(value) <= 128 and all(c.isascii() and (c.isalnum() or c in "_.-") for c in value)
    for check in (check_id, check_own_id, check_type):
        if good and not value.startswith(("pawl-", "continue-", "pawl.")):
            assert check("f", value) == value
        elif not good:
            with pytest.raises(InvalidField, match=r"^INVALID_FIELD: f "):
                check("f", value)
    assert check_optional_id("f", "") == ""


@pytest.mark.spec("R-ID-3")
@given(ENCODINGS, st.binary(max_size=200))
def test_a_blob_keeps_everything(encoding: str, data: bytes) -> None:
    assert from_blob(to_blob(encoding, data)) == (encoding, data)


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_of_different_parts_differ(one: list[bytes], two: list[bytes]) -> None:
    assert len(digest_of(*one)) == 8
    assert (digest_of(*one) == digest_of(*two)) == (one == two)


def test_a_digest_covers_encoding_and_data_or_the_given_digest() -> None:
    base = payload_digest("json", b"1", b"")
    others = [
        payload_digest("json", b"2", b""),
        payload_digest("", b"1", b""),
        payload_digest("json", b"1", b"1"),
        payload_digest("json", b"1", b"p1"),
    ]
    assert len({base, *others}) == 5
    assert payload_digest("json", b"x", b"d") == payload_digest("json", b"y", b"d")


@given(st.integers(0, 1 << 45))
def test_times_keep_their_milliseconds(ms: int) -> None:
    assert timestamp(ms).ToMilliseconds() == ms
    assert duration_ms("f", duration(ms), 0, 1 << 46) == ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (Duration(nanos=1), 1),
        (Duration(seconds=1, nanos=1_000_001), 1002),
        (Duration(seconds=2), 2000),
    ],
)
def test_a_duration_is_rounded_up(value: Duration, ms: int) -> None:
    assert duration_ms("f", value, 0, 9_999) == ms


@pytest.mark.parametrize(
    "value",
    [
        Duration(seconds=-1),
        Duration(nanos=-1),
        Duration(seconds=1, nanos=-1),
        Duration(seconds=-1, nanos=1),
        Duration(nanos=2_000_000_000),
        Duration(seconds=11),
    ],
)
def test_a_bad_duration_names_its_field(value: Duration) -> None:
    with pytest.raises(InvalidField) as refused:
        duration_ms("spec.lease_timeout", value, 0, 10_000)
    assert refused.value.metadata == {"field": "spec.lease_timeout"}


@given(st.integers(0, 1 << 53), st.text(max_size=20))
def test_a_page_token_comes_back(number: int, name: str) -> None:
    token = page_token("things", "scope", number, name)
    assert page_position(token, "things", "scope", int, str) == [number, name]
    for kind, scope, shape in (
        ("other", "scope", (int, str)),
        ("things", "x", (int, str)),
        ("things", "scope", (int,)),
    ):
        with pytest.raises(Refused, match="CURSOR_STALE"):
            page_position(token, kind, scope, *shape)


@given(st.text(max_size=60))
def test_any_other_text_is_a_stale_token(text: str) -> None:
    with pytest.raises(Refused, match="CURSOR_STALE"):
        page_position(text, "things", "scope", int)
