"""The servers of the namespace, as their beats show them, and their order in each partition.

Work that one server can do for all is done in this order: the first does it when it is due, the others later
or less often, in case the first one can't. The order is drawn anew for each partition by rendezvous hash, so
it stays as it is for all but the servers that come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple


class Peer(NamedTuple):
    """A server: id of its run, and the address past any load balancer."""

    run: str
    address: str


def _nobody() -> None:
    """Nobody listens yet."""


class Peers:
    """The servers that are alive and not stopping. `on_change` hears of changes; delivery sets it.

    `address` is that of this server, empty until it is known; `leaving` says that this server is stopping.
    """

    def __init__(self, run: str, partitions: int) -> None:
        self.run = run
        self.address = ""
        self.leaving = False
        self.on_change: Callable[[], None] = _nobody
        self._others: list[dict[str, str]] = [{} for _ in range(partitions)]
        self._ranks = [0] * partitions
        self._servers: tuple[Peer, ...] = ()

    def seen(self, partition: int, alive: Sequence[bytes]) -> None:
        """Takes what a beat said in a partition: runs and addresses of the others, one after the other."""
        others = dict(zip(_texts(alive[::2]), _texts(alive[1::2]), strict=True))
        if others != self._others[partition]:
            self._others[partition] = others
            own = _weight(self.run, partition)
            self._ranks[partition] = sum(_weight(run, partition) > own for run in others)
        self.refresh()

    def refresh(self) -> None:
        """Looks whether `servers` has changed, and says so."""
        servers = tuple(self._everywhere())
        if servers != self._servers:
            self._servers = servers
            self.on_change()

    def _everywhere(self) -> list[Peer]:
        first, *rest = self._others
        known = [
            Peer(run, address)
            for run, address in first.items()
            if address and all(run in others for others in rest)
        ]
        if self.address and not self.leaving:
            known.append(Peer(self.run, self.address))
        return sorted(known)

    @property
    def servers(self) -> tuple[Peer, ...]:
        """Those that every partition knows and that can be reached, this one included, ordered by run."""
        return self._servers

    def rank(self, partition: int) -> int:
        """This server's place in the order of a partition: 0 is the first."""
        return self._ranks[partition]


def _texts(parts: Sequence[bytes]) -> list[str]:
    return [part.decode() for part in parts]


def _weight(run: str, partition: int) -> bytes:
    return blake2b(f"{run}/{partition}".encode(), digest_size=8).digest()
