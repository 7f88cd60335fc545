"""Events in the SDK, against the real server: values, pages, and watches that outlive everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import pawl.sync
from pawl import Client, Event, EventCursor, NewInstance
from pawl.errors import Compacted, InvalidField, NotFound, Rewound, Unavailable
from pawl_server.app import Handle, running
from pawl_server.engine.events import WatchOptions
from tests.support.fault_proxy import Balancer, FaultProxy
from tests.support.hand import Hand
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until

NEW = NewInstance("t", "v1")
TURN = ["TURN_ADMITTED", "ATTEMPT_STARTED", "STEP_SAVED", "TURN_COMPLETED"]


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    """The next events."""
    async with asyncio.timeout(20):
        return [await anext(events) for _ in range(count)]


async def turn(client: Client, server: Handle, at: int) -> None:
    """One turn: four events, and with the first one the creation."""
    await client.send("a", at, id=f"m{at}", create=NEW)
    await Hand(server.engine).finish("a")


class Collector:
    """Follows an instance in the background."""

    def __init__(self, client: Client, **how: Any) -> None:
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._follow(client.watch("a", **how)))

    async def _follow(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.events.append(event)

    async def reached(self, seq: int) -> None:
        """Returns once everything up to an event has come, each once and in order."""
        await wait_until(lambda: self.events and self.events[-1].seq >= seq, 30)
        numbers = [event.seq for event in self.events]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


async def test_events_are_values(client: Client, server: Handle) -> None:
    await client.send("a", 0, create=NEW)
    hand = Hand(server.engine)
    await hand.finish("a")
    await client.pause("a", comment="for lunch")
    await client.send("a", 1, id="later", delay=30)
    found = {event.type: event async for event in client.list_events("a")}
    step = found["STEP_SAVED"]
    assert (step.key, step.position, step.turn, step.attempt) == ("only", 1, 1, 1)
    assert (step.actor, step.turn_state, step.status) == ("WORKER", "RUNNING", "ACTIVE")
    assert step.cursor == EventCursor(step.seq, 1, 1)
    paused = found["PAUSED"]
    assert (paused.comment, paused.actor, paused.status, paused.turn_state) == (
        "for lunch",
        "OPERATOR",
        "PAUSED",
        "",
    )
    delayed = found["MESSAGE_SCHEDULED"]
    assert (delayed.message_id, delayed.delay) == ("later", timedelta(seconds=30))
    assert step.time is not None


async def test_ledgers_are_read_in_pages(client: Client, server: Handle) -> None:
    for at in range(3):
        await turn(client, server, at)
    every = [event async for event in client.list_events("a", page_size=2)]
    assert [event.seq for event in every] == list(range(1, 14))
    ends = [event async for event in client.list_events("a", types=["TURN_COMPLETED"], page_size=1)]
    assert [event.turn for event in ends] == [1, 2, 3]
    page = await client.list_events_page("a", after=every[4].cursor, page_size=3)
    assert [event.seq for event in page.items] == [6, 7, 8]
    assert (page.next, page.last_seq, page.oldest_seq) == (every[7].cursor, 13, 1)
    with pytest.raises(Rewound):
        await client.list_events_page("a", after=EventCursor(14))
    with pytest.raises(NotFound):
        await client.list_events_page("absent")
    with pytest.raises(ValueError, match="NONSENSE"):
        await client.list_events_page("a", types=["NONSENSE"])
    for at in range(3, 90):
        await turn(client, server, at)
    with pytest.raises(Compacted) as compacted:
        await client.list_events_page("a", after=EventCursor(1))
    assert compacted.value.oldest_seq > 2


@pytest.mark.spec("R-SDK-30")
async def test_a_watch_outlives_connections(client: Client, server: Handle, proxy: FaultProxy) -> None:
    await turn(client, server, 0)
    async with Client(proxy.url) as through:
        collector = Collector(through, after=EventCursor(2))
        for at in range(1, 8):
            await turn(client, server, at)
            if at % 2:
                proxy.cut()
            else:
                await collector.reached(4 * at)
        await collector.reached(33)
        assert [event.type for event in collector.events[-4:]] == TURN
        collector.task.cancel()


@pytest.mark.spec("R-SDK-30")
async def test_a_watch_without_a_place_misses_nothing_after_its_first_frame(
    client: Client, server: Handle, proxy: FaultProxy
) -> None:
    """The first beat tells the place, so a connection that breaks before any event does not matter."""
    server.engine.events.options = WatchOptions(beat=0.02)
    await turn(client, server, 0)
    async with Client(proxy.url) as through:
        collector = Collector(through)
        await wait_until(lambda: server.engine.events.count == 1)
        seen = proxy.down.seen
        await wait_until(lambda: proxy.down.seen > seen + 1_000)
        proxy.refuse()
        proxy.cut()
        await wait_until(lambda: server.engine.events.count == 0)
        await turn(client, server, 1)
        proxy.accept()
        await collector.reached(9)
        assert collector.events[0].seq == 6
        collector.task.cancel()


@pytest.mark.spec("R-SDK-30", "R-WATCH-5")
async def test_a_watch_moves_on_from_a_stopping_server(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        running(settings_for(redis_url)) as first,
        running(settings_for(redis_url)) as second,
        Balancer(first.address, second.address) as balancer,
        Client(balancer.url) as through,
        Client(second.address) as other,
    ):
        await turn(other, second, 0)
        collector = Collector(through, after=EventCursor(0))
        await collector.reached(5)
        balancer.targets.reverse()
        await first.stop()
        await turn(other, second, 1)
        await collector.reached(9)
        collector.task.cancel()


async def test_a_watch_ends(client: Client, server: Handle) -> None:
    await client.send("a", 0, create=NEW)
    await client.send("a", 1)
    hand = Hand(server.engine)
    collector = Collector(client, until_idle=True, after=EventCursor(0), types=["TURN_COMPLETED"])
    await hand.finish("a")
    await hand.finish("a")
    await collector.task
    assert [event.turn for event in collector.events] == [1, 2]
    forever = Collector(client)
    await wait_until(lambda: server.engine.events.count == 1)
    await client.delete("a")
    await forever.task
    assert [event.type for event in forever.events] == ["DELETED"]
    with pytest.raises(NotFound):
        await anext(client.watch("a"))
    async with Client("127.0.0.1:1") as nowhere:
        with pytest.raises(Unavailable):
            await anext(nowhere.watch("a", timeout=0.3))


async def test_a_handle_watches_its_instance(client: Client, server: Handle) -> None:
    await turn(client, server, 0)
    events = client.instance("a").events(after=EventCursor(3))
    assert [event.seq for event in await take(events, 2)] == [4, 5]


@pytest.mark.spec("R-SDK-30")
async def test_everything_can_be_watched(client: Client, server: Handle, proxy: FaultProxy) -> None:
    async with Client(proxy.url) as through:
        events = through.watch_namespace(types=["TURN_COMPLETED", "CREATED"], workflow_type="t")
        first = asyncio.ensure_future(take(events, 2))
        await wait_until(lambda: server.engine.events.count == 1)
        await turn(client, server, 0)
        found = await first
        assert [item.event.type for item in found] == ["CREATED", "TURN_COMPLETED"]
        assert {item.workflow_type for item in found} == {"t"}
        proxy.cut()
        await turn(client, server, 1)
        found += await take(events, 1)
        assert [item.event.seq for item in found] == [1, 5, 9]
        resumed = client.watch_namespace(cursor=found[1].cursor)
        assert [item.event.seq for item in await take(resumed, 4)] == [6, 7, 8, 9]
    with pytest.raises(InvalidField):
        await anext(client.watch_namespace(cursor="nonsense"))


async def test_a_synchronous_watch_ends_with_its_client(client: Client, server: Handle) -> None:
    await turn(client, server, 0)
    caught: list[BaseException] = []
    blocking = pawl.sync.Client(server.address)

    def follow() -> None:
        try:
            for event in blocking.watch("a", after=EventCursor(4)):
                assert event.seq == 5
        except Unavailable as error:
            caught.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    await wait_until(lambda: server.engine.events.count == 1)
    await asyncio.to_thread(blocking.close)
    await wait_until(lambda: not thread.is_alive())
    assert len(caught) == 1
