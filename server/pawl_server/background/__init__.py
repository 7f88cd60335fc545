"""Background: loops over the partitions that need no leader. Every server runs all of them.

timers    applies what is due: leases that ran out, backoffs that are over, trimming
beats     says that this server lives, watches the clock, finds servers that are gone
sweeper   walks unfinished instances for wake-ups that were lost
trimmer   walks all instances for what is too old, much more slowly

No loop ends because of an error: it is logged and counted, and the loop goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawl_server.background.beats import Beats, Holder
from pawl_server.background.sweeper import Sweeper
from pawl_server.background.timers import Timers
from pawl_server.background.trimmer import Trimmer

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine

__all__ = ["Background"]


class Background:
    """All loops of a server. `holder` has the leases of its streams."""

    def __init__(self, engine: Engine, holder: Holder) -> None:
        self.timers = Timers(engine)
        self.beats = Beats(engine, holder)
        self.sweeper = Sweeper(engine)
        self.trimmer = Trimmer(engine)

    async def start(self) -> None:
        """Returns after the first beat in every partition: only then may leases end by time."""
        await self.beats.start()
        self.timers.start()
        self.sweeper.start()
        self.trimmer.start()

    async def stop(self) -> None:
        """Ends all loops."""
        await self.trimmer.stop()
        await self.sweeper.stop()
        await self.timers.stop()
        await self.beats.stop()
