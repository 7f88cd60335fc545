"""Watching below gRPC: one connection for all, and what happens when messages, entries or Redis are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pawl.v1.error_pb2 import Reason
from pawl.v1.event_pb2 import Event
from pawl.v1.event_service_pb2 import Cursor
from pawl.v1.instance_pb2 import InstanceStatus
from pawl_server.domain.errors import Refused
from pawl_server.engine import Engine
from pawl_server.engine.control import Target
from pawl_server.engine.events import WatchOptions
from pawl_server.store import scripts_gen
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.feed import FeedTail
from tests.support.hand import Hand
from tests.support.items import send_item
from tests.support.redis_server import RedisServer
from tests.support.server import open_engine
from tests.support.wait import wait_until

READ_S = 30.0


class Reader:
    """Takes the frames of one watch by hand."""

    def __init__(self, frames: Any) -> None:
        self.frames = frames
        self.place = Cursor()

    async def frame(self) -> Any:
        """The next frame."""
        async with asyncio.timeout(READ_S):
            return await anext(self.frames)

    async def begin(self) -> Reader:
        """Takes the first beat."""
        frame = await self.frame()
        assert frame.HasField("beat"), frame
        self.place = frame.beat.cursor
        return self

    async def events(self, count: int) -> list[Event]:
        """The next events, whose numbers must follow on each other."""
        found: list[Event] = []
        while len(found) < count:
            frame = await self.frame()
            if not frame.HasField("beat"):
                event = frame.event
                assert event.seq == self.place.seq + 1, frame
                self.place = Cursor(incarnation=event.incarnation, seq=event.seq, gen=event.gen)
                found.append(event)
        return found

    async def refused(self) -> Refused:
        """The refusal that ends the watch."""
        try:
            while True:
                assert (await self.frame()).HasField("beat")
        except Refused as refused:
            return refused


@contextlib.asynccontextmanager
async def watching(
    engine: Engine, instance_id: str = "a", after: Cursor | None = None, **fields: Any
) -> AsyncIterator[Reader]:
    """A watch that has begun."""
    frames = engine.events.watch(
        instance_id, after, fields.pop("types", ()), **{"until_idle": False, **fields}
    )
    async with contextlib.aclosing(frames):
        yield await Reader(frames).begin()


async def send(engine: Engine, instance_id: str = "a", count: int = 1, first: int = 0) -> None:
    """Admits messages; with the first one, the instance is made."""
    for at in range(first, first + count):
        await engine.inbox.send(send_item(instance_id, f"m{at}", create=True))


@contextlib.contextmanager
def deaf(engine: Engine, instance_id: str = "a") -> Iterator[list[bytes]]:
    """While it lasts, entries of the instance's partition are published in vain; gives those."""
    hub: Any = engine.events.hub
    tail: FeedTail = hub._tails[engine.store.partition_of(instance_id).index].tail
    lost: list[bytes] = []
    hear = tail.hear

    def lose(raw: bytes) -> None:
        lost.append(raw)

    tail.hear = lose
    try:
        yield lost
    finally:
        tail.hear = hear


def kill_listeners(redis: RedisServer) -> None:
    """Cuts the connections that listen to channels."""
    redis.call("CLIENT", "KILL", "TYPE", "pubsub")


def listeners(redis: RedisServer) -> int:
    return redis.call("CLIENT", "LIST", "TYPE", "pubsub").count(b"\n")


@pytest.mark.spec("R-WATCH-7")
async def test_all_watchers_of_a_server_share_one_connection(
    engine: Engine, redis_server: RedisServer
) -> None:
    names = [f"i{at}" for at in range(300)]
    for name in names:
        await send(engine, name)
    before = listeners(redis_server)
    async with contextlib.AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(watching(engine, name)) for name in names]
        assert listeners(redis_server) == before + 1
        for name in names:
            await send(engine, name, first=1)
        for watch in watches:
            assert [event.turn for event in await watch.events(1)] == [2]
        assert engine.events.count == 300
    assert engine.events.count == 0


