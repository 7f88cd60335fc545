"""C-39: a client pings its idle connection as often as every 10 s.

Given  a plain client of Python with keepalive, also without calls, as often as gRPC lets it ping: once a
       second however short the interval.
Do     nothing: no call, for as many pings as make two minutes at one each 10 s.
Expect the server to answer each ping and to keep the connection. A server with the library's own settings
       says too_many_pings and sends the client away, which shows that the test would notice.

`make soak-cases` pings each 10 s, for two minutes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from pawl.v1.admin_service_pb2 import GetServerInfoRequest
from pawl.v1.admin_service_pb2_grpc import AdminServiceStub
from pawl_server.app import Handle
from tests.support.api import CALL_S
from tests.support.fault_proxy import Direction, FaultProxy
from tests.support.wait import wait_until

FULL = bool(os.environ.get("PAWL_SOAK_CASES"))
PINGS = 12
HANG_S = 240 if FULL else 60
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00"
"""Head of an HTTP/2 frame: 8 bytes, type PING, no flags, of the connection."""
ANSWER = PING[:4] + b"\x01" + PING[5:]
OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000 if FULL else 100),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class Seen(Direction):
    """Counts what goes by."""

    def __init__(self, what: bytes) -> None:
        super().__init__()
        self.count = 0
        self.refusals = 0
        self._what = what

    async def admit(self, data: bytes) -> bool:
        """Lets everything pass."""
        self.count += data.count(self._what)
        self.refusals += data.count(b"too_many_pings")
        return await super().admit(data)


@asynccontextmanager
async def idle_client(address: str) -> AsyncIterator[tuple[Seen, Seen, FaultProxy, grpc.aio.Channel]]:
    """A connected client without calls: pings, what is answered, and the way between."""
    async with FaultProxy(address) as proxy:
        proxy.up, proxy.down = up, down = Seen(PING), Seen(ANSWER)
        async with grpc.aio.insecure_channel(proxy.url, options=OPTIONS) as channel:
            await channel.channel_ready()
            yield up, down, proxy, channel


@pytest.mark.slow
@pytest.mark.timeout(HANG_S + 60)
async def test_pings_without_calls_are_answered(server: Handle) -> None:
    async with idle_client(server.address) as (pings, answers, proxy, channel):
        await wait_until(lambda: pings.count >= PINGS and answers.count >= PINGS, HANG_S)
        assert answers.refusals == 0
        assert len(proxy.links) == 1
        await AdminServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=CALL_S)
        assert len(proxy.links) == 1, "the same connection all the time"


@pytest.mark.timeout(HANG_S + 60)
async def test_a_server_with_the_settings_of_the_library_would_mind() -> None:
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    async with idle_client(f"127.0.0.1:{port}") as (pings, answers, _, __):
        await wait_until(lambda: answers.refusals, HANG_S)
        assert pings.count <= PINGS
    await other.stop(0)
