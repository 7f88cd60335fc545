"""From one stream to the next: lost streams, detached and adopted leases, repeated commands, drain."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from pawl import Context, Worker, workflow
from pawl.v1 import worker_service_pb2 as work
from tests.sdk.conftest import StartWorker
from tests.sdk.fake_server import FakeServer, fake_server, leased_turn, ok, refusal, refuse
from tests.sdk.flows import Gates, counter
from tests.support.wait import wait_until

LEASE = b"i-1/1/1"


@pytest.mark.spec("R-SDK-8")
async def test_a_lost_stream_is_replaced_and_its_leases_adopted(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow, concurrency=3)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    first.cut()
    second = await server.stream(2)
    assert list(second.hello.leases) == [LEASE]
    assert second.frames[0].credits_total == 2
    # Detached at once, by an earlier decision than that for the new stream.
    await wait_until(lambda: server.renewals)
    assert (list(server.renewals[0].leases), server.renewals[0].detach) == ([LEASE], True)
    assert 1 < server.renewals[0].ordinal < second.hello.stream_ordinal
    for event in gates.open.values():
        event.set()
    assert (await second.command()).HasField("finish")
    assert gates.entered == ["a", "end"]
    await wait_until(lambda: second.credits == 3)


async def test_unanswered_commands_are_repeated_with_their_number(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.answer = lambda command: None
    gates = Gates("a", "b")
    gates.open["a"].set()
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    checkpoint = await first.command()
    first.cut()
    second = await server.stream(2)
    assert await second.command() == checkpoint
    assert gates.entered == ["a"]
    second.answer(ok(checkpoint))
    await wait_until(lambda: gates.entered == ["a", "b"])


async def test_an_unanswered_finish_is_repeated_and_not_run_again(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.answer = lambda command: None
    start_worker(counter, concurrency=1)
    first = await server.stream()
    first.deliver(leased_turn("i-1", {"add": 1}, state={"count": 1}))
    finish = await first.command()
    first.cut()
    second = await server.stream(2)
    assert await second.command() == finish
    # Its lease may be over already, which says nothing about the command: not announced as held, and its slot
    # is free.
    assert not second.hello.leases
    assert second.frames[0].credits_total == 1
    second.send(lease_events=[work.LeaseEvent(lease=finish.lease, ended=refusal("LEASE_ENDED"))])
    second.answer(ok(finish))
    second.cut()
    third = await server.stream(3)
    await wait_until(lambda: third.received >= 1)
    assert not third.commands


async def test_a_lease_that_the_new_server_does_not_give_is_dropped(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    server.adopted = lambda lease: work.LeaseEvent(lease=lease, ended=refusal("STALE_FENCE"))
    first.cut()
    await server.stream(2)
    await wait_until(lambda: gates.cancelled == ["i-1"])


async def test_leases_are_renewed_until_a_stream_is_back() -> None:
    # C-29: the stream is gone for longer than the lease, unary calls get through.
    gates = Gates("a")
    async with fake_server() as server:
        worker = Worker(server.address, workflows=[gates.workflow])
        task = asyncio.get_running_loop().create_task(worker.run())
        first = await server.stream()
        first.deliver(leased_turn(lease_timeout=0.3))
        await wait_until(lambda: gates.entered == ["a"])
        server.refuse_hello = (grpc.StatusCode.UNAVAILABLE, "no streams now")
        server.renewed = lambda lease: work.RenewResult(lease=lease, remaining=Duration(nanos=300_000_000))
        first.cut()
        await wait_until(lambda: len(server.renewals) >= 4)
        # Each one detaches: a lease without a stream stays short. One that did not open may have taken it.
        ordinals = [renewal.ordinal for renewal in server.renewals if renewal.detach]
        assert len(ordinals) == len(server.renewals)
        assert ordinals == sorted(ordinals)
        assert ordinals[0] == 2
        await wait_until(lambda: server.renewals[-1].ordinal > server.streams[1].hello.stream_ordinal)
        assert gates.cancelled == []
        server.refuse_hello = None
        refused = len(server.streams)
        await wait_until(lambda: len(server.streams) > refused and server.streams[-1].received >= 1)
        back = server.streams[-1]
        assert list(back.hello.leases) == [LEASE]
        for event in gates.open.values():
            event.set()
        assert (await back.command()).HasField("finish")
        await worker.stop()
        await task


async def test_a_renewal_that_is_refused_cancels_the_attempt(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    server.refuse_hello = (grpc.StatusCode.UNAVAILABLE, "no streams now")
    server.renewed = lambda lease: work.RenewResult(
        lease=lease, refusal=refusal("LEASE_ENDED", how="expired")
    )
    first.cut()
    await wait_until(lambda: gates.cancelled == ["i-1"])


async def test_a_failing_detach_is_repeated(server: FakeServer, start_worker: StartWorker) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    server.refuse_hello = (grpc.StatusCode.UNAVAILABLE, "no streams now")
    server.fail_calls = [grpc.StatusCode.UNAVAILABLE] * 3
    first.cut()
    await wait_until(lambda: server.renewals)
    assert server.renewals[0].detach
    assert not server.fail_calls


async def test_more_leases_than_a_hello_holds(server: FakeServer, start_worker: StartWorker) -> None:
    gates = Gates("a")
    start_worker(gates.workflow, concurrency=300)
    first = await server.stream()
    first.deliver(*(leased_turn(f"i-{i}") for i in range(300)))
    await wait_until(lambda: len(gates.entered) == 300)
    first.cut()
    second = await server.stream(2)
    assert len(second.hello.leases) == 256
    assert second.frames[0].credits_total == 0
    await wait_until(lambda: second.adoptions)
    (adoption,) = second.adoptions
    assert adoption.ordinal > second.hello.stream_ordinal
    assert len({*second.hello.leases, *adoption.leases}) == 300
    await wait_until(lambda: len(server.renewals) >= 2)
    assert [len(renewal.leases) for renewal in server.renewals[:2]] == [256, 44]


@pytest.mark.spec("R-SDK-8")
async def test_twenty_cuts_disturb_no_turn(server: FakeServer, start_worker: StartWorker) -> None:
    # C-49
    gates = Gates("a")
    start_worker(gates.workflow)
    stream = await server.stream()
    stream.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    for number in range(2, 12):
        stream.cut()
        stream = await server.stream(number)
        assert list(stream.hello.leases) == [LEASE]
    for event in gates.open.values():
        event.set()
    assert (await stream.command()).HasField("finish")
    assert gates.entered == ["a", "end"]


@pytest.mark.spec("R-SDK-8")
@pytest.mark.spec("R-SDK-8")
async def test_the_worker_waits_for_a_server_that_is_not_there() -> None:
    async with fake_server() as server:
        address = server.address
    worker = Worker(address, workflows=[counter])
    task = asyncio.get_running_loop().create_task(worker.run())
    done, _ = await asyncio.wait({task}, timeout=0.3)
    assert not done
    await asyncio.wait_for(worker.stop(), 5)
    await asyncio.wait_for(task, 5)


async def test_drain_moves_before_it_breaks(server: FakeServer, start_worker: StartWorker) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    first.send(drain=work.Drain())
    second = await server.stream(2)
    assert list(second.hello.leases) == [LEASE]
    assert not first.closed or first.frames[-1].end
    await wait_until(lambda: first.closed)
    assert first.frames[-1].end
    # Nothing was detached: the leases have moved over a live connection.
    assert server.renewals == []
    for event in gates.open.values():
        event.set()
    assert (await second.command()).HasField("finish")


async def test_drain_without_another_server_goes_on_here(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a", "b")
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    server.refuse_hello = (grpc.StatusCode.UNAVAILABLE, "stopping")
    first.send(drain=work.Drain())
    await server.stream(3)
    for event in gates.open.values():
        event.set()
    assert (await first.command(2)).HasField("finish")
    assert not first.closed


async def test_superseded_answers_of_the_old_stream_lead_to_the_new(
    server: FakeServer, start_worker: StartWorker
) -> None:
    server.answer = lambda command: None
    gates = Gates("a", "b")
    gates.open["a"].set()
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    checkpoint = await first.command()
    # Holds the old stream open: its last command is unanswered.
    server.hold_end = True
    first.send(drain=work.Drain())
    second = await server.stream(2)
    await wait_until(lambda: second.received >= 2)
    first.answer(refuse(checkpoint, "SUPERSEDED"))
    assert await second.command() == checkpoint
    first.send(lease_events=[work.LeaseEvent(lease=LEASE, ended=refusal("SUPERSEDED"))])
    second.answer(ok(checkpoint))
    await wait_until(lambda: gates.entered == ["a", "b"])
    assert gates.cancelled == []


async def test_commands_given_between_two_streams_go_out_on_the_next(
    server: FakeServer, start_worker: StartWorker
) -> None:
    gates = Gates("a")
    start_worker(gates.workflow)
    first = await server.stream()
    first.deliver(leased_turn())
    await wait_until(lambda: gates.entered == ["a"])
    server.refuse_hello = (grpc.StatusCode.UNAVAILABLE, "no streams now")
    first.cut()
    await server.stream(2)
    for event in gates.open.values():
        event.set()
    await wait_until(lambda: gates.entered == ["a", "end"])
    server.refuse_hello = None
    await wait_until(lambda: server.streams[-1].commands)
    assert server.streams[-1].commands[0].HasField("finish")


async def test_the_workflow_sees_nothing_of_all_this(server: FakeServer, start_worker: StartWorker) -> None:
    @workflow("test", version="v1")
    async def steps(ctx: Context, state: Any, message: Any) -> Any:
        values = [await ctx.step(f"s-{i}", lambda i=i: i) for i in range(5)]
        return ctx.done({}, result=values)

    answered = 0

    def answer(command: work.Command) -> work.CommandResult | None:
        nonlocal answered
        answered += 1
        if answered % 2:
            server.streams[-1].cut()
            return None
        return ok(command)

    server.answer = answer
    start_worker(steps)
    (await server.stream()).deliver(leased_turn())
    await wait_until(lambda: any(c.HasField("finish") for s in server.streams for c in s.commands), 30)
    numbers = [c.n for s in server.streams for c in s.commands]
    assert numbers == sorted(numbers)
    assert set(numbers) == {1, 2, 3, 4, 5}


async def test_the_log_of_an_outage_is_short(
    server: FakeServer, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def said(part: str) -> list[str]:
        return [line for line in lines() if part in line]

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "pawl.worker"]

    caplog.set_level(logging.INFO, "pawl.worker")
    server.refuse_hello = (grpc.StatusCode.UNAVAILABLE, "not yet")
    worker = start_worker(counter)
    await wait_until(lambda: len(server.streams) >= 4)
    assert (said("connected to"), len(lines())) == (
        [f"not connected to {server.address}, trying on: UNAVAILABLE: not yet"],
        1,
    )
    server.refuse_hello = None
    (up,) = await wait_until(lambda: said("(server run fake)"))
    assert up.startswith(f"connected to {server.address} (server run fake) after ")
    server.streams[-1].cut()
    await wait_until(lambda: said("connected again"))
    await worker.stop()
    await wait_until(lambda: said("has stopped"))
    assert len(lines()) == 4, lines()
