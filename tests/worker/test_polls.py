"""PollTurn: waiting, order, fairness, and what becomes of turns that nobody receives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc.aio
import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.admin_service_pb2 import GetWorkflowTypeRequest
from pawl.v1.message_service_pb2 import AwaitTurnRequest
from pawl.v1.turn_pb2 import TURN_STATE_FAILED
from pawl.v1.workflow_type_pb2 import WorkflowType
from pawl_server.app import Handle, running
from pawl_server.delivery import polls as polls_module
from pawl_server.domain.limits import Limits
from tests.support.api import CALL_S, TYPE, Api, refusal_of
from tests.support.raw_worker import ByPolls
from tests.support.redis_server import RedisServer
from tests.support.server import NEVER_MS, settings_for
from tests.support.stored import Stored
from tests.support.stream import Stream, checkpoint, finish, refusal, workflows
from tests.support.wait import wait_until


async def given(api: Api, names: Iterable[str], **spec: Any) -> None:
    """Instances with one message each."""
    for name in names:
        await api.create(name, **spec)
        await api.send(name, "m1")


def polling(api: Api, wait_s: int = 10, *types: str) -> asyncio.Task[pb.PollTurnResponse]:
    """A poll under way."""
    request = pb.PollTurnRequest(workflows=workflows(*types))
    request.wait.seconds = wait_s

    async def poll() -> pb.PollTurnResponse:
        return await api.workers.PollTurn(request, timeout=2 * CALL_S)

    return asyncio.create_task(poll())


async def waiting(server: Handle, count: int) -> None:
    """Returns once so many polls wait, and the store knows that this server does."""

    def registered() -> bool:
        polls = server.delivery.polls
        return polls.count == count and all(
            server.delivery.dispatcher.quiet(group) for group in polls._groups.values()
        )

    await wait_until(registered)


# Waiting


@pytest.mark.spec("R-POLL-1")
async def test_a_poll_gets_what_waits_for_it(api: Api) -> None:
    await given(api, ["a"])
    turn = (await polling(api)).turn
    assert (turn.instance_id, turn.attempt) == ("a", 1)


@pytest.mark.spec("R-POLL-1")
async def test_a_poll_waits_for_a_turn(server: Handle, api: Api) -> None:
    poll = polling(api)
    await waiting(server, 1)
    await given(api, ["a"])
    assert (await poll).turn.instance_id == "a"
    assert server.delivery.polls.count == 0


@pytest.mark.spec("R-POLL-1", "R-DELIVER-2")
async def test_a_message_sent_to_another_server_ends_the_wait(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with (
        running(settings_for(redis_url, server_name="one", poll_interval_ms=NEVER_MS)) as one,
        running(settings_for(redis_url, server_name="two", poll_interval_ms=NEVER_MS)) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        for name in ("a", "b", "c", "d"):
            poll = polling(first)
            await waiting(one, 1)
            await given(second, [name])
            assert (await poll).turn.instance_id == name
        await given(second, ["e"])
        assert (await polling(first)).turn.instance_id == "e", "nobody waited when it became ready"


@pytest.mark.spec("R-POLL-1")
async def test_the_wait_ends_without_a_turn(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls_module, "LATE_S", 10 * CALL_S)  # nothing is late
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await ByPolls(api, wait_ms=300).poll()
    assert answer is None
    assert 0.3 <= loop.time() - began < CALL_S


@pytest.mark.spec("R-POLL-1")
async def test_a_poll_without_a_wait_looks_everywhere_once(redis_server: RedisServer, redis_url: str) -> None:
    async with (
        running(settings_for(redis_url, server_name="one", poll_interval_ms=NEVER_MS)) as one,
        running(settings_for(redis_url, server_name="two", poll_interval_ms=NEVER_MS)) as two,
        Api(one.address) as first,
        Api(two.address) as second,
    ):
        worker = ByPolls(first, wait_ms=0)
        assert await worker.poll() is None
        for name in map("i{}".format, range(8)):
            await given(second, [name])
            turn = await worker.poll()
            assert turn is not None
            assert turn.instance_id == name
            assert (await worker.do(turn, finish())).ok
        assert await worker.poll() is None


@pytest.mark.spec("R-POLL-1")
async def test_only_the_types_and_versions_that_were_named(server: Handle, api: Api) -> None:
    poll = polling(api, 10, "u", "w")
    await waiting(server, 1)
    await given(api, ["a"])
    await given(api, ["b"], workflow_type="w", version="v2")
    await given(api, ["c"], workflow_type="w")
    assert (await poll).turn.instance_id == "c"


async def test_settings_of_a_poll_fill_what_does_not_exist(api: Api) -> None:
    request = pb.PollTurnRequest(workflows=workflows())
    request.workflows[0].settings.CopyFrom(WorkflowType(max_attempts=7))
    await api.workers.PollTurn(request, timeout=CALL_S)
    stored = await api.admin.GetWorkflowType(GetWorkflowTypeRequest(name=TYPE), timeout=CALL_S)
    assert stored.workflow_type.max_attempts == 7


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("workflows", pb.PollTurnRequest()),
        ("workflows", pb.PollTurnRequest(workflows=workflows(*"a" * 257))),
        ("workflows[0].workflow_type", pb.PollTurnRequest(workflows=[pb.WorkflowRef(version="v1")])),
        ("workflows[0].version", pb.PollTurnRequest(workflows=[pb.WorkflowRef(workflow_type="t")])),
        ("session", pb.PollTurnRequest(workflows=workflows(), session="a b")),
        ("wait", pb.PollTurnRequest(workflows=workflows(), wait={"seconds": 61})),  # pyright: ignore[reportArgumentType]
        ("wait", pb.PollTurnRequest(workflows=workflows(), wait={"seconds": -1})),  # pyright: ignore[reportArgumentType]
    ],
)  # fmt: skip
async def test_a_bad_poll_names_its_field(api: Api, field: str, request_: pb.PollTurnRequest) -> None:
    problem = await refusal_of(api.workers.PollTurn(request_, timeout=CALL_S))
    assert (problem.code, problem.metadata) == ("INVALID_ARGUMENT", {"field": field})


# Order and fairness


@pytest.mark.spec("R-POLL-1")
async def test_polls_are_served_in_order_and_a_thousand_cost_no_more_than_one(
    server: Handle, api: Api
) -> None:
    count = 1_000
    polls = []
    for _ in range(10):
        polls += [polling(api, 60) for _ in range(count // 10)]
        await waiting(server, len(polls))
    await waiting(server, count)
    claims = server.delivery.dispatcher.claims
    for number in range(20):
        await given(api, [f"i{number}"])
        await wait_until(lambda number=number: sum(poll.done() for poll in polls) == number + 1)
    assert server.delivery.dispatcher.claims - claims <= 60, (
        "the send, and at most one look at each partition"
    )
    assert sum(poll.done() for poll in polls[: count // 10]) == 20, "first come, first served"
    for poll in polls:
        poll.cancel()
    await asyncio.wait(polls)
    await waiting(server, 0)


@pytest.mark.spec("R-POLL-1")
async def test_polls_and_streams_share_the_work(api: Api) -> None:
    got = {"polls": 0, "stream": 0}
    await given(api, map("i{}".format, range(60)))

    async def poll() -> None:
        worker = ByPolls(api, wait_ms=2_000)
        while sum(got.values()) < 60:
            turn = await worker.poll()
            if turn is not None:
                got["polls"] += 1
                assert (await worker.do(turn, finish())).ok

    async def listen() -> None:
        async with Stream(api, credits=1) as stream:
            while sum(got.values()) < 60:
                await wait_until(lambda: stream.waiting("turns") or sum(got.values()) >= 60)
                if stream.waiting("turns"):
                    got["stream"] += 1
                    stream.credits_total += 1
                    await stream.command(await stream.turn(), finish())

    await asyncio.gather(poll(), poll(), listen())
    assert sum(got.values()) == 60
    assert min(got.values()) >= 5, got


# What nobody receives


@pytest.mark.spec("R-POLL-2", "R-LEASE-2")
async def test_the_lease_of_a_poll_is_received_by_a_renewal_and_ends_by_its_time(
    quick_api: Api, quick_stored: Stored
) -> None:
    await given(quick_api, ["a"], lease_timeout={"seconds": 1})
    worker = ByPolls(quick_api)
    first = await worker.poll()
    assert first is not None
    assert (quick_stored.record("a").conn, quick_stored.accepted("a")) == (0, False)
    second = await worker.turn()
    assert (second.attempt, second.fence > first.fence) == (1, True)
    assert quick_stored.accepted("a")
    third = await worker.turn()
    assert (third.attempt, third.last_failure.reason) == (2, "ATTEMPT_EXPIRED")
    assert (await worker.do(second, finish())).metadata == (("how", "expired"),)
    assert (await worker.do(third, finish())).ok


@pytest.mark.spec("R-POLL-2")
async def test_a_stream_may_adopt_the_lease_of_a_poll(api: Api) -> None:
    await given(api, ["a"])
    turn = await ByPolls(api).turn()
    async with Stream(api, leases=[turn.lease]) as stream:
        assert refusal(await stream.event())[0] == ""
        assert refusal(await stream.command(turn, checkpoint("one")))[0] == ""
        assert refusal(await stream.command(turn, finish()))[0] == ""


@pytest.mark.spec("R-POLL-3")
async def test_cancelled_polls_leave_nothing_behind(server: Handle, api: Api) -> None:
    for round_ in range(10):
        polls = [polling(api) for _ in range(20)]
        await waiting(server, 20)
        for poll in polls[::2]:
            poll.cancel()
        await given(api, [f"i{round_}-{number}" for number in range(10)])
        answers = await asyncio.gather(*polls[1::2])
        assert len({answer.turn.instance_id for answer in answers}) == 10
    assert server.delivery.polls.count == 0


@pytest.mark.spec("R-POLL-3")
async def test_a_turn_claimed_for_a_poll_that_is_gone_goes_back_at_once(
    redis_server: RedisServer, server: Handle, api: Api, stored: Stored
) -> None:
    poll = polling(api)
    await waiting(server, 1)
    [group] = server.delivery.polls._groups.values()
    redis_server.freeze()
    try:
        server.delivery.dispatcher.look(group)
        await wait_until(lambda: group.reserved)
        poll.cancel()
        await wait_until(lambda: not group.waiting)
        sending = asyncio.create_task(given(api, ["a"]))
    finally:
        redis_server.thaw()
    await sending
    turn = (await polling(api)).turn
    assert (turn.instance_id, turn.attempt) == ("a", 1)
    assert stored.record("a").deliveries == 0


@pytest.mark.spec("R-POLL-3")
async def test_a_poll_that_is_cancelled_with_its_turn_gives_it_back(server: Handle, api: Api) -> None:
    polls = server.delivery.polls
    task = asyncio.create_task(polls.take(("t:v1",), 10))
    await waiting(server, 1)
    [group] = polls._groups.values()
    deliver = group.deliver

    def deliver_too_late(partition: int, view: list[Any]) -> None:
        group.deliver = deliver
        deliver(partition, view)
        task.cancel()

    group.deliver = deliver_too_late
    await given(api, ["a"])
    with pytest.raises(asyncio.CancelledError):
        await task
    turn = (await polling(api)).turn
    assert (turn.instance_id, turn.attempt) == ("a", 1)


@pytest.mark.spec("R-POLL-3")
async def test_a_stopping_server_sends_polls_away(server: Handle, api: Api) -> None:
    polls = [polling(api, 60) for _ in range(5)]
    await waiting(server, 5)
    stopping = asyncio.create_task(server.stop())
    for poll in polls:
        problem = await refusal_of(poll)
        assert (problem.code, problem.reason) == ("UNAVAILABLE", "DRAINING")
    late = await refusal_of(ByPolls(api).poll())
    assert late.code == "UNAVAILABLE"
    await stopping


async def test_a_caller_in_a_hurry_gets_an_answer_in_time(api: Api) -> None:
    request = pb.PollTurnRequest(workflows=workflows())
    request.wait.seconds = 60
    answer = await api.workers.PollTurn(request, timeout=2.5)
    assert not answer.HasField("turn")


async def test_groups_without_polls_are_forgotten(server: Handle, api: Api) -> None:
    polls = server.delivery.polls
    for number in range(5):
        await api.workers.PollTurn(pb.PollTurnRequest(workflows=workflows(f"t{number}")), timeout=CALL_S)
    poll = polling(api, 60, "kept")
    await waiting(server, 1)
    assert len(polls._groups) == 6
    now = asyncio.get_running_loop().time()
    polls.tidy(now)
    assert len(polls._groups) == 6
    polls.tidy(now + polls_module.LINGER_S + 1)
    assert list(polls._groups) == [("kept:v1",)]
    assert list(server.delivery.dispatcher._pools) == ["kept:v1"]
    poll.cancel()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await poll


async def test_a_turn_too_large_for_an_answer_fails_undeliverable(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls_module, "MAX_TURN_BYTES", 20_000)
    async with running(settings_for(redis_url, limits=Limits())) as handle, Api(handle.address) as api:
        await api.create("large", max_attempts=1)
        await api.send("large", "m1", b"m" * 30_000)
        poll = polling(api)
        request = AwaitTurnRequest(instance_id="large", turn=1)
        ended = (await api.messages.AwaitTurn(request, timeout=CALL_S)).turn
        assert (ended.state, ended.last_failure.reason) == (TURN_STATE_FAILED, "UNDELIVERABLE")
        await given(api, ["small"])
        assert (await poll).turn.instance_id == "small"
