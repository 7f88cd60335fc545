"""Ledgers: reading them, and following them as they grow.

`ledger.py` reads events of one instance and makes their messages; `hub.py` follows the feeds of the
partitions and hands every event to those who watch; `watch.py` is one watcher of an instance,
`namespace.py` one of everything.
"""

from __future__ import annotations

from pawl_server.engine.events.events import Events
from pawl_server.engine.events.hub import WatchOptions

__all__ = ["Events", "WatchOptions"]
