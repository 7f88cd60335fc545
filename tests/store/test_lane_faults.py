"""One lane on connections that break: nothing lost, nothing run twice in effect, nothing mixed up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.lane import Lane
from tests.store.conftest import Connect
from tests.store.scripts import ADD, ADD_FIRST, ADD_SECOND, ALL, ECHO, HOME, KEY, ONCE, value
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer
from tests.support.wait import HANG_S, wait_until


@pytest.mark.spec("R-STORE-4")
async def test_a_dropped_reply_is_answered_by_the_receipt(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    """C-19: the script has committed, the reply is lost, the caller gets the first answer."""
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        assert value(await lane.call(ONCE, HOME, ["turn-1"])) == 1
        proxy.down.drop(1)
        assert value(await lane.call(ONCE, HOME, ["turn-2"])) == 2
        assert proxy.down.dropped == 1
        assert lane.metrics.retries == 1
        assert redis_server.call("HGET", KEY, "turn") == b"2"


async def test_a_repeat_runs_again_where_no_receipt_is_kept(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    """Why every mutating script keeps a receipt."""
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        proxy.down.drop(1)
        assert value(await lane.call(ADD, HOME, ["x"])) == 2
        assert redis_server.call("LLEN", KEY) == 2


async def test_without_repeats_an_unanswered_call_fails_as_maybe_applied(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url, retry_unanswered=False)
        proxy.down.drop(1)
        with pytest.raises(StoreUnavailable) as caught:
            await lane.call(ADD, HOME, ["x"])
        assert caught.value.maybe_applied
        assert redis_server.call("LLEN", KEY) == 1


async def test_a_call_that_two_connections_lost_fails_as_maybe_applied(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        proxy.down.drop(2, containing=b"$2\r\nOK\r\n")  # the script's answer, twice
        with pytest.raises(StoreUnavailable) as caught:
            await lane.call(ONCE, HOME, ["a"])
        assert caught.value.maybe_applied
        assert lane.metrics.retries == 1


async def test_a_cut_never_mixes_answers(connect: Connect, redis_url: str) -> None:
    chance = random.Random(7)
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url, backoff_max=0.06)
        proxy.down.piece = 97
        answered = 0

        async def ask(name: str) -> None:
            nonlocal answered
            try:
                answer = await lane.call(ECHO, HOME, [name])
            except StoreUnavailable:
                return
            assert value(answer).decode() == name
            answered += 1

        for around in range(12):
            tasks = [asyncio.create_task(ask(f"{around}-{i}-" + "z" * (i % 50))) for i in range(60)]
            seen = proxy.down.seen
            share = chance.randrange(1, 2000)
            await wait_until(lambda s=seen, n=share: proxy.down.seen > s + n or not lane.waiting)
            proxy.cut()
            await asyncio.gather(*tasks)
        assert answered >= 600
        assert lane.metrics.resets >= 10


async def test_a_half_open_connection_times_out_and_is_replaced(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url, reply_timeout=1.0)
        proxy.half_open()
        assert value(await lane.call(ONCE, HOME, ["a"])) == 1
        assert (lane.metrics.timeouts, lane.metrics.resets, lane.metrics.connects) == (1, 1, 2)


async def test_a_late_command_of_the_set_up_is_not_waited_for_for_ever(
    connect: Connect, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url, reply_timeout=1.0)
        proxy.half_open()
        with pytest.raises(StoreUnavailable, match="silent"):
            await lane.execute("PING")
        await wait_until(lambda: lane.ready)
        assert await lane.execute("PING") == b"PONG"


async def test_slow_replies_that_keep_coming_are_no_timeout(connect: Connect, redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url, reply_timeout=0.8, max_flush_calls=1, max_flights=50)
        proxy.down.delay, proxy.down.piece = 0.05, 25
        futures = [lane.call(ECHO, HOME, [i]) for i in range(20)]
        for future in futures:
            await future
        assert lane.metrics.timeouts == 0


async def test_a_process_that_stood_still_does_not_blame_redis(connect: Connect, redis_url: str) -> None:
    lane = await connect(redis_url, reply_timeout=0.4)
    futures = [lane.call(ECHO, HOME, [i]) for i in range(3)]
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251 - the loop is blocked on purpose
    assert [value(await future) for future in futures] == [b"0", b"1", b"2"]
    assert lane.metrics.resets == 0


@pytest.mark.spec("R-STORE-4")
async def test_what_a_given_up_connection_still_holds_never_runs_after_its_repeat(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url, reply_timeout=1.0)
        old = proxy.links[0]
        old.hold()
        assert value(await lane.call(ADD, HOME, ["x"])) == 1
        await wait_until(lambda: not old.open, what="Redis closed the connection that was given up")
        old.release()
        assert value(await lane.call(ADD, HOME, ["y"])) == 2
        assert redis_server.call("LRANGE", KEY, 0, -1) == [b"x", b"y"]


@pytest.mark.spec("R-STORE-5")
async def test_the_middle_script_of_a_pipeline_is_missing(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    """C-17: the others of the flush have run and are not run again; each has run once in the end."""
    lane = await connect(redis_url)
    redis_server.call("SCRIPT", "FLUSH")
    for script in (ADD_FIRST, ADD):
        redis_server.call("SCRIPT", "LOAD", script.text)
    calls = [lane.call(script, HOME, [script.name]) for script in (ADD_FIRST, ADD_SECOND, ADD)]
    assert [value(await call) for call in calls] == [1, 3, 2]
    assert redis_server.call("LRANGE", KEY, 0, -1) == [b"add_first", b"add", b"add_second"]
    assert (lane.metrics.noscript, lane.metrics.flushes, lane.metrics.resets) == (1, 1, 0)


@pytest.mark.spec("R-STORE-5")
async def test_a_script_flush_under_load_runs_every_call_once(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    lane = await connect(redis_url, max_flush_calls=8)

    async def add(i: int) -> None:
        await lane.call(ADD, HOME, [i])
        if i % 50 == 0:
            redis_server.call("SCRIPT", "FLUSH")
        await lane.call(ADD_SECOND, HOME, [1000 + i])

    await asyncio.gather(*(add(i) for i in range(200)))
    stored = [int(item) for item in redis_server.call("LRANGE", KEY, 0, -1)]
    assert sorted(stored) == [*range(200), *range(1000, 1200)]
    assert lane.metrics.noscript > 0


async def test_a_server_that_keeps_no_scripts_is_an_error_not_a_loop(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    lane = await connect(redis_url, known=[script for script in ALL if script is not ADD])
    with pytest.raises(StoreUnavailable, match="scripts"):
        await lane.call(ADD, HOME, ["x"])
    assert redis_server.call("EXISTS", KEY) == 0


async def test_a_demoted_primary_is_left_and_used_again_once_promoted(connect: Connect) -> None:
    with RedisServer(cluster=False) as server:
        lane = await connect(server.url, backoff_max=0.06)
        server.call("REPLICAOF", "127.0.0.1", "1")
        future = lane.call(ADD, HOME, ["x"])
        await wait_until(lambda: "not a primary" in str(lane.last_error))
        assert not future.done()
        server.call("REPLICAOF", "NO", "ONE")
        assert value(await future) == 1


async def test_redis_down_at_start_is_a_typed_error(make_lane: Callable[..., Lane]) -> None:
    with RedisServer(start=False) as server:
        lane = make_lane(server.url)
        with pytest.raises(StoreUnavailable, match="no usable Redis") as caught:
            await lane.start(0.1)
        assert not caught.value.maybe_applied


async def test_a_lane_waits_for_a_server_that_starts_later(make_lane: Callable[..., Lane]) -> None:
    with RedisServer(start=False) as server:
        lane = make_lane(server.url, backoff_max=0.06)
        starting = asyncio.create_task(lane.start(10))
        call = lane.call(ADD, HOME, ["x"])
        await wait_until(lambda: lane.last_error)
        await asyncio.to_thread(server.start)
        await starting
        assert value(await call) == 1


@pytest.mark.spec("R-STORE-7")
async def test_calls_fail_at_their_deadline_while_redis_is_down(connect: Connect) -> None:
    with RedisServer() as server:
        lane = await connect(server.url, call_timeout=0.1, backoff_max=0.06)
        server.kill()
        await wait_until(lambda: not lane.ready)
        with pytest.raises(StoreUnavailable) as caught:
            await lane.call(ADD, HOME, ["x"])
        assert not caught.value.maybe_applied


@pytest.mark.spec("R-STORE-7")
async def test_a_lane_that_is_down_answers_who_waits_and_holds_what_ends_a_lease(connect: Connect) -> None:
    with RedisServer(cluster=False, aof="always") as server:
        lane = await connect(server.url, patience=0.05, backoff_max=0.06)
        server.kill()
        await wait_until(lambda: not lane.ready)
        held = lane.call(ONCE, HOME, ["turn-1"])
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(lane.call(ADD, HOME, ["x"]), HANG_S)
        soon = lane.call(ADD, HOME, ["x"])
        assert isinstance(soon.exception(), StoreUnavailable), "at once, once the lane was down for so long"
        assert not held.done()
        await asyncio.to_thread(server.start)
        assert value(await held) == 1
        assert value(await lane.call(ECHO, HOME, ["x"])) == b"x", "and again once it is connected"


@pytest.mark.spec("R-STORE-7")
async def test_kill_9_of_redis_loses_no_acknowledged_call(connect: Connect) -> None:
    with RedisServer(cluster=False, aof="always") as server:
        lane = await connect(server.url, backoff_max=0.06)
        acknowledged: list[int] = []

        async def write(i: int) -> None:
            assert value(await lane.call(ONCE, HOME, [i])) >= 1
            acknowledged.append(i)

        tasks = [asyncio.create_task(write(i)) for i in range(300)]
        await wait_until(lambda: acknowledged)
        await asyncio.to_thread(server.restart)
        await asyncio.gather(*tasks)
        assert int(server.call("HGET", KEY, "turn")) == 300
