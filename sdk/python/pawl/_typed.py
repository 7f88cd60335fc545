"""Builds values of annotated types from JSON types, and the other way round.

Covers dataclasses, msgspec structs, pydantic models, Enum, datetime, date, timedelta, UUID, Decimal,
Optional and Union, and list, tuple, set, frozenset and dict of them. Other annotations leave the value as it
is.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

Convert = Callable[[Any], Any]

_PARSED: dict[type, Convert] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    timedelta: lambda seconds: timedelta(seconds=seconds),
    UUID: UUID,
    Decimal: Decimal,
}
_SCALARS: tuple[Any, ...] = (str, int, float, bool, type(None), None)
_SEQUENCES: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    Sequence: list,
    set: set,
    frozenset: frozenset,
}


class TypeMismatch(Exception):
    """A value does not fit its annotation. The text begins with the path of the value."""

    def __init__(self, expected: str, got: Any, path: str = "") -> None:
        super().__init__(expected, got, path)
        self.expected = expected
        self.got = got
        self.path = path

    def __str__(self) -> str:
        return f"{self.path or 'value'}: expected {self.expected}, got {type(self.got).__name__}"

    def inside(self, part: str) -> TypeMismatch:
        """The same mismatch seen from one level further out."""
        path = f"{part}{self.path}" if self.path.startswith("[") else f"{part}.{self.path}".rstrip(".")
        return TypeMismatch(self.expected, self.got, path)


def is_struct(cls: Any) -> bool:
    """True for a msgspec.Struct class."""
    return hasattr(cls, "__struct_fields__") and isinstance(cls, type)


def is_model(cls: Any) -> bool:
    """True for a pydantic model class."""
    return isinstance(cls, type) and hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_validate")


def to_builtins(value: Any) -> Any:
    """Gives the JSON form of one object that JSON itself does not know. Raises TypeError if there is none."""
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
    if is_struct(cls):
        import msgspec

        return msgspec.to_builtins(value)
    if is_model(cls):
        return value.model_dump(mode="json")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (type(item).__name__, item))
    raise TypeError(f"{cls.__qualname__} has no JSON form")


def converter(annotation: Any) -> Convert | None:
    """Gives the function that builds an annotated value from JSON types; None if nothing is to be done.

    The function raises TypeMismatch.
    """
    if annotation is Any or isinstance(annotation, str | typing.TypeVar):
        return None
    origin = typing.get_origin(annotation)
    if origin is None:
        return _of_class(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return converter(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        return _of_union(arguments)
    if origin is tuple:
        return _of_tuple(arguments)
    if origin in _SEQUENCES:
        return _of_sequence(_SEQUENCES[origin], arguments[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _of_mapping(arguments)
    return None


def builds(annotation: Any) -> bool:
    """True if an annotation asks for objects that JSON itself does not give."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return annotation not in _SCALARS and converter(annotation) is not None
    if origin in (set, frozenset, tuple):
        return True
    return any(builds(argument) for argument in typing.get_args(annotation))


@functools.cache
def _of_class(cls: Any) -> Convert | None:
    if cls is None:
        return _of_scalar(type(None))
    if not isinstance(cls, type):
        return None
    if is_struct(cls):
        return _of_struct(cls)
    if is_model(cls):
        return _of_model(cls)
    if dataclasses.is_dataclass(cls):
        return _of_dataclass(cls)
    if issubclass(cls, enum.Enum) or cls in _PARSED:
        return _parsed(_PARSED.get(cls, cls), cls.__name__)
    if cls in (set, frozenset, tuple):
        return _of_sequence(cls, Any)
    if cls in _SCALARS:
        return _of_scalar(cls)
    return None


def _of_scalar(cls: type) -> Convert:
    accepted = (int, float) if cls is float else (cls,)

    def convert(value: Any) -> Any:
        if type(value) not in accepted:
            raise TypeMismatch(cls.__name__, value)
        return value

    return convert


def _parsed(parse: Convert, name: str) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return parse(value)
        except (ValueError, TypeError, ArithmeticError):
            raise TypeMismatch(name, value) from None

    return convert


def _of_struct(cls: Any) -> Convert:
    import msgspec

    return _parsed(lambda value: msgspec.convert(value, cls), cls.__name__)


def _of_model(cls: Any) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return cls.model_validate(value)
        except ValueError as error:
            raise TypeMismatch(f"{cls.__name__} ({error})", value) from None

    return convert


def _of_dataclass(cls: Any) -> Convert:
    made: list[tuple[str, Convert | None, bool]] = []

    def fields() -> list[tuple[str, Convert | None, bool]]:
        # Built with the first value, so that a dataclass may refer to itself.
        if not made:
            hints = typing.get_type_hints(cls)
            made.extend(
                (
                    field.name,
                    converter(hints[field.name]),
                    field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
                )
                for field in dataclasses.fields(cls)
                if field.init
            )
        return made

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeMismatch(cls.__name__, value)
        built: dict[str, Any] = {}
        for name, convert_field, required in fields():
            if name in value:
                built[name] = _inside(convert_field, value[name], name)
            elif required:
                raise TypeMismatch(f"{cls.__name__} with field {name!r}", value)
        return cls(**built)

    return convert


def _inside(convert: Convert | None, value: Any, part: str) -> Any:
    if convert is None:
        return value
    try:
        return convert(value)
    except TypeMismatch as error:
        raise error.inside(part) from None


def _of_union(options: tuple[Any, ...]) -> Convert | None:
    converts = [converter(option) for option in options]
    if any(convert is None for convert in converts):
        return None

    def convert(value: Any) -> Any:
        problem: TypeMismatch | None = None
        for option in converts:
            try:
                return option(value) if option else value
            except TypeMismatch as error:
                if problem is None or len(error.path) > len(problem.path):
                    problem = error
        assert problem is not None
        raise problem

    return convert


def _of_sequence(build: Callable[[list[Any]], Any], item: Any) -> Convert:
    convert_item = converter(item)

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeMismatch("list", value)
        return build([_inside(convert_item, element, f"[{at}]") for at, element in enumerate(value)])

    return convert


def _of_tuple(items: tuple[Any, ...]) -> Convert:
    if len(items) == 2 and items[1] is Ellipsis:
        return _of_sequence(tuple, items[0])
    converts = [converter(item) for item in items]

    def convert(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(converts):
            raise TypeMismatch(f"list of {len(converts)}", value)
        return tuple(
            _inside(item, element, f"[{at}]")
            for at, (item, element) in enumerate(zip(converts, value, strict=True))
        )

    return convert


def _of_mapping(arguments: tuple[Any, ...]) -> Convert | None:
    convert_item = converter(arguments[1])
    if convert_item is None:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeMismatch("dict", value)
        return {key: _inside(convert_item, element, f"[{key!r}]") for key, element in value.items()}

    return convert
