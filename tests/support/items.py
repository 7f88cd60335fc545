"""Items of script calls with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from pawl_server.store.scripts_gen import CreateItem, SendItem

_CREATE = CreateItem(
    id="a",
    type="t",
    version="v1",
    digest=b"d",
    state=b"",
    lease_ms=0,
    max_attempts=0,
    retry=b"",
    words=b"",
    request_id="",
)
_SEND = SendItem(
    id="a",
    message_id="m",
    digest=b"d",
    message=b"json\0x",
    origin=b"",
    create=False,
    type="",
    version="",
    create_digest=b"",
    state=b"",
    lease_ms=0,
    max_attempts=0,
    retry=b"",
    words=b"",
    waits=False,
    delay_ms=0,
    ttl_ms=0,
)


def create_item(instance_id: str, **fields: Any) -> CreateItem:
    """An instance to create, of type t and version v1 unless `fields` say otherwise."""
    return _CREATE._replace(id=instance_id, **fields)


def send_item(instance_id: str, message_id: str = "m", *, create: bool = False, **fields: Any) -> SendItem:
    """A message to admit; with `create` an absent instance of type t and version v1 is created."""
    new = {"create": True, "type": "t", "version": "v1", "create_digest": b"d"} if create else {}
    return _SEND._replace(id=instance_id, message_id=message_id, **{**new, **fields})
