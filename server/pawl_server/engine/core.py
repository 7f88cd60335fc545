"""The engine: what all parts of it share.

Requests come from rpc/ and delivery/, one call each, and become script calls of the store. The engine knows
policy (limits, digests, what a reply word means to the caller); which state may follow which is in the
scripts alone.
"""

from __future__ import annotations

import logging
import secrets
import string
from collections.abc import Callable

from pawl_server.domain.errors import Reason, Refused
from pawl_server.engine.awaits import Awaits
from pawl_server.engine.control import Control
from pawl_server.engine.counts import Counts
from pawl_server.engine.events import Events
from pawl_server.engine.fsck import Fsck
from pawl_server.engine.inbox import Inbox
from pawl_server.engine.info import Info
from pawl_server.engine.instances import Instances
from pawl_server.engine.leases import Leases
from pawl_server.engine.listing import Listing
from pawl_server.engine.peers import Peers
from pawl_server.engine.signals import Signals
from pawl_server.engine.turns import Turns
from pawl_server.engine.types import Types
from pawl_server.log_lines import HINT_LOST
from pawl_server.settings import Settings
from pawl_server.store.client import PartitionHandle, Store

log = logging.getLogger(__name__)

OnReady = Callable[[PartitionHandle, list[str]], None]
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
    is passed to every script: 0, except in virtual-time namespaces. `server_name` is how others know this
    server; `low_disk` says whether the disk of an embedded server is nearly full.
    """

    def __init__(self, store: Store, settings: Settings, server_run: str) -> None:
        self.store = store
        self.settings = settings
        self.limits = settings.limits
        self.namespace = settings.namespace
        self.server_run = server_run
        self.now_ms = 0
        self.server_name = settings.stable_name
        self.peers = Peers(server_run, len(store.partitions))
        self.low_disk: Callable[[], bool] = lambda: False
        self.on_ready: OnReady = _nobody
        self.counts = Counts()
        self.awaits = Awaits(self)
        self.control = Control(self)
        self.events = Events(self)
        self.inbox = Inbox(self)
        self.instances = Instances(self)
        self.turns = Turns(self)
        self.signals = Signals(self)
        self.listing = Listing(self)
        self.fsck = Fsck(self)
        self.types = Types(self)
        self.info = Info(self)
        self.leases = Leases(self)

    def ready(self, partition: PartitionHandle, types: list[str]) -> None:
        """Passes on what a reply says became ready; cheap when nothing did. Never raises."""
        if types:
            try:
                self.on_ready(partition, types)
            except Exception as error:
                HINT_LOST(log, error, hint=f"{', '.join(types)} ready")

    def admit(self) -> None:
        """Raises Refused(OVERLOADED) while new work must be kept out so that running turns can end."""
        if self.store.memory_pressure:
            raise Refused(Reason.OVERLOADED, "Redis is near its memory limit; running turns go on")
        if self.low_disk():
            raise Refused(Reason.OVERLOADED, "the data folder's disk is nearly full; running turns go on")
