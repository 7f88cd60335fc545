"""gRPC and fork().

The threads of gRPC do not live on in a forked child, where the first call would then hang or crash. With
`GRPC_ENABLE_FORK_SUPPORT=1` gRPC starts them anew, unless an event loop of asyncio has used it.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

_SUPPORTED = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("1", "true", "yes", "y", "t")
"""As gRPC read it when it was imported."""


class Forked(Protocol):
    """What wants to know that it is in a child now."""

    def forked(self) -> None:
        """Forgets what belongs to the parent."""


_used = False
_lost = ""
_told: weakref.WeakSet[Forked] = weakref.WeakSet()
_used_by_asyncio = False


def use(*, asyncio: bool) -> None:
    """Says that a channel is about to be opened. Raises RuntimeError in a child that can't have one."""
    global _used, _used_by_asyncio
    if _lost:
        raise RuntimeError(_lost)
    _used = True
    _used_by_asyncio = _used_by_asyncio or asyncio


def tell(transport: Forked) -> None:
    """Has `forked` called in every child."""
    _told.add(transport)


def _in_child() -> None:
    global _lost
    if _used_by_asyncio:
        _lost = (
            "this process was forked from one that had called a Pawl server from an event loop, which gRPC"
            " does not survive: fork before the first call, or start processes by spawn"
        )
    elif _used and not _SUPPORTED:
        _lost = (
            "this process was forked from one that had called a Pawl server: fork before the first call,"
            " start processes by spawn, or set GRPC_ENABLE_FORK_SUPPORT=1 in the environment"
        )
    for transport in list(_told):
        transport.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