@pytest.mark.spec("R-WATCH-7", "R-WATCH-8")
async def test_only_watched_partitions_have_a_feed(engine: Engine, redis_server: RedisServer) -> None:
    await send(engine, "a")
    async with watching(engine, "a"):
        home = engine.store.partition_of("a")
        for partition in engine.store.partitions:
            assert bool(redis_server.call("EXISTS", f"{partition.tag}feed")) == (partition is home)


@pytest.mark.spec("R-WATCH-1")
async def test_messages_lost_with_the_connection_are_read_from_the_feed(
    engine: Engine, redis_server: RedisServer
) -> None:
    await send(engine)
    async with watching(engine) as watch:
        for round_ in range(5):
            kill_listeners(redis_server)
            await send(engine, count=20, first=1 + 20 * round_)
            await watch.events(20)
    assert listeners(redis_server) > 0


@pytest.mark.spec("R-WATCH-1")
async def test_a_single_lost_message_is_noticed_by_the_next(engine: Engine) -> None:
    await send(engine)
    async with watching(engine) as watch:
        with deaf(engine) as lost:
            await send(engine, first=1)
            await wait_until(lambda: lost)
        await send(engine, first=2)
        assert [event.turn for event in await watch.events(2)] == [2, 3]


@pytest.mark.spec("R-WATCH-1")
async def test_a_last_message_that_is_lost_is_found_by_the_next_look(engine: Engine) -> None:
    engine.events.options = WatchOptions(look=0.05)
    await send(engine)
    async with watching(engine) as watch:
        with deaf(engine):
            await send(engine, first=1)
            assert [event.turn for event in await watch.events(1)] == [2]


@pytest.mark.parametrize("damage", ["UNLINK", "XTRIM"])
@pytest.mark.spec("R-WATCH-1")
async def test_what_the_feed_has_lost_is_read_from_the_ledgers(
    engine: Engine, redis_server: RedisServer, damage: str
) -> None:
    engine.events.options = WatchOptions(look=0.05)
    await send(engine, "a")
    await send(engine, "b")
    async with watching(engine, "a") as one, watching(engine, "b") as two:
        with deaf(engine, "a"):
            await send(engine, "a", count=3, first=1)
            key = f"{engine.store.partition_of('a').tag}feed"
            redis_server.call(damage, key, *(("MAXLEN", 0) if damage == "XTRIM" else ()))
            await one.events(3)
        await send(engine, "a", first=4)
        await send(engine, "b", first=1)
        await one.events(1)
        await two.events(1)


@pytest.mark.spec("R-WATCH-6")
async def test_a_watcher_whose_missed_events_were_trimmed_hears_so(
    engine: Engine, redis_server: RedisServer
) -> None:
    engine.events.options = WatchOptions(look=0.05)
    await send(engine)
    async with watching(engine) as watch:
        with deaf(engine):
            await _pause(engine, 3)
            tag = engine.store.partition_of("a").tag
            redis_server.call("LTRIM", f"{tag}e:a", -1, -1)
            redis_server.call("UNLINK", f"{tag}feed")
            problem = await watch.refused()
    assert (problem.reason, problem.metadata) == ("COMPACTED", {"oldest_seq": "5"})
    redis_server.flush()


_CONTROL: dict[str, Any] = {"server": "", "id": "a", "inc": 0, "request_id": "", "digest": b"", "comment": ""}


async def _pause(engine: Engine, times: int) -> None:
    for at in range(times):
        call = (scripts_gen.pause, scripts_gen.resume)[at % 2]
        await call(engine.store.partition_of("a"), now_ms=engine.now_ms, **_CONTROL)


