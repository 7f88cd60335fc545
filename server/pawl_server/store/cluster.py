"""Keeps every partition on the node of a Redis Cluster that has its slot.

A partition is either placed, on the lanes of a node, or parked: its calls wait in a room of its own while
`hello` is tried where its slot should be. It is parked when a node says that it does not serve the slot
(MOVED), not now (ASK and TRYAGAIN while a slot moves key by key) or not safely (CLUSTERDOWN, NOREPLICAS),
and when its node is away and others name another owner. `hello` succeeds only where the slot is served, so it
is also the probe. ASK is never followed: a script that runs on the new node while keys are on the old one
forks the partition.

Answers of those kinds mean that nothing was run. Calls that a connection left unanswered are repeated as
lane.py says, on whichever node has the partition then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

import hiredis

from pawl_server.log_lines import (
    LOOP_BROKE,
    NODE_JOINED,
    NODE_REFUSED,
    PARTITION_AWAY,
    PARTITION_PLACED,
    SLOTS_UNKNOWN,
)
from pawl_server.store.connection import Endpoint, session
from pawl_server.store.errors import StoreError, StoreMoving, StoreRefused, StoreUnavailable
from pawl_server.store.lane import SLOT_MOVES
from pawl_server.store.node import Hello, Node
from pawl_server.store.opening import Found, StoreSettings, check_node
from pawl_server.store.outage import Outage, reason
from pawl_server.store.partition import PartitionHandle
from pawl_server.store.slots import LOCAL, Directory, Redirect, SlotMap
from pawl_server.store.waiting import Waiting
from pawl_server.store.wire import Call

log = logging.getLogger(__name__)

RETRY = 0.05
"""Seconds between two attempts to place a parked partition."""

LOOK_MIN, LOOK_MAX = 0.05, 0.5
"""Seconds between two looks at the slot map while something is wrong."""

ASK_TIMEOUT = 1.0
"""Longest time in seconds that one node may take to tell its slot map."""

TROUBLE = (StoreError, OSError, TimeoutError, hiredis.ReplyError)
"""What an attempt may end with that is worth another one."""


class Room(Waiting):
    """Where the calls of a parked partition wait. `tries` counts the attempts to place it since."""

    def __init__(self, call_timeout: float, patience: float) -> None:
        super().__init__(call_timeout, patience)
        self.since = self._down_since = self._loop.time()
        self.moving = False
        self.why = ""
        self.tries = 0

    def _away(self, call: Call) -> StoreError:
        if self.moving and not call.retried:
            return StoreMoving(f"the partition's slot is moving: {self.why}")
        return StoreUnavailable(f"no node serves the partition: {self.why}", maybe_applied=call.retried)

    def close(self) -> None:
        """Fails what waits."""
        self._shut()


class Cluster:
    """Nodes, partitions, and who is where. Use it from one event loop.

    `watchers` are called with each partition that was placed, and the address of its node.
    """

    def __init__(
        self,
        settings: StoreSettings,
        directory: Directory,
        found: Found,
        homes: Sequence[PartitionHandle],
        hello: Hello,
        outage: Outage,
    ) -> None:
        assert found.slots is not None
        self.nodes: dict[str, Node] = {}
        self.watchers: list[Callable[[PartitionHandle, str], None]] = []
        self._settings = settings
        self._options = settings.lane_options()
        self._directory = directory
        self.homes = homes
        self._hello = hello
        self.outage = outage
        self._loop = asyncio.get_running_loop()
        self._seen = set(found.slots.addresses.values())
        self._owner: dict[PartitionHandle, str] = {}
        self._rooms: dict[PartitionHandle, Room] = {}
        self._settlers: dict[str, asyncio.Task[None]] = {}
        self._retiring: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._stale = asyncio.Event()
        self._closed = False
        for home in homes:
            address = self._owner[home] = found.slots.owner(home.slot)
            node = self._node(address)
            node.facts = found.facts[address]
            node.take(home)
        for node in self.nodes.values():
            node.begin(settings.memory_limit, settings.memory_interval)
        self._stale.set()
        self._watch = self._loop.create_task(self._keep_looking(), name="slot map")

    # What others ask

    @property
    def settled(self) -> bool:
        """Whether every partition is placed on a node that is connected."""
        return not self._rooms and all(node.ready for node in self._used())

    @property
    def reachable(self) -> bool:
        """The same, but for partitions whose slot moves: that ends by itself."""
        return all(room.moving for room in self._rooms.values()) and all(node.ready for node in self._used())

    @property
    def parked_calls(self) -> int:
        """Calls of partitions that no node serves now."""
        return sum(room.waiting for room in self._rooms.values())

    def endpoint(self, address: str) -> Endpoint:
        """Where a node is."""
        return self._directory.endpoint(address)

    def address(self, home: PartitionHandle) -> str:
        """The node of a partition; empty while it is parked."""
        return "" if home in self._rooms else self._owner[home]

    def representatives(self) -> list[PartitionHandle]:
        """One partition of each node that has any; a placed one where there is one."""
        chosen: dict[str, PartitionHandle] = {}
        for home in self.homes:
            address = self._owner[home]
            if address not in chosen or (chosen[address] in self._rooms and home not in self._rooms):
                chosen[address] = home
        return list(chosen.values())

    async def start(self, timeout: float) -> None:
        """Returns once all is settled.

        Raises StoreRefused or ScriptFailed if waiting is of no use, else StoreUnavailable after `timeout`.
        """
        deadline = self._loop.time() + timeout
        while not self.settled:
            for node in self.nodes.values():
                if node.refusal is not None:
                    raise node.refusal
            if self._loop.time() > deadline:
                raise StoreUnavailable(f"{self._trouble()} for {timeout:.1f} s", maybe_applied=False)
            await asyncio.sleep(0.005)

    def _trouble(self) -> str:
        for home, room in self._rooms.items():
            return f"partition {home.index} has no node ({room.why})"
        for node in self._used():
            if not node.ready:
                return f"node {node.address} could not be used ({node.why})"
        return "all is well"

    async def close(self) -> None:
        """Closes all nodes; what waits fails with StoreUnavailable."""
        self._closed = True
        if self._retiring is not None:
            self._retiring.cancel()
        tasks = [self._watch, *self._settlers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, *self._closing])
        for room in self._rooms.values():
            room.close()
        await asyncio.gather(*(node.close() for node in self.nodes.values()))

    def _used(self) -> list[Node]:
        return [self.nodes[address] for address in set(self._owner.values()) if address in self.nodes]

    # Parking

    def redirected(self, node: Node, call: Call, text: str) -> None:
        """Takes over a call that a node answered by `text`, which says that nothing was run."""
        home = call.home
        assert isinstance(home, PartitionHandle)
        self.elsewhere(node, home, text)
        home.lane(call.script).adopt([call])

    def elsewhere(self, node: Node, home: PartitionHandle, text: str) -> None:
        """A node does not serve a partition that was believed to be there, as it says in `text`."""
        address = self._owner[home]
        if self.nodes.get(address) is not node:
            return  # a late answer of a node that the partition has left
        redirect = Redirect.parse(text, node.endpoint.host or LOCAL)
        self._park(home, text, moving=redirect.moving)
        if redirect.word == "MOVED" and redirect.address != address:
            self._owner[home] = redirect.address
        if redirect.word not in SLOT_MOVES:
            self._stale.set()
        self._settle(self._owner[home])

    def elsewhere_by_slot(self, address: str, text: str) -> None:
        """The same, from a connection that knows only the slot: `text` is `MOVED <slot> <address>`."""
        slot = text.split(" ")[1]
        for home in self.homes:
            if str(home.slot) == slot and self.address(home) == address:
                self.elsewhere(self.nodes[address], home, text)

    def _park(self, home: PartitionHandle, why: str, *, moving: bool) -> None:
        room = self._rooms.get(home)
        if room is None:
            room = self._rooms[home] = Room(self._options.call_timeout, self._options.patience)
            node = self.nodes[self._owner[home]]
            calls = node.give_up(home)
            home.place(room, room)
            room.adopt(calls)
            PARTITION_AWAY(log, partition=home.index, why=why, node=node.address)
        room.moving, room.why = moving, why

    # Placing

    def _settle(self, address: str) -> None:
        """Sees to it that somebody tries to place the parked partitions of a node."""
        task = self._settlers.get(address)
        if (task is None or task.done()) and not self._closed:
            self._settlers[address] = self._loop.create_task(
                self._keep_settling(address), name=f"settle {address}"
            )

    async def _keep_settling(self, address: str) -> None:
        while homes := [home for home in self._rooms if self._owner[home] == address]:
            if min(self._rooms[home].tries for home in homes) > 1:
                # The first two may be a change of address and a look there.
                await asyncio.sleep(RETRY * random.uniform(0.5, 1.5))
            for home in homes:
                self._rooms[home].tries += 1
            try:
                await self._try(address, homes)
            except Exception as error:
                if not isinstance(error, TROUBLE):
                    LOOP_BROKE(log, error, part=f"settle {address}")
                    await asyncio.sleep(LOOK_MAX)
                self._stale.set()
                for room in (self._rooms[home] for home in homes if home in self._rooms):
                    room.moving, room.why = False, reason(error)

    async def _try(self, address: str, homes: list[PartitionHandle]) -> None:
        """One attempt to place partitions on a node. Raises one of TROUBLE."""
        node = self._node(address)
        if node.facts is None:
            await self._check(node)
            await node.connected(self._settings.connect_timeout)
        elsewhere = await node.introduce(homes)
        for home in homes:
            if home in elsewhere:
                self.elsewhere(node, home, elsewhere[home])
            elif home in self._rooms and self._owner[home] == address:
                self._place(home, node)
        self._retire_later()

    def _place(self, home: PartitionHandle, node: Node) -> None:
        node.take(home)
        room = self._rooms.pop(home)
        calls = room.take()
        for call in calls:
            home.lane(call.script).adopt([call])
        seconds = self._loop.time() - room.since
        PARTITION_PLACED(log, partition=home.index, node=node.address, seconds=seconds, calls=len(calls))
        for watcher in self.watchers:
            watcher(home, node.address)

    # Nodes

    def _node(self, address: str) -> Node:
        node = self.nodes.get(address)
        if node is None:
            node = self.nodes[address] = Node(
                self._directory.endpoint(address),
                self._hello,
                self._options,
                outage=self.outage,
                address=address,
                redirected=self.redirected,
                elsewhere=self.elsewhere,
                lost=self._stale.set,
            )
        return node

    async def _check(self, node: Node) -> None:
        """Looks at a node that joins after the start, then connects to it. Raises one of TROUBLE."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                facts = await check_node(node.endpoint, self._settings.durability_assume, strict=False)
        except StoreRefused as refusal:
            NODE_REFUSED(log, node=node.address, why=str(refusal))
            raise
        node.facts = facts
        node.begin(self._settings.memory_limit, self._settings.memory_interval)
        NODE_JOINED(log, node=node.address)

    def _retire(self) -> None:
        """Closes the nodes that have no partition any more, once all that they were asked is answered.

        What is under way there will be answered by MOVED, and go where it belongs.
        """
        self._retiring = None
        for address in self.nodes.keys() - set(self._owner.values()):
            if self.nodes[address].waiting:
                self._retire_later()
            else:
                task = self._loop.create_task(self.nodes.pop(address).close(), name=f"close {address}")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def _retire_later(self) -> None:
        if self._retiring is None and not self._closed:
            self._retiring = self._loop.call_later(RETRY, self._retire)

    # The slot map

    async def _keep_looking(self) -> None:
        """Looks at the slot map when something happened, and again and again while something is wrong."""
        pause = LOOK_MIN
        while True:
            await self._stale.wait()
            self._stale.clear()
            moved = False
            try:
                moved = self._apply(await self._ask())
            except TROUBLE as error:
                SLOTS_UNKNOWN(log, why=reason(error))
            pause = LOOK_MIN if moved or self.settled else min(pause * 2, LOOK_MAX)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            if not self.settled:
                self._stale.set()

    async def _ask(self) -> SlotMap:
        """The slot map as any node sees it. Raises StoreUnavailable."""
        why = "none is known"
        ready = [node for node in self._used() if node.ready]
        away = self._seen - {node.address for node in ready}
        others = [*map(self._directory.endpoint, away), *self._directory.seeds]
        # In any order: one that is behind, or hangs, must not be asked first each time.
        random.shuffle(ready)
        random.shuffle(others)
        asks = [
            *(partial(self._ask_node, node) for node in ready),
            *(partial(self._ask_other, each) for each in others),
        ]
        for ask in asks:
            try:
                async with asyncio.timeout(ASK_TIMEOUT):
                    return await ask()
            except TROUBLE as error:
                why = reason(error)
        raise StoreUnavailable(why, maybe_applied=False)

    async def _ask_node(self, node: Node) -> SlotMap:
        reply = await node.bulk.command("CLUSTER", "SLOTS")
        return SlotMap.parse(reply, node.endpoint.host or LOCAL)

    async def _ask_other(self, endpoint: Endpoint) -> SlotMap:
        async with session(endpoint, "pawl-slots") as wire:
            return await self._directory.ask(wire, endpoint)

    def _apply(self, slots: SlotMap) -> bool:
        """Changes the owner of partitions that have no working node; whether there were any.

        A map may be behind, so it does not part a partition from a node that serves it: that node says so.
        Nor does it change what is known of a partition whose node is there and said why it is parked.
        """
        self._seen = set(slots.addresses.values())
        moved = False
        for home in self.homes:
            address, former = slots.owner(home.slot), self._owner[home]
            if address in ("", former) or (home not in self._rooms and self.nodes[former].ready):
                continue
            if home not in self._rooms or (former in self.nodes and not self.nodes[former].ready):
                self._park(home, f"{former} is away", moving=False)
            self._owner[home] = address
            self._settle(address)
            moved = True
        return moved
