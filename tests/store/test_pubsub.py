"""Private channels: hints arrive, and listening goes on after every kind of loss."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from pawl_server.store.connection import Endpoint
from pawl_server.store.errors import StoreUnavailable
from pawl_server.store.pubsub import Listener, ListenerOptions
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer
from tests.support.wait import wait_until

CHANNELS = ["{n.00.a}ch:run1", "{n.01.b}ch:run1"]
QUICK = ListenerOptions(ping_interval=0.03, silence_limit=0.9, backoff_max=0.06)


class Heard(list[tuple[int, bytes]]):
    """What a listener heard, and how often it (re)subscribed."""

    subscribed = 0

    def message(self, index: int, data: bytes) -> None:
        self.append((index, data))
        if data == b"bad":
            raise ValueError("a bug of the callback")

    def begun(self) -> None:
        self.subscribed += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def listen(heard: Heard) -> AsyncIterator[Callable[[str], Listener]]:
    """Listens at a URL; closed after the test."""
    made: list[Listener] = []

    def start(url: str) -> Listener:
        endpoint = Endpoint.parse(url)
        made.append(Listener(endpoint, CHANNELS, heard.message, on_subscribed=heard.begun, options=QUICK))
        return made[-1]

    yield start
    for listener in made:
        await listener.close()


async def test_messages_of_every_channel_arrive_in_order(
    listen: Callable[[str], Listener], heard: Heard, redis_server: RedisServer, redis_url: str
) -> None:
    await listen(redis_url).wait_ready(10)
    for index, data in [(0, b"a"), (1, b"b"), (0, b"\x00\r\n"), (0, b"bad"), (1, b"c")]:
        assert redis_server.call("SPUBLISH", CHANNELS[index], data) == 1
    await wait_until(lambda: len(heard) == 5)
    assert heard == [(0, b"a"), (1, b"b"), (0, b"\x00\r\n"), (0, b"bad"), (1, b"c")]


async def test_a_lost_connection_is_replaced_and_reported(
    listen: Callable[[str], Listener], heard: Heard, redis_server: RedisServer, redis_url: str
) -> None:
    listener = listen(redis_url)
    await listener.wait_ready(10)
    redis_server.call("CLIENT", "KILL", "TYPE", "pubsub")
    await wait_until(lambda: heard.subscribed == 2)
    assert listener.ready
    redis_server.call("SPUBLISH", CHANNELS[1], "again")
    await wait_until(lambda: heard == [(1, b"again")])


async def test_a_half_open_connection_is_noticed_by_its_silence(
    listen: Callable[[str], Listener], heard: Heard, redis_server: RedisServer, redis_url: str
) -> None:
    async with FaultProxy(redis_url) as proxy:
        listener = listen(proxy.url)
        await listener.wait_ready(10)
        proxy.half_open()
        await wait_until(lambda: heard.subscribed == 2)
        assert "silent" in listener.last_error
        redis_server.call("SPUBLISH", CHANNELS[0], "x")
        await wait_until(lambda: heard == [(0, b"x")])


async def test_an_idle_connection_is_kept(listen: Callable[[str], Listener], redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy:
        listener = listen(proxy.url)
        await listener.wait_ready(10)
        seen = proxy.down.seen
        await wait_until(
            lambda: proxy.down.seen > seen + 50 * 24
        )  # as many pongs, well beyond the silence limit
        assert listener.metrics.resets == 0


async def test_a_channel_that_redis_takes_away_is_subscribed_again(
    listen: Callable[[str], Listener], heard: Heard, redis_server: RedisServer, redis_url: str
) -> None:
    """As when its slot moves; the connection sends the same reply that a cluster's node sends then."""
    listener = listen(redis_url)
    await listener.wait_ready(10)
    ear = listener._ear
    assert ear is not None
    ear.send("SUNSUBSCRIBE", CHANNELS[0])
    await wait_until(lambda: heard.subscribed == 2)
    assert listener.metrics.resubscribed == 1
    assert redis_server.call("SPUBLISH", CHANNELS[0], "x") == 1


async def test_listening_begins_when_redis_appears(heard: Heard, listen: Callable[[str], Listener]) -> None:
    with RedisServer(start=False) as server:
        listener = listen(server.url)
        with pytest.raises(StoreUnavailable, match="subscribed"):
            await listener.wait_ready(0.05)
        server.start()
        await listener.wait_ready(10)
        assert heard.subscribed == 1
