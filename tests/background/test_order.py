"""Of several servers one does what is due in a partition; the others stand by."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from pawl_server.app import Handle, running
from pawl_server.background.sweeper import Sweeper
from pawl_server.background.timers import EARLY_S, RANK_S, Timers
from pawl_server.background.trimmer import Trimmer
from pawl_server.background.walks import INTERVAL_S
from tests.support.api import TV, Api
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.stream import Stream, fail
from tests.support.wait import wait_until

PARTITIONS = 8


@pytest.fixture
async def servers(redis_server: RedisServer, redis_url: str) -> AsyncIterator[list[Handle]]:
    """Three servers on eight partitions that know of each other."""
    async with AsyncExitStack() as stack:
        handles = [
            await stack.enter_async_context(
                running(settings_for(redis_url, server_name=f"s-{number}", partitions=PARTITIONS))
            )
            for number in range(3)
        ]
        await wait_until(lambda: all(len(each.engine.peers.servers) == 3 for each in handles))
        yield handles
    assert violations_everywhere(redis_server) == []


def first(servers: list[Handle], partition: int) -> Handle:
    """The server that comes first in a partition."""
    (found,) = [each for each in servers if each.engine.peers.rank(partition) == 0]
    return found


@pytest.mark.spec("R-SERVER-3")
async def test_a_timer_is_looked_at_in_the_order_of_the_servers(servers: list[Handle]) -> None:
    clock = asyncio.get_running_loop().time
    for partition in servers[0].engine.store.partitions:
        looks = {}
        for server in servers:
            timers = Timers(server.engine)
            each = timers._partitions[partition.index]
            each.due_at, now = math.inf, clock()
            timers.due(partition, 1_500, 1_000)
            looks[server.engine.peers.rank(partition.index)] = each.due_at - now
        for rank in range(3):
            assert looks[rank] == pytest.approx(0.5 + EARLY_S + rank * RANK_S, abs=RANK_S / 2)


@pytest.mark.spec("R-SERVER-3")
async def test_what_the_first_server_has_done_is_nothing_to_the_others(servers: list[Handle]) -> None:
    async with Api(servers[0].address) as api, Stream(api, credits=2) as stream:
        await api.create("a")
        await api.send("a", "m1")
        await stream.command(await stream.turn(), fail(delay_ms=300))
        assert (await stream.turn()).attempt == 2
    partition = servers[0].engine.store.partition_of("a")
    for server in servers:
        timers = Timers(server.engine)
        await timers.apply(partition)
        assert (sum(timers.fired.values()), timers.stale) == (0, 0)


@pytest.mark.spec("R-SERVER-3")
async def test_all_servers_together_walk_little_more_than_one(servers: list[Handle]) -> None:
    for partition in servers[0].engine.store.partitions:
        pauses = [Sweeper(server.engine).pause_s(partition, "0") for server in servers]
        assert sum(INTERVAL_S / pause for pause in pauses) < 1.5
        assert min(pauses) <= INTERVAL_S
        assert [Trimmer(server.engine).pause_s(partition, "7") for server in servers].count(0) == 1
        delays = sorted(server.background.timers.late_s(partition) for server in servers)
        assert delays[1] - delays[0] == pytest.approx(RANK_S)
        assert delays[2] - delays[1] == pytest.approx(RANK_S)


@pytest.mark.spec("R-SERVER-3", "R-SWEEP-1")
async def test_the_next_server_takes_over(servers: list[Handle], redis_server: RedisServer) -> None:
    partition = servers[0].engine.store.partitions[0]
    gone = first(servers, 0)
    rest = [server for server in servers if server is not gone]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gone.stop)
    await wait_until(lambda: sum(server.engine.peers.rank(0) == 0 for server in rest) == 1)
    heir = first(rest, 0)
    assert Sweeper(heir.engine).pause_s(partition, "0") < INTERVAL_S
    name = next(name for name in map(str, range(100)) if heir.engine.store.partition_of(name).index == 0)
    async with Api(heir.address) as api:
        await api.create(name)
        await api.send(name, "m1")
    redis_server.call("ZREM", f"{partition.tag}ready:{TV}:0", name)
    redis_server.call("ZREM", f"{partition.tag}types", TV)
    # The walk that took ten times as long until now goes on within a second or two.
    await wait_until(lambda: heir.background.sweeper.repaired, 5)
