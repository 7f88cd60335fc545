"""Reference pages of the API from proto descriptors with source info."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

from tools.generators.markdown import note, plain, table

_SCALARS = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
"""Field numbers of FileDescriptorProto, the first step of a source path."""

Path = tuple[int, ...]


@dataclass(frozen=True)
class _File:
    proto: FileDescriptorProto
    comments: dict[Path, str]
    entries: dict[str, DescriptorProto]
    """Map entry types by full name."""

    def comment(self, *path: int) -> str:
        return self.comments.get(path, "")

    @property
    def link(self) -> str:
        """Where to read the source, from the page."""
        return f"In [{self.proto.name.rpartition('/')[2]}](../../proto/{self.proto.name})."


def api_page(descriptors: FileDescriptorSet) -> str:
    """Services first, each with its calls; then messages and enums, alphabetically."""
    files = list(_own_files(descriptors))
    services, types = [], {}
    for file in files:
        services += _services(file)
        types.update(_types(file))
    parts = [
        "# API",
        note("proto/pawl"),
        "gRPC, package `pawl.v1` and, for tests, `pawl.testing.v1`: the comments of the protos as one page.",
    ]
    parts += ["## Services", *services, "## Messages and enums", *(types[name] for name in sorted(types))]
    return "\n\n".join(parts) + "\n"


def errors_page(descriptors: FileDescriptorSet) -> str:
    """One row per reason: code, whether a repeat can succeed, meaning, Python exception."""
    for file in _own_files(descriptors):
        for at, enum in enumerate(file.proto.enum_type):
            if enum.name == "Reason":
                rows = [
                    _reason(value.name.removeprefix("REASON_"), file.comment(_ENUM, at, 2, number))
                    for number, value in enumerate(enum.value)
                    if value.number
                ]
                heads = ("reason", "gRPC code", "repeat", "meaning", "Python")
                intro = _paragraphs(file.comment(_ENUM, at))
                return (
                    "\n\n".join(["# Errors", note("proto/pawl/v1/error.proto"), intro, table(heads, rows)])
                    + "\n"
                )
    raise LookupError("no enum Reason in the protos")


def _reason(name: str, comment: str) -> tuple[str, str, str, str, str]:
    """Splits `CODE, repeat. Meaning. `pawl.Exception`.`; reasons that end a turn or attempt have no code."""
    text = " ".join(comment.split())
    exception = re.search(r" `(pawl\.\w+)`\.$", text)
    text = text[: exception.start()] if exception else text
    head = re.match(r"(?P<code>[A-Z_]{4,})(?:, (?P<repeat>.*?))?[.;](?: (?P<meaning>.*))?$", text)
    python = f"`{exception[1]}`" if exception else ""
    if head is None:
        return f"`{name}`", "", "", text, python
    return f"`{name}`", head["code"], head["repeat"] or "", head["meaning"] or "", python


def _own_files(descriptors: FileDescriptorSet) -> Iterator[_File]:
    for proto in descriptors.file:
        if proto.package.startswith("pawl."):
            info = proto.source_code_info.location
            comments = {tuple(one.path): one.leading_comments.strip() for one in info if one.leading_comments}
            yield _File(proto, comments, dict(_map_entries(f".{proto.package}", proto.message_type)))


def _map_entries(scope: str, messages: Iterable[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        name = f"{scope}.{message.name}"
        if message.options.map_entry:
            yield name, message
        yield from _map_entries(name, message.nested_type)


def _services(file: _File) -> Iterator[str]:
    for at, service in enumerate(file.proto.service):
        yield f"### {service.name}"
        yield file.link
        yield _paragraphs(file.comment(_SERVICE, at))
        for number, method in enumerate(service.method):
            yield f"#### {service.name}.{method.name}"
            yield _signature(method)
            yield _paragraphs(file.comment(_SERVICE, at, 2, number))


def _signature(method: MethodDescriptorProto) -> str:
    taken = f"{'stream of ' if method.client_streaming else ''}{_reference(method.input_type)}"
    given = f"{'stream of ' if method.server_streaming else ''}{_reference(method.output_type)}"
    return f"Takes {taken}, answers {given}."


def _types(file: _File) -> Iterator[tuple[str, str]]:
    for at, message in enumerate(file.proto.message_type):
        yield from _message(file, message, message.name, (_MESSAGE, at))
    for at, enum in enumerate(file.proto.enum_type):
        yield _enum(file, enum, enum.name, (_ENUM, at))


def _message(file: _File, message: DescriptorProto, name: str, path: Path) -> Iterator[tuple[str, str]]:
    if message.options.map_entry:
        return
    rows = []
    for at, field in enumerate(message.field):
        comment = file.comment(*path, 2, at)
        if field.HasField("oneof_index") and not field.proto3_optional:
            comment = f"(one of `{message.oneof_decl[field.oneof_index].name}`) {comment}"
        rows.append((f"`{field.name}`", str(field.number), _type(file, field), comment))
    parts = [f"### {name}", file.link, _paragraphs(file.comment(*path))]
    parts += [table(("field", "no.", "type", "meaning"), rows)] if rows else ["No fields."]
    yield name, "\n\n".join(parts)
    for at, nested in enumerate(message.nested_type):
        yield from _message(file, nested, f"{name}.{nested.name}", (*path, 3, at))
    for at, enum in enumerate(message.enum_type):
        yield _enum(file, enum, f"{name}.{enum.name}", (*path, 4, at))


def _enum(file: _File, enum: EnumDescriptorProto, name: str, path: Path) -> tuple[str, str]:
    rows = [
        (f"`{value.name}`", str(value.number), file.comment(*path, 2, at))
        for at, value in enumerate(enum.value)
    ]
    parts = [
        f"### {name}",
        file.link,
        _paragraphs(file.comment(*path)),
        table(("value", "no.", "meaning"), rows),
    ]
    return name, "\n\n".join(parts)


def _type(file: _File, field: FieldDescriptorProto) -> str:
    entry = file.entries.get(field.type_name)
    if entry is not None:
        return f"map of {_type(file, entry.field[0])} to {_type(file, entry.field[1])}"
    name = _SCALARS.get(field.type) or _reference(field.type_name)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _reference(full_name: str) -> str:
    name = full_name.removeprefix(".pawl.v1.").removeprefix(".pawl.testing.v1.")
    if name != full_name:
        return f"[{name}](#{name.lower().replace('.', '')})"
    return f"`{full_name.lstrip('.')}`"


def _paragraphs(comment: str) -> str:
    lines = [line.removeprefix(" ") for line in comment.splitlines()]
    return plain("\n".join(lines))
