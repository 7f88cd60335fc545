"""Metrics of a running server: each one is moved by what it counts."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import event_service_pb2 as events
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl_server.app import Handle, running
from pawl_server.domain.states import TurnState
from pawl_server.observe import catalogue as c
from pawl_server.observe import waiting
from pawl_server.rpc import health
from pawl_server.version import VERSION
from tests.support.api import CALL_S, Api, json, refusal_of
from tests.support.fault_proxy import FaultProxy
from tests.support.metrics import Reading, observed, read, settled
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, fail, finish, started
from tests.support.wait import wait_until


def test_every_metric_is_moved_by_a_test() -> None:
    looked_at = {
        arg.attr
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for arg in node.args
        if isinstance(arg, ast.Attribute) and isinstance(arg.value, ast.Name) and arg.value.id == "c"
    }
    assert {name for name, value in vars(c).items() if isinstance(value, c.Metric)} - looked_at == set()


def test_names_follow_the_conventions() -> None:
    names = [metric.name for metric in c.ALL]
    assert len(set(names)) == len(names)
    for metric in c.ALL:
        assert metric.name.startswith("pawl_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.text.endswith(".")
        assert not set(metric.labels) & {"instance", "instance_id", "session", "message_id", "worker"}


# The server


async def test_what_runs(watched: tuple[Handle, Api]) -> None:
    handle, _ = watched
    reading = await read(handle)
    [build] = reading.labels(c.BUILD_INFO)
    assert build[0] == VERSION
    assert reading.get(c.BUILD_INFO, *build) == 1
    engine = handle.engine
    who = ("quick", engine.server_run, "default", "2", engine.store.store_name)
    assert reading.get(c.SERVER_INFO, *who) == 1
    assert reading.get(c.DURABILITY_INFO, "memory", "false") == 1
    assert (reading.get(c.READY), reading.get(c.DRAINING)) == (1, 0)


async def test_draining(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    async with Stream(api, credits=1) as stream:
        await started(api, stream)
        stopping = asyncio.ensure_future(handle.stop())
        await settled(handle, c.DRAINING, 1)
        assert (await read(handle)).get(c.READY) == 0
    await stopping


async def test_a_blocked_loop_shows(watched: tuple[Handle, Api]) -> None:
    handle, _ = watched
    assert handle.metrics is not None
    first = await settled(handle, c.LOOP_LAG, 1)
    handle.metrics._lag._due -= 3.0  # as if it had been asked for three seconds before
    second = await settled(handle, c.LOOP_LAG, 2)

    def within(reading: Reading, seconds: str) -> float:
        return reading.samples["pawl_loop_lag_seconds_bucket", frozenset({("le", seconds)})]

    assert within(first, "2.5") == within(second, "2.5") == 1
    assert within(second, "5.0") == 2


# What waits


@pytest.mark.spec("R-METRIC-2")
async def test_ready_turns_and_their_age(watched: tuple[Handle, Api], redis_server: RedisServer) -> None:
    handle, api = watched
    assert (await read(handle)).get(c.READY_TURNS, "t", "v1") == 0
    for name in ("a", "b", "c"):
        await api.create(name)
        await api.send(name, "m1")
    reading = await read(handle)
    assert reading.get(c.READY_TURNS, "t", "v1") == reading.get(c.UNFINISHED, "t", "v1") == 3
    tag = Stored(handle, redis_server).tag("a")
    was = redis_server.call("ZSCORE", f"{tag}ready:t:v1:0", "a")
    redis_server.call("ZADD", f"{tag}ready:t:v1:0", int(was) - 60_000, "a")
    age_s = (await read(handle)).get(c.READY_AGE, "t", "v1")
    assert 60.0 <= age_s < 80.0
    async with Stream(api, credits=3) as stream:
        for turn in await stream.turns(3):
            await stream.command(turn, finish())
    after = await read(handle)
    assert after.get(c.READY_TURNS, "t", "v1") == after.get(c.UNFINISHED, "t", "v1") == 0
    assert after.get(c.READY_AGE, "t", "v1") == 0
    assert ("t", "v1") in after.labels(c.READY_AGE), "a type that was seen stays"


@pytest.mark.spec("R-METRIC-2")
async def test_the_age_grows_while_the_store_is_away(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        observed(redis_server, proxy.url, store_timeout_ms=1_000) as (handle, api),
    ):
        await api.create("a")
        await api.send("a", "m1")
        before = await read(handle)
        proxy.refuse()
        proxy.cut()

        async def older() -> Reading | None:
            reading = await read(handle)
            return reading if reading.rose(before, c.STATS_AGE) > 0.05 else None

        after = await wait_until(older)
        assert after is not None
        assert after.get(c.READY_TURNS, "t", "v1") == 1, "the last number that is known"
        grown_s = after.rose(before, c.READY_AGE, "t", "v1")
        assert grown_s == pytest.approx(after.rose(before, c.STATS_AGE), abs=0.02)
        proxy.accept()
        await wait_until(lambda: not handle.engine.store.outage.parts)


async def test_blocked_paused_parked_and_damaged(
    watched: tuple[Handle, Api], redis_server: RedisServer
) -> None:
    handle, api = watched
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, fail(final=True))
    assert (await read(handle)).get(c.BLOCKED, "t", "v1") == 1
    await api.turns.ParkTurn(turns.ParkTurnRequest(instance_id="a", turn=1), timeout=CALL_S)
    reading = await read(handle)
    assert (reading.get(c.BLOCKED, "t", "v1"), reading.get(c.PARKED)) == (0, 1)
    await api.send("a", "m2")
    await api.instances.PauseInstance(instances.PauseInstanceRequest(instance_id="a"), timeout=CALL_S)
    assert (await read(handle)).get(c.PAUSED, "t", "v1") == 1
    tag = Stored(handle, redis_server).tag("a")
    redis_server.call("ZADD", f"{tag}damaged", 1, "i:a")
    assert (await read(handle)).get(c.DAMAGED) == 1
    redis_server.call("ZREM", f"{tag}damaged", "i:a")


async def test_timers_and_late_ones(watched: tuple[Handle, Api], redis_server: RedisServer) -> None:
    handle, api = watched
    await handle.background.timers.stop()
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, fail(delay_ms=60_000))
    before = await read(handle)
    assert (before.get(c.TIMERS), before.get(c.TIMERS_LATE)) == (1, 0)
    stored = Stored(handle, redis_server)
    due = stored.due("backoff", "a")
    redis_server.call("ZADD", f"{stored.tag('a')}due", due - 120_000, "backoff:a")
    after = await read(handle)
    assert (after.get(c.TIMERS), after.get(c.TIMERS_LATE)) == (1, 1)
    redis_server.call("ZADD", f"{stored.tag('a')}due", due, "backoff:a")


@pytest.mark.spec("R-METRIC-3")
async def test_types_beyond_the_bound_are_summed_up(redis_server: RedisServer, redis_url: str) -> None:
    async with observed(redis_server, redis_url, metrics_types=2) as (handle, api):
        for kind in ("a", "b", "c", "d"):
            await api.create(f"of-{kind}", workflow_type=kind)
            await api.send(f"of-{kind}", "m1")
        reading = await read(handle)
        named = [labels for labels in reading.labels(c.READY_TURNS) if labels != waiting.OTHER]
        assert len(named) == 2
        assert [reading.get(c.READY_TURNS, *labels) for labels in named] == [1, 1]
        assert reading.get(c.READY_TURNS, *waiting.OTHER) == 2
        async with Stream(api, credits=4, types=["a", "b", "c", "d"]) as stream:
            for turn in await stream.turns(4):
                await stream.command(turn, finish())
        after = await read(handle)
        assert set(named) <= set(after.labels(c.READY_TURNS)), "who has labels keeps them"


# Streams and calls


async def test_streams_credits_and_commands(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    before = await read(handle)
    async with Stream(api, credits=7) as stream:
        opened = await read(handle)
        assert opened.get(c.STREAMS_OPEN, "Work") == 1
        assert opened.rose(before, c.STREAMS_OPENED, "Work") == 1
        assert opened.get(c.CREDITS) == 7
        turn = await started(api, stream)
        assert (await read(handle)).get(c.CREDITS) == 6
        await stream.command(turn, finish())
        assert await stream.done() == "OK"
    await settled(handle, c.STREAMS_ENDED, 1, "Work", "OK")
    async with Stream(api) as stream:
        pass
    after = await settled(handle, c.STREAMS_ENDED, 1, "Work", "CANCELLED")
    assert after.get(c.STREAMS_OPEN, "Work") == 0
    async with Stream(api, credits=1) as stream:
        await stream.say(credits_total=0)
        assert await stream.code() == "INVALID_ARGUMENT"
    await settled(handle, c.STREAMS_ENDED, 1, "Work", "INVALID_ARGUMENT")


async def test_streams_that_break_do_not_count_as_ended_in_good_order(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    for _ in range(100):
        async with Stream(api):
            pass
    after = await settled(handle, c.STREAMS_OPEN, 0, "Work")
    assert {labels: after.get(c.STREAMS_ENDED, *labels) for labels in after.labels(c.STREAMS_ENDED)} == {
        ("Work", "CANCELLED"): 100
    }


async def test_streams_of_watchers(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    await api.create("a")
    watch = api.events.WatchEvents(events.WatchEventsRequest(instance_id="a"))
    assert (await asyncio.wait_for(watch.read(), CALL_S)) is not grpc.aio.EOF
    assert (await read(handle)).get(c.STREAMS_OPEN, "WatchEvents") == 1
    watch.cancel()
    await settled(handle, c.STREAMS_OPEN, 0, "WatchEvents")


async def test_commands_that_wait_for_the_store(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        observed(redis_server, proxy.url) as (handle, api),
        Stream(api, credits=1) as stream,
    ):
        turn = await started(api, stream)
        proxy.up.hold()
        await stream.say(commands=[stream.build(turn, finish())])
        held = await settled(handle, c.COMMANDS_PENDING, 1)
        assert held.get(c.STORE_QUEUE, "hot") >= 1
        proxy.up.release()
        await stream.result()
        assert (await read(handle)).get(c.COMMANDS_PENDING) == 0


async def test_hints_and_polls(redis_server: RedisServer, redis_url: str) -> None:
    async with observed(redis_server, redis_url, poll_interval_ms=NEVER_MS) as (handle, api):
        before = await read(handle)
        async with (
            running(settings_for(redis_url, server_name="other")) as other,
            Api(other.address) as other_api,
            Stream(api, credits=1) as stream,
        ):
            await wait_until(lambda: handle.delivery.dispatcher.claims > 0)
            await other_api.create("a")
            await other_api.send("a", "m1")
            await stream.turn()
            after = await read(handle)
            assert after.rose(before, c.HINTS) >= 1
            assert after.rose(before, c.POLLS) == 0
    async with observed(redis_server, redis_url, poll_interval_ms=50) as (handle, _):
        await wait_until(lambda: handle.delivery.wakeups.polls >= 2)
        assert (await read(handle)).get(c.POLLS) >= 2


async def test_calls_by_method_and_code(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    before = await read(handle)
    await api.create("a")
    await refusal_of(api.create("a", workflow_type="other"))
    await refusal_of(api.send("absent", "m1"))
    after = await read(handle)
    assert after.rose(before, c.RPC_CALLS, "CreateInstance", "OK") == 1
    assert after.rose(before, c.RPC_CALLS, "CreateInstance", "ALREADY_EXISTS") == 1
    assert after.rose(before, c.RPC_CALLS, "SendMessage", "NOT_FOUND") == 1
    assert after.rose(before, c.RPC_SECONDS, "CreateInstance") == 2


async def test_calls_in_flight_waiting_and_cancelled(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    await api.create("a")
    await api.send("a", "m1")
    request = messages.AwaitTurnRequest(instance_id="a", turn=1, wait=Duration(seconds=60))
    call = api.messages.AwaitTurn(request)
    waits = await settled(handle, c.RPC_WAITING, 1)
    assert waits.get(c.RPC_IN_FLIGHT) == 0
    handle.gate.enter()
    assert (await read(handle)).get(c.RPC_IN_FLIGHT) == 1
    handle.gate.leave()
    call.cancel()
    after = await settled(handle, c.RPC_CALLS, 1, "AwaitTurn", "CANCELLED")
    assert after.get(c.RPC_WAITING) == 0


# The store


async def test_an_outage(redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "INTERVAL_S", 0.02)
    async with (
        FaultProxy(redis_url) as proxy,
        observed(redis_server, proxy.url, poll_interval_ms=50, store_timeout_ms=1_000) as (handle, _),
    ):
        before = await read(handle)
        connections = ("hot", "bulk", "listener")
        assert [before.get(c.STORE_UP, name) for name in connections] == [1, 1, 1]
        assert [before.get(c.STORE_CONNECTS, name) for name in connections] == [1, 1, 1]
        proxy.refuse()
        proxy.cut()
        away = await settled(handle, c.READY, 0)
        assert [away.get(c.STORE_UP, name) for name in connections] == [0, 0, 0]
        assert [away.rose(before, c.STORE_RESETS, name) for name in ("hot", "bulk")] == [1, 1]
        assert away.rose(before, c.STORE_RESETS, "listener") >= 1
        for loop in ("poll", "beats", "timers", "sweep", "trim"):

            async def failed(loop: str = loop) -> bool:
                return (await read(handle)).rose(before, c.LOOP_ERRORS, loop) > 0

            await wait_until(failed)
        assert (await read(handle)).get(c.STORE_OUTAGE) > 0
        proxy.accept()
        back = await settled(handle, c.STORE_OUTAGE, 0)
        assert back.rose(before, c.STORE_OUTAGES) == 1
        assert [back.rose(before, c.STORE_CONNECTS, name) for name in ("hot", "bulk")] == [1, 1]
        assert back.rose(before, c.STORE_CONNECTS, "listener") >= 1
        await settled(handle, c.READY, 1)


async def test_a_redis_that_falls_silent(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        observed(redis_server, proxy.url, poll_interval_ms=50, store_timeout_ms=1_000) as (handle, _),
    ):
        proxy.half_open()
        after = await settled(handle, c.STORE_TIMEOUTS, 1, "hot")
        assert after.get(c.STORE_RETRIED, "hot") >= 1
        await wait_until(lambda: not handle.engine.store.outage.parts)


async def test_scripts_that_redis_has_forgotten(
    watched: tuple[Handle, Api], redis_server: RedisServer
) -> None:
    handle, api = watched
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    await api.create("a")
    assert (await read(handle)).get(c.STORE_NOSCRIPT, "hot") >= 1


async def test_scripts_and_flushes(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    before = await read(handle)
    await api.create("a")
    batch = messages.SendMessagesRequest(
        messages=[
            messages.SendMessageRequest(instance_id=name, message_id="m1", message=json("1"))
            for name in ("a", "absent")
        ]
    )
    await api.messages.SendMessages(batch, timeout=CALL_S)
    after = await read(handle)
    assert after.rose(before, c.SCRIPT_CALLS, "create") == 1
    assert after.rose(before, c.SCRIPT_ITEMS, "send") == 2
    assert after.rose(before, c.SCRIPT_REPLIES, "send", "OK") == 1
    assert after.rose(before, c.SCRIPT_REPLIES, "send", "NOT_FOUND") == 1
    assert 0 < after.rose(before, c.SCRIPT_SECONDS, "send") < CALL_S
    assert after.rose(before, c.STORE_FLUSH, "hot") >= 2
    assert after.rose(before, c.REDIS_CALLS) >= 2
    assert 0 < after.rose(before, c.REDIS_SECONDS) < CALL_S


async def test_memory() -> None:
    with RedisServer(settings={"maxmemory": "64mb"}) as redis:
        async with observed(redis, redis.url) as (handle, _):
            reading = await read(handle)
            assert reading.get(c.MEMORY_LIMIT) == 64 << 20
            assert 0 < reading.get(c.MEMORY_USED) < 64 << 20


def test_states_that_end_turns_are_all_counted() -> None:
    from pawl_server.observe.collect import _FINISHED

    assert set(_FINISHED) == {state for state in TurnState if state.finished} | {TurnState.FAILED}
