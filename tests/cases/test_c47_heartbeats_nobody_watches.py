"""C-47: who watches a heartbeat dies, and what it knew dies with it.

Given  a registered step whose heartbeat must come every 2 s, and a report that came.
Do     kill the server before its timer fires; after it has asked, before that arrives; and after the script
       has run, before its reply comes. Start another one. Restart all servers, and Redis as well.
Expect the entry of the timer stays until the script that applies it removes it. The attempt fails once with
       HEARTBEAT_TIMEOUT, whichever server comes by, and the next one gets what was reported last.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from pawl.v1.error_pb2 import Reason
from pawl.v1.turn_pb2 import TURN_STATE_BACKOFF, TURN_STATE_RUNNING
from pawl.v1.turn_service_pb2 import GetTurnRequest
from pawl_server.app import running
from pawl_server.background.timers import Timers
from pawl_server.domain.payload import to_blob
from pawl_server.engine import Engine
from pawl_server.store import records
from pawl_server.store import scripts_gen as scripts
from tests.support.api import CALL_S, Api
from tests.support.driver import Driver, driver
from tests.support.fault_proxy import FaultProxy
from tests.support.hand import Hand
from tests.support.invariants import violations_everywhere
from tests.support.items import send_item
from tests.support.raw_worker import ByPolls
from tests.support.redis_server import RedisServer
from tests.support.server import open_engine, settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, finish, report_progress, start_operation, started
from tests.support.wait import wait_until

__all__ = ["driver"]

HEARTBEAT_MS = 2_000


class Scene(NamedTuple):
    """A partition in virtual time, and what it says."""

    redis: RedisServer
    tag: str

    def record(self) -> records.InstanceRecord:
        """The record of the instance."""
        return records.instance_record(self.redis.call("HGET", f"{self.tag}i:a", "r"))

    def due(self) -> dict[str, int]:
        """All that is due some time."""
        flat = self.redis.call("ZRANGE", f"{self.tag}due", 0, -1, "WITHSCORES")
        return {name.decode(): int(score) for name, score in zip(flat[::2], flat[1::2], strict=True)}

    def failures(self) -> list[str]:
        """The details of the ledger's failures."""
        events = map(records.ledger_event, self.redis.call("LRANGE", f"{self.tag}e:a", 0, -1))
        return [event.detail.decode() for event in events if event.detail == b"HEARTBEAT_TIMEOUT"]


async def at_work(engine: Engine, redis: RedisServer) -> tuple[Scene, int]:
    """A step that reported a second ago; and when the next report must have come."""
    await engine.inbox.send(send_item("a", "m1", create=True))
    turn = await Hand(engine).claim("a")
    partition = engine.store.partition_of("a")
    lease = (turn.instance_id, turn.incarnation, turn.turn, turn.fence)
    begin = scripts.StartOperationItem(*lease, 1, "step", "step", 600_000, HEARTBEAT_MS, 1)
    await scripts.start_operation(partition, now_ms=engine.now_ms, server="s", items=[begin])
    engine.now_ms += 1_000
    report = scripts.ReportProgressItem(*lease, 1, "step", 1, b"digest", b"", b"", to_blob("json", b"page 7"))
    await scripts.report_progress(partition, now_ms=engine.now_ms, server="s", items=[report])
    return Scene(redis, partition.tag), engine.now_ms + HEARTBEAT_MS


async def kill(proxy: FaultProxy) -> None:
    """The server behind the proxy says and hears nothing any more."""
    proxy.refuse()
    proxy.cut()
    proxy.up.release()
    proxy.down.release()


@pytest.mark.spec("R-OP-2", "R-SETTLE-2")
@pytest.mark.parametrize("dies", ["before its time", "with what it asked", "with what it was told"])
async def test_the_next_server_finds_what_is_due(
    redis_server: RedisServer, redis_url: str, dies: str
) -> None:
    redis_server.call("FLUSHALL")
    async with FaultProxy(redis_url) as proxy:
        async with open_engine(proxy.url) as first:
            timers, partition = Timers(first), first.store.partition_of("a")
            scene, over = await at_work(first, redis_server)
            lease = scene.due()["lease:a"]
            first.now_ms = over - 1
            await timers.apply(partition)
            assert (timers.gone, scene.due()) == (0, {"lease:a": lease, "operation:a": over})
            first.now_ms = over
            if dies != "before its time":
                asked = proxy.up.seen
                (proxy.up if dies == "with what it asked" else proxy.down).hold()
                lost = asyncio.ensure_future(timers.apply(partition))
                if dies == "with what it asked":
                    await wait_until(lambda: proxy.up.seen > asked)
                else:
                    await wait_until(lambda: scene.record().state == TURN_STATE_BACKOFF)
                assert not lost.done()
                lost.cancel()
            await kill(proxy)
        applied = dies == "with what it was told"
        assert ("operation:a" in scene.due(), scene.record().failures) == (not applied, int(applied))
    async with open_engine(redis_url) as second:
        second.now_ms = over
        timers, partition = Timers(second), second.store.partition_of("a")
        for _ in range(3):
            await timers.apply(partition)
        assert (timers.fired, timers.stale) == ({} if applied else {"operation": 1}, 0)
        record = scene.record()
        assert (record.state, record.failures) == (TURN_STATE_BACKOFF, 1)
        assert scene.failures() == ["HEARTBEAT_TIMEOUT"]
        assert scene.due() == {"backoff:a": record.deadline_ms}
        second.now_ms = record.deadline_ms
        await timers.apply(partition)
        again = await Hand(second).claim("a")
        assert (again.attempt, again.failure and again.failure.reason) == (2, "HEARTBEAT_TIMEOUT")
        assert again.operation is not None
        assert (again.operation.sequence, again.operation.resume) == (1, to_blob("json", b"page 7"))
    assert violations_everywhere(redis_server) == []


