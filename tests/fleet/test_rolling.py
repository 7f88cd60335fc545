"""A rolling restart of two servers under steady load: nothing lost, nothing twice, no caller sees an error.

Callers and worker know one address, behind which a balancer deals connections out, and which goes on dealing
them to a server that stops until that has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from pawl import Client, Context, NewInstance, Sent, Worker, workflow
from tests.support.fault_proxy import Dealer
from tests.support.invariants import violations_everywhere
from tests.support.processes import ServerProcess
from tests.support.redis_server import RedisServer
from tests.support.wait import wait_until

SHORT = [f"short-{number}" for number in range(8)]
LONG = [f"long-{number}" for number in range(4)]
LEASE_S = 4.0
TURNS = 40
"""Short turns between two restarts."""


class Work:
    """A workflow of short turns and of long ones, which end when the test says so. `ran` counts steps."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, int, str]] = Counter()
        self.attempts: Counter[int] = Counter()
        self.end = asyncio.Event()

        @workflow("work", version="v1", initial_state=0)
        async def work(ctx: Context, state: int, message: int) -> object:
            self.attempts[ctx.attempt] += 1
            for key in ("a", "b"):
                await ctx.step(key, lambda key=key: self._step(ctx, key))
            return ctx.done(state + message, result=state)

        self.workflow = work

    async def _step(self, ctx: Context, key: str) -> None:
        self.ran[ctx.instance_id, ctx.turn, key] += 1
        if key == "b" and ctx.instance_id in LONG:
            await self.end.wait()


async def keep_sending(client: Client, name: str, over: asyncio.Event, new: NewInstance) -> list[Sent]:
    """One message after the other, each once the one before has its result, which counts them."""
    done: list[Sent] = []
    while not over.is_set():
        sent = await client.send(name, 1, create=new, wait=30, timeout=60)
        assert sent.result() == len(done)
        done.append(sent)
    return done


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.spec("R-SDK-22", "R-WORK-9", "R-SERVER-2", "R-SDK-8")
async def test_a_rolling_restart_disturbs_no_turn_and_no_caller(
    redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> None:
    def launch(name: str) -> ServerProcess:
        return ServerProcess(
            tmp_path, PAWL_REDIS_URL=redis_url, PAWL_SERVER_NAME=name, PAWL_STOP_GRACE_MS="10000"
        )

    servers = {name: launch(name) for name in ("left", "right")}
    work = Work()
    over = asyncio.Event()
    addresses = [await server.listening() for server in servers.values()]
    new = NewInstance(work.workflow)
    new_long = NewInstance(work.workflow, lease_timeout=LEASE_S)  # ends soon where no server keeps it alive
    async with Dealer(*addresses) as dealer, Client(dealer.url) as client:
        worker = Worker(dealer.url, workflows=[work.workflow], concurrency=32)
        running = asyncio.get_running_loop().create_task(worker.run())
        try:
            async with asyncio.TaskGroup() as group:
                for name in LONG:
                    await client.send(name, 1, create=new_long)
                senders = [group.create_task(keep_sending(client, name, over, new)) for name in SHORT]
                for name, server in servers.items():
                    enough = len(work.ran) + 2 * TURNS
                    await wait_until(lambda enough=enough: len(work.ran) >= enough, 30, "work goes on")
                    gone = await server.listening()
                    server.terminate()
                    assert await server.ended() == 0
                    dealer.targets.remove(gone)
                    servers[name] = launch(name)
                    dealer.targets.append(await servers[name].listening())
                await wait_until(lambda: len(streams(worker)) == 2, 30, "a stream to each new server")
                now = asyncio.get_running_loop().time
                moved_at = now()
                await wait_until(lambda: now() > moved_at + LEASE_S + 1, what="an unrenewed lease is over")
                over.set()
            work.end.set()
            for name in LONG:
                assert (await client.await_turn(name, 1, wait=30)).result() == 0
            sent = [one for sender in senders for one in sender.result()]
            assert len(sent) >= 2 * TURNS
        finally:
            await worker.stop(0)
            await running
            for server in servers.values():
                await server.kill()
    assert set(work.ran.values()) == {1}, "no step ran twice"
    assert len(work.ran) == 2 * (len(sent) + len(LONG))
    assert set(work.attempts) == {1}, "no attempt was lost"
    assert violations_everywhere(redis_server) == []


def streams(worker: Worker) -> set[str]:
    """The servers that a worker has a stream to."""
    runtime = worker._runtime
    return {stream.server for stream in runtime._links.live} if runtime else set()
