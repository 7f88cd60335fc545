"""The engine: what all parts of it share.

Requests come from rpc/ and delivery/, one call each, and become script calls of the store. The engine knows
policy (limits, digests, what a reply word means to the caller); which state may follow which is in the
scripts alone.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import TYPE_CHECKING

from pawl_server.settings import Settings

if TYPE_CHECKING:
    from pawl_server.store.client import PartitionHandle, Store

OnReady = Callable[["PartitionHandle", list[str]], None]
"""Gets the partition and the `type:version` strings that became ready in it."""

_RUN_CHARS = string.ascii_lowercase + string.digits


def new_server_run() -> str:
    """Id of one run of a server: 8 characters of [a-z0-9], random."""
    return "".join(secrets.choice(_RUN_CHARS) for _ in range(8))


def _nobody(partition: PartitionHandle, types: list[str]) -> None:
    """Nobody hands out turns yet."""


class Engine:
    """Shared parts of the engine, and its parts by noun.

    `on_ready` is called in the same tick as the reply that made something ready; delivery sets it. `now_ms`
    is passed to every script: 0, except in virtual-time namespaces.
    """

    def __init__(self, store: Store, settings: Settings, server_run: str) -> None:
        from pawl_server.engine.awaits import Awaits

        self.store = store
        self.settings = settings
        self.limits = settings.limits
        self.namespace = settings.namespace
        self.server_run = server_run
        self.now_ms = 0
        self.on_ready: OnReady = _nobody
        self.awaits = Awaits(self)

    def ready(self, partition: PartitionHandle, types: list[str]) -> None:
        """Passes on what a reply says became ready; cheap when nothing did."""
        if types:
            self.on_ready(partition, types)
