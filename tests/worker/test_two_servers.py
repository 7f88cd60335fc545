"""Calls of one turn to two servers of a namespace: any of them will do for any call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl_server.app import running
from tests.support.api import CALL_S, Api
from tests.support.invariants import violations_everywhere
from tests.support.raw_worker import Answer, ByClaim, ByPolls, ByStream, Calls
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.stream import checkpoint, defer, fail, finish, release, sleep, wait_signal

WAYS: dict[str, Any] = {"stream": ByStream, "polls": ByPolls, "claim": ByClaim}
ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "finish": ("completed", finish(b"1", again=b"more")),
    "fail": ("failed", fail(delay_ms=60_000)),
    "fail for good": ("failed", fail(final=True)),
    "release": ("released", release()),
    "sleep": ("sleeping", sleep()),
    "defer": ("deferred", defer()),
    "wait": ("waiting", wait_signal()),
}


@pytest.fixture
async def apis(redis_server: RedisServer, redis_url: str) -> AsyncIterator[tuple[Api, Api]]:
    """Clients of two servers, which learn of nothing by polling."""
    async with (
        running(settings_for(redis_url, server_name="one", poll_interval_ms=NEVER_MS)) as one,
        running(settings_for(redis_url, server_name="two", poll_interval_ms=NEVER_MS)) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        yield first, second
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-WORKER-1", "R-CMD-1", "R-CMD-2")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_turn_runs_across_servers(apis: tuple[Api, Api], way: str, end: str) -> None:
    first, second = apis
    how, command = ENDS[end]
    here, there = Calls(first), Calls(second)
    await second.create("a")
    await second.send("a", "m1")
    async with WAYS[way](first) as worker:
        turn = await worker.turn()
        renewed = await second.workers.RenewLeases(pb.RenewLeasesRequest(leases=[turn.lease]), timeout=CALL_S)
        assert renewed.results[0].remaining.ToMilliseconds() > 50_000
        one, two = checkpoint("one"), checkpoint("two")
        assert await there.do(turn, one, n=1) == await here.do(turn, one, n=1)
        assert (await there.do(turn, one, n=3)).reason == "GAP"
        assert await worker.do(turn, two, n=2) == await there.do(turn, two, n=2)
        ended = await there.do(turn, command, n=3)
        assert ended.ok
        assert [await here.do(turn, command, n=3), await worker.do(turn, command, n=3)] == [ended, ended]
        late = Answer.refused("LEASE_ENDED", {"how": how})
        assert [await calls.do(turn, finish(), n=4) for calls in (here, there, worker)] == [late] * 3


@pytest.mark.spec("R-WAIT-4", "R-CMD-2")
@pytest.mark.parametrize("way", WAYS)
async def test_a_wait_whose_answer_was_lost_is_repeated_elsewhere(apis: tuple[Api, Api], way: str) -> None:
    first, second = apis
    await first.create("a")
    await first.send("a", "m1")
    async with WAYS[way](first) as worker:
        turn = await worker.turn()
        await second.signal("a", "s1", "go", "kept")
        got = await worker.do(turn, wait_signal("one"), n=1)
        assert dict(got.detail)["outcome"] == "WAIT_OUTCOME_RECEIVED"
        assert await Calls(second).do(turn, wait_signal("one"), n=1) == got
        suspended = await worker.do(turn, wait_signal("two"), n=2)
        assert await Calls(second).do(turn, wait_signal("two"), n=2) == suspended
        assert (await second.signal("a", "s2")).consumed_position == 2
        again = await worker.turn()
        assert [await calls.do(turn, wait_signal("two"), n=2) for calls in (Calls(second), worker)] == [
            suspended
        ] * 2
        assert (await worker.do(again, finish())).ok


@pytest.mark.spec("R-CLAIM-2", "R-POLL-1")
async def test_a_listener_and_its_calls_need_not_meet(apis: tuple[Api, Api]) -> None:
    """A balancer may send each call of a simple client to another server."""
    first, second = apis
    names = [f"i{number}" for number in range(12)]
    async with ByClaim(first, max_turns=2) as client:
        for name in names:
            await second.create(name)
            await second.send(name, "m1")
        done = []
        for _ in names:
            turn = await client.handed()
            calls = Calls(second)
            await calls.received(turn)
            assert (await calls.do(turn, checkpoint("one"))).ok
            assert (await calls.do(turn, finish())).ok
            done.append(turn.instance_id)
        assert sorted(done) == sorted(names)
        assert client.waiting("lease_events") == 0
