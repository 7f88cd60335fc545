"""How to call a step's function: with or without the step, and what its value is decoded to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from pawl._typed import builds
from pawl.errors import PayloadError
from pawl.payloads import Decoder, Payload, decode, decoder_for, encode

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_DECODERS: dict[CodeType, Decoder] = {}
_MAX_DECODERS = 4096


def wants_step(fn: Callable[..., Any]) -> bool:
    """True if `fn` has one parameter without a default, False if it has none.

    Raises TypeError if it has more, or is no function at all.
    """
    if isinstance(fn, FunctionType):
        needed = fn.__code__.co_argcount - len(fn.__defaults__ or ())
    elif isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        function = fn.__func__
        needed = function.__code__.co_argcount - len(function.__defaults__ or ()) - 1
    else:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(fn).parameters.values()
        needed = sum(p.default is p.empty and p.kind in positional for p in parameters)
    if needed > 1:
        raise TypeError("a step's function takes no argument, or one step")
    return needed == 1


def decoder_of(fn: Callable[..., Any], returns: Any) -> Decoder:
    """Decoder of a step's value: of `returns` if given, else of the function's return annotation."""
    if returns is not None:
        return _decoder_for(returns)
    code = getattr(fn, "__code__", None)
    if code is None:
        return decode
    decoder = _DECODERS.get(code)
    if decoder is None:
        if len(_DECODERS) >= _MAX_DECODERS:
            _DECODERS.clear()
        decoder = _DECODERS[code] = _annotated(fn)
    return decoder


def round_trip(value: Any, decoder: Decoder) -> tuple[Payload, Any]:
    """Encodes a value and reads it back, so that the code sees live what it will see on replay."""
    payload = encode(value)
    if decoder is decode and type(value) in _PLAIN:
        return payload, value
    try:
        return payload, decoder(payload)
    except PayloadError as error:
        # What was just encoded does not fit its annotation: a fault of the code, the same in every attempt.
        error.decoding = False
        raise


@functools.lru_cache(maxsize=1024)
def _decoder_for(annotation: Any) -> Decoder:
    return decoder_for(annotation)


def _annotated(fn: Any) -> Decoder:
    annotation = returned_by(fn)
    return decode if annotation is None else decoder_for(annotation)


def returned_by(fn: Any) -> Any:
    """Gives the type that a function's annotation asks values to be built as; None if it asks for none."""
    annotation = getattr(fn, "__annotations__", {}).get("return")
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, fn.__globals__)
        except Exception:
            return None
    return annotation if builds(annotation) else None
