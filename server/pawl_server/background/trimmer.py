"""The trimmer: a slow walk over all instances, for what no timer of theirs tells.

Old events go, settings that were made stricter reach instances that rest, and lost `gc` entries come back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pawl_server.background.walks import Walks
from pawl_server.store import scripts_gen as scripts

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

KEYS = 200
"""Keys of a partition that are looked at in a second; instances with a history have two."""
REST_S = 600.0
"""How long a partition rests after a whole walk."""
LIST = 16
"""Instances per script."""
TURNS = 64
"""Turns of each tier that one look at an instance trims; its timer goes on at once."""


class Trimmer(Walks):
    """Walks. `trimmed` counts turns, once when their payloads and once when their receipts go."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "trim")
        self.trimmed = 0
        self.walks = 0

    def pause_s(self, partition: PartitionHandle, cursor: str) -> float:
        """The first server of a partition walks, and rests after each whole walk."""
        if self.engine.peers.rank(partition.index) > 0:
            return math.inf
        return REST_S if cursor == "0" else 0.0

    async def page(self, partition: PartitionHandle, cursor: str) -> str:
        """Trims the next instances of a partition; the cursor to go on with. Raises a StoreError."""
        engine = self.engine
        result = await scripts.scan_keys(partition, now_ms=engine.now_ms, cursor=cursor, limit=KEYS)
        page = result.replies[0]
        names = [name.decode() for name in page.names if name.startswith(b"i:")]
        for first in range(0, len(names), LIST):
            items = [scripts.TrimItem(name.removeprefix("i:")) for name in names[first : first + LIST]]
            trimmed = await scripts.trim(
                partition, now_ms=engine.now_ms, server=engine.server_run, limit=TURNS, items=items
            )
            engine.ready(partition, trimmed.ready)
            for reply in trimmed.replies:
                if isinstance(reply, scripts.TrimOk):
                    self.trimmed += reply.trimmed
        self.walks += page.cursor == "0"
        return page.cursor
