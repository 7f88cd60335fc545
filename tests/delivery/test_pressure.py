"""Workers that send more than they read, more than Redis takes, or too little to stay alive."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.instance_service_pb2 import InstanceSpec
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl_server.app import Handle, running
from pawl_server.delivery.sessions import OUT_BYTES, PENDING_MAX, STACKED_MAX
from pawl_server.domain.lease import Lease
from tests.support.api import TYPE, VERSION, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stream import Stream, checkpoint, finish, workflows
from tests.support.wait import wait_until

HELLO = pb.WorkHello(session="w", stream_ordinal=1, workflows=workflows())


def stranger(number: int) -> bytes:
    """A well-formed lease of an instance that does not exist."""
    return Lease(number % 2, "i" * 100, 1, number, 1).encode()


async def flood(call: Any) -> None:
    """Sends frames of commands for as long as the server takes them."""
    for frame in range(100_000):
        commands = [
            pb.Command(lease=stranger(frame * 256 + n), n=1, release=pb.Release()) for n in range(256)
        ]
        await call.write(pb.WorkRequest(commands=commands))


async def read_to_the_end(call: Any) -> None:
    """Takes frames until the stream ends; raises its status."""
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.spec("R-WORK-11")
async def test_a_worker_that_sends_and_never_reads_is_read_no_further_and_ended(
    quick_server: Handle, quick_api: Api
) -> None:
    """Its frames wait in the transport, which holds back the sender; other clients notice nothing."""
    call: Any = quick_api.workers.Work()
    await call.write(pb.WorkRequest(hello=HELLO))
    sending = asyncio.create_task(flood(call))
    sessions = quick_server.delivery.sessions
    await wait_until(lambda: any(session.choked for session in sessions.values()))
    [session] = sessions.values()
    await wait_until(lambda: session.closed)
    assert session.outbox.bytes < 8 * OUT_BYTES
    why = session.end.result()
    assert why is not None
    assert why.reason == "OVERLOADED"
    # The status can't overtake the frame that is stuck: gRPC says INTERNAL for it.
    with pytest.raises(grpc.aio.AioRpcError):
        await read_to_the_end(call)
    sending.cancel()
    await asyncio.wait([sending])
    await quick_api.send("a", "m", create_if_absent=InstanceSpec(workflow_type=TYPE, version=VERSION))


async def test_a_status_that_never_leaves_is_no_fault_of_the_server(
    quick_server: Handle, quick_api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits behind a frame that is not read, until the worker is gone for good."""

    def handlers() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if "/Work]" in task.get_name()]

    spec = InstanceSpec(workflow_type=TYPE, version=VERSION, state=Payload(data=b"s" * 60_000))
    async with FaultProxy(quick_server.address) as proxy, Api(proxy.url) as behind:
        async with Stream(behind, credits=100, beats=False, acks=False):
            [session] = quick_server.delivery.sessions.values()
            proxy.down.hold()
            for number in range(100):
                await quick_api.send(f"i{number}", "m", create_if_absent=spec)
            await wait_until(lambda: session.closed)
            assert session.blocked
            assert handlers()
            proxy.cut()
        await wait_until(lambda: not handlers())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.spec("R-WORK-11")
async def test_commands_do_not_pile_up_behind_a_store_that_is_silent(
    redis_server: RedisServer, server: Handle, api: Api
) -> None:
    await api.create("a")
    await api.send("a", "m")
    async with Stream(api, credits=1) as stream:
        turn = await stream.turn()
        [session] = server.delivery.sessions.values()
        redis_server.freeze()
        try:
            writing = asyncio.create_task(_pile(stream, turn.lease, 4 * (PENDING_MAX + STACKED_MAX)))
            await wait_until(lambda: session.choked)
            assert session.commands.pending <= PENDING_MAX + 256
        finally:
            redis_server.thaw()
        await asyncio.wait_for(writing, 30)
        await wait_until(lambda: session.commands.pending == 0)
        assert not session.choked
        assert session.commands.stacked == 0


async def _pile(stream: Stream, lease: bytes, total: int) -> None:
    for first in range(1, total, 64):
        commands = [pb.Command(lease=lease, n=n, **checkpoint(f"step-{n}")) for n in range(first, first + 64)]
        await stream.say(commands=commands)


@pytest.mark.spec("R-LEASE-4")
async def test_a_short_lease_is_kept_for_a_worker_that_shows_itself(
    quick_server: Handle, quick_api: Api
) -> None:
    spec = InstanceSpec(workflow_type=TYPE, version=VERSION)
    spec.lease_timeout.seconds = 1
    await quick_api.send("a", "m", create_if_absent=spec)
    async with Stream(quick_api, credits=1) as stream:
        turn = await stream.turn()
        assert not (await stream.command(turn, checkpoint("first"))).HasField("refusal")
        [session] = quick_server.delivery.sessions.values()
        [state] = session.held.states.values()
        for _ in range(6):
            due = state.renew_at
            await wait_until(lambda due=due: state.renew_at != due and state.renew_at < float("inf"))
        result = await stream.command(turn, finish())
        assert not result.HasField("refusal"), result
    shown = await quick_api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1))
    assert shown.turn.attempt == 1


@pytest.mark.spec("R-WORK-7")
async def test_leases_of_a_silent_worker_are_not_renewed(redis_server: RedisServer, redis_url: str) -> None:
    """The stream is judged after three intervals; a lease that is shorter than that ends before."""
    settings = settings_for(redis_url, beat_interval_ms=1_500)
    async with running(settings) as handle, Api(handle.address) as api:
        spec = InstanceSpec(workflow_type=TYPE, version=VERSION, max_attempts=2)
        spec.lease_timeout.seconds = 1
        await api.send("a", "m", create_if_absent=spec)
        async with Stream(api, credits=1, beats=False) as stream:
            turn = await stream.turn()
            event = await stream.event()
            assert event.lease == turn.lease
            assert event.ended.metadata["how"] == "expired"


@pytest.mark.spec("R-WORK-9")
async def test_an_idle_stream_holds_up_no_stop(redis_server: RedisServer, redis_url: str) -> None:
    settings = settings_for(redis_url, stop_grace_ms=60_000)
    async with running(settings) as handle, Api(handle.address) as api, Stream(api, credits=1) as stream:
        await asyncio.wait_for(handle.stop(), 20)
        assert await stream.drained()


@pytest.mark.spec("R-WORK-12")
async def test_a_beat_may_come_in_parts(server: Handle, api: Api) -> None:
    for name in ("a", "b"):
        await api.create(name)
        await api.send(name, "m")
    async with Stream(api, credits=2) as stream:
        leases = [(await stream.turn()).lease for _ in range(2)]
        for number in range(1, 6):
            for lease, partial in zip(leases, (True, False), strict=True):
                await stream.say(beat=pb.Beat(number=number, leases=[lease], partial=partial))
            while (await stream.beat()).number < number:
                pass
        [session] = server.delivery.sessions.values()
        assert {state.missed for state in session.held.states.values()} == {0}
