"""Turns end to end: replies, replays, failures, limits, settings."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import pawl
from pawl import (
    Client,
    Context,
    NewInstance,
    RetryPolicy,
    Step,
    SyncContext,
    WorkflowType,
    effect_id,
    workflow,
)
from pawl._transport import Transport
from pawl.v1.message_service_pb2 import SendMessageRequest
from pawl.v1.payload_pb2 import Payload
from tests.support.wait import wait_until
from tests.support.workers import StartWorker

FAST = RetryPolicy(initial_delay=timedelta(milliseconds=1), max_delay=timedelta(milliseconds=1))


async def retry_fast(client: Client, name: str, max_attempts: int = 3) -> None:
    await client.put_workflow_type(WorkflowType(name, retry=FAST, max_attempts=max_attempts))


async def test_send_and_wait(client: Client, start_worker: StartWorker) -> None:
    @workflow("counter", version="v1", initial_state={"count": 0})
    async def counter(ctx: Context, state: dict, message: dict) -> Any:
        amount = await ctx.step("add", lambda: message["add"])
        twice = await ctx.step("twice", lambda step: asyncio.sleep(0, amount * 2), kind="math")
        return ctx.done({"count": state["count"] + amount}, result={"twice": twice})

    start_worker(counter)
    sent = await client.send("c-1", {"add": 2}, create=counter, wait=10, id="m-1", origin=b"me")
    assert sent.result() == {"twice": 4}
    turn = await client.get_turn("c-1", sent.turn)
    assert [(step.position, step.key, step.kind, step.output, step.attempt) for step in turn.steps] == [
        (1, "add", "step", 2, 1),
        (2, "twice", "math", 4, 1),
    ]
    assert (turn.message, turn.message_id, turn.origin.client) == ({"add": 2}, "m-1", b"me")
    again = await client.send("c-1", {"add": 2}, create=counter, wait=10, id="m-1")
    assert (again.turn, again.result()) == (sent.turn, {"twice": 4})
    with pytest.raises(pawl.BodyConflict):
        await client.send("c-1", {"add": 3}, id="m-1")
    handle = client.instance("c-1")
    assert (await handle.get()).state == {"count": 2}
    assert [item.turn async for item in handle.turns()] == [sent.turn]
    assert [item.id async for item in client.list(counter)] == ["c-1"]


async def test_null_everywhere(client: Client, start_worker: StartWorker) -> None:
    @workflow("nulls", version="v1")
    async def nulls(ctx: Context, state: Any, message: Any) -> Any:
        step = await ctx.step("null", lambda: None)
        return ctx.done([state, message, step], result=[state, message, step])

    start_worker(nulls)
    await client.create("n-1", nulls)
    sent = await client.send("n-1", None, wait=10)
    assert sent.result() == [None, None, None]
    assert (await client.get_turn("n-1", sent.turn)).steps[0].output is None


@pytest.mark.spec("R-ID-3")
async def test_bytes_everywhere(client: Client, start_worker: StartWorker) -> None:
    @workflow("bytes", version="v1", initial_state=b"\x00")
    async def raw(ctx: Context, state: bytes, message: bytes) -> Any:
        return ctx.done(state + message, result=await ctx.step("a", lambda: message * 2))

    start_worker(raw)
    sent = await client.send("b-1", b"\xff", create=raw, wait=10)
    assert sent.result() == b"\xff\xff"
    assert (await client.get("b-1")).state == b"\x00\xff"


@pytest.mark.spec("R-FINISH-3")
async def test_continuations(client: Client, start_worker: StartWorker) -> None:
    @workflow("down", version="v1", initial_state=[])
    async def down(ctx: Context, state: list, message: int) -> Any:
        state = [*state, [message, ctx.origin.kind, ctx.origin.turn, ctx.message_id]]
        return ctx.continue_with(state, message - 1) if message else ctx.done(state)

    start_worker(down)
    first = await client.send("d-1", 2, create=down, id="m")
    for number in range(3):
        turn = await client.await_turn("d-1", first.turn + number, wait=10)
        assert (turn.state, turn.continuation_turn) == ("COMPLETED", number < 2 and turn.turn + 1)
    assert (await client.get("d-1")).state == [
        [2, "client", 0, "m"],
        [1, "continuation", first.turn, f"continue-{first.turn}"],
        [0, "continuation", first.turn + 1, f"continue-{first.turn + 1}"],
    ]


@pytest.mark.spec("R-SDK-1", "R-SDK-6", "R-SDK-7")
async def test_an_attempt_replays_what_was_saved(client: Client, start_worker: StartWorker) -> None:
    ran: list[str] = []
    effects: set[str] = set()
    draws: list[Any] = []

    @workflow("flaky", version="v1", initial_state=0)
    async def flaky(ctx: Context, state: int, message: Any) -> Any:
        draws.append((ctx.now(), ctx.uuid(), ctx.random().random()))

        def note(step: Step) -> str:
            ran.append(f"{step.key}{step.attempt}")
            effects.add(step.effect_id)
            if step.key == "b" and step.attempt < 3:
                raise ValueError(f"attempt {step.attempt}")
            return step.key

        await ctx.step("a", note)
        await ctx.step("b", note)
        failure = ctx.last_failure
        assert failure is not None
        return ctx.done(1, result=[ctx.attempt, failure.reason, failure.message, failure.attempt])

    await retry_fast(client, "flaky")
    start_worker(flaky)
    sent = await client.send("f-1", None, create=flaky, wait=10)
    assert sent.result() == [3, "ValueError", "attempt 2", 2]
    assert ran == ["a1", "b1", "b2", "b3"]
    args = ("default", sent.incarnation, "f-1", sent.message_id)
    assert effects == {effect_id(*args, "a"), effect_id(*args, "b")}
    assert draws[0] == draws[1] == draws[2]


async def test_a_workflow_error_blocks_the_inbox(client: Client, start_worker: StartWorker) -> None:
    @workflow("final", version="v1")
    def final(ctx: SyncContext, state: Any, message: Any) -> Any:
        ctx.step("before", lambda: 1)
        raise pawl.WorkflowError("no such card", reason="CARD", details={"card": 7})

    start_worker(final)
    sent = await client.send("f-1", 1, create=final, wait=10)
    with pytest.raises(pawl.TurnFailed) as caught:
        sent.result()
    assert (caught.value.reason, caught.value.message) == ("CARD", "no such card")
    turn = await client.get_turn("f-1", sent.turn)
    assert turn.last_failure is not None
    assert (turn.last_failure.details, turn.attempt, turn.step_count) == ({"card": 7}, 1, 1)
    assert (await client.get("f-1")).status == "BLOCKED"
    behind = await client.send("f-1", 2, wait=0.05)
    with pytest.raises(pawl.TurnUnfinished):
        behind.result()


async def test_attempts_end(client: Client, start_worker: StartWorker) -> None:
    @workflow("never", version="v1")
    async def never(ctx: Context, state: Any, message: Any) -> Any:
        raise pawl.RetryableError("not now", delay=0.001, reason="LATER")

    start_worker(never)
    sent = await client.send("n-1", 1, create=NewInstance(never, max_attempts=2), wait=10)
    assert sent.outcome is not None
    assert (sent.outcome.state, sent.outcome.attempt) == ("FAILED", 2)
    assert sent.outcome.last_failure is not None
    assert sent.outcome.last_failure.reason == "LATER"


@pytest.mark.parametrize(
    ("size", "state"), [(65_536 - 2, "COMPLETED"), (65_536 - 1, "FAILED")], ids=["at", "above"]
)
@pytest.mark.parametrize("part", ["step", "last step", "state", "result"])
async def test_limits(client: Client, start_worker: StartWorker, part: str, size: int, state: str) -> None:
    @workflow("large", version="v1")
    async def large(ctx: Context, saved: Any, message: Any) -> Any:
        value = "x" * size
        if part == "step":
            await ctx.step("a", lambda: value)
            await ctx.step("b", lambda: 1)
        elif part == "last step":
            await ctx.step("a", lambda: value)
        return ctx.done(value if part == "state" else None, result=value if part == "result" else None)

    start_worker(large)
    sent = await client.send("l-1", 1, create=large, wait=10)
    assert sent.outcome is not None
    assert sent.outcome.state == state
    if state == "FAILED":
        assert sent.outcome.last_failure is not None
        assert sent.outcome.last_failure.reason == "LIMIT_EXCEEDED"
        assert "LIMIT_EXCEEDED" not in sent.outcome.last_failure.message, "the reason is said once"
        assert sent.outcome.attempt == 1


@pytest.mark.spec("R-SDK-12")
async def test_an_undecodable_message_uses_up_its_attempts_and_others_flow(
    client: Client, start_worker: StartWorker
) -> None:
    # C-31
    @workflow("strict", version="v1")
    async def strict(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done(None, result=message)

    await retry_fast(client, "strict", max_attempts=2)
    worker = start_worker(strict)
    await client.create("bad", strict)
    transport = Transport(worker.address)
    request = SendMessageRequest(
        instance_id="bad", message_id="m", message=Payload(data=b'{"a": ', encoding="json")
    )
    await transport.call(transport.stubs.messages.SendMessage, request, timeout=10)
    others = await asyncio.gather(*(client.send(f"good-{n}", n, create=strict, wait=10) for n in range(20)))
    assert [sent.result() for sent in others] == list(range(20))
    turn = await client.await_turn("bad", 1, wait=10)
    assert turn.last_failure is not None
    assert (turn.state, turn.attempt, turn.last_failure.reason) == ("FAILED", 2, "UNDECODABLE")
    assert "'json'" in turn.last_failure.message
    assert "position 6" in turn.last_failure.message
    await transport.close()


async def test_a_worker_brings_settings_for_a_new_type(client: Client, start_worker: StartWorker) -> None:
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done(None)

    start_worker(workflow("own", version="v1", lease_timeout=7, max_attempts=9)(handler))

    async def stored() -> bool:
        return (await client.get_workflow_type("own")).revision == 1

    await wait_until(stored)
    kept = await client.get_workflow_type("own")
    assert (kept.lease_timeout, kept.max_attempts) == (timedelta(seconds=7), 9)
    # A later worker does not overwrite them.
    start_worker(workflow("own", version="v2", lease_timeout=30, max_attempts=2)(handler))
    await client.send("o-1", 1, create=NewInstance("own", "v2"), wait=10)
    assert (await client.get_workflow_type("own")).revision == 1


async def test_versions_are_pinned(client: Client, start_worker: StartWorker) -> None:
    def declare(version: str) -> pawl.Workflow:
        @workflow("pinned", version=version)
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            return ctx.done(None, result=version)

        return handler

    one, two = declare("v1"), declare("v2")
    start_worker(one)
    start_worker(two)
    sent = await asyncio.gather(
        *(client.send(f"p-{n}", 1, create=(one, two)[n % 2], wait=10) for n in range(10))
    )
    assert [item.result() for item in sent] == ["v1", "v2"] * 5
