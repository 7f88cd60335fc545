"""Timers, beats and the sweep: what repairs a service without anybody asking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from pawl_server.app import Handle, running
from pawl_server.background import Background
from pawl_server.background.timers import EARLY_S, RANK_S, Timers
from pawl_server.engine import Engine
from pawl_server.engine.inbox import SendItem
from pawl_server.engine.instances import CreateItem
from pawl_server.store import scripts_gen as scripts
from pawl_server.store.errors import StoreError
from tests.support.api import Api
from tests.support.hand import Hand
from tests.support.invariants import violations_everywhere
from tests.support.items import create_item, send_item
from tests.support.redis_server import RedisServer
from tests.support.server import engine, settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal
from tests.support.wait import wait_until

__all__ = ["engine"]

GHOST = "ghost123"
"""Run id of a server that is no more."""


@pytest.fixture
def stored(server: Handle, redis_server: RedisServer) -> Stored:
    return Stored(server, redis_server)


BEAT: dict[str, Any] = {
    "server": GHOST, "name": "other", "address": "", "build": "", "draining": False, "first": False,
    "step_ms": 0, "shift_seen": 0, "swept": "",
}  # fmt: skip


async def ghost_beats(engine: Engine, name: str, swept: str = "") -> None:
    """A beat of another server in every partition."""
    for partition in engine.store.partitions:
        await scripts.beat(partition, **{**BEAT, "name": name, "swept": swept})


@pytest.mark.spec("R-SERVER-1", "R-SWEEP-2")
async def test_a_restarted_server_gives_up_the_leases_of_its_former_run(
    redis_server: RedisServer, redis_url: str
) -> None:
    settings = settings_for(redis_url, server_name="same")
    async with running(settings) as former, Api(former.address) as api:
        await api.create("a")
        await api.send("a", "m1")
        await ghost_beats(former.engine, "same")
        await Hand(former.engine, GHOST).claim("a")
    async with running(settings) as handle:
        stored = Stored(handle, redis_server)
        await wait_until(lambda: stored.orphaned("a"))
        assert stored.record("a").deadline_ms - stored.record("a").leased_ms < 30_000
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-SERVER-1", "R-SWEEP-2")
async def test_the_leases_of_a_server_that_fell_silent_are_orphaned(api: Api, stored: Stored) -> None:
    engine = stored.handle.engine
    await api.create("a")
    await api.send("a", "m1")
    await ghost_beats(engine, "other")
    await Hand(engine, GHOST).claim("a")
    assert not stored.orphaned("a")
    await wait_until(lambda: stored.orphaned("a"))


@pytest.mark.spec("R-SERVER-1")
async def test_a_server_believed_dead_renews_what_its_workers_hold(api: Api, stored: Stored) -> None:
    engine = stored.handle.engine
    async with Stream(api, credits=1) as stream:
        await api.create("a")
        await api.send("a", "m1")
        turn = await stream.turn()
        await stream.command(turn, checkpoint("one"))
        partition = engine.store.partition_of("a")
        await scripts.sweep(
            partition, server=GHOST, cursor="0", limit=100, dead=engine.server_run, grace_ms=5_000
        )
        assert stored.orphaned("a")
        await ghost_beats(engine, "other", swept=engine.server_run)
        await wait_until(lambda: not stored.orphaned("a"))
        assert refusal(await stream.command(turn, finish()))[0] == ""


class NoLeases:
    """A server without streams."""

    draining = False

    def renew_all(self) -> None:
        """Has nothing."""


@pytest.fixture
async def background(engine: Engine) -> AsyncIterator[Background]:
    """The loops of an engine in virtual time."""
    background = Background(engine, NoLeases())
    await background.start()
    yield background
    await background.stop()


async def test_no_loop_ends_because_of_an_error(
    engine: Engine, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = count()

    def broken(*_: object, **__: object) -> object:
        if next(failures) % 2:
            raise RuntimeError("a bug")
        raise StoreError("Redis is away")

    with monkeypatch.context() as patch:
        for name in ("beat", "expire", "sweep"):
            patch.setattr(scripts, name, broken)
        loops = (background.beats, background.timers, background.sweeper)
        await wait_until(lambda: all(each.errors >= 4 for each in loops))
    beats, scanned = background.beats.count, background.sweeper.scanned
    await engine.instances.create(_instance("a"))
    await engine.inbox.send(_message("a"))
    await wait_until(lambda: background.beats.count > beats and background.sweeper.scanned > scanned)
    assert background.sweeper.repaired == 0


def _instance(instance_id: str) -> CreateItem:
    return create_item(instance_id)


def _message(instance_id: str) -> SendItem:
    return send_item(instance_id, "m1")


@pytest.mark.spec("R-CMD-2", "R-STORE-7")
async def test_a_worker_outlives_a_restart_of_redis() -> None:
    with RedisServer(aof="always") as redis:
        async with (
            running(settings_for(redis.url, store_timeout_ms=1_000)) as handle,
            Api(handle.address) as api,
            Stream(api, credits=3) as stream,
        ):
            await api.create("a")
            await api.send("a", "m1")
            await api.send("a", "m2")
            turn = await stream.turn()
            await stream.command(turn, checkpoint("one"))
            redis.kill()
            lost = await stream.command(turn, finish(), n=2)
            assert refusal(lost)[0] == "STORE_UNAVAILABLE"
            redis.start()

            async def finished() -> bool:
                return refusal(await stream.command(turn, finish(), n=2))[0] == ""

            await wait_until(finished)
            assert (await stream.turn()).message_id == "m2"


async def test_one_of_several_servers_is_the_first_to_look(redis_url: str) -> None:
    async with (
        running(settings_for(redis_url, server_name="one", partitions=8)) as one,
        running(settings_for(redis_url, server_name="two", partitions=8)) as two,
        running(settings_for(redis_url, server_name="three", partitions=8)) as three,
    ):
        engines = [handle.engine for handle in (one, two, three)]
        runs = {engine.server_run for engine in engines}
        await wait_until(lambda: all(len(engine.peers.servers) == 3 for engine in engines))
        for partition in one.engine.store.partitions:
            delays = [Timers(engine).late_s(partition) for engine in engines]
            assert sorted(delays) == [EARLY_S, EARLY_S + RANK_S, EARLY_S + 2 * RANK_S]
        reply = (await scripts.beat(one.engine.store.partitions[0], **BEAT)).replies[0]
        assert {run.decode() for run in reply.alive[::2]} == runs
