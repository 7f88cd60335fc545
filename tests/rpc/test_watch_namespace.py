"""WatchNamespace: everything, in order within each instance, from now or from a cursor on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from pawl.v1 import event_service_pb2 as pb
from pawl.v1.error_pb2 import Reason
from pawl_server.app import Handle, running
from pawl_server.engine.events import WatchOptions
from tests.support.api import Api, refusal_of
from tests.support.hand import Hand
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until
from tests.support.watching import Watch, name_of, types

NAMES = [f"i{at}" for at in range(8)]
"""Instances in both partitions."""


async def work(api: Api, server: Handle, at: int = 0, names: Iterable[str] = NAMES) -> None:
    """One turn of each instance: with the creation five events, else four."""
    hand = Hand(server.engine)
    for name in names:
        if at == 0:
            await api.create(name)
        await api.send(name, f"m{at}")
        await hand.finish(name)


def feed_keys(server: Handle) -> Iterator[str]:
    for partition in server.engine.store.partitions:
        yield f"{partition.tag}feed"


def order(events: Iterable[pb.NamespaceEvent]) -> dict[str, list[int]]:
    """The numbers of the events by instance, as they came."""
    found: dict[str, list[int]] = {}
    for each in events:
        found.setdefault(each.event.instance_id, []).append(each.event.seq)
    return found


@pytest.mark.spec("R-WATCH-9", "R-WATCH-3")
async def test_everything_that_happens_from_now_on(api: Api, server: Handle) -> None:
    await work(api, server)
    async with Watch.namespace(api) as watch:
        beat = await watch.begin()
        assert beat.namespace_cursor
        await work(api, server, 1)
        events = await watch.everything(32)
        assert order(events) == {name: [6, 7, 8, 9] for name in NAMES}
        assert {event.workflow_type for event in events} == {"t"}
        assert events[-1].cursor


@pytest.mark.spec("R-WATCH-9")
async def test_every_cursor_leads_to_exactly_what_follows(api: Api, server: Handle) -> None:
    async with Watch.namespace(api) as watch:
        cursors = [(await watch.begin()).namespace_cursor]
        await work(api, server)
        events = await watch.everything(40)
        cursors += [event.cursor for event in events]
        for seen, cursor in enumerate(cursors):
            if not cursor:
                continue
            async with Watch.namespace(api, cursor) as again:
                await again.begin()
                left = len(events) - seen
                found = await again.everything(left) if left else []
                assert order(found) == order(events[seen:])


@pytest.mark.spec("R-WATCH-9")
async def test_a_frame_may_end_inside_of_a_script(
    api: Api, server: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pawl_server.engine.events.namespace._FRAME_EVENTS", 2)
    async with Watch.namespace(api) as watch:
        await watch.begin()
        await work(api, server, names=["a"])
        hand = Hand(server.engine)
        await api.send("a", "more")
        await hand.finish("a", again=b"on")
        events = await watch.everything(10)
        assert order(events) == {"a": list(range(1, 11))}
        ends = [at for at, event in enumerate(events) if event.cursor]
        assert len(ends) >= 5
        for at in ends[:-1]:
            async with Watch.namespace(api, events[at].cursor) as again:
                await again.begin()
                assert order(await again.everything(9 - at)) == {"a": list(range(at + 2, 11))}


@pytest.mark.spec("R-WATCH-9", "R-WATCH-2")
async def test_filters(api: Api, server: Handle) -> None:
    server.engine.events.options = WatchOptions(beat=0.05)
    await api.create("other", workflow_type="u")
    async with (
        Watch.namespace(api, types=types("TURN_COMPLETED")) as ends,
        Watch.namespace(api, workflow_type="u") as other,
    ):
        start = await ends.begin()
        await other.begin()
        await work(api, server)
        found = await ends.everything(len(NAMES))
        assert {name_of(each.event) for each in found} == {"TURN_COMPLETED"}
        assert order(found) == {name: [5] for name in NAMES}
        await api.send("other", "m")
        assert order(await other.everything(1)) == {"other": [2]}
        beat = (await ends.frame()).beat
        assert beat.namespace_cursor != start.namespace_cursor
        async with Watch.namespace(api, beat.namespace_cursor) as rest:
            await rest.begin()
            await api.send("other", "n")
            assert order(await rest.everything(1)) in ({"other": [2, 3]}, {"other": [2]}, {"other": [3]})


@pytest.mark.spec("R-WATCH-9")
async def test_a_cursor_is_good_on_every_server(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        running(settings_for(redis_url)) as first,
        running(settings_for(redis_url)) as second,
        Api(first.address) as here,
        Api(second.address) as there,
    ):
        async with Watch.namespace(here) as watch:
            await watch.begin()
            await work(there, second)
            await watch.everything(40)
            await first.stop()
            frame = await watch.next()
            assert frame.reconnect.reason == Reason.REASON_DRAINING
        await work(there, second, 1)
        async with Watch.namespace(there, frame.reconnect.namespace_cursor) as watch:
            await watch.begin()
            assert order(await watch.everything(32)) == {name: [6, 7, 8, 9] for name in NAMES}


@pytest.mark.spec("R-WATCH-9")
async def test_what_a_watcher_missed_is_read_from_the_feed(
    api: Api, server: Handle, redis_server: RedisServer
) -> None:
    async with Watch.namespace(api) as watch:
        await watch.begin()
        for at in range(5):
            redis_server.call("CLIENT", "KILL", "TYPE", "pubsub")
            await work(api, server, at)
        assert order(await watch.everything(8 * 21)) == {name: list(range(1, 22)) for name in NAMES}


@pytest.mark.spec("R-WATCH-5")
async def test_a_slow_watcher_is_sent_away_and_loses_nothing(api: Api, server: Handle) -> None:
    server.engine.events.options = WatchOptions(queue=20)
    frames = server.engine.events.watch_namespace("", (), "")
    assert (await anext(frames)).HasField("beat")
    await work(api, server)
    found: list[pb.NamespaceEvent] = []
    cursor = ""
    await wait_until(lambda: any(watch.over for watch in server.engine.events._watches))
    async for frame in frames:
        found += frame.events.events
        cursor = frame.reconnect.namespace_cursor
    assert 20 <= len(found) < 40
    async with Watch.namespace(api, cursor) as again:
        await again.begin()
        found += await again.everything(40 - len(found))
    assert order(found) == {name: [1, 2, 3, 4, 5] for name in NAMES}


@pytest.mark.spec("R-WATCH-9")
async def test_catching_up_does_not_depend_on_the_queue(api: Api, server: Handle) -> None:
    """More happens during the catch-up than may wait: it is read from the feed as well."""
    async with Watch.namespace(api) as watch:
        start = (await watch.begin()).namespace_cursor
        await work(api, server)
    server.engine.events.options = WatchOptions(queue=4)
    frames = server.engine.events.watch_namespace(start, (), "")
    assert (await anext(frames)).HasField("beat")
    found: list[pb.NamespaceEvent] = []
    while len(found) < 8:
        found += (await anext(frames)).events.events
    await work(api, server, 1)
    while len(found) < 8 * 9:
        frame = await anext(frames)
        if frame.HasField("reconnect"):
            await frames.aclose()
            frames = server.engine.events.watch_namespace(frame.reconnect.namespace_cursor, (), "")
        found += frame.events.events
    await frames.aclose()
    assert order(found) == {name: list(range(1, 10)) for name in NAMES}


@pytest.mark.spec("R-WATCH-8", "R-WATCH-9")
async def test_cursors_that_are_too_old(api: Api, server: Handle, redis_server: RedisServer) -> None:
    await work(api, server)
    async with Watch.namespace(api) as watch:
        start = (await watch.begin()).namespace_cursor
        await work(api, server, 1)
        await watch.everything(32)
    for key in feed_keys(server):
        redis_server.call("XTRIM", key, "MAXLEN", 3)
    async with Watch.namespace(api, start) as watch:
        problem = await refusal_of(_to_the_end(watch))
    assert (problem.code, problem.reason) == ("OUT_OF_RANGE", "COMPACTED")


@pytest.mark.spec("R-WATCH-8", "R-WATCH-9")
async def test_a_feed_that_lapsed_and_began_anew_is_no_continuation(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with (
        running(settings_for(redis_url)) as first,
        Api(first.address) as api,
        Watch.namespace(api) as watch,
    ):
        start = (await watch.begin()).namespace_cursor
        await work(api, first)
        await watch.everything(40)
    async with running(settings_for(redis_url)) as second, Api(second.address) as api:
        for partition in second.engine.store.partitions:
            redis_server.call("HSET", f"{partition.tag}meta", "watch", 1)
        await work(api, second, 1)
        assert [redis_server.call("EXISTS", key) for key in feed_keys(second)] == [0, 0]
        async with Watch.namespace(api, start) as watch:
            assert (await refusal_of(_to_the_end(watch))).reason == "COMPACTED"
        async with Watch.namespace(api) as watch:
            await watch.begin()
            await work(api, second, 2)
            assert order(await watch.everything(32)) == {name: [10, 11, 12, 13] for name in NAMES}


async def _to_the_end(watch: Watch) -> None:
    while await watch.frame() is not None:
        pass


@pytest.mark.spec("R-WATCH-6", "R-WATCH-9")
async def test_a_cursor_that_the_store_lost() -> None:
    with RedisServer() as redis:
        async with running(settings_for(redis.url)) as server, Api(server.address) as api:
            server.engine.events.options = WatchOptions(look=0.1)
            await work(api, server)
            async with Watch.namespace(api) as watch:
                await watch.begin()
                redis.call("SAVE")
                await work(api, server, 1)
                lost = (await watch.everything(32))[-1].cursor
                redis.restart()
                assert (await refusal_of(_to_the_end(watch))).reason == "REWOUND"
            await wait_until(lambda: server.engine.store.connected)
            async with Watch.namespace(api, lost) as watch:
                problem = await refusal_of(_to_the_end(watch))
            assert (problem.code, problem.reason, problem.metadata["gen"]) == ("ABORTED", "REWOUND", "2")


@pytest.mark.spec("R-WATCH-9")
async def test_foreign_cursors_are_refused(api: Api, server: Handle) -> None:
    async with Watch.namespace(api) as watch:
        sound = (await watch.begin()).namespace_cursor
    for cursor in ("x", sound[:-1], sound[::-1], sound + "A", "é"):
        async with Watch.namespace(api, cursor) as watch:
            problem = await refusal_of(watch.frame())
        assert (problem.reason, problem.metadata) == ("CURSOR_STALE", {"field": "cursor"}), cursor
    async with Watch.namespace(api, workflow_type="no/type") as watch:
        assert (await refusal_of(watch.frame())).metadata == {"field": "workflow_type"}
