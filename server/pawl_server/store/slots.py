"""Hash slots of a Redis Cluster: which node has them, as far as its nodes say."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pawl_server.store.connection import Endpoint
from pawl_server.store.keys import SLOTS, crc16
from pawl_server.store.wire import Wire

LOCAL = "127.0.0.1"
"""Host of nodes that name none, where they are asked over a unix socket."""


def slot_of(tag: str) -> int:
    """The slot of all keys that begin with `tag`, which is a hash tag in braces."""
    return crc16(tag.strip("{}").encode()) % SLOTS


def address_of(host: str, port: int | str) -> str:
    """How nodes are called here: `host:port`; the host of an IPv6 address has no brackets."""
    return f"{host}:{port}"


class Redirect(NamedTuple):
    """What a node says about a slot that it does not serve. `address` is that of MOVED and ASK, or empty."""

    word: str
    address: str

    @classmethod
    def parse(cls, text: str, asked: str) -> Redirect:
        """Reads an error such as `MOVED 3999 10.0.0.7:6379`; `asked` is the host of the node that says so."""
        word, _, rest = text.partition(" ")
        if word not in ("MOVED", "ASK"):
            return cls(word, "")
        host, _, port = rest.partition(" ")[2].partition(" ")[0].rpartition(":")
        return cls(word, address_of(host or asked, port))

    @property
    def moving(self) -> bool:
        """Whether the slot is on its way to another node, rather than served by none."""
        return self.word in ("MOVED", "ASK", "TRYAGAIN")


@dataclass(frozen=True)
class SlotMap:
    """Slots and their owners. `addresses` are all nodes that were named, by their ids, replicas included."""

    starts: list[int]
    ranges: list[tuple[int, int, str]]
    addresses: dict[str, str]

    @classmethod
    def parse(cls, reply: Iterable[Any], asked: str) -> SlotMap:
        """Reads the reply of CLUSTER SLOTS; `asked` is the host of the node that gave it."""
        ranges: list[tuple[int, int, str]] = []
        addresses: dict[str, str] = {}
        for first, last, *nodes in reply:
            named = [_named(node, asked) for node in nodes]
            addresses |= {id_: address for id_, address in named if address}
            if named and named[0][1]:
                ranges.append((first, last, named[0][1]))
        ranges.sort()
        return cls([first for first, _, _ in ranges], ranges, addresses)

    def owner(self, slot: int) -> str:
        """Address of the node that has a slot, empty where none has."""
        at = bisect_right(self.starts, slot) - 1
        if at < 0 or slot > self.ranges[at][1]:
            return ""
        return self.ranges[at][2]


def _named(node: list[Any], asked: str) -> tuple[str, str]:
    """Id and address of a node; no address if nobody knows its host. One without host has the asked one's."""
    host, port, id_ = (node[0] or b"").decode(), node[1], node[2].decode()
    return id_, "" if host == "?" else address_of(host or asked, port)


class Directory:
    """How the nodes of a cluster are reached. `seeds` are what the operator named; all have one password."""

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        self.seeds = seeds
        self._sockets: dict[str, Endpoint] = {}

    def endpoint(self, address: str) -> Endpoint:
        """Where the node that the cluster calls `address` is."""
        return self._sockets.get(address) or self.seeds[0].at(address)

    async def ask(self, wire: Wire, endpoint: Endpoint) -> SlotMap:
        """The slot map as one node sees it. Raises hiredis.ReplyError or StoreUnavailable."""
        slots = SlotMap.parse(await wire.execute("CLUSTER", "SLOTS"), endpoint.host or LOCAL)
        if endpoint.path:
            # Whoever named a socket wants it to be used: others may not reach the node's port, if it has one.
            own = slots.addresses.get((await wire.execute("CLUSTER", "MYID")).decode())
            if own is not None:
                self._sockets[own] = endpoint
        return slots
