"""C-5: everybody waits for a push, and none comes.

Given  an idle server, a worker with room, and a turn that is due in two seconds: it sleeps, or was put back.
Do     let nothing more arrive on the connection that hears pushes from Redis: it stays open, and is silent.
Expect the turn to run when it is due, or a poll interval later at most: timers need no push. The connection
       is noticed to be dead and replaced, which its counter tells; pushes are heard again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pawl_server.observe import catalogue as c
from tests.support.fault_proxy import FaultProxy, Link
from tests.support.metrics import observed, read, settled
from tests.support.redis_server import RedisServer
from tests.support.stream import Stream, fail, finish, refusal, sleep, started
from tests.support.wait import wait_until

DUE_S = 2.0
POLL_S = 1.0
MARGIN_S = 5.0
"""For a machine that others use, too."""
SLEEP = sleep(ms=2_000)
BACKOFF = fail(delay_ms=2_000)


def listeners(proxy: FaultProxy) -> list[Link]:
    """Connections that subscribed to something and carry bytes."""
    return [link for link in proxy.open_links if b"SSUBSCRIBE" in link.began and not link.swallows]


@pytest.mark.spec("R-DELIVER-3", "R-STORE-11")
@pytest.mark.parametrize(("waits", "attempt"), [(SLEEP, 1), (BACKOFF, 2)], ids=["sleep", "backoff"])
async def test_a_turn_is_due_while_no_push_arrives(
    redis_server: RedisServer, redis_url: str, waits: dict[str, Any], attempt: int
) -> None:
    async with (
        FaultProxy(redis_url) as proxy,
        observed(redis_server, proxy.url) as (handle, api),
        Stream(api, credits=2) as stream,
    ):
        turn = await started(api, stream)
        before = await read(handle)
        [dead] = listeners(proxy)
        dead.swallows = True
        began = asyncio.get_running_loop().time()
        assert refusal(await stream.command(turn, waits))[0] == ""
        again = await stream.turn()
        late_s = asyncio.get_running_loop().time() - began - DUE_S
        assert (again.turn, again.attempt) == (1, attempt)
        assert 0 <= late_s < POLL_S + MARGIN_S
        assert refusal(await stream.command(again, finish()))[0] == ""
        # Silence of three seconds ends it; with the time to connect again it takes a little longer.
        await settled(handle, c.STORE_RESETS, 1, "listener")
        after = await settled(handle, c.STORE_UP, 1, "listener")
        assert after.rose(before, c.STORE_CONNECTS, "listener") == 1
        assert after.rose(before, c.STORE_RESETS, "hot") == 0
        await heard_again(proxy, handle.engine.server_run, redis_server)
        await settled(handle, c.HINTS, before.get(c.HINTS) + 1)


async def heard_again(proxy: FaultProxy, run: str, redis: RedisServer) -> None:
    """Somebody tells the server something."""
    await wait_until(lambda: len(listeners(proxy)) == 1)
    [channel] = [name for name in redis.call("PUBSUB", "SHARDCHANNELS") if name.endswith(run.encode())][:1]
    assert redis.call("SPUBLISH", channel, "ready t:v1") >= 1
