"""Virtual time: hours of engine time within milliseconds, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pawl
from pawl import Context, RetryPolicy, Worker, WorkflowType, testing, workflow
from pawl.testing.v1 import clock_service_pb2 as pb
from pawl.v1.worker_service_pb2 import PollTurnRequest, RenewLeasesRequest, WorkflowRef
from pawl_server.app import running
from pawl_server.embedded import WrongTime
from pawl_server.settings import BadSetting, Settings
from pawl_server.store.errors import StoreRefused
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until
from tests.support.workers import Long

START = datetime(2027, 1, 15, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
BACKOFF = RetryPolicy(HOUR, 4 * HOUR, 2.0)


@pytest.fixture
async def server(redis_server: RedisServer, redis_url: str) -> AsyncIterator[testing.Server]:
    """A server with virtual time on the session's Valkey."""
    async with testing.server(redis_url=redis_url, virtual_time=True) as server:
        yield server
    assert violations_everywhere(redis_server) == []


@workflow("failing", version="v1")
async def failing(ctx: Context, state: Any, message: Any) -> Any:
    raise pawl.RetryableError("not yet", delay=message)


@workflow("flaky", version="v1")
async def flaky(ctx: Context, state: Any, message: Any) -> Any:
    if ctx.attempt < 3:
        raise RuntimeError("not yet")
    return ctx.done(None, result=ctx.attempt)


async def test_time_stands_still(server: testing.Server) -> None:
    assert (await server.clock()).now == START
    info = await server.client.info()
    assert info.virtual_time
    assert info.engine_time == START
    sent = await server.client.send("a", None, create=pawl.NewInstance("t", "v1"))
    assert sent.admit_time == START
    assert (await server.clock()).now == START


@pytest.mark.spec("R-VIRTUAL-3")
async def test_a_backoff_of_hours(server: testing.Server) -> None:
    await server.client.put_workflow_type(WorkflowType("flaky", retry=BACKOFF, max_attempts=5))
    async with server.worker(flaky):
        began = time.monotonic()
        await server.client.send("a", None, create=flaky)
        advanced = await server.advance(timedelta(minutes=59))
        assert (await server.client.get_turn("a", 1)).state == "BACKOFF"
        assert advanced == testing.Advanced(START + timedelta(minutes=59), 0, 0)
        assert await server.clock() == testing.Clock(START + timedelta(minutes=59), START + HOUR)
        advanced = await server.advance(10 * HOUR)
        # One second later than that an attempt would have been too late to be the third.
        turn = await server.client.get_turn("a", 1)
        assert (turn.state, turn.result(), turn.finish_time) == ("COMPLETED", 3, START + 3 * HOUR)
        assert (advanced.fired, advanced.running) == (2, 0)
        assert time.monotonic() - began < 5


@pytest.mark.spec("R-VIRTUAL-3")
async def test_what_is_due_fires_in_order_at_its_time(server: testing.Server) -> None:
    await server.client.put_workflow_type(WorkflowType("failing", max_attempts=2))
    names = [f"i-{n}" for n in range(12)]
    async with server.worker(failing, concurrency=1):
        for at, name in enumerate(names):
            await server.client.send(name, 3_600 * (12 - at), create=failing)
        await server.advance(24 * HOUR)
    failures: list[tuple[datetime, str]] = []
    for name in names:
        turn = await server.client.get_turn(name, 1)
        assert turn.last_failure is not None
        assert turn.last_failure.fail_time is not None
        failures.append((turn.last_failure.fail_time, name))
    assert sorted(failures) == [(START + (n + 1) * HOUR, f"i-{11 - n}") for n in range(12)]


