"""Many watchers that come and go while turns are under way: no event is missed and none comes twice.

`make soak-watch` runs it at full size: 500 watchers of 500 instances, 20 reconnections a second, for a
minute, on two servers whose listeners are cut now and then. The size here is a tenth of that, as fast as it
goes.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from pawl import Client, Context, Message, Worker, workflow
from pawl.v1 import event_service_pb2 as pb
from pawl.v1.event_service_pb2_grpc import EventServiceStub
from pawl_server.app import running
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until

FULL = bool(os.environ.get("PAWL_SOAK_WATCH"))
WATCHERS = 500 if FULL else 50
ROUNDS = 1_200 if FULL else 60
"""Each cuts one watcher and sends some messages."""
ROUND_S = 0.05 if FULL else 0.0
"""Time that a round takes at least."""
MESSAGES = 10
WATCHERS_PER_CONNECTION = 50


@dataclass
class Watcher:
    """Follows one instance over two servers in turn."""

    name: str
    stubs: list[Any]
    place: pb.Cursor = field(default_factory=pb.Cursor)
    call: Any = None
    opened: int = 0
    wrong: list[str] = field(default_factory=list)
    closed: bool = False

    async def run(self) -> None:
        while not self.closed:
            self.opened += 1
            stub = self.stubs[self.opened % len(self.stubs)]
            self.call = stub.WatchEvents(pb.WatchEventsRequest(instance_id=self.name, after=self.place))
            try:
                async for frame in self.call:
                    self.take(frame)
            except asyncio.CancelledError:
                pass  # cut

    def take(self, frame: pb.WatchEventsResponse) -> None:
        if frame.HasField("event"):
            event = frame.event
            if event.instance_id != self.name or event.seq != self.place.seq + 1:
                self.wrong.append(f"{self.name}: {event.instance_id}/{event.seq} after {self.place.seq}")
            self.place = pb.Cursor(incarnation=event.incarnation, seq=event.seq, gen=event.gen)
        elif not frame.HasField("beat"):
            self.wrong.append(f"{self.name}: {frame.WhichOneof('item')}")

    def cut(self) -> None:
        """Breaks the stream; it is opened again at once, on the other server, unless `closed`."""
        self.call.cancel()


async def pace(end: float) -> None:
    """Keeps the load of a round to its time."""
    await asyncio.sleep(end - asyncio.get_running_loop().time())


@workflow("soak", version="v1")
async def two_steps(ctx: Context, state: Any, message: Any) -> Any:
    await ctx.step("one", lambda: 1)
    await ctx.step("two", lambda: 2)
    return ctx.done(None)


@pytest.mark.timeout(300 if FULL else 60)
@pytest.mark.spec("R-WATCH-1", "R-WATCH-7")
async def test_no_watcher_misses_or_repeats_an_event(redis_server: RedisServer, redis_url: str) -> None:
    chance = random.Random()
    names = [f"i{at}" for at in range(WATCHERS)]
    async with (
        running(settings_for(redis_url)) as first,
        running(settings_for(redis_url)) as second,
        Client(first.address) as client,
    ):
        channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(0, WATCHERS, WATCHERS_PER_CONNECTION)
            for address in (first.address, second.address)
        ]
        stubs = [EventServiceStub(channel) for channel in channels]
        for name in names:
            await client.create(name, two_steps)
        worker = Worker(second.address, workflows=[two_steps], concurrency=32)
        working = asyncio.create_task(worker.run())
        watchers = [
            Watcher(name, stubs[2 * (at // WATCHERS_PER_CONNECTION) :][:2]) for at, name in enumerate(names)
        ]
        tasks = [asyncio.create_task(watcher.run()) for watcher in watchers]
        await wait_until(lambda: all(watcher.place.seq for watcher in watchers), 60)
        begun = asyncio.get_running_loop().time()
        for at in range(ROUNDS):
            batch = [Message(chance.choice(names), at) for _ in range(MESSAGES)]
            for answer in await client.send_many(batch):
                assert not isinstance(answer, Exception), answer
            chance.choice(watchers).cut()
            if at % 100 == 50:
                redis_server.call("CLIENT", "KILL", "TYPE", "pubsub")
            await pace(begun + (at + 1) * ROUND_S)

        async def settled() -> bool:
            for watcher in watchers:
                instance = await client.get(watcher.name)
                if instance.pending_turns or instance.last_seq != watcher.place.seq:
                    return False
            return True

        await wait_until(settled, 120)
        assert [task.exception() for task in tasks if task.done()] == []
        for watcher in watchers:
            watcher.closed = True
            watcher.cut()
        await asyncio.gather(*tasks)
        await worker.stop(1)
        await working
        for channel in channels:
            await channel.close()
    assert [text for watcher in watchers for text in watcher.wrong] == []
    assert sum(watcher.opened for watcher in watchers) >= WATCHERS + ROUNDS // 2
    total = sum(watcher.place.seq for watcher in watchers)
    assert total == WATCHERS + ROUNDS * MESSAGES * 5, "creation, and five events of each turn"
