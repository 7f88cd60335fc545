"""The proxy itself, over TCP as between worker and server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.wait import wait_until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """A proxy in front of a server that sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with FaultProxy(target) as proxy:
        yield proxy
    server.close()


async def dial(proxy: FaultProxy) -> Streams:
    host, _, port = proxy.url.partition(":")
    return await asyncio.open_connection(host, int(port))


async def say(streams: Streams, text: bytes) -> bytes:
    streams[1].write(text)
    return await streams[0].read(1000)


async def test_bytes_pass(proxy: FaultProxy) -> None:
    streams = await dial(proxy)
    assert await say(streams, b"hello") == b"hello"
    assert (proxy.up.seen, proxy.down.seen, len(proxy.open_links)) == (5, 5, 1)
    streams[1].close()
    await wait_until(lambda: not proxy.open_links)


async def test_a_cut_resets_both_sides(proxy: FaultProxy) -> None:
    streams = await dial(proxy)
    await say(streams, b"a")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await streams[0].read(1)
    assert await say(await dial(proxy), b"b") == b"b"


async def test_a_dropped_piece_ends_its_connection(proxy: FaultProxy) -> None:
    streams, other = await dial(proxy), await dial(proxy)
    proxy.down.drop(1, containing=b"x")
    assert await say(other, b"fine") == b"fine"
    assert await say(streams, b"x") == b""
    assert await say(other, b"still x") == b"still x"


async def test_half_open_links_are_silent_and_stay(proxy: FaultProxy) -> None:
    streams = await dial(proxy)
    await say(streams, b"a")
    proxy.half_open()
    streams[1].write(b"b")
    assert await say(await dial(proxy), b"c") == b"c"
    assert not streams[0].at_eof()
    assert (proxy.up.seen, proxy.down.seen) == (2, 2)


async def test_held_bytes_arrive_in_order_once_released(proxy: FaultProxy) -> None:
    streams = await dial(proxy)
    proxy.up.hold()
    streams[1].write(b"one")
    await wait_until(lambda: proxy.up.seen == 3)
    streams[1].write(b"two")
    assert proxy.down.seen == 0
    proxy.up.release()
    assert await streams[0].readexactly(6) == b"onetwo"


async def test_new_connections_can_be_refused(proxy: FaultProxy) -> None:
    proxy.refuse()
    reader, _ = await dial(proxy)
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    proxy.accept()
    assert await say(await dial(proxy), b"a") == b"a"
    assert proxy.refused == 1
