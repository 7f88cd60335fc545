"""C-9: the network between server and Redis loses every packet, and tells nobody.

Given  a server that is ready, and a worker that waits for a turn.
Do     let no packet pass, in either direction, on connections that are open and on new ones; nothing is
       closed. Later let new connections work again, while those that were open stay dead.
Expect readiness to turn red within 15 seconds, as it runs a real script, and liveness to stay green. Every
       connection is given up because of its silence, and replaced. Once packets pass, everything works again
       by itself, with settings as they are by default.

`make soak-cases` keeps silent for two minutes; here packets pass again once every connection is given up.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pawl_server.observe import catalogue as c
from tests.support.api import CALL_S, Api, refusal_of
from tests.support.fault_proxy import FaultProxy
from tests.support.metrics import Reading, observed, read, settled
from tests.support.redis_server import RedisServer
from tests.support.stream import Stream, finish, refusal
from tests.support.wait import wait_until

RED_S = 15.0
SILENT_S = 120.0 if os.environ.get("PAWL_SOAK_CASES") else 0.0
"""How long no packet passes at least."""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(api: Api, service: str = "") -> int:
    """What the health service says."""
    channel: Any = api.channel
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_S)).status


@pytest.mark.slow
@pytest.mark.standalone
@pytest.mark.timeout(60 + SILENT_S)
@pytest.mark.spec("R-API-2", "R-STORE-7", "R-STORE-11")
async def test_red_soon_and_green_again_by_itself(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        observed(redis_server, proxy.url) as (handle, api),
        Stream(api, credits=1) as stream,
    ):
        await api.create("a")
        before = await read(handle)
        assert await health(api) == SERVING
        proxy.silence()
        heals = asyncio.get_running_loop().time() + SILENT_S

        async def red() -> bool:
            return await health(api) == NOT_SERVING

        await wait_until(red, RED_S, "readiness turns red")
        assert await health(api, "pawl.liveness") == SERVING
        problem = await refusal_of(api.send("a", "m1"))
        assert (problem.code, problem.reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")

        async def given_up() -> Reading | None:
            reading = await read(handle)  # asks over the bulk connection, which nobody else uses now
            up = [reading.get(c.STORE_UP, name) for name in ("hot", "bulk", "listener")]
            return None if any(up) else reading

        silent = await wait_until(given_up, RED_S, "every connection is given up")
        assert silent is not None
        assert [silent.rose(before, c.STORE_TIMEOUTS, name) for name in ("hot", "bulk")] == [1, 1]
        assert silent.rose(before, c.STORE_RESETS, "listener") >= 1
        assert silent.get(c.STORE_OUTAGES) == 1

        async def silent_for_long() -> bool:
            assert [await health(api), await health(api, "pawl.liveness")] == [NOT_SERVING, SERVING]
            return asyncio.get_running_loop().time() >= heals

        await wait_until(silent_for_long, SILENT_S + RED_S, "packets have been lost for long enough")
        proxy.heal()

        async def green() -> bool:
            return await health(api) == SERVING

        await wait_until(green, RED_S, "readiness turns green")
        after = await settled(handle, c.STORE_OUTAGE, 0)
        for name in ("hot", "bulk", "listener"):
            assert after.rose(before, c.STORE_CONNECTS, name) >= 1
        await api.send("a", "m1")
        turn = await stream.turn()
        assert (turn.instance_id, turn.attempt) == ("a", 1)
        assert refusal(await stream.command(turn, finish()))[0] == ""
