"""Two real servers on one store, of which one is killed, or frozen for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pawl import Client, Context, Worker, workflow
from pawl_server.app import Handle
from pawl_server.store.records import server_record
from tests.support.api import Api
from tests.support.processes import ServerProcess, serving
from tests.support.redis_server import RedisServer
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal, started
from tests.support.wait import wait_until


@pytest.fixture
def stored(server: Handle, redis_server: RedisServer) -> Stored:
    return Stored(server, redis_server)


@pytest.fixture
async def other(server: Handle, redis_url: str, tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server process on the store of `server`, which lives in this process."""
    async with serving(tmp_path, PAWL_REDIS_URL=redis_url, PAWL_SERVER_NAME="other") as process:
        yield process


def marked(stored: Stored) -> bool:
    """Whether a server is recorded as dead, its leases orphaned."""
    servers = stored.redis.call("HGETALL", f"{stored.tag('a')}servers")
    return any(server_record(record).orphaned for record in servers[1::2])


def ms_left(stored: Stored) -> int:
    """How long the lease of `a` had when it was orphaned."""
    seen = int(stored.redis.call("HGET", f"{stored.tag('a')}meta", "seen"))
    return stored.record("a").deadline_ms - seen


@pytest.mark.slow
@pytest.mark.spec("R-SERVER-1", "R-SWEEP-2", "R-EXPIRE-3")
async def test_the_turns_of_a_server_that_is_killed_go_to_others(
    api: Api, stored: Stored, other: ServerProcess
) -> None:
    async with Api(await other.listening()) as doomed, Stream(doomed, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, checkpoint("one"))
        await other.kill()
    async with Stream(api, session="heir", credits=1) as heir:
        await wait_until(lambda: stored.orphaned("a"))
        assert 3_000 < ms_left(stored) <= 5_000 + 1_500, "the grace, from some time after the last beat"
        again = await heir.turn()
        assert (again.attempt, [step.key for step in again.steps]) == (2, ["one"])
        record = stored.record("a")
        assert (record.failures, record.lost) == (0, 1)
        assert again.last_failure.reason == "WORKER_LOST"
        assert refusal(await heir.command(again, finish()))[0] == ""


@pytest.mark.slow
@pytest.mark.spec("R-SERVER-1")
async def test_a_server_that_was_frozen_finds_its_mark_and_renews(
    api: Api, stored: Stored, other: ServerProcess
) -> None:
    async with Api(await other.listening()) as frozen, Stream(frozen, credits=1) as stream:
        turn = await started(api, stream)
        await stream.command(turn, checkpoint("one"))
        conn = stored.record("a").conn
        other.freeze()
        await wait_until(lambda: marked(stored), 8)
        assert stored.orphaned("a")
        other.thaw()
        await wait_until(lambda: "server_marked_dead" in other.log, 3)
        await wait_until(lambda: not stored.orphaned("a"), 3)
        assert ms_left(stored) > 50_000
        assert stored.record("a").conn == conn
        assert refusal(await stream.command(turn, finish()))[0] == ""
        assert stored.events("a").count("ATTEMPT_STARTED") == 1


class Slow:
    """Workflow of one step that waits for the test."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.go = asyncio.Event()

        @workflow("slow", version="v1")
        async def slow(ctx: Context, state: object, message: object) -> object:
            await ctx.step("wait", lambda: self._wait(ctx.instance_id))
            return ctx.done(None, result=ctx.attempt)

        self.workflow = slow

    async def _wait(self, name: str) -> None:
        self.ran.append(name)
        await self.go.wait()


@pytest.mark.parametrize("fate", ["kill", "freeze"])
@pytest.mark.slow
@pytest.mark.spec("R-SDK-22", "R-SERVER-1")
async def test_no_turn_suffers_from_the_end_of_one_of_two_servers(
    server: Handle, stored: Stored, other: ServerProcess, fate: str
) -> None:
    slow = Slow()
    worker = Worker(await other.listening(), workflows=[slow.workflow], concurrency=8)
    running = asyncio.get_running_loop().create_task(worker.run())
    names = [f"i-{number}" for number in range(6)]
    async with Client(server.address) as client:
        for name in names:
            await client.send(name, 1, create=slow.workflow)
        await wait_until(lambda: len(slow.ran) == len(names))
        await wait_until(lambda: len(server.delivery.sessions) == 1, what="a stream to each server")
        if fate == "kill":
            await other.kill()
        else:
            other.freeze()
        session = next(iter(server.delivery.sessions.values()))
        await wait_until(lambda: len(session.held.accepted()) == len(names), 8, "all leases have moved")
        slow.go.set()
        for name in names:
            turn = await client.await_turn(name, 1, wait=10)
            assert turn.result() == 1
    assert sorted(slow.ran) == names
    assert sum(stored.record(name).lost + stored.record(name).failures for name in names) == 0
    await worker.stop()
    await running
