"""C-11: an instance and the index that would wake it disagree.

Given  an instance whose head is running, backing off or ready.
Do     remove by hand the entry that would wake it: the timer of its lease or backoff, its place among the
       ready ones, its type among those with ready ones, or all of them.
Expect the sweep to give the entry back from the instance's own record, and the turn to go on within the
       time of its lease and a sweep, with every invariant intact.
"""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import worker_service_pb2 as pb
from tests.support.api import CALL_S, TV, Api
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, fail, finish, refusal, started
from tests.support.wait import wait_until

LEASE_S = 2
SWEEP_S = 1
HANG_S = 10.0 * (LEASE_S + SWEEP_S)


def lose(stored: Stored, *names: str) -> None:
    """Removes entries of instance `a`: timers by kind, `ready`, `types`."""
    tag = stored.tag("a")
    keys = {"ready": (f"ready:{TV}:0", "a"), "types": ("types", TV)}
    for name in names:
        key, member = keys.get(name, ("due", f"{name}:a"))
        assert stored.redis.call("ZREM", tag + key, member) == 1, name


@pytest.mark.spec("R-SWEEP-1", "R-WAKE-1")
async def test_a_running_turn_without_its_timer_is_taken_back_from_a_worker_that_is_gone(
    api: Api, stored: Stored
) -> None:
    async with Stream(api, credits=1, session="dies") as dies:
        lease_timeout = Duration(seconds=LEASE_S)
        turn = await started(api, dies, lease_timeout=lease_timeout)
        await dies.command(turn, checkpoint("one"))
        # Parted from its stream and then held for its own time, so that nothing but the timer ends it.
        for detach in (True, False):
            renewal = pb.RenewLeasesRequest(leases=[turn.lease], detach=detach)
            answer = await api.workers.RenewLeases(renewal, timeout=CALL_S)
            assert answer.results[0].remaining.ToMilliseconds() > 0
    lose(stored, "lease")
    async with Stream(api, credits=1, session="lives") as lives:
        again = await lives.turn()
        assert (again.turn, again.attempt, [step.key for step in again.steps]) == (1, 2, ["one"])
        assert again.last_failure.reason == "ATTEMPT_EXPIRED"
        assert stored.events("a").count("ATTEMPT_EXPIRED") == 1
        assert refusal(await lives.command(again, finish()))[0] == ""
    assert stored.handle.background.sweeper.repaired == 1


@pytest.mark.spec("R-SWEEP-1", "R-WAKE-1")
@pytest.mark.parametrize("kind", ["lease", "backoff"])
async def test_a_timer_is_restored_to_its_time(api: Api, stored: Stored, kind: str) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, checkpoint("one") if kind == "lease" else fail(delay_ms=60_000))
        due = stored.due(kind, "a")
        assert due > 0
        lose(stored, kind)
        await wait_until(lambda: stored.due(kind, "a") == due, HANG_S)


@pytest.mark.spec("R-SWEEP-1", "R-WAKE-1")
async def test_a_backoff_without_its_timer_ends(api: Api, stored: Stored) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        await stream.command(turn, fail(delay_ms=1_500))
        lose(stored, "backoff")
        assert (await stream.turn()).attempt == 2


LOSSES: list[tuple[str, ...]] = [("ready",), ("types",), ("ready", "types")]


@pytest.mark.spec("R-SWEEP-1", "R-WAKE-1")
@pytest.mark.parametrize("names", LOSSES, ids="+".join)
async def test_a_ready_turn_that_no_index_knows_is_restored_and_runs(
    api: Api, stored: Stored, names: tuple[str, ...]
) -> None:
    await api.create("a")
    await api.send("a", "m1")
    assert stored.ready("a")
    lose(stored, *names)
    await wait_until(lambda: stored.ready("a"), HANG_S)
    assert stored.handle.background.sweeper.repaired == 1
    async with Stream(api, credits=1) as stream:
        assert (await stream.turn()).attempt == 1


@pytest.mark.spec("R-SWEEP-1", "R-DELIVER-3")
@pytest.mark.parametrize("names", LOSSES, ids="+".join)
async def test_a_worker_that_waits_gets_the_turn(api: Api, stored: Stored, names: tuple[str, ...]) -> None:
    await api.create("a")
    await api.send("a", "m1")
    lose(stored, *names)
    async with Stream(api, credits=1) as stream:
        turn = await stream.turn()
        assert refusal(await stream.command(turn, finish()))[0] == ""
