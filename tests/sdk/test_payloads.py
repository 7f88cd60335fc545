"""Values to bytes and back."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawl.payloads import Payload, PayloadError, decode, decoder_for, encode, is_unset

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime
    total: Decimal
    color: Color | None = None
    tags: set[str] = field(default_factory=set)
    parent: Order | None = None
    pair: tuple[int, str] = (0, "")
    by_name: dict[str, Line] = field(default_factory=dict)
    day: date | None = None
    wait: timedelta | None = None


class Struct(msgspec.Struct):
    name: str
    at: datetime


class Model(pydantic.BaseModel):
    name: str
    at: datetime


NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ORDER = Order(
    id=UUID(int=7),
    lines=[Line("a"), Line("b", 2)],
    placed=NOW,
    total=Decimal("1.10"),
    color=Color.RED,
    tags={"x", "y"},
    parent=Order(UUID(int=8), [], NOW, Decimal(0)),
    pair=(3, "three"),
    by_name={"a": Line("a")},
    day=date(2026, 1, 2),
    wait=timedelta(seconds=1.5),
)


@given(json_values)
def test_json_values_come_back(value: Any) -> None:
    assert decode(encode(value)) == value


@given(st.binary())
def test_bytes_travel_as_they_are(value: bytes) -> None:
    payload = encode(value)
    assert payload == Payload(data=value, encoding="binary")
    assert decode(payload) == value


def test_null_is_a_value() -> None:
    assert encode(None) == Payload(data=b"null", encoding="json")
    assert decode(encode(None)) is None
    assert not is_unset(encode(None))


def test_an_empty_payload_is_none_and_unset() -> None:
    assert decode(Payload()) is None
    assert is_unset(Payload())
    assert not is_unset(Payload(encoding="binary"))


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, object(), {"a": {1, "b"}, "c": object()}, "\ud800", {"b": b"x"}]
)
def test_what_json_can_not_say_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(value)
    assert not caught.value.decoding
    assert caught.value.encoding == "json"


def test_cycles_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PayloadError):
        encode(value)


@pytest.mark.parametrize(
    ("payload", "position"),
    [
        (Payload(data=b'{"a": }', encoding="json"), 6),
        (Payload(data=b'{"a": 1', encoding=""), 7),
        (Payload(data=b'"\xff"', encoding="json"), 1),
        (Payload(data=b"x", encoding="protobuf"), 0),
        (Payload(data=b"[" * 100_000, encoding="json"), 0),
    ],
)
def test_damage_names_encoding_and_position(payload: Payload, position: int) -> None:
    with pytest.raises(PayloadError) as caught:
        decode(payload)
    assert caught.value.decoding
    assert caught.value.encoding == (payload.encoding or "json")
    assert caught.value.position == position
    assert f"position {position}" in str(caught.value)


def test_dataclasses_come_back_by_annotation() -> None:
    assert decoder_for(Order)(encode(ORDER)) == ORDER


def test_without_annotation_they_are_dicts() -> None:
    assert decode(encode(Line("a"))) == {"sku": "a", "count": 1}


def test_fields_may_be_added_and_left_out() -> None:
    assert decoder_for(Line)(encode({"sku": "a", "new": True})) == Line("a")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"count": 1}, "field 'sku'"),
        ({"sku": 1}, "sku: expected str, got int"),
        ({"sku": "a", "count": True}, "count: expected int, got bool"),
        ([], "expected Line, got list"),
    ],
)
def test_misfits_name_their_place(value: Any, text: str) -> None:
    with pytest.raises(PayloadError, match=text):
        decoder_for(Line)(encode(value))


def test_misfits_deep_inside_name_the_path() -> None:
    bad = {"id": str(UUID(int=1)), "lines": [{"sku": "a"}, {"sku": 2}], "placed": "x", "total": "1"}
    with pytest.raises(PayloadError, match=r"lines\[1\]\.sku: expected str, got int"):
        decoder_for(Order)(encode(bad))


@pytest.mark.parametrize("cls", [Struct, Model])
def test_structs_and_models(cls: Any) -> None:
    value = cls(name="n", at=NOW)
    assert decoder_for(cls)(encode(value)) == value
    assert decoder_for(list[cls])(encode([value])) == [value]
    assert decoder_for(cls | None)(encode(None)) is None
    with pytest.raises(PayloadError):
        decoder_for(cls)(encode({"name": 1}))
    with pytest.raises(PayloadError):
        decoder_for(cls)(Payload(data=b"{}", encoding="binary"))


def test_plain_annotations_check_nothing() -> None:
    assert decoder_for(dict[str, int]) is decode
    assert decoder_for(str | None) is decode
    assert decoder_for(Any) is decode


def test_a_set_sorts_so_that_retries_are_exact() -> None:
    assert encode({"b", "a"}).data == b'["a","b"]'
