"""Metrics of turns, leases, timers and the sweep: each one is moved by what it counts."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration

from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1 import worker_service_pb2 as workers
from pawl_server.app import Handle, running
from pawl_server.background.sweeper import sweep_dead
from pawl_server.observe import catalogue as c
from pawl_server.store import scripts_gen as scripts
from tests.support.api import CALL_S, Api
from tests.support.metrics import QUICK, Reading, observed, read, settled
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, fail, finish, started
from tests.support.wait import wait_until


async def test_how_turns_end(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    before = await read(handle)

    def ended(after: Reading) -> dict[str, float]:
        outcomes = [labels[0] for labels in after.labels(c.TURNS_FINISHED)]
        rose = {outcome: after.rose(before, c.TURNS_FINISHED, outcome) for outcome in outcomes}
        return {outcome: count for outcome, count in rose.items() if count}

    async with Stream(api, credits=3) as stream:
        turn = await started(api, stream, messages=3)
        await stream.command(turn, finish())
        second = await stream.turn()
        await stream.command(second, fail(delay_ms=0))
        third = await stream.turn()
        assert (third.turn, third.attempt) == (2, 2)
        await stream.command(third, fail(final=True))
        after = await read(handle)
        assert ended(after) == {"completed": 1, "failed": 1}
        assert after.rose(before, c.ATTEMPTS_RETRIED) == 1
    await api.turns.SkipTurn(turns.SkipTurnRequest(instance_id="a", turn=2), timeout=CALL_S)
    await api.turns.CancelTurn(turns.CancelTurnRequest(instance_id="a", turn=3), timeout=CALL_S)
    await api.send("a", "m4")
    cancel = messages.CancelMessageRequest(instance_id="a", message_id="m4")
    await api.messages.CancelMessage(cancel, timeout=CALL_S)
    assert ended(await read(handle)) == {"completed": 1, "failed": 1, "skipped": 1, "cancelled": 2}
    async with Stream(api, credits=1, ordinal=2) as stream:
        last = await started(api, stream, "b", max_attempts=1)
        await stream.command(last, fail(final=True))
    await api.turns.ParkTurn(turns.ParkTurnRequest(instance_id="b", turn=1), timeout=CALL_S)
    assert ended(await read(handle))["parked"] == 1


async def test_messages_that_expire(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    await api.create("a")
    await api.send("a", "m1", ttl=Duration(nanos=1_000_000))
    after = await settled(handle, c.TURNS_FINISHED, 1, "expired")
    assert after.get(c.TIMERS_FIRED, "expiry") == 1


async def test_claims_and_deliveries(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    before = await read(handle)
    async with Stream(api, credits=2) as stream:
        for name in ("a", "b"):
            await api.create(name)
            await api.send(name, "m1")
        await stream.turns(2)
        after = await read(handle)
        assert after.rose(before, c.CLAIMS) >= 1
        assert after.rose(before, c.CLAIMED) == after.rose(before, c.DELIVERIES) == 2
        assert after.get(c.LEASES_HELD) == 2
        assert after.rose(before, c.RETURNED) == 0


async def test_turns_that_are_given_back(watched: tuple[Handle, Api], redis_server: RedisServer) -> None:
    handle, api = watched
    async with Stream(api, credits=1) as stream:
        [session] = handle.delivery.sessions.values()
        session.ending = True  # the worker says goodbye at this very moment
        await api.create("a")
        await api.send("a", "m1")
        handle.delivery.dispatcher._claim(
            handle.engine.store.partition_of("a"),
            [(scripts.ClaimItem("t:v1", 1, session.conn), session, _source(handle, "a"))],
        )
        await settled(handle, c.RETURNED, 1)
        await stream.done()
    await wait_until(lambda: Stored(handle, redis_server).ready("a"))


def _source(handle: Handle, instance_id: str) -> Any:
    """What the dispatcher knows of a partition."""
    [pool] = handle.delivery.dispatcher._pools.values()
    return pool.sources[handle.engine.store.partition_of(instance_id).index]


async def test_leases_that_run_out(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, lease_timeout=Duration(seconds=1))
        detach = workers.RenewLeasesRequest(leases=[turn.lease], detach=True)
        await stream.done()
    await api.workers.RenewLeases(detach, timeout=CALL_S)
    async with Stream(api, credits=1, ordinal=2, acks=False, session="deaf"):
        await api.create("b")
        await api.send("b", "m1")
        after = await settled(handle, c.LEASES_EXPIRED, 1, "returned")
    assert after.get(c.TIMERS_FIRED, "lease") >= 1


async def test_leases_of_a_stream_that_broke(watched: tuple[Handle, Api]) -> None:
    handle, api = watched
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, checkpoint("one"))
    after = await settled(handle, c.LEASES_ORPHANED, 1, "stream")
    assert after.get(c.LEASES_ORPHANED, "server") == 0
    after = await settled(handle, c.LEASES_EXPIRED, 1, "lost")
    assert after.get(c.LEASES_EXPIRED, "failed") == 0


async def test_leases_of_a_server_that_died(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        observed(redis_server, redis_url, **QUICK) as (handle, _),
        running(settings_for(redis_url, server_name="other")) as other,
        Api(other.address) as api,
        Stream(api, credits=1) as stream,
    ):
        await started(api, stream)
        await wait_until(lambda: Stored(other, redis_server).accepted("a"))
        partition = handle.engine.store.partition_of("a")
        assert await sweep_dead(handle.engine, partition, [other.engine.server_run]) == 1
        assert (await read(handle)).get(c.LEASES_ORPHANED, "server") == 1


async def test_stale_and_held_timers(watched: tuple[Handle, Api], redis_server: RedisServer) -> None:
    handle, api = watched
    await api.create("a")
    stored = Stored(handle, redis_server)
    redis_server.call("ZADD", f"{stored.tag('a')}due", 1, "backoff:a")
    await settled(handle, c.TIMERS_STALE, 1)
    await handle.background.timers.stop()
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, "b", lease_timeout=Duration(seconds=1))
        detach = workers.RenewLeasesRequest(leases=[turn.lease], detach=True)
        await stream.done()
    await api.workers.RenewLeases(detach, timeout=CALL_S)
    tag = stored.tag("b")
    hold = redis_server.call("HGET", f"{tag}meta", "hold")
    redis_server.call("HSET", f"{tag}meta", "hold", 4_000_000_000_000)
    partition = handle.engine.store.partition_of("b")

    async def looked() -> bool:
        await handle.background.timers.apply(partition)
        return (await read(handle)).get(c.TIMERS_HELD) == 1

    await wait_until(looked)
    redis_server.call("HSET", f"{tag}meta", "hold", hold or 0)


async def test_the_sweep(watched: tuple[Handle, Api], redis_server: RedisServer) -> None:
    handle, api = watched
    await api.create("a")
    await api.send("a", "m1")
    tag = Stored(handle, redis_server).tag("a")
    redis_server.call("ZREM", f"{tag}ready:t:v1:0", "a")
    redis_server.call("ZREM", f"{tag}types", "t:v1")
    after = await settled(handle, c.SWEEP_REPAIRED, 1)
    assert after.get(c.SWEEP_SCANNED) >= 1


async def test_steps_of_the_clock(watched: tuple[Handle, Api]) -> None:
    handle, _ = watched
    for each in handle.background.beats._partitions:
        each._clock._offset_ms = (each._clock._offset_ms or 0) - 5_000
    after = await settled(handle, c.CLOCK_STEPS, 2)
    assert after.get(c.CLOCK_STEPS) == 2