@pytest.mark.spec("R-VIRTUAL-4")
async def test_a_connected_worker_keeps_its_lease_up_to_the_attempt_timeout(server: testing.Server) -> None:
    long = Long()
    await server.client.put_workflow_type(WorkflowType("long", attempt_timeout=HOUR, max_attempts=2))
    async with server.worker(long.workflow):
        began = time.monotonic()
        await server.client.send("a", None, create=long.workflow)
        await wait_until(lambda: long.ran == ["a", "b"])
        # A lease is kept for a minute without a sign of life.
        advanced = await server.advance(timedelta(minutes=59), settle=0.05)
        assert (advanced.running, long.cancelled) == (1, 0)
        turn = await server.client.get_turn("a", 1)
        assert (turn.state, turn.attempt) == ("RUNNING", 1)
        await server.advance(timedelta(minutes=1), settle=0.05)
        await wait_until(lambda: long.ran == ["a", "b", "b"])
        assert long.cancelled == 1
        turn = await server.client.get_turn("a", 1)
        assert turn.last_failure is not None
        assert (turn.state, turn.last_failure.reason) == ("RUNNING", "ATTEMPT_TIMEOUT")
        assert turn.last_failure.fail_time == START + HOUR
        long.go.set()
        turn = await server.client.await_turn("a", 1)
        assert turn.result() == 2
        assert time.monotonic() - began < 10


async def test_a_lease_without_a_stream_runs_out(server: testing.Server) -> None:
    await server.client.send("a", None, create=pawl.NewInstance("t", "v1"))
    workers = server.client._transport.stubs.workers
    poll = PollTurnRequest(workflows=[WorkflowRef(workflow_type="t", version="v1")])
    leased = (await workers.PollTurn(poll)).turn
    await workers.RenewLeases(RenewLeasesRequest(leases=[leased.lease]))
    assert (await server.clock()).next_due == START + timedelta(minutes=1)
    await server.advance(timedelta(seconds=59))
    [renewed] = (await workers.RenewLeases(RenewLeasesRequest(leases=[leased.lease]))).results
    assert renewed.remaining.ToSeconds() == 60
    advanced = await server.advance(timedelta(seconds=60))
    assert advanced.fired == 1
    turn = await server.client.get_turn("a", 1)
    assert turn.last_failure is not None
    assert turn.last_failure.reason == "ATTEMPT_EXPIRED"
    assert turn.last_failure.fail_time == START + timedelta(seconds=119)
    again = (await workers.PollTurn(poll)).turn
    assert (again.attempt, again.fence > leased.fence) == (2, True)


@pytest.mark.spec("R-VIRTUAL-3")
async def test_days_of_sleep(server: testing.Server) -> None:
    @workflow("sleepy", version="v1")
    async def sleepy(ctx: Context, state: Any, message: Any) -> Any:
        for night in range(5):
            await ctx.sleep(f"night-{night}", timedelta(hours=8))
            await ctx.step(f"day-{night}", lambda: None)
        return ctx.done(None, result=ctx.attempt)

    async with server.worker(sleepy):
        await server.client.send("a", None, create=sleepy)
        advanced = await server.advance(timedelta(hours=39))
        assert (await server.client.get_turn("a", 1)).state == "SLEEPING"
        assert (advanced.fired, advanced.running) == (4, 0)
        await server.advance(timedelta(hours=1))
        turn = await server.client.get_turn("a", 1)
        assert (turn.result(), turn.finish_time) == (1, START + timedelta(hours=40))
        saved = [(step.key, step.save_time) for step in turn.steps if step.kind == "step"]
        assert saved == [(f"day-{n}", START + (n + 1) * timedelta(hours=8)) for n in range(5)]


async def test_a_delayed_message_is_admitted_at_its_time(server: testing.Server) -> None:
    async with server.worker(flaky):
        await server.client.send("a", None, id="late", delay=timedelta(days=3), create=flaky)
        await server.advance(timedelta(days=3) - timedelta(milliseconds=1))
        assert (await server.client.get("a")).status == "IDLE"
        await server.advance(timedelta(days=1))
        turn = await server.client.get_turn("a", 1)
        assert (turn.result(), turn.admit_time) == (3, START + timedelta(days=3))


