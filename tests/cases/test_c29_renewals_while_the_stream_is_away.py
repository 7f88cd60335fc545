"""C-29: the stream of a worker is away for longer than a lease, while its renewals get through.

Given  a worker that runs a turn with a short lease, beside another one with free credits.
Do     end its stream and refuse new ones for one and a half times the lease; the worker renews by calls of
       their own meanwhile.
Expect renewals to be taken by the lease alone, the turn to stay with its worker and to end as attempt 1. New
       work goes to the other one while the stream is away, and to both when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pawl import Client
from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.instance_service_pb2 import InstanceSpec
from pawl_server.app import Handle
from pawl_server.domain.errors import Reason, Refused
from tests.support.api import CALL_S, TYPE, VERSION, Api
from tests.support.raw_worker import ByClaim
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal
from tests.support.wait import wait_until
from tests.support.workers import Long, StartWorker

LEASE_S = 3
AWAY_S = 1.5 * LEASE_S


async def given(api: Api, name: str = "a", workflow_type: str = TYPE) -> None:
    """An instance with a short lease and one message."""
    spec = InstanceSpec(workflow_type=workflow_type, version=VERSION)
    spec.lease_timeout.seconds = LEASE_S
    await api.send(name, "m1", create_if_absent=spec)


async def renew_for(api: Api, turn: pb.LeasedTurn, seconds: float, **fields: Any) -> None:
    """Renews again and again, for that time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def renewed_to_the_end() -> bool:
        request = pb.RenewLeasesRequest(leases=[turn.lease], **fields)
        result = (await api.workers.RenewLeases(request, timeout=CALL_S)).results[0]
        assert result.remaining.ToMilliseconds() > 0, result
        return loop.time() > end

    await wait_until(renewed_to_the_end, seconds + 10)


def untouched(stored: Stored, turn: pb.LeasedTurn) -> bool:
    """Whether the first lease of instance `a` is still the only one there was."""
    record = stored.record("a")
    return (record.fence, record.failures, record.lost, record.attempt) == (turn.fence, 0, 0, 1)


def kept(stored: Stored) -> bool:
    """Whether the turn of instance `a` is over and had one attempt only."""
    events = stored.events("a")
    return stored.record("a").pending == 0 and events.count("ATTEMPT_STARTED") == 1


@pytest.mark.spec("R-LEASE-6", "R-LEASE-10")
async def test_a_worker_without_its_stream_keeps_its_turn(api: Api, stored: Stored) -> None:
    async with Stream(api, session="other", credits=0) as other:
        worker = Stream(api, credits=1)
        await worker.open()
        await given(api)
        turn = await worker.turn()
        assert refusal(await worker.command(turn, checkpoint("one")))[0] == ""
        worker.cut()
        await renew_for(api, turn, 0.0, detach=True)
        await other.credit(5)
        await renew_for(api, turn, AWAY_S, detach=True)
        assert untouched(stored, turn)
        await given(api, "b")
        assert (await other.turn()).instance_id == "b"
        async with Stream(api, ordinal=2, leases=[turn.lease], credits=1) as back:
            event = await back.event()
            assert (event.lease, refusal(event)[0]) == (turn.lease, "")
            await given(api, "c")
            await wait_until(lambda: back.waiting("turns") or other.waiting("turns"))
            assert refusal(await back.command(turn, finish(), n=2))[0] == ""
        assert kept(stored)


@pytest.mark.spec("R-LEASE-6", "R-LEASE-10")
async def test_a_client_that_only_listens_keeps_its_turn(api: Api, stored: Stored) -> None:
    async with Stream(api, session="other") as other:
        client = ByClaim(api)
        await client.open()
        await given(api)
        turn = await client.turn()
        client.cut()
        await renew_for(api, turn, 0.0, detach=True)
        await other.credit(5)
        await renew_for(api, turn, AWAY_S, detach=True)
        assert untouched(stored, turn)
        assert other.waiting("turns") == 0
        assert (await client.do(turn, finish())).ok
        assert kept(stored)


@contextmanager
def no_streams(server: Handle, kept: str) -> Iterator[None]:
    """Ends the streams of all sessions but one, and refuses new ones."""
    delivery: Any = server.delivery

    def refuse(*_: object) -> None:
        raise away

    away = Refused(Reason.STORE_UNAVAILABLE, "no streams at the moment")
    delivery.open_session = refuse
    for session in list(delivery.sessions.values()):
        if session.hello.session != kept:
            session.stop(away)
    yield
    del delivery.open_session


@pytest.mark.spec("R-SDK-8", "R-LEASE-6", "R-LEASE-10")
async def test_a_worker_of_the_sdk_keeps_its_turn(
    server: Handle, api: Api, stored: Stored, client: Client, start_worker: StartWorker
) -> None:
    long = Long()
    start_worker(long.workflow)
    await given(api, "a", "long")
    await wait_until(lambda: "b" in long.ran)
    fence = stored.record("a").fence
    async with Stream(api, session="other", types=("long",)) as other:
        with no_streams(server, "other"):
            await other.credit(5)
            loop = asyncio.get_running_loop()
            end = loop.time() + AWAY_S
            await wait_until(lambda: loop.time() > end)
            assert stored.record("a").fence == fence
            await given(api, "b", "long")
            assert (await other.turn()).instance_id == "b"
        long.go.set()
        ended = await client.await_turn("a", 1, timeout=20)
        assert (ended.attempt, long.ran, long.cancelled) == (1, ["a", "b", "c"], 0)
        assert kept(stored)
        assert other.waiting("turns") == 0
