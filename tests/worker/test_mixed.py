"""Calls and streams at the same time: whoever ends a lease, its holder hears of it."""

from __future__ import annotations

from pawl_server.app import Handle
from tests.support.api import Api
from tests.support.raw_worker import Calls
from tests.support.stream import Stream, checkpoint, finish, refusal, release, started


async def test_calls_go_on_where_a_stream_has_stopped(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        assert (await stream.command(turn, checkpoint("one"))).checkpoint.position == 1
        calls = Calls(api)
        assert (await calls.do(turn, checkpoint("one"), n=1)).detail == (("position", 1),)
        assert (await calls.do(turn, checkpoint("two"), n=2)).detail == (("position", 2),)
        assert (await stream.command(turn, checkpoint("two"), n=2)).checkpoint.position == 2


async def test_a_stream_hears_that_a_call_has_ended_its_lease(api: Api, server: Handle) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        assert (await Calls(api).do(turn, finish())).ok
        event = await stream.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "completed"}))
        assert server.delivery.holders == {}


async def test_a_stream_hears_that_another_stream_has_ended_its_lease(api: Api, server: Handle) -> None:
    async with Stream(api, credits=1) as stream, Stream(api, session="other") as other:
        turn = await started(api, stream)
        assert refusal(await other.command(turn, release()))[0] == ""
        event = await stream.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "released"}))


async def test_streams_that_close_are_nobodys_holders(api: Api, server: Handle) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        assert list(server.delivery.holders) == [turn.lease]
        assert await stream.done() == "OK"
        assert server.delivery.holders == {}
