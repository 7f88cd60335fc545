"""WatchEvents and ListEvents: replay and tail without a seam, places, filters, beats, and the end."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import event_service_pb2 as pb
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1.error_pb2 import Reason
from pawl.v1.event_pb2 import Actor, Event
from pawl.v1.event_service_pb2_grpc import EventServiceStub
from pawl.v1.instance_pb2 import InstanceStatus
from pawl_server.app import Handle, running
from pawl_server.engine.events import WatchOptions
from tests.support.api import Api, refusal_of
from tests.support.hand import Hand
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until
from tests.support.watching import Watch, name_of, types

IDLE = InstanceStatus.INSTANCE_STATUS_IDLE
TURN = ["TURN_ADMITTED", "ATTEMPT_STARTED", "STEP_SAVED", "TURN_COMPLETED"]
"""The events of one turn that a `Hand` finishes."""


async def work(api: Api, server: Handle, turns: int, instance_id: str = "a", first: int = 0) -> None:
    """Sends and finishes so many turns, one after the other."""
    hand = Hand(server.engine)
    for at in range(first, first + turns):
        await api.send(instance_id, f"m{at}")
        await hand.finish(instance_id)


async def listed(api: Api, **fields: object) -> list[Event]:
    """All kept events."""
    answer = await api.events.ListEvents(
        pb.ListEventsRequest(instance_id="a", page_size=100, **fields)  # pyright: ignore[reportArgumentType]
    )
    return list(answer.events)


def names(events: list[Event]) -> list[str]:
    return [name_of(event) for event in events]


@pytest.mark.spec("R-WATCH-1", "R-WATCH-3")
async def test_a_watch_begins_with_what_happens_from_now_on(api: Api, server: Handle) -> None:
    await api.create("a")
    await work(api, server, 1)
    async with Watch.of(api, "a") as watch:
        beat = await watch.begin()
        assert (beat.cursor.seq, beat.cursor.incarnation, beat.cursor.gen) == (5, 1, 1)
        assert beat.time.seconds > 1_000_000_000
        await work(api, server, 1, first=1)
        events = await watch.events(4)
        assert names(events) == TURN
        assert [event.seq for event in events] == [6, 7, 8, 9]
        assert [event.status for event in events] == [2, 2, 2, 1]
        assert events == (await listed(api))[5:], "the ledger says the same"


@pytest.mark.spec("R-WATCH-1", "R-EVENT-3")
@pytest.mark.parametrize("seq", [0, 1, 3, 5])
async def test_what_happened_before_is_replayed_from_a_place_on(api: Api, server: Handle, seq: int) -> None:
    await api.create("a")
    await work(api, server, 1)
    async with Watch.of(api, "a", pb.Cursor(seq=seq)) as watch:
        assert (await watch.begin()).cursor.seq == seq
        await work(api, server, 1, first=1)
        events = await watch.events(9 - seq)
        assert [event.seq for event in events] == list(range(seq + 1, 10))
        assert events == (await listed(api))[seq:]


@pytest.mark.spec("R-EVENT-1")
async def test_an_event_says_who_what_and_when(api: Api, server: Handle) -> None:
    await api.create("a")
    await api.send("a", "m")
    hand = Hand(server.engine)
    await hand.finish("a", again=b"more")
    await hand.fail("a", "BROKEN")
    events = {name_of(event): event for event in await listed(api)}
    assert events["STEP_SAVED"].step_saved == Event.StepSaved(key="only", position=1)
    assert events["ATTEMPT_FAILED"].attempt_failed.reason == "BROKEN"
    assert events["TURN_FAILED"].status == InstanceStatus.INSTANCE_STATUS_BLOCKED
    admitted = [event for event in await listed(api) if name_of(event) == "TURN_ADMITTED"]
    assert [event.actor for event in admitted] == [Actor.ACTOR_CLIENT, Actor.ACTOR_WORKER]
    assert [event.turn for event in admitted] == [1, 2]
    stamps = [event.time.ToMilliseconds() for event in await listed(api)]
    assert stamps == sorted(stamps)
    assert {event.gen for event in await listed(api)} == {1}


@pytest.mark.spec("R-EVENT-3")
async def test_a_ledger_is_read_in_pages(api: Api, server: Handle) -> None:
    await api.create("a")
    await work(api, server, 3)
    after, seen = pb.Cursor(), []
    while True:
        page = await api.events.ListEvents(pb.ListEventsRequest(instance_id="a", after=after, page_size=5))
        assert (page.last_seq, page.oldest_seq) == (13, 1)
        if not page.events:
            break
        seen += page.events
        after = page.next
        assert after.seq == seen[-1].seq
    assert [event.seq for event in seen] == list(range(1, 14))
    assert (after.seq, after.gen, after.incarnation) == (13, 1, 1)


@pytest.mark.spec("R-EVENT-3")
async def test_a_page_counts_what_the_filter_lets_through(api: Api, server: Handle) -> None:
    await api.create("a")
    await work(api, server, 3)
    request = pb.ListEventsRequest(instance_id="a", page_size=2, types=types("TURN_COMPLETED"))
    page = await api.events.ListEvents(request)
    assert [event.seq for event in page.events] == [5, 9]
    assert page.next.seq == 9
    request.after.CopyFrom(page.next)
    page = await api.events.ListEvents(request)
    assert [event.seq for event in page.events] == [13]
    request.types[:] = types("PAUSED")
    page = await api.events.ListEvents(request)
    assert (list(page.events), page.next.seq) == ([], 13)


@pytest.mark.spec("R-WATCH-2", "R-WATCH-3")
async def test_a_filter_holds_for_replay_and_tail_and_beats_tell_the_place(api: Api, server: Handle) -> None:
    server.engine.events.options = WatchOptions(beat=0.05)
    await api.create("a")
    await work(api, server, 1)
    async with Watch.of(api, "a", pb.Cursor(), types=types("TURN_COMPLETED", "CREATED")) as watch:
        await watch.begin()
        await work(api, server, 1, first=1)
        assert [event.seq for event in await watch.events(3)] == [1, 5, 9]
        await api.send("a", "last")
        await wait_until(lambda: _place_after_next_beat(watch, 10))


async def _place_after_next_beat(watch: Watch, seq: int) -> bool:
    frame = await watch.frame()
    return frame.beat.cursor.seq == seq


@pytest.mark.spec("R-WATCH-4")
async def test_until_idle_ends_once_everything_is_done(api: Api, server: Handle) -> None:
    await api.create("a")
    async with Watch.of(api, "a", until_idle=True) as watch:
        await watch.begin()
        frame = await watch.next()
        assert (frame.end.status, frame.end.cursor.seq) == (IDLE, 1)
        assert await watch.frame() is None
    await api.send("a", "m0")
    await api.send("a", "m1")
    hand = Hand(server.engine)
    async with Watch.of(api, "a", pb.Cursor(seq=1), until_idle=True, types=types("TURN_COMPLETED")) as watch:
        await watch.begin()
        await hand.finish("a")
        assert (await watch.event()).turn == 1
        await hand.finish("a")
        assert (await watch.event()).turn == 2
        frame = await watch.next()
        assert frame.end.status == IDLE
        assert frame.end.cursor.seq == (await listed(api))[-1].seq
        assert await watch.frame() is None


@pytest.mark.spec("R-WATCH-4")
async def test_a_deleted_instance_ends_its_watches(api: Api) -> None:
    await api.create("a")
    async with Watch.of(api, "a") as watch, Watch.of(api, "a", types=types("PAUSED")) as filtered:
        await watch.begin()
        await filtered.begin()
        await api.instances.DeleteInstance(instances.DeleteInstanceRequest(instance_id="a"))
        event = await watch.event()
        assert (name_of(event), event.seq) == ("DELETED", 2)
        for each in (watch, filtered):
            frame = await each.next()
            assert frame.end.status == InstanceStatus.INSTANCE_STATUS_DELETING
            assert frame.end.cursor.seq == 2
            assert await each.frame() is None
    async with Watch.of(api, "a") as again:
        assert (await refusal_of(again.frame())).reason == "NOT_FOUND"
    await api.create("a")
    async with Watch.of(api, "a", pb.Cursor()) as anew:
        assert (await anew.begin()).cursor.incarnation == 2
        assert (await anew.event()).seq == 3, "a new life goes on counting"
    problem = await refusal_of(Watch.of(api, "a", pb.Cursor(incarnation=1, seq=1)).frame())
    assert (problem.reason, problem.metadata["oldest_seq"]) == ("COMPACTED", "3")


@pytest.mark.parametrize("call", ["list", "watch"])
@pytest.mark.spec("R-EVENT-4", "R-EVENT-5", "R-WATCH-6")
async def test_places_that_are_no_more(api: Api, server: Handle, call: str) -> None:
    await api.create("a")

    async def refusal(instance_id: str = "a", **place: int) -> tuple[str, str, dict[str, str]]:
        after = pb.Cursor(**place)
        if call == "list":
            request = pb.ListEventsRequest(instance_id=instance_id, after=after)
            problem = await refusal_of(api.events.ListEvents(request))
        else:
            async with Watch.of(api, instance_id, after) as watch:
                problem = await refusal_of(watch.frame())
        return problem.code, problem.reason, problem.metadata

    assert (await refusal("absent"))[1] == "NOT_FOUND"
    rewound = ("ABORTED", "REWOUND", {"last_seq": "1", "gen": "1"})
    assert await refusal(seq=2) == rewound
    assert await refusal(seq=1, gen=2) == rewound
    assert await refusal(seq=1, gen=1, incarnation=7) == rewound
    for name in ("seq", "gen", "incarnation"):
        assert (await refusal("a", **{name: -1}))[2] == {"field": f"after.{name}"}
    await work(api, server, 75)
    compacted = ("OUT_OF_RANGE", "COMPACTED", {"oldest_seq": "58"})
    assert await refusal(seq=1) == compacted
    assert await refusal(seq=56) == compacted
    kept = await listed(api, after=pb.Cursor(seq=57, gen=1, incarnation=1))
    assert [event.seq for event in kept[:2]] == [58, 59]
    async with Watch.of(api, "a", pb.Cursor(seq=0)) as watch:
        assert (await watch.begin()).cursor.seq == 57
        assert [event.seq for event in await watch.events(244)] == list(range(58, 302))


async def test_bad_fields_are_named(api: Api) -> None:
    await api.create("a")
    unspecified: list[Any] = [1, 0]
    for request, field in (
        (pb.WatchEventsRequest(instance_id="no/id"), "instance_id"),
        (pb.WatchEventsRequest(instance_id="a", types=unspecified), "types[1]"),
        (pb.WatchEventsRequest(instance_id="a", after=pb.Cursor(gen=-1)), "after.gen"),
    ):
        call = api.events.WatchEvents(request)
        assert (await refusal_of(call.read())).metadata == {"field": field}
    for request, field in (
        (pb.ListEventsRequest(instance_id="a", page_size=101), "page_size"),
        (pb.ListEventsRequest(instance_id="a", types=unspecified), "types[1]"),
    ):
        assert (await refusal_of(api.events.ListEvents(request))).metadata == {"field": field}
    async with Watch.of(api, "a", types=[1, 4_000]) as watch:
        await watch.begin()


@pytest.mark.spec("R-WATCH-5")
async def test_watchers_of_a_stopping_server_go_on_at_another_one(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with (
        running(settings_for(redis_url)) as first,
        running(settings_for(redis_url)) as second,
        Api(first.address) as here,
        Api(second.address) as there,
    ):
        await here.create("a")
        async with Watch.of(here, "a") as watch:
            await watch.begin()
            await work(there, second, 1)
            await watch.events(2)
            await first.stop()
            events = await watch.events(2)
            frame = await watch.next()
            assert frame.reconnect.reason == Reason.REASON_DRAINING
            assert frame.reconnect.retry_delay.ToTimedelta().total_seconds() < 2
            assert frame.reconnect.cursor.seq == events[-1].seq
            assert await watch.frame() is None
        await work(there, second, 1, first=1)
        async with Watch.of(there, "a", frame.reconnect.cursor) as watch:
            await watch.begin()
            assert [event.seq for event in await watch.events(4)] == [6, 7, 8, 9]


async def test_a_stopping_server_takes_no_new_watch(api: Api, server: Handle) -> None:
    await api.create("a")
    server.gate.draining = True
    assert (await refusal_of(Watch.of(api, "a").frame())).reason == "DRAINING"
    server.gate.draining = False


async def test_more_watches_than_allowed_are_refused(api: Api, server: Handle) -> None:
    server.engine.events.options = WatchOptions(watches=1)
    await api.create("a")
    async with Watch.of(api, "a") as watch:
        await watch.begin()
        problem = await refusal_of(Watch.of(api, "a").frame())
        assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    await wait_until(lambda: server.engine.events.count == 0)
    async with Watch.of(api, "a") as watch:
        await watch.begin()


@pytest.mark.spec("R-WATCH-5")
async def test_a_reader_that_takes_nothing_is_let_go(api: Api, server: Handle) -> None:
    server.engine.events.options = WatchOptions(stall=0.3)
    await api.create("a")
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(server.address, options=narrow) as channel:
        call = EventServiceStub(channel).WatchEvents(pb.WatchEventsRequest(instance_id="a"))
        await call.read()
        for _ in range(200):
            for change in (instances.PauseInstanceRequest, instances.ResumeInstanceRequest):
                method = getattr(api.instances, change.DESCRIPTOR.name.removesuffix("Request"))
                await method(change(instance_id="a", comment="x" * 250))
        await wait_until(lambda: server.engine.events.count == 0)


@pytest.mark.spec("R-WATCH-1")
async def test_control_calls_are_on_record(api: Api, server: Handle) -> None:
    await api.create("a")
    async with Watch.of(api, "a") as watch:
        await watch.begin()
        await api.instances.PauseInstance(
            instances.PauseInstanceRequest(instance_id="a", comment="for lunch")
        )
        event = await watch.event()
        assert (name_of(event), event.paused.comment) == ("PAUSED", "for lunch")
        assert (event.actor, event.status) == (Actor.ACTOR_OPERATOR, InstanceStatus.INSTANCE_STATUS_PAUSED)
        await api.send("a", "later", delay=Duration(seconds=30))
        event = await watch.event()
        assert name_of(event) == "MESSAGE_SCHEDULED"
        assert event.message_scheduled.message_id == "later"
        assert event.message_scheduled.delay.seconds == 30