@pytest.mark.spec("R-VIRTUAL-4")
async def test_leases_are_renewed_before_any_timer_looks(redis_url: str) -> None:
    long = Long()
    settings = settings_for(redis_url, virtual_time=True)
    async with running(settings) as handle, pawl.Client(handle.address) as client:
        server = testing.Server(handle.address, client)
        await client.put_workflow_type(WorkflowType("long", lease_timeout=timedelta(seconds=1)))

        async def hurry() -> None:
            """Has the timers look all the time, not only when something is due."""
            while True:
                for each in handle.background.timers._partitions:
                    each.due_at = 0.0
                    each.loop.poke()
                await asyncio.sleep(0)

        async with server.worker(long.workflow):
            await client.send("a", None, create=long.workflow)
            await wait_until(lambda: long.ran == ["a", "b"])
            hurrying = asyncio.get_running_loop().create_task(hurry())
            advanced = await server.advance(timedelta(minutes=2), settle=0.05)
            hurrying.cancel()
            assert (advanced.fired, advanced.running, long.cancelled) == (0, 1, 0)
            long.go.set()
            assert (await client.await_turn("a", 1)).result() == 1


async def test_the_lease_of_a_lost_worker_runs_out(server: testing.Server) -> None:
    long = Long()
    async with FaultProxy(server.address) as proxy:
        lost = Worker(proxy.url, workflows=[long.workflow])
        task = asyncio.get_running_loop().create_task(lost.run())
        await server.client.send("a", None, create=long.workflow)
        await wait_until(lambda: long.ran == ["a", "b"])
        proxy.refuse()
        proxy.cut()
        before = await server.clock()
        await wait_until(lambda: _sooner(server, before.next_due), what="the lease is orphaned")
        long.go.set()
        async with server.worker(long.workflow):
            await server.advance(10)
            assert (await server.client.await_turn("a", 1)).result() == 2
        await lost.stop(0)
        await asyncio.wait_for(task, 10)


async def _sooner(server: testing.Server, due: datetime | None) -> bool:
    now_due = (await server.clock()).next_due
    return now_due is not None and due is not None and now_due < due


async def test_turns_on_their_way_are_waited_for(server: testing.Server) -> None:
    entered, done = asyncio.Event(), asyncio.Event()

    @workflow("slow", version="v1")
    async def slow(ctx: Context, state: Any, message: Any) -> Any:
        entered.set()
        await ctx.step("wait", done.wait)
        raise pawl.RetryableError("again", delay=3_600)

    async with server.worker(slow):
        await server.client.send("a", None, create=slow)
        moving = asyncio.ensure_future(server.advance(HOUR, settle=30))
        await entered.wait()
        assert (await server.clock()).now == START
        done.set()
        # The failure was before the clock moved: its backoff is over now.
        await moving
        turn = await server.client.get_turn("a", 1)
        assert turn.last_failure is not None
        assert turn.last_failure.fail_time in (START, START + HOUR)
        assert turn.attempt == 2


async def test_moves_are_made_one_after_the_other(server: testing.Server) -> None:
    request = pb.AdvanceRequest()
    request.duration.FromTimedelta(HOUR)
    answers = await asyncio.gather(*(server._call("Advance", request, 10) for _ in range(3)))
    times = [answer.engine_time.ToDatetime(tzinfo=UTC) for answer in answers]
    assert sorted(times) == [START + n * HOUR for n in (1, 2, 3)]


async def test_a_move_that_takes_too_long_says_how_far_it_came(server: testing.Server) -> None:
    long = Long()
    async with server.worker(long.workflow):
        await server.client.send("a", None, create=long.workflow)
        await wait_until(lambda: long.ran == ["a", "b"])
        with pytest.raises(pawl.DeadlineExceeded, match="3600000 ms short"):
            await server.advance(HOUR, settle=60, timeout=1.0)
        assert (await server.clock()).now == START
        long.go.set()


