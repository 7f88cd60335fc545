"""Several servers: a worker's streams to them, how its slots are shared out, and leases that move between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack

import grpc
import pytest

from pawl._runtime import links
from pawl.v1 import worker_service_pb2 as work
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, FakeStream, fake_server, fleet, leased_turn, ok, refusal
from tests.sdk.flows import Gates, counter
from tests.support.wait import wait_until

LEASE = b"i-1/1/1"


@pytest.fixture
async def servers() -> AsyncIterator[list[FakeServer]]:
    """Six servers; the test says who knows whom."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(fake_server()) for _ in range(6)]
        for number, server in enumerate(found):
            server.run = f"run-{number}"
        yield found


@pytest.fixture
def server(servers: list[FakeServer]) -> FakeServer:
    """The one that workers are told of."""
    return servers[0]


def name_all(servers: Iterable[FakeServer]) -> None:
    """Every server names all of them."""
    named = fleet(*servers)
    for server in servers:
        server.fleet = named


async def opened(server: FakeServer, number: int = 1) -> FakeStream:
    """The n-th stream of a server, once its worker has taken in the hello."""
    stream = await server.stream(number)
    await wait_until(lambda: stream.received >= 1)
    return stream


def streams_of(servers: Iterable[FakeServer]) -> int:
    return sum(len(server.streams) for server in servers)


# Which streams there are


@pytest.mark.spec("R-SDK-20")
async def test_one_stream_to_each_server(servers: list[FakeServer], start_worker: StartWorker) -> None:
    name_all(servers[:3])
    start_worker(counter, concurrency=10)
    first, second, third = [await opened(server) for server in servers[:3]]
    assert first.frames[0].credits_total == 10
    for other in (second, third):
        assert (other.frames[0].credits_total, list(other.hello.leases)) == (0, [])
        assert other.hello.session == first.hello.session
    assert len({stream.hello.stream_ordinal for stream in (first, second, third)}) == 3
    # Saying so again opens no more.
    first.send(fleet=servers[0].fleet)
    await wait_until(lambda: first.received >= 2)
    assert streams_of(servers) == 3


@pytest.mark.spec("R-SDK-20")
@pytest.mark.parametrize("named", [True, False])
async def test_a_single_server_gets_one_stream(
    servers: list[FakeServer], start_worker: StartWorker, named: bool
) -> None:
    servers[0].fleet = fleet(servers[0]) if named else None
    start_worker(counter, concurrency=10)
    stream = await opened(servers[0])
    for number in range(3):
        stream.deliver(leased_turn(f"i-{number}", {"add": 1}, state={"count": 0}))
        await stream.command(number + 1)
    assert streams_of(servers) == 1
    assert stream.credits == 13


@pytest.mark.spec("R-SDK-20")
@pytest.mark.parametrize(("concurrency", "streams"), [(1, 1), (2, 2), (50, 4)])
async def test_no_more_streams_than_slots_and_four_at_most(
    servers: list[FakeServer], start_worker: StartWorker, concurrency: int, streams: int
) -> None:
    name_all(servers)
    start_worker(counter, concurrency=concurrency)
    await wait_until(lambda: streams_of(servers) == streams)
    await opened(servers[0])
    for server in servers:
        for stream in server.streams:
            await wait_until(lambda stream=stream: stream.frames and stream.received >= 1)
    assert streams_of(servers) == streams


