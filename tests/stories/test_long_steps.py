"""Steps that take long: what is seen of them, and what becomes of them when something goes wrong."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pawl import (
    Client,
    Context,
    NewInstance,
    Outcome,
    Step,
    TurnFailed,
    WorkflowType,
    WrongState,
    testing,
    workflow,
)
from tests.stories.conftest import Launch, Working
from tests.support.wait import wait_until

TRANSFER = NewInstance("transfer", "v1", {"sent": 0})


async def test_progress_is_seen_while_a_step_runs(client: Client, working: Working) -> None:
    seen = asyncio.Event()

    async def read(step: Step) -> int:
        step.progress("reading", 3, 10, unit="pages")
        step.heartbeat({"page": "the third"})
        await seen.wait()
        return 10

    @workflow("reading", version="v1")
    async def reading(ctx: Context, state: Any, message: Any) -> Outcome:
        return ctx.done(None, result=await ctx.step("read", read, kind="tool"))

    book = client.instance("book")
    async with working(reading):
        await book.send(None, create=reading)
        await wait_until(lambda: _progress(client, "book"))
        view = (await book.get()).progress
        assert view is not None
        assert (view.progress.phase, view.progress.done, view.progress.total) == ("reading", 3, 10)
        await wait_until(lambda: _details(client, "book"))
        operation = (await book.turn(1)).operation
        assert operation is not None
        assert (operation.key, operation.kind, operation.active) == ("read", "tool", True)
        assert operation.details == {"page": "the third"}
        seen.set()
        assert (await book.wait(1)).result() == 10
    assert ((await book.get()).progress, (await book.turn(1)).operation) == (None, None)


async def _progress(client: Client, name: str) -> Any:
    return (await client.get(name)).progress


async def _details(client: Client, name: str) -> Any:
    operation = (await client.get_turn(name, 1)).operation
    return operation and operation.details


async def test_a_step_that_hangs_is_tried_again_from_where_it_was() -> None:
    begun: list[tuple[int, Any]] = []

    async def copy(step: Step) -> str:
        begun.append((step.attempt, step.checkpoint))
        if step.checkpoint is None:
            step.heartbeat(checkpoint=7)
            await asyncio.Event().wait()  # the network is gone
        return f"from {step.checkpoint}"

    @workflow("copying", version="v1")
    async def copying(ctx: Context, state: Any, message: Any) -> Outcome:
        return ctx.done(None, result=await ctx.step("copy", copy, heartbeat_timeout=5.0))

    async with testing.server(virtual_time=True) as server, server.worker(copying):
        client = server.client
        sent = await client.send("disk", None, create=copying)
        await wait_until(lambda: _checkpoint(client))
        await server.advance(5, settle=0.1)
        failed = await client.get_turn("disk", 1)
        assert failed.last_failure is not None
        assert (failed.state, failed.last_failure.reason) == ("BACKOFF", "HEARTBEAT_TIMEOUT")
        await server.advance(timedelta(minutes=1))
        turn = await client.await_turn("disk", sent.turn)
    assert (turn.result(), turn.attempt, begun) == ("from 7", 2, [(1, None), (2, 7)])


async def _checkpoint(client: Client) -> Any:
    operation = (await client.get_turn("disk", 1)).operation
    return operation and operation.checkpoint


@pytest.mark.parametrize("happened", [True, False])
async def test_a_payment_that_may_have_happened_waits_for_a_decision(
    client: Client, launch: Launch, story_folder: Path, happened: bool
) -> None:
    trace = story_folder / "trace"
    (story_folder / "slow-bank").touch()
    worker = launch("tests.stories.flows:transfer")
    sent = await client.send("account", {"amount": 20}, create=TRANSFER)
    await wait_until(lambda: trace.exists() and trace.read_text() == "send 20\n")
    await worker.kill()
    (story_folder / "slow-bank").unlink()

    account = client.instance("account")
    turn = await account.wait(sent.turn)
    assert (turn.state, (await account.get()).status) == ("UNCERTAIN", "BLOCKED")
    assert turn.operation is not None
    assert (turn.operation.key, turn.operation.active) == ("send", False)

    # Nobody tries on his own, also not a worker that could.
    launch("tests.stories.flows:transfer")
    await client.send("other", {"amount": 1}, create=TRANSFER, wait=30)
    assert trace.read_text() == "send 20\nsend 1\nbook sent\n"
    assert (await account.turn(sent.turn)).state == "UNCERTAIN"

    if happened:
        await account.resolve_step(sent.turn, "send", output="found at the bank", comment="asked")
    else:
        await account.resolve_step(sent.turn, "send", retry=True)
    turn = await account.wait(sent.turn)
    assert turn.result() == ("found at the bank" if happened else "sent")
    assert trace.read_text().count("send 20\n") == (1 if happened else 2)
    assert [step.resolved for step in (await account.turn(sent.turn)).steps] == [happened, False]
    assert (await account.get()).state == {"sent": 20}


async def test_cancelling_lets_the_step_end_and_starts_no_other(client: Client, working: Working) -> None:
    started: list[str] = []

    async def first(step: Step) -> str:
        started.append("first")
        while not step.cancelled:  # noqa: ASYNC110 - as steps do
            await asyncio.sleep(0.01)
        return "tidied up"

    @workflow("tidy", version="v1", initial_state=0)
    async def tidy(ctx: Context, state: int, message: str) -> Outcome:
        if message == "other":
            return ctx.done(state + 1)
        await ctx.step("first", first)
        await ctx.step("second", lambda: started.append("second"))
        return ctx.done(state)

    room = client.instance("room")
    async with working(tidy):
        await room.send("work", create=tidy)
        other = await room.send("other")
        await wait_until(lambda: started)
        answer = await room.cancel(1, comment="no longer needed")
        assert (answer.former_state, answer.state) == ("RUNNING", "CANCELLING")
        assert answer.cancel_deadline is not None
        assert (await room.wait(other.turn)).state == "COMPLETED", "the inbox goes on"
    turn = await room.turn(1)
    assert (turn.state, turn.attempt) == ("CANCELLED", 1)
    assert [(step.key, step.output) for step in turn.steps] == [("first", "tidied up")]
    assert (started, (await room.get()).state) == (["first"], 1)


async def test_a_turn_takes_too_long_in_all() -> None:
    @workflow("patient", version="v1")
    async def patient(ctx: Context, state: Any, message: Any) -> Outcome:
        await ctx.sleep("rest", timedelta(minutes=40))
        answer = await ctx.wait_for_signal("answer")
        return ctx.done(None, result=answer.value)

    async with testing.server(virtual_time=True) as server, server.worker(patient):
        client = server.client
        await client.put_workflow_type(WorkflowType("patient", total_timeout=timedelta(hours=1)))
        asked = client.instance("asked")
        sent = await asked.send(None, create=patient)
        await server.advance(timedelta(minutes=59))
        turn = await asked.turn(sent.turn)
        assert turn.admit_time is not None
        assert (turn.state, turn.total_deadline) == ("WAITING", turn.admit_time + timedelta(hours=1))
        await server.advance(timedelta(minutes=1))
        failed = await asked.wait(sent.turn)
        assert failed.last_failure is not None
        assert (failed.state, failed.last_failure.reason) == ("FAILED", "TOTAL_DEADLINE")
        with pytest.raises(TurnFailed):
            failed.result()
        assert (await asked.get()).status == "BLOCKED"
        # A retry grants the time anew, and what was saved stays: the sleep is over.
        await asked.retry(sent.turn)
        await wait_until(lambda: _is(client, "asked", "WAITING"))
        await asked.signal("answer", "at last", turn=sent.turn)
        assert (await asked.wait(sent.turn)).result() == "at last"
        with pytest.raises(WrongState):
            await asked.signal("answer", "and another", turn=sent.turn)


async def _is(client: Client, name: str, state: str) -> bool:
    return (await client.get_turn(name, 1)).state == state
