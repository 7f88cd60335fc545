"""Callers that wait for a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine


class Awaits:
    """Waiting callers of this server, by instance."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def notify(self, instance_id: str, turn: int) -> None:
        """Says that a turn finished or failed for good. Never raises; cheap when nobody waits."""