async def test_workers_of_many_servers_spread_over_all(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    name_all(servers)
    for number in range(8):
        start_worker(counter, session=f"worker-{number}")
    await wait_until(lambda: streams_of(servers) == 8 * 4)
    assert all(server.streams for server in servers)


@pytest.mark.spec("R-SDK-20")
async def test_a_server_that_comes_gets_a_stream(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    servers[0].fleet = fleet(servers[0])
    start_worker(counter)
    first = await opened(servers[0])
    name_all(servers[:2])
    first.send(fleet=servers[0].fleet)
    await opened(servers[1])


@pytest.mark.spec("R-SDK-21")
async def test_an_address_that_leads_nowhere_is_no_hindrance(
    servers: list[FakeServer], start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "AGAIN_FIRST", 0.05)
    servers[1].refuse_hello = (grpc.StatusCode.UNAVAILABLE, "not from here")
    name_all(servers[:2])
    start_worker(counter, concurrency=3)
    first = await opened(servers[0])
    first.deliver(leased_turn("i-1", {"add": 1}, state={"count": 0}))
    await first.command()
    await wait_until(lambda: first.credits == 4)
    await servers[1].stream(2)
    servers[1].refuse_hello = None
    await wait_until(lambda: servers[1].streams[-1].frames and servers[1].streams[-1].received >= 1)
    gaps = len(servers[1].streams)
    assert gaps < 12, "it is tried again at growing intervals"
    assert len(servers[0].streams) == 1


@pytest.mark.spec("R-SDK-21")
async def test_a_stranger_gets_neither_leases_nor_credits(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a")
    name_all(servers[:2])
    servers[1].run = "of-another-service"
    servers[1].fleet = fleet(servers[5])  # is not believed either
    start_worker(gates.workflow, concurrency=3)
    first = await opened(servers[0])
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    stranger = await servers[1].stream()
    await wait_until(lambda: stranger.ended)
    first.send(drain=work.Drain())
    second = await opened(servers[0], 2)
    assert list(second.hello.leases) == [LEASE]
    assert all(not frame.credits_total and not frame.adoptions for frame in stranger.frames)
    assert not servers[5].streams


# Slots


def outstanding(streams: Iterable[FakeStream], delivered: dict[FakeStream, int]) -> int:
    return sum(stream.credits - delivered.get(stream, 0) for stream in streams)


@pytest.mark.spec("R-SDK-20")
async def test_slots_move_to_new_streams_as_they_become_free(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    name_all(servers[:2])
    start_worker(counter, concurrency=8)
    first, second = [await opened(server) for server in servers[:2]]
    assert (first.credits, second.credits) == (8, 0)
    for number in range(1, 5):
        first.deliver(leased_turn(f"i-{number}", {"add": 1}, state={"count": 0}))
        await first.command(number)
        await wait_until(lambda number=number: second.credits == number)
    assert first.credits == 8
    # Even now: what a turn leaves free goes back to where it came from, beside its finish.
    for number in range(1, 4):
        second.deliver(leased_turn(f"j-{number}", {"add": 1}, state={"count": 0}))
        await second.command(number)
        (frame,) = [frame for frame in second.frames if frame.commands][-1:]
        assert frame.credits_total == 4 + number
    assert first.credits == 8


@pytest.mark.spec("R-SDK-20")
async def test_all_streams_together_never_promise_more_than_there_is_room_for(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a")
    name_all(servers[:3])
    start_worker(gates.workflow, concurrency=4)
    streams = [await opened(server) for server in servers[:3]]
    streams[0].deliver(*(leased_turn(f"i-{number}") for number in range(4)))
    await wait_until(lambda: len(gates.entered) == 4)
    delivered = {streams[0]: 4}
    assert outstanding(streams, delivered) == 0
    streams[2].cut()
    again = await opened(servers[2], 2)
    assert outstanding([*streams[:2], again], delivered) == 0
    for event in gates.open.values():
        event.set()
    await streams[0].command(4)
    await wait_until(lambda: outstanding([*streams[:2], again], delivered) == 4)


@pytest.mark.spec("R-SDK-20")
async def test_the_slots_of_a_stream_that_is_lost_go_to_the_others(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    name_all(servers[:2])
    start_worker(counter, concurrency=8)
    first, second = [await opened(server) for server in servers[:2]]
    servers[0].refuse_hello = (grpc.StatusCode.UNAVAILABLE, "gone")
    first.cut()
    await wait_until(lambda: second.credits == 8)


# Leases


async def on_two_streams(
    servers: list[FakeServer], start_worker: StartWorker, gates: Gates, turns: int = 1
) -> tuple[FakeStream, FakeStream]:
    """Streams to two servers; the worker runs turns of the second, which is the younger one."""
    name_all(servers[:2])
    start_worker(gates.workflow, concurrency=turns + 1)
    first, second = [await opened(server) for server in servers[:2]]
    second.deliver(*(leased_turn(f"i-{number}") for number in range(1, turns + 1)))
    await wait_until(lambda: len(gates.entered) == turns)
    return first, second


@pytest.mark.spec("R-SDK-22")
async def test_leases_of_a_lost_stream_go_to_another_at_once(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a")
    first, second = await on_two_streams(servers, start_worker, gates, turns=2)
    second.cut()
    await wait_until(lambda: first.adoptions)
    (adoption,) = first.adoptions
    assert set(adoption.leases) == {b"i-1/1/1", b"i-2/1/1"}
    assert adoption.ordinal > second.hello.stream_ordinal
    for event in gates.open.values():
        event.set()
    assert {(await first.command(number)).WhichOneof("action") for number in (1, 2)} == {"finish"}
    assert gates.cancelled == []
    assert not any(server.renewals for server in servers), "nothing had to be detached"


@pytest.mark.spec("R-SDK-22")
async def test_unanswered_commands_of_a_lost_stream_are_repeated_on_another(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a", "b")
    gates.open["a"].set()
    servers[1].answer = lambda command: None
    first, second = await on_two_streams(servers, start_worker, gates)
    checkpoint = await second.command()
    second.cut()
    assert await first.command() == checkpoint
    await wait_until(lambda: gates.entered == ["a", "b"])


@pytest.mark.spec("R-SDK-22")
async def test_a_drained_stream_ends_once_others_have_its_leases(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a")
    servers[0].answer_adoptions = False
    first, second = await on_two_streams(servers, start_worker, gates)
    second.send(drain=work.Drain())
    await wait_until(lambda: first.adoptions)
    second.send(fleet=fleet(*servers[:2]))
    await wait_until(lambda: second.received >= 4)
    assert not second.ended, "the lease has not arrived yet"
    first.send(lease_events=[work.LeaseEvent(lease=LEASE)])
    await wait_until(lambda: second.ended and second.closed)
    for event in gates.open.values():
        event.set()
    assert (await first.command()).HasField("finish")
    assert not any(server.renewals for server in servers)


@pytest.mark.spec("R-SDK-22")
async def test_a_command_under_way_on_a_drained_stream_is_answered_there(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates()
    servers[1].answer = lambda command: None
    name_all(servers[:2])
    start_worker(gates.workflow, concurrency=2)
    first, second = [await opened(server) for server in servers[:2]]
    second.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["end"])
    gates.open["end"].set()
    finish = await second.command()
    servers[1].hold_end = True
    second.send(drain=work.Drain())
    await wait_until(lambda: second.ended)
    second.answer(ok(finish))
    second.send(fleet=fleet(*servers[:2]))
    await wait_until(lambda: second.received >= 5)
    assert not first.commands
    assert not first.adoptions, "the finish ends the lease"


@pytest.mark.spec("R-SDK-22")
async def test_a_server_that_the_others_miss_is_left(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a", "b")
    gates.open["a"].set()
    servers[1].answer = lambda command: None
    servers[1].beat_interval = 0.05  # so that it counts as silent soon
    servers[1].answer_beats = False
    first, second = await on_two_streams(servers, start_worker, gates)
    checkpoint = await second.command()
    first.send(fleet=fleet(servers[0]))
    await wait_until(lambda: first.adoptions)
    assert await first.command() == checkpoint, "what it may not answer any more is asked elsewhere"
    await wait_until(lambda: second.closed)
    await wait_until(lambda: gates.entered == ["a", "b"])
    assert len(servers[1].streams) >= 1
    first.send(fleet=fleet(*servers[:2]))
    await opened(servers[1], len(servers[1].streams) + 1)


@pytest.mark.spec("R-SDK-22")
async def test_answers_about_where_a_lease_was_before_are_no_answers(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a")
    servers[0].answer_adoptions = False
    first, second = await on_two_streams(servers, start_worker, gates)
    second.send(drain=work.Drain())
    await wait_until(lambda: first.adoptions)
    second.send(lease_events=[work.LeaseEvent(lease=LEASE)])
    first.send(lease_events=[work.LeaseEvent(lease=LEASE, ended=refusal("SUPERSEDED"))])
    await wait_until(lambda: second.received >= 4 and first.received >= 2)
    assert (gates.cancelled, second.ended) == ([], False)
    first.send(lease_events=[work.LeaseEvent(lease=LEASE, ended=refusal("LEASE_ENDED", how="lost"))])
    await wait_until(lambda: gates.cancelled == ["i-1"])
    await wait_until(lambda: second.closed, what="there is nothing more to hand over")


@pytest.mark.spec("R-SDK-22")
async def test_a_worker_with_one_slot_finds_another_server(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    gates = Gates("a")
    name_all(servers[:2])
    start_worker(gates.workflow, concurrency=1)
    first = await opened(servers[0])
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    servers[0].refuse_hello = (grpc.StatusCode.UNAVAILABLE, "stopping")
    first.send(fleet=fleet(servers[1]), drain=work.Drain())
    second = await opened(servers[1])
    await wait_until(lambda: second.adoptions)
    assert [list(adoption.leases) for adoption in second.adoptions] == [[LEASE]]
    await wait_until(lambda: first.closed)
    assert first.ended, "it was left only then"
    for event in gates.open.values():
        event.set()
    assert (await second.command()).HasField("finish")


@pytest.mark.spec("R-SDK-22")
async def test_a_move_in_the_middle_of_a_move(servers: list[FakeServer], start_worker: StartWorker) -> None:
    gates = Gates("a")
    name_all(servers[:3])
    start_worker(gates.workflow, concurrency=3)
    first, second, third = [await opened(server) for server in servers[:3]]
    third.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    for server in servers[:2]:
        server.answer_adoptions = False
    third.send(drain=work.Drain())
    await wait_until(lambda: first.adoptions or second.adoptions)
    to, other = (first, second) if first.adoptions else (second, first)
    to.cut()
    await wait_until(lambda: other.adoptions)
    assert other.adoptions[0].ordinal > to.adoptions[0].ordinal
    assert not third.ended
    other.send(lease_events=[work.LeaseEvent(lease=LEASE)])
    await wait_until(lambda: third.closed)
    assert gates.cancelled == []


async def test_a_worker_stops_with_all_its_streams(
    servers: list[FakeServer], start_worker: StartWorker
) -> None:
    name_all(servers[:3])
    worker = start_worker(counter)
    streams = [await opened(server) for server in servers[:3]]
    await asyncio.wait_for(worker.stop(), 5)
    await wait_until(lambda: all(stream.closed for stream in streams))
    assert all(stream.ended for stream in streams)
