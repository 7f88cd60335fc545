"""One lane on a healthy connection: order, flushes, cancelling, errors."""

from __future__ import annotations

import asyncio

import pytest

from pawl_server.store.errors import ScriptFailed, StoreMemory, StoreMoving, StoreUnavailable
from tests.store.conftest import Connect
from tests.store.scripts import ADD, ADD_FIRST, ADD_SECOND, ECHO, FAIL_FIRST, HOME, KEY, value
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer
from tests.support.wait import wait_until


async def test_answers_every_call_with_its_own_reply(connect: Connect, redis_url: str) -> None:
    lane = await connect(redis_url)
    futures = [lane.call(ECHO, HOME, [f"v{i}"]) for i in range(1000)]
    assert [value(await future) for future in futures] == [f"v{i}".encode() for i in range(1000)]


async def test_the_calls_of_one_tick_are_one_flush(connect: Connect, redis_url: str) -> None:
    lane = await connect(redis_url)
    await asyncio.gather(*(lane.call(ECHO, HOME, [i]) for i in range(50)))
    assert (lane.metrics.calls, lane.metrics.flushes) == (50, 1)


async def test_calls_made_by_the_wakened_callers_of_a_flush_leave_together(
    connect: Connect, redis_url: str
) -> None:
    lane = await connect(redis_url)

    async def twice() -> None:
        await lane.call(ECHO, HOME, [1])
        await lane.call(ECHO, HOME, [2])

    await asyncio.gather(*(twice() for _ in range(20)))
    assert lane.metrics.flushes == 2


async def test_a_flush_is_ordered_by_priority_then_arrival(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    lane = await connect(redis_url)
    order = [(ADD, "a1"), (ADD_SECOND, "c1"), (ADD_FIRST, "u1"), (ADD, "a2"), (ADD_FIRST, "u2")]
    await asyncio.gather(*(lane.call(script, HOME, [name]) for script, name in order))
    assert redis_server.call("LRANGE", KEY, 0, -1) == [b"u1", b"u2", b"c1", b"a1", b"a2"]


async def test_at_most_two_flushes_are_under_way(connect: Connect, redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        proxy.down.hold()
        futures = []
        for i in range(5):
            futures.append(lane.call(ECHO, HOME, [i]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert lane.metrics.flushes == 2
        proxy.down.release()
        assert [value(await future) for future in futures] == [b"0", b"1", b"2", b"3", b"4"]
        assert lane.metrics.flushes == 3


async def test_a_flush_is_bounded_and_urgent_calls_overtake_the_backlog(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    lane = await connect(redis_url, max_flush_calls=4)
    backlog = [lane.call(ADD, HOME, [i]) for i in range(10)]
    await backlog[0]
    urgent = lane.call(ADD_FIRST, HOME, ["now"])
    await asyncio.gather(urgent, *backlog)
    assert redis_server.call("LRANGE", KEY, 0, -1).index(b"now") == 8
    assert lane.metrics.flushes == 3


async def test_replies_cut_anywhere_are_put_together(connect: Connect, redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        proxy.down.piece = 7
        values = [f"{i}" * 40 for i in range(30)]
        futures = [lane.call(ECHO, HOME, [text]) for text in values]
        assert [value(await future).decode() for future in futures] == values


@pytest.mark.spec("R-STORE-10")
async def test_a_call_cancelled_before_its_flush_is_never_sent(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    lane = await connect(redis_url)
    dropped, kept = lane.call(ADD, HOME, ["dropped"]), lane.call(ADD, HOME, ["kept"])
    dropped.cancel()
    assert value(await kept) == 1
    assert redis_server.call("LRANGE", KEY, 0, -1) == [b"kept"]


@pytest.mark.spec("R-STORE-10")
async def test_the_reply_of_a_call_cancelled_in_flight_is_discarded(
    connect: Connect, redis_server: RedisServer, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        proxy.down.hold()
        dropped, kept = lane.call(ADD, HOME, ["a"]), lane.call(ADD, HOME, ["b"])
        await wait_until(lambda: redis_server.call("LLEN", KEY) == 2)
        dropped.cancel()
        proxy.down.release()
        assert value(await kept) == 2
        assert lane.metrics.resets == 0


async def test_arguments_of_another_type_are_refused_at_once(connect: Connect, redis_url: str) -> None:
    lane = await connect(redis_url)
    with pytest.raises(TypeError):
        lane.call(ECHO, HOME, [None])  # pyright: ignore[reportArgumentType]
    assert value(await lane.call(ECHO, HOME, [b"\x00\r\n\xff"])) == b"\x00\r\n\xff"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ERR a bug", ScriptFailed),
        ("OOM no memory", StoreMemory),
        ("MISCONF disk", StoreUnavailable),
        ("BUSY script", StoreUnavailable),
        ("NOREPLICAS not enough good replicas", StoreUnavailable),
        ("TRYAGAIN moving", StoreMoving),
    ],
)
async def test_error_replies_fail_their_call_alone(
    connect: Connect, redis_url: str, text: str, kind: type[Exception]
) -> None:
    lane = await connect(redis_url)
    bad, good = lane.call(FAIL_FIRST, HOME, [text]), lane.call(ECHO, HOME, ["fine"])
    with pytest.raises(kind, match=text.split()[1]) as caught:
        await bad
    if isinstance(caught.value, StoreUnavailable):
        assert not caught.value.maybe_applied
    assert value(await good) == b"fine"
    assert lane.metrics.resets == 0


@pytest.mark.parametrize(
    "text",
    [
        "READONLY replica",
        "MASTERDOWN link",
        "LOADING data",
        "UNBLOCKED role",
        "CLUSTERDOWN slot",
        "MOVED 1 a:1",
    ],
)
async def test_errors_of_a_useless_connection_make_a_new_one_and_repeat(
    connect: Connect, redis_url: str, text: str
) -> None:
    lane = await connect(redis_url)
    bad, good = lane.call(FAIL_FIRST, HOME, [text]), lane.call(ECHO, HOME, ["fine"])
    assert value(await bad) == b"2"
    assert value(await good) == b"fine"
    assert lane.metrics.resets == 1


@pytest.mark.spec("R-STORE-8")
async def test_at_maxmemory_only_scripts_that_allow_it_run(connect: Connect) -> None:
    with RedisServer() as server:
        lane = await connect(server.url)
        server.call("CONFIG", "SET", "maxmemory", "1")
        denied, allowed = lane.call(ADD, HOME, ["no"]), lane.call(ADD_FIRST, HOME, ["yes"])
        with pytest.raises(StoreMemory):
            await denied
        assert value(await allowed) == 1


async def test_close_fails_what_is_unanswered(connect: Connect, redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy:
        lane = await connect(proxy.url)
        proxy.down.hold()
        sent = lane.call(ADD, HOME, ["a"])
        await wait_until(lambda: lane.metrics.flushes == 1)
        queued = lane.call(ADD, HOME, ["b"])
        await lane.close()
        for future, maybe in ((sent, True), (queued, False), (lane.call(ADD, HOME, ["c"]), False)):
            with pytest.raises(StoreUnavailable) as caught:
                await future
            assert caught.value.maybe_applied is maybe
