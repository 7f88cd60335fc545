"""A partition as the engine sees it, and where its scripts run."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from pawl_server.store.script_call import Arg, Script
from pawl_server.store.slots import slot_of
from pawl_server.store.waiting import Waiting
from pawl_server.store.wire import Home

NO_KEY = "none"
"""Name under each tag of a key that never exists. In a cluster every call declares it beside `meta`: while a
slot moves, Redis refuses calls whose declared keys are not all there, before anything is run."""


def declared(tag: str, *, cluster: bool) -> tuple[Arg, ...]:
    """The keys that calls under a tag declare: their number, then they."""
    return (2, f"{tag}meta", f"{tag}{NO_KEY}") if cluster else (1, f"{tag}meta")


class PartitionHandle(Home):
    """One partition. `tag` is the prefix of its keys, `gen` its generation, 1 or more once connected."""

    __slots__ = ("_bulk", "_hot", "gen", "index", "slot", "tag")

    def __init__(self, index: int, tag: str, *, cluster: bool) -> None:
        super().__init__(declared(tag, cluster=cluster))
        self.index = index
        self.tag = tag
        self.slot = slot_of(tag)
        self.gen = 0
        self._hot: Waiting
        self._bulk: Waiting

    def place(self, hot: Waiting, bulk: Waiting) -> None:
        """From now on calls go there."""
        self._hot, self._bulk = hot, bulk

    def lane(self, script: Script[Any] | None) -> Waiting:
        """Where calls of a script go now."""
        return self._bulk if script is not None and script.bulk else self._hot

    def call(self, script: Script[Any], argv: Iterable[Arg]) -> Awaitable[Any]:
        """Runs a script here; the raw reply, or StoreUnavailable, StoreMemory, StoreMoving, ScriptFailed."""
        return (self._bulk if script.bulk else self._hot).call(script, self, argv)

    def __repr__(self) -> str:
        return f"<partition {self.index} {self.tag} gen {self.gen}>"
