"""A turn that failed for good waits for a decision, or the type has decided beforehand."""

from __future__ import annotations

import asyncio

import pytest

from pawl import (
    Client,
    Context,
    InstanceDeleted,
    NotFound,
    Outcome,
    WorkflowError,
    WorkflowType,
    WrongState,
    workflow,
)
from tests.stories.conftest import Working
from tests.support.wait import wait_until

broken = {"printer"}
"""What does not work at the moment."""
printed: list[str] = []


@workflow("printing", version="v1", initial_state=0)
async def printing(ctx: Context, state: int, message: str) -> Outcome:
    page = await ctx.step("render", lambda: f"page of {message}")
    if "printer" in broken and not message.startswith("mail"):
        raise WorkflowError("out of paper", reason="NO_PAPER")
    await ctx.step("print", lambda: printed.append(page))
    return ctx.done(state + 1, result=page)


@pytest.fixture(autouse=True)
def out_of_paper() -> None:
    """Every story begins with a printer that is out of paper."""
    broken.add("printer")
    printed.clear()


async def _blocked(client: Client, name: str = "desk") -> bool:
    return (await client.get(name)).status == "BLOCKED"


async def test_retry_after_a_repair(client: Client, working: Working) -> None:
    desk = client.instance("desk")
    async with working(printing):
        first = await desk.send("letter", create=printing)
        second = await desk.send("bill")
        await wait_until(lambda: _blocked(client))
        broken.clear()
        assert await desk.retry(first.turn, attempt=1, comment="paper is in") == 4
        done = await desk.wait(second.turn)
    assert done.state == "COMPLETED"
    assert printed == ["page of letter", "page of bill"]
    assert (await desk.turn(first.turn)).attempt == 2


async def test_skip_park_and_redrive(client: Client, working: Working) -> None:
    desk = client.instance("desk")
    async with working(printing):
        await desk.send("letter", create=printing)
        await desk.send("bill")
        third = await desk.send("mail")
        await wait_until(lambda: _blocked(client))
        await desk.skip(1, comment="nobody needs it")
        await wait_until(lambda: _is(client, 2, "FAILED"))
        await desk.park(2)
        assert (await desk.wait(third.turn)).state == "COMPLETED", "the inbox goes on"
        parked = [turn async for turn in client.list_parked(printing)]
        assert [(turn.turn, turn.message) for turn in parked] == [(2, "bill")]
        broken.clear()
        again = await desk.redrive(2)
        done = await desk.wait(again)
    assert (done.state, done.origin.kind, done.origin.turn) == ("COMPLETED", "redrive", 2)
    assert printed == ["page of mail", "page of bill"]
    with pytest.raises(WrongState):
        await desk.redrive(2)


async def _is(client: Client, turn: int, state: str) -> bool:
    return (await client.get_turn("desk", turn)).state == state


@pytest.mark.parametrize(("policy", "ends"), [("SKIP", "SKIPPED"), ("PARK", "PARKED")])
async def test_the_type_has_decided(client: Client, working: Working, policy: str, ends: str) -> None:
    await client.put_workflow_type(WorkflowType("printing", on_exhausted=policy))
    async with working(printing):
        failed = await client.send("desk", "letter", create=printing, wait=20)
        fine = await client.send("desk", "mail", wait=20)
    assert failed.outcome is not None
    assert (failed.outcome.state, fine.result()) == (ends, "page of mail")
    assert (await client.get("desk")).parked_turns == (policy == "PARK")


async def test_cancel_what_runs_and_what_waits(client: Client, working: Working) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @workflow("endless", version="v1", initial_state=0)
    async def endless(ctx: Context, state: int, message: str) -> Outcome:
        if message != "loop":
            return ctx.done(state + 1)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ctx.done(state)

    wheel = client.instance("wheel")
    async with working(endless):
        await wheel.send("loop", create=endless)
        await wheel.send("first")
        last = await wheel.send("last")
        await asyncio.wait_for(started.wait(), 20)
        assert (await wheel.cancel(2)).former_state == "QUEUED"
        done = await wheel.cancel(1, force=True)
        assert (done.former_state, done.state, done.cancel_deadline) == ("RUNNING", "CANCELLED", None)
        await asyncio.wait_for(ended.wait(), 20)  # the worker is told at once
        assert (await wheel.wait(last.turn)).state == "COMPLETED"
    assert [turn.state async for turn in wheel.turns()] == ["COMPLETED", "CANCELLED", "CANCELLED"]
    assert (await wheel.get()).state == 1


async def test_pause_keeps_messages_and_starts_nothing(client: Client, working: Working) -> None:
    broken.clear()
    desk = client.instance("desk")
    await client.create("desk", printing)
    assert await desk.pause(comment="lunch")
    async with working(printing):
        sent = await desk.send("letter")
        other = await client.send("other", "mail", create=printing, wait=20)
        assert other.result() == "page of mail"
        assert ((await desk.get()).status, (await desk.turn(sent.turn)).state) == ("PAUSED", "QUEUED")
        assert await desk.resume()
        assert (await desk.wait(sent.turn)).state == "COMPLETED"


async def test_delete_and_begin_anew(client: Client, working: Working) -> None:
    broken.clear()
    async with working(printing):
        first = await client.send("desk", "letter", id="m1", create=printing, wait=20)
        assert await client.delete("desk")
        assert not await client.delete("desk")
        with pytest.raises(NotFound):
            await client.get("desk")
        with pytest.raises(InstanceDeleted):
            await client.send("desk", "letter", id="m1", create=printing)
        again = await client.send("desk", "bill", id="m2", create=printing, wait=20)
    assert again.turn == first.turn + 1, "a new life goes on counting"
    assert again.incarnation > first.incarnation
    assert (await client.get("desk")).state == 1