@pytest.mark.spec("R-WATCH-5")
async def test_a_slow_reader_gets_what_waits_and_is_sent_away(engine: Engine) -> None:
    engine.events.options = WatchOptions(queue=10)
    await send(engine)
    async with watching(engine) as watch:
        await send(engine, count=30, first=1)
        await wait_until(lambda: next(iter(engine.events._watches)).over)
        await watch.events(10)
        frame = await watch.frame()
        assert frame.reconnect.reason == Reason.REASON_OVERLOADED
        assert frame.reconnect.cursor == watch.place
        with pytest.raises(StopAsyncIteration):
            await watch.frame()
    async with watching(engine, after=frame.reconnect.cursor) as again:
        await again.events(20)


@pytest.mark.spec("R-WATCH-4")
async def test_an_instance_deleted_and_made_again_unheard_ends_the_watch(
    engine: Engine, redis_server: RedisServer
) -> None:
    engine.events.options = WatchOptions(look=0.05)
    await send(engine)
    async with watching(engine) as watch:
        partition = engine.store.partition_of("a")
        with deaf(engine):
            args: dict[str, Any] = {"now_ms": engine.now_ms, "server": "", "inc": 0, "request_id": ""}
            await scripts_gen.delete(partition, id="a", max_turns=1_000, **args)
            await send(engine, first=9)
            redis_server.call("UNLINK", f"{partition.tag}feed")
            frame = await watch.frame()
        assert (frame.WhichOneof("item"), frame.end.status) == ("end", 5)


@pytest.mark.spec("R-WATCH-1")
async def test_replay_and_tail_join_without_a_seam_under_load(engine: Engine) -> None:
    """Watchers come while events do; each must see every number once. Reader asserts it."""
    await send(engine)
    total, seen = 120, []

    async def follow() -> None:
        async with watching(engine, after=Cursor(seq=1)) as watch:
            await watch.events(total)
            seen.append(watch.place.seq)

    followers: list[asyncio.Task[None]] = []
    for at in range(total):
        if at % 10 == 0:
            followers.append(asyncio.ensure_future(follow()))
        await send(engine, first=1 + at)
    await asyncio.gather(*followers)
    assert seen == [total + 1] * 12


@pytest.mark.spec("R-WATCH-1")
async def test_redis_away_for_a_while_costs_no_event() -> None:
    with RedisServer(aof="always") as redis:
        async with open_engine(redis.url) as engine:
            engine.events.options = WatchOptions(look=0.1)
            await send(engine)
            async with watching(engine) as watch:
                await send(engine, first=1)
                await watch.events(1)
                redis.restart()
                await wait_until(lambda: _sent(engine, 2))
                await send(engine, count=5, first=3)
                events = await watch.events(6)
                assert {event.gen for event in events} == {2}
            redis.stop()
            with pytest.raises(StoreUnavailable):
                await Reader(engine.events.watch("a", None, (), until_idle=False)).begin()
            redis.start()
            await wait_until(lambda: engine.store.connected)
            async with watching(engine, after=watch.place) as again:
                await send(engine, first=8)
                await again.events(1)


async def _sent(engine: Engine, at: int) -> bool:
    try:
        await send(engine, first=at)
    except (StoreUnavailable, Refused):
        return False
    return True


@pytest.mark.spec("R-WATCH-6", "R-EVENT-5")
async def test_watchers_of_lost_events_hear_that_they_were_rewound() -> None:
    """Redis comes back without its newest writes, as after a failover: SAVE, more writes, kill, start."""
    with RedisServer() as redis:
        async with open_engine(redis.url) as engine:
            engine.events.options = WatchOptions(look=0.1)
            for name in ("a", "b"):
                await send(engine, name, count=3)
            async with watching(engine, "a") as ahead, watching(engine, "b") as sound:
                redis.call("SAVE")
                await send(engine, "a", count=2, first=3)
                await ahead.events(2)
                redis.restart()
                problem = await ahead.refused()
                assert (problem.reason, problem.metadata["last_seq"]) == ("REWOUND", "4")
                await wait_until(lambda: _sent_to(engine, "b"))
                events = await sound.events(1)
                assert events[0].gen == 2
                async with watching(engine, "a", Cursor(seq=4, gen=1)) as again:
                    await send(engine, "a", first=9)
                    assert [(event.seq, event.gen) for event in await again.events(1)] == [(5, 2)]
            with pytest.raises(Refused, match="REWOUND"):
                await Reader(engine.events.watch("a", ahead.place, (), until_idle=False)).begin()


