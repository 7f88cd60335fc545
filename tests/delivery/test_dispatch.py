"""Who gets which turn: hints, polls, fairness over partitions, types and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby

import pytest

from pawl.v1.instance_service_pb2 import CreateInstanceRequest
from pawl_server.app import Handle, running
from pawl_server.domain.limits import CREDITS
from pawl_server.store.keys import partition_of
from tests.support.api import CALL_S, Api, spec
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.stream import Stream, finish, refusal
from tests.support.wait import wait_until

LONGEST_RUN = 9
"""Turns of one source in a row while another one has work: the claim, and the finishes that claim with it."""


@asynccontextmanager
async def two_servers(url: str, **fields: int) -> AsyncIterator[tuple[Api, Api, Handle]]:
    """Two servers on one store: a client of each, and the second server. The second one never polls."""
    async with (
        running(settings_for(url, server_name="one")) as one,
        running(settings_for(url, server_name="two", **fields)) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        yield first, second, two


def waiting(redis: RedisServer, handle: Handle) -> int:
    """In how many partitions the server waits for work of the usual type."""
    run = handle.engine.server_run
    tags = [partition.tag for partition in handle.engine.store.partitions]
    return sum(redis.call("ZSCORE", f"{tag}waiting:t:v1", run) is not None for tag in tags)


@pytest.mark.spec("R-DELIVER-2")
async def test_a_message_sent_to_another_server_arrives_without_a_poll(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with two_servers(redis_url, poll_interval_ms=NEVER_MS) as (first, second, handle):
        await first.create("a")
        async with Stream(second, credits=1) as stream:
            await wait_until(lambda: waiting(redis_server, handle) == 2)
            await first.send("a", "m1")
            assert (await stream.turn()).message_id == "m1"


@pytest.mark.spec("R-DELIVER-2")
async def test_a_worker_with_new_credits_is_known_to_wait(redis_server: RedisServer, redis_url: str) -> None:
    """A claim that is filled ends what the store knew; the next credit must tell it anew."""
    async with two_servers(redis_url, poll_interval_ms=NEVER_MS) as (first, second, handle):
        names = [name for name in map("i{}".format, range(20)) if partition_of(name, 2) == 0][:5]
        for name in names:
            await first.create(name)
        async with Stream(second, credits=1) as stream:
            await wait_until(lambda: waiting(redis_server, handle) == 2)
            for name in names:
                await first.send(name, "m1")
                assert (await stream.turn()).instance_id == name
                await stream.credit(1)
                await wait_until(lambda: waiting(redis_server, handle) == 2)


@pytest.mark.spec("R-DELIVER-3")
async def test_a_turn_whose_hint_was_lost_starts_within_the_poll_interval(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with two_servers(redis_url, poll_interval_ms=200) as (first, second, handle):
        await first.create("a")
        async with Stream(second, credits=1) as stream:
            await wait_until(lambda: waiting(redis_server, handle) == 2)
            for partition in handle.engine.store.partitions:
                redis_server.call("DEL", f"{partition.tag}waiting:t:v1")  # nobody is told
            await first.send("a", "m1")
            assert (await stream.turn()).message_id == "m1"


async def test_work_that_waited_for_a_worker_is_found(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with Stream(api, credits=1) as stream:
        assert (await stream.turn()).message_id == "m1"


@pytest.mark.spec("R-DELIVER-1")
async def test_only_the_type_and_version_that_the_worker_named(api: Api) -> None:
    await api.create("other-type", workflow_type="u")
    await api.create("other-version", version="v2")
    await api.create("a")
    for instance_id in ("other-type", "other-version", "a"):
        await api.send(instance_id, "m1")
    async with Stream(api, credits=10) as stream:
        turn = await stream.turn()
        assert turn.instance_id == "a"
        await stream.command(turn, finish())
        assert stream.waiting("turns") == 0


@pytest.mark.spec("R-DELIVER-1")
async def test_heads_start_in_the_order_in_which_they_became_ready(api: Api) -> None:
    names = [name for name in map("i{}".format, range(40)) if partition_of(name, 2) == 0]
    for name in names:
        await api.create(name)
        await api.send(name, "m1")
    async with Stream(api, credits=1) as stream:
        order = []
        for _ in names:
            turn = await stream.turn()
            order.append(turn.instance_id)
            stream.credits_total += 1
            await stream.command(turn, finish())
        assert order == names


async def backlog(api: Api, names: list[str], messages: int, **fields: str) -> None:
    """Instances with as many messages each."""
    for name in names:
        request = CreateInstanceRequest(instance_id=name, spec=spec(**fields))
        await api.instances.CreateInstance(request, timeout=CALL_S)
        for number in range(messages):
            await api.send(name, f"m{number}")


def longest(sources: list[object]) -> int:
    """The longest run of equal values."""
    return max(len(list(run)) for _, run in groupby(sources))


async def test_partitions_take_turns(api: Api) -> None:
    names = [f"i{number}" for number in range(20)]
    await backlog(api, names, 5)
    async with Stream(api, credits=1) as stream:
        sources: list[object] = []
        for _ in range(60):
            turn = await stream.turn()
            sources.append(partition_of(turn.instance_id, 2))
            stream.credits_total += 1
            await stream.command(turn, finish())
        assert longest(sources) <= LONGEST_RUN
        assert set(sources) == {0, 1}


async def test_types_take_turns(api: Api) -> None:
    await backlog(api, [f"i{number}" for number in range(10)], 6)
    await backlog(api, [f"u{number}" for number in range(10)], 6, workflow_type="u")
    async with Stream(api, credits=1, types=("t", "u")) as stream:
        sources: list[object] = []
        for _ in range(80):
            turn = await stream.turn()
            sources.append(turn.workflow_type)
            stream.credits_total += 1
            await stream.command(turn, finish())
        assert longest(sources) <= 2 * LONGEST_RUN  # two partitions of a type may follow each other
        assert set(sources) == {"t", "u"}


async def test_streams_share_the_work(api: Api) -> None:
    async with (
        Stream(api, session="one", credits=100) as one,
        Stream(api, session="two", credits=100) as two,
    ):
        await backlog(api, [f"i{number}" for number in range(60)], 1)
        await wait_until(lambda: one.waiting("turns") + two.waiting("turns") == 60)
        assert min(one.waiting("turns"), two.waiting("turns")) >= 10


async def test_a_stream_with_all_credits_takes_a_large_backlog(api: Api) -> None:
    names = [f"i{number}" for number in range(300)]
    await backlog(api, names, 1)
    async with Stream(api, credits=CREDITS) as stream:
        turns = await stream.turns(300)
        assert sorted(turn.instance_id for turn in turns) == sorted(names)
        await stream.say(commands=[stream.build(turn, finish()) for turn in turns[:256]])
        assert {refusal(await stream.result())[0] for _ in range(256)} == {""}


async def test_every_turn_is_delivered_exactly_once_to_many_streams(api: Api, server: Handle) -> None:
    names = [f"i{number}" for number in range(20)]
    await backlog(api, names, 10)
    seen: list[tuple[str, int]] = []

    async def work(stream: Stream) -> None:
        turn = await stream.turn()
        seen.append((turn.instance_id, turn.turn))
        stream.credits_total += 1
        await stream.command(turn, finish())

    async with (
        Stream(api, session="one", credits=4) as one,
        Stream(api, session="two", credits=4) as two,
        Stream(api, session="three", credits=4) as three,
    ):
        streams = (one, two, three)
        while len(seen) < 200:
            for stream in streams:
                if stream.waiting("turns"):
                    await work(stream)
            await wait_until(lambda: len(seen) == 200 or any(each.waiting("turns") for each in streams))
    assert sorted(seen) == sorted((name, turn) for name in names for turn in range(1, 11))
    assert [turn for name, turn in seen if name == "i0"] == list(range(1, 11))
