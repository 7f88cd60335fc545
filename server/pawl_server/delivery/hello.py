"""The first frames of a stream: what a worker says of itself, checked, and what the server answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.delivery.frames import fill_ms
from pawl_server.delivery.sessions import Hello
from pawl_server.domain.errors import InvalidField
from pawl_server.domain.ids import check_id, check_ordinal, check_type
from pawl_server.domain.limits import (
    CREDITS,
    FRAME_BYTES,
    LABEL_BYTES,
    LABELS,
    LEASES_PER_REQUEST,
    WORKFLOWS_PER_HELLO,
)
from pawl_server.version import VERSION

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery

MAX_FRAME_DEFAULT = 4 << 20
MAX_FRAME_LEAST = 64 << 10
CAPABILITIES = ("work-stream", "claim-stream", "sleep", "defer", "signals")
"""What a worker may count on; those of the whole server are in GetServerInfo."""


def read_hello(first: pb.WorkRequest) -> Hello:
    """The hello of a first frame, checked; type settings apart. Raises InvalidField."""
    if not first.HasField("hello"):
        raise InvalidField("hello", "is missing: it opens the stream and must be in the first frame")
    return _hello(first.hello, 1)


def read_claim(request: pb.ClaimRequest) -> Hello:
    """The hello of a client that only listens, checked; its ordinal may be 0. Raises InvalidField."""
    if not request.HasField("hello"):
        raise InvalidField("hello", "is missing")
    hello = _hello(request.hello, 0)
    if not 0 < request.max_turns <= CREDITS:
        raise InvalidField("max_turns", f"is {request.max_turns}, not 1 to {CREDITS}")
    return hello


def read_poll(request: pb.PollTurnRequest) -> tuple[str, ...]:
    """The type:version that a poll is for, checked; type settings apart. Raises InvalidField."""
    if request.session:
        check_id("session", request.session)
    _check_count("workflows", len(request.workflows), WORKFLOWS_PER_HELLO, least=1)
    return _types("workflows", request.workflows)


def _hello(hello: pb.WorkHello, least_ordinal: int) -> Hello:
    check_id("hello.session", hello.session)
    check_ordinal("hello.stream_ordinal", hello.stream_ordinal, least_ordinal)
    _check_count("hello.workflows", len(hello.workflows), WORKFLOWS_PER_HELLO, least=1)
    _check_count("hello.leases", len(hello.leases), LEASES_PER_REQUEST)
    _check_count("hello.labels", len(hello.labels), LABELS)
    for key, value in hello.labels.items():
        if max(len(key.encode()), len(value.encode())) > LABEL_BYTES:
            raise InvalidField("hello.labels", f"has a key or value of more than {LABEL_BYTES} bytes")
    types = _types("hello.workflows", hello.workflows)
    return Hello(hello.session, hello.stream_ordinal, types, tuple(hello.leases), _max_frame(hello))


def _types(field: str, workflows: Iterable[pb.WorkflowRef]) -> tuple[str, ...]:
    types: dict[str, None] = {}
    for at, ref in enumerate(workflows):
        name = check_type(f"{field}[{at}].workflow_type", ref.workflow_type)
        types[f"{name}:{check_id(f'{field}[{at}].version', ref.version)}"] = None
        if ref.settings.name not in ("", name):
            raise InvalidField(f"{field}[{at}].settings.name", f"is not {name!r}, the type of the entry")
    return tuple(types)


def _max_frame(hello: pb.WorkHello) -> int:
    if hello.max_frame_bytes == 0:
        return MAX_FRAME_DEFAULT
    if hello.max_frame_bytes < MAX_FRAME_LEAST:
        raise InvalidField(
            "hello.max_frame_bytes", f"is {hello.max_frame_bytes}, not at least {MAX_FRAME_LEAST}"
        )
    return hello.max_frame_bytes


def _check_count(field: str, count: int, most: int, least: int = 0) -> None:
    if not least <= count <= most:
        raise InvalidField(field, f"has {count} entries, not {least} to {most}")


def server_hello(hello: pb.ServerHello, delivery: Delivery) -> None:
    """Fills in the server's answer."""
    settings = delivery.settings
    hello.server_run = delivery.engine.server_run
    hello.version = VERSION
    hello.address = delivery.engine.peers.address
    hello.capabilities.extend(CAPABILITIES)
    fill_ms(hello.beat_interval, settings.beat_interval_ms)
    for name, value in settings.limits.as_map().items():
        hello.limits[name] = value
    hello.max_frame_bytes = FRAME_BYTES