@pytest.mark.parametrize(
    ("move", "field"),
    [
        ({"by": -1}, "time"),
        ({"by": timedelta(days=3_651)}, "time"),
        ({"to": START - timedelta(milliseconds=1)}, "time"),
        ({"by": 1, "settle": 61}, "settle_timeout"),
        ({"by": 1, "settle": -1}, "settle_timeout"),
    ],
)
async def test_targets_out_of_range(server: testing.Server, move: dict[str, Any], field: str) -> None:
    with pytest.raises(pawl.InvalidField) as caught:
        await server.advance(**move)
    assert caught.value.field == field
    assert (await server.clock()).now == START


async def test_a_span_is_given_in_the_request_too(server: testing.Server) -> None:
    request = pb.AdvanceRequest()
    request.duration.FromMilliseconds(1_500)
    answer = await server._call("Advance", request, 10)
    assert answer.engine_time.ToDatetime(tzinfo=UTC) == START + timedelta(seconds=1.5)
    with pytest.raises(pawl.InvalidField, match="target"):
        await server._call("Advance", pb.AdvanceRequest(), 10)
    request.duration.FromSeconds(-1)
    with pytest.raises(pawl.InvalidField, match="duration"):
        await server._call("Advance", request, 10)


async def test_a_real_clock_is_not_offered(redis_url: str) -> None:
    async with testing.server(redis_url=redis_url) as server:
        with pytest.raises(pawl.Unimplemented):
            await server.advance(1)
        with pytest.raises(pawl.Unimplemented):
            await server.clock()


@pytest.mark.spec("R-VIRTUAL-1")
async def test_the_clock_outlives_servers(redis_url: str) -> None:
    for at in range(3):
        async with testing.server(redis_url=redis_url, virtual_time=True, server_name="one") as server:
            assert (await server.clock()).now == START + at * HOUR
            await server.advance(HOUR)


@pytest.mark.spec("R-VIRTUAL-3")
async def test_the_clock_moves_only_while_there_is_one_server(server: testing.Server, redis_url: str) -> None:
    async with testing.server(redis_url=redis_url, virtual_time=True) as other:
        assert (await other.clock()).now == START
        with pytest.raises(pawl.WrongState, match=server.address) as caught:
            await other.advance(1)
        assert caught.value.state == "several_servers"
        assert (await server.clock()).now == START


@pytest.mark.spec("R-VIRTUAL-5")
@pytest.mark.parametrize("virtual", [False, True])
async def test_a_namespace_keeps_its_kind_of_time(redis_url: str, virtual: bool) -> None:
    settings = settings_for(redis_url, namespace="mine", virtual_time=virtual)
    async with running(settings):
        pass
    held, wanted = ("virtual", "real") if virtual else ("real", "virtual")
    with pytest.raises(StoreRefused, match=f"namespace mine was made with {held} time.* wants {wanted} time"):
        async with running(settings_for(redis_url, namespace="mine", virtual_time=not virtual)):
            pass
    async with running(settings):
        pass


@pytest.mark.spec("R-VIRTUAL-5")
@pytest.mark.parametrize("virtual", [False, True])
async def test_a_folder_keeps_its_kind_of_time(tmp_path: Path, virtual: bool) -> None:
    folder = tmp_path / "data"
    settings: dict[str, Any] = {"port": 0, "data_dir": folder, "stop_grace_ms": 500}
    async with running(Settings(**settings, virtual_time=virtual)):
        pass
    held, wanted = ("virtual", "real") if virtual else ("real", "virtual")
    with pytest.raises(WrongTime, match=f"data folder {folder} holds {held} time.* wants {wanted} time"):
        async with running(Settings(**settings, virtual_time=not virtual, namespace="other")):
            pass
    async with running(Settings(**settings, virtual_time=virtual)):
        pass


def test_virtual_time_needs_a_single_process() -> None:
    with pytest.raises(BadSetting, match="PAWL_VIRTUAL_TIME"):
        Settings(virtual_time=True, processes=2)