@pytest.mark.spec("R-OP-2", "R-SETTLE-2")
def test_the_entry_goes_with_what_it_is_for_and_not_before(driver: Driver) -> None:
    """Whatever looks at the instance, the entry is there if and only if the step is at work."""
    driver.send()
    held = driver.take()
    held.start(heartbeat_ms=HEARTBEAT_MS, timeout_ms=600_000)
    looks = [
        lambda: held.report(1),
        driver.get,
        driver.expire,
        driver.sweep,
        lambda: driver.turn(1),
        held.renew,
        driver.pause,
        lambda: driver.signal(f"s-{driver.now}"),
        driver.resume,
        lambda: driver.send("a", b"more"),
        lambda: held.orphan(accepted=True),
        lambda: held.adopt("s2.2.1"),
        lambda: driver.hello("another"),
    ]  # fmt: skip
    over = driver.now + HEARTBEAT_MS
    for number, look in enumerate(looks):
        driver.later(100)
        look()
        if number == 0:
            over = driver.now + HEARTBEAT_MS
        assert (driver.head(), driver.due().get("operation:a")) == ("RUNNING", over)
    driver.later(HEARTBEAT_MS)
    assert [(reply.kind, reply.outcome) for reply in driver.expire()] == [("operation", "expired")]
    assert "operation:a" not in driver.due()
    assert driver.event_names().count("ATTEMPT_EXPIRED") == 1


@pytest.mark.spec("R-OP-2")
@pytest.mark.parametrize("what", ["servers", "servers and Redis"])
async def test_all_restart_while_the_step_is_at_work(what: str) -> None:
    with RedisServer(aof="always") as redis:
        async with running(settings_for(redis.url)) as server, Api(server.address) as api:
            await api.create("a")
            await api.send("a", "m1")
            async with ByPolls(api) as worker:
                turn = await worker.turn()
                await worker.do(turn, start_operation(heartbeat_ms=300))
                await worker.do(turn, report_progress(resume=b"page 7"))
        if what == "servers and Redis":
            await asyncio.to_thread(redis.restart)
        async with running(settings_for(redis.url)) as server, Api(server.address) as api:
            stored = Stored(server, redis)
            await wait_until(lambda: stored.record("a").state != TURN_STATE_RUNNING)
            assert stored.events("a").count("ATTEMPT_EXPIRED") == 1
            assert stored.due("operation", "a") == 0
            shown = (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn
            assert shown.last_failure.reason == "HEARTBEAT_TIMEOUT"
            async with ByPolls(api) as worker:
                again = await worker.turn()
                assert (again.attempt, again.operation.resume.data) == (2, b"page 7")
                assert (await worker.do(again, finish())).ok
        assert violations_everywhere(redis) == []


@pytest.mark.spec("R-OP-2")
async def test_another_server_fires_it_and_the_holder_is_told(
    redis_server: RedisServer, redis_url: str
) -> None:
    """The server of the stream looks at no timer and walks no instances, as one that is busy."""
    async with (
        running(settings_for(redis_url, server_name="one")) as one,
        Api(one.address) as first,
        Stream(first, credits=1) as stream,
    ):
        one.background.timers.paused = True
        await one.background.sweeper.stop()
        turn = await started(first, stream)
        await stream.command(turn, start_operation(heartbeat_ms=300))
        async with running(settings_for(redis_url, server_name="two")) as two:
            event = await stream.event()
            assert (event.lease, event.ended.reason) == (turn.lease, Reason.REASON_LEASE_ENDED)
            assert event.ended.metadata == {"how": "expired"}
            stored = Stored(two, redis_server)
            assert stored.events("a").count("ATTEMPT_EXPIRED") == 1
            assert one.background.timers.fired == {}
    assert violations_everywhere(redis_server) == []