@pytest.mark.parametrize("then", ["nothing", "made anew"])
@pytest.mark.spec("R-WATCH-6", "R-WATCH-4")
async def test_a_lost_instance_is_not_called_deleted(then: str) -> None:
    """One was created after the newest writes that Redis comes back with, another is deleted after that."""
    with RedisServer() as redis:
        async with open_engine(redis.url) as engine:
            engine.events.options = WatchOptions(look=0.1)
            await send(engine, "b")
            async with watching(engine, "b") as sound:
                redis.call("SAVE")
                await send(engine, "a")
                async with watching(engine, "a") as lost:
                    redis.restart()
                    if then == "made anew":
                        await wait_until(lambda: _sent_to(engine, "a"))
                    problem = await lost.refused()
                assert (problem.reason, problem.metadata["last_seq"]) == (
                    "REWOUND", "0" if then == "nothing" else "2",
                )  # fmt: skip
                await wait_until(lambda: _deleted(engine, "b"))
                if then == "made anew":
                    await wait_until(lambda: _sent_to(engine, "b"))
                while (frame := await sound.frame()).WhichOneof("item") != "end":
                    pass
                assert frame.end.status == InstanceStatus.INSTANCE_STATUS_DELETING


async def _deleted(engine: Engine, instance_id: str) -> bool:
    try:
        return bool((await engine.control.delete(Target(instance_id))).deleted)
    except (StoreUnavailable, Refused):
        return False


async def _sent_to(engine: Engine, instance_id: str) -> bool:
    try:
        await engine.inbox.send(send_item(instance_id, "late", create=True))
    except (StoreUnavailable, Refused):
        return False
    return True


async def test_a_follower_is_kept_for_watchers_that_come_back(engine: Engine) -> None:
    engine.events.options = WatchOptions(look=0.02, linger=0.1)
    await send(engine)
    hub: Any = engine.events.hub
    async with watching(engine):
        first = hub._tails[engine.store.partition_of("a").index]
    async with watching(engine):
        assert hub._tails[engine.store.partition_of("a").index] is first
    await wait_until(lambda: not hub._tails)
    async with watching(engine) as watch:
        await send(engine, first=1)
        await watch.events(1)


async def test_draining_reaches_those_who_sleep(engine: Engine) -> None:
    await send(engine)
    async with watching(engine) as watch:
        draining = asyncio.ensure_future(engine.events.drain(5))
        frame = await watch.frame()
        assert frame.reconnect.reason == Reason.REASON_DRAINING
        assert not draining.done()
        with pytest.raises(StopAsyncIteration):
            await watch.frame()
        await draining
    with pytest.raises(Refused, match="DRAINING"):
        await Reader(engine.events.watch("a", None, (), until_idle=False)).begin()


@pytest.mark.spec("R-WATCH-3")
async def test_beats_come_while_nothing_passes_the_filter(engine: Engine) -> None:
    engine.events.options = WatchOptions(beat=0.01)
    await send(engine)
    hand = Hand(engine)
    async with watching(engine, types=[99]) as watch:
        for at in range(1, 4):
            await send(engine, first=at)
            await hand.finish("a")
        frame = await watch.frame()
        while frame.beat.cursor.seq < 2 + 3 + 9:
            frame = await watch.frame()
        assert frame.beat.time.ToMilliseconds() == engine.now_ms
