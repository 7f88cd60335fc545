"""C-13: whoever recovers expired turns is not alone.

Given  a lease that has run out.
Do     run the expiry pass from 20 connections at once, beside the loops of the server itself.
Expect one attempt counted, one ready entry and one event in the ledger: looking and acting are one script.
"""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.turn_pb2 import TURN_STATE_QUEUED, TURN_STATE_RUNNING
from pawl_server.engine import Engine
from pawl_server.store import scripts_gen as scripts
from tests.support.api import CALL_S, TV, Api
from tests.support.hand import Hand
from tests.support.items import send_item
from tests.support.redis_server import Control, RedisServer
from tests.support.server import engine
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal, started
from tests.support.wait import wait_until

__all__ = ["engine"]

CONNECTIONS = 20


def expire_from(controls: list[Control], tag: str, now_ms: int = 0) -> list[scripts.ExpireFired]:
    """One pass from each connection, all sent before any is answered; what they ended."""
    for number, control in enumerate(controls):
        argv = [
            arg if isinstance(arg, (bytes, str)) else int(arg)
            for arg in scripts.expire_args(now_ms=now_ms, server=f"s{number}", limit=16)
        ]
        control.send("EVALSHA", scripts.EXPIRE.sha, 1, f"{tag}meta", *argv)
    passes = [scripts.expire_decode(control.receive()) for control in controls]
    return [reply for result in passes for reply in result.replies if isinstance(reply, scripts.ExpireFired)]


@pytest.mark.spec("R-EXPIRE-1")
async def test_one_of_twenty_passes_ends_the_lease(engine: Engine, redis_server: RedisServer) -> None:
    await engine.inbox.send(send_item("a", "m1", create=True, lease_ms=1_000))
    hand = Hand(engine)
    claimed = await hand.claim("a")
    partition = engine.store.partition_of("a")
    item = scripts.RenewItem("a", claimed.incarnation, claimed.turn, claimed.fence, 0)
    await scripts.renew(partition, now_ms=engine.now_ms, server="s", detach_ms=0, items=[item])
    engine.now_ms += 1_001
    with redis_server.connections(CONNECTIONS) as controls:
        fired = expire_from(controls, partition.tag, engine.now_ms)
    assert [(reply.id, reply.turn, reply.outcome) for reply in fired] == [("a", 1, "expired")]
    assert redis_server.call("ZRANGE", f"{partition.tag}ready:{TV}:0", 0, -1) == [b"a"]
    assert (await hand.claim("a")).attempt == 2


@pytest.mark.spec("R-EXPIRE-1")
async def test_a_lease_ends_once_while_everybody_looks(
    api: Api, stored: Stored, redis_server: RedisServer
) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, lease_timeout=Duration(seconds=1))
        await stream.command(turn, checkpoint("one"))
        for detach in (True, False):  # held for its own time by a worker without a stream
            renewal = pb.RenewLeasesRequest(leases=[turn.lease], detach=detach)
            await api.workers.RenewLeases(renewal, timeout=CALL_S)
    fired: list[scripts.ExpireFired] = []
    with redis_server.connections(CONNECTIONS) as controls:

        def over() -> bool:
            fired.extend(expire_from(controls, stored.tag("a")))
            return stored.record("a").state != TURN_STATE_RUNNING

        await wait_until(over)
        fired += expire_from(controls, stored.tag("a"))
    assert len(fired) <= 1, "none if the server's own loop was the first"
    record = stored.record("a")
    assert (record.state, record.failures, record.lost) == (TURN_STATE_QUEUED, 1, 0)
    assert stored.events("a").count("ATTEMPT_EXPIRED") == 1
    assert (stored.ready("a"), stored.due("lease", "a")) == (True, 0)
    async with Stream(api, credits=2, session="other") as other:
        again = await other.turn()
        assert again.attempt == 2
        assert refusal(await other.command(again, finish()))[0] == ""
        assert other.waiting("turns") == 0
