"""Values to bytes and back.

JSON is the default, `null` included; `bytes` travel as they are with encoding "binary". Dataclasses,
`msgspec.Struct` and pydantic models become JSON objects, and are built again where an annotation asks for
them:

```python
@dataclass
class Order:
    id: str
    amount: int


@workflow("orders", version="v1")
async def orders(ctx: Context, state: dict, message: Order): ...
```

msgspec and pydantic are never imported unless you use them. `datetime`, `date`, `UUID`, `Decimal`, `Enum` and
sets inside such classes are written as JSON strings, values and lists, and read back by their annotation.
Unannotated values come back as plain JSON types: a tuple as a list, a dataclass as a dict.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pawl._typed import TypeMismatch, builds, converter, is_model, is_struct, to_builtins
from pawl.errors import PayloadError
from pawl.v1.payload_pb2 import Payload

__all__ = [
    "BINARY",
    "JSON",
    "Decoder",
    "Payload",
    "PayloadError",
    "decode",
    "decoder_for",
    "encode",
    "is_unset",
]

JSON = "json"
BINARY = "binary"

Decoder = Callable[[Payload], Any]
"""Turns a stored payload into a value. Raises PayloadError."""

_to_json = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=to_builtins
).encode
_from_json = json.JSONDecoder().decode


def encode(value: Any) -> Payload:
    """Encodes a value.

    Raises PayloadError if JSON has no form for it: NaN and infinity, lone surrogates, objects of unknown
    classes, cycles.
    """
    cls = type(value)
    if cls is bytes or cls is bytearray or cls is memoryview:
        return Payload(data=bytes(value), encoding=BINARY)
    try:
        if is_struct(cls):
            import msgspec

            return Payload(data=msgspec.json.encode(value), encoding=JSON)
        return Payload(data=_to_json(value).encode(), encoding=JSON)
    except UnicodeEncodeError as error:
        raise PayloadError(error.reason, encoding=JSON, position=error.start, decoding=False) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(str(error), encoding=JSON, decoding=False) from error


def decode(payload: Payload) -> Any:
    """Decodes a payload to plain JSON types, or to bytes. An empty payload of encoding "json" is None.

    Raises PayloadError, with the encoding and where possible the position of the first bad place, for damaged
    data and for encodings that this SDK does not know.
    """
    encoding = payload.encoding
    if encoding == BINARY:
        return payload.data
    if encoding not in (JSON, ""):
        raise PayloadError(
            "unknown encoding; this SDK reads 'json' and 'binary'", encoding=encoding, position=0
        )
    data = payload.data
    if not data:
        return None
    try:
        return _from_json(data.decode())
    except json.JSONDecodeError as error:
        raise PayloadError(error.msg, encoding=JSON, position=error.pos) from None
    except UnicodeDecodeError as error:
        raise PayloadError(error.reason, encoding=JSON, position=error.start) from None
    except RecursionError:
        raise PayloadError("nested too deeply", encoding=JSON, position=0) from None


def is_unset(payload: Payload) -> bool:
    """True for the payload that stands for "none was given"."""
    return not payload.data and payload.encoding in ("", JSON)


def decoder_for(annotation: Any) -> Decoder:
    """Gives the decoder of an annotation; the plain one where it asks for nothing but JSON types.

    Build it once and keep it: looking at types is slow, decoding is not.
    """
    convert = converter(annotation) if builds(annotation) else None
    if convert is None:
        return decode
    if is_struct(annotation):
        return _struct_decoder(annotation)
    if is_model(annotation):
        return _model_decoder(annotation)

    def typed(payload: Payload) -> Any:
        value = decode(payload)
        try:
            return convert(value)
        except TypeMismatch as error:
            raise PayloadError(str(error), encoding=payload.encoding or JSON) from None

    return typed


def _struct_decoder(cls: Any) -> Decoder:
    import msgspec

    read = msgspec.json.Decoder(cls).decode

    def typed(payload: Payload) -> Any:
        if payload.encoding not in (JSON, ""):
            raise PayloadError(f"{cls.__name__} is read from JSON", encoding=payload.encoding, position=0)
        try:
            return read(payload.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PayloadError(str(error), encoding=JSON) from None

    return typed


def _model_decoder(cls: Any) -> Decoder:
    def typed(payload: Payload) -> Any:
        if payload.encoding not in (JSON, ""):
            raise PayloadError(f"{cls.__name__} is read from JSON", encoding=payload.encoding, position=0)
        try:
            return cls.model_validate_json(payload.data)
        except (ValueError, RecursionError) as error:
            raise PayloadError(str(error), encoding=JSON) from None

    return typed
