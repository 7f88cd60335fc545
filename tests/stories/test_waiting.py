"""Turns that wait for people and for other systems."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pawl import (
    BodyConflict,
    CallbackRejected,
    Client,
    Context,
    Outcome,
    Principal,
    SyncContext,
    WrongState,
    testing,
    workflow,
)
from tests.stories.conftest import Working
from tests.support.wait import wait_until

paid: list[str] = []
ANNA = Principal("anna", "PERSON")


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    """Every story begins with nothing paid."""
    paid.clear()


@workflow("expense", version="v1", initial_state=0)
async def expense(ctx: Context, state: int, message: str) -> Outcome:
    decision = await ctx.wait_for_signal("decision", name="approval", timeout=timedelta(days=3))
    if not decision.received:
        return ctx.done(state, result="nobody looked at it")
    if not decision.value["yes"]:
        return ctx.done(state, result="refused")
    await ctx.step("pay", lambda: paid.append(message))
    return ctx.done(state + 1, result="paid")


async def _waits(client: Client, name: str) -> bool:
    return (await client.get_turn(name, 1)).state == "WAITING"


async def test_an_approval_that_comes_late(client: Client, working: Working) -> None:
    desk = client.instance("desk")
    async with working(expense, concurrency=1):
        sent = await desk.send("train ticket", create=expense)
        await wait_until(lambda: _waits(client, "desk"))
        wait = (await desk.turn(1)).wait
        assert wait is not None
        assert (wait.key, wait.name, wait.callback) == ("decision", "approval", False)
        # Whoever waits takes no slot from the others.
        other = await client.send("other", "taxi", create=expense)
        await wait_until(lambda: _waits(client, "other"))
        await client.signal("other", "approval", {"yes": False}, turn=other.turn)
        assert (await client.await_turn("other", other.turn)).result() == "refused"

        answer = await desk.signal("approval", {"yes": True}, turn=sent.turn, id="s-1", sender=ANNA)
        again = await desk.signal("approval", {"yes": True}, turn=sent.turn, id="s-1", sender=ANNA)
        assert (again, answer.consumed_position) == (answer, 1)
        assert (await desk.wait(sent.turn)).result() == "paid"
        with pytest.raises(BodyConflict):
            await desk.signal("approval", {"yes": False}, turn=sent.turn, id="s-1")
    turn = await desk.turn(sent.turn)
    assert (paid, turn.attempt) == (["train ticket"], 1)
    assert [(step.key, step.kind, step.wait_outcome) for step in turn.steps] == [
        ("decision", "signal", "RECEIVED"),
        ("pay", "step", ""),
    ]
    assert [(signal.sender, signal.consumed_position) for signal in turn.signals] == [(ANNA, 1)]


async def test_an_approval_that_comes_early(client: Client, working: Working) -> None:
    desk = client.instance("desk")
    sent = await desk.send("train ticket", create=expense)
    answer = await desk.signal("approval", {"yes": True}, turn=sent.turn)
    second = await desk.signal("approval", {"yes": False}, turn=sent.turn)
    assert (answer.consumed_position, second.consumed_position) == (0, 0)
    async with working(expense):
        assert (await desk.wait(sent.turn)).result() == "paid"
    signals = (await desk.turn(sent.turn)).signals
    assert [signal.consumed_position for signal in signals] == [1, 0], "the oldest one is taken"


async def test_an_approval_before_the_message(client: Client, working: Working) -> None:
    desk = client.instance("desk")
    await client.create("desk", expense)
    answer = await desk.signal("approval", {"yes": True})
    async with working(expense):
        sent = await desk.send("train ticket", wait=20)
    assert (answer.turn, sent.turn, sent.result()) == (1, 1, "paid")


async def test_nobody_approves_in_time() -> None:
    async with testing.server(virtual_time=True) as server, server.worker(expense):
        desk = server.client.instance("desk")
        sent = await desk.send("train ticket", create=expense)
        await server.advance(timedelta(days=3) - timedelta(milliseconds=1))
        assert await _waits(server.client, "desk")
        await server.advance(0.001)
        assert (await desk.wait(sent.turn)).result() == "nobody looked at it"
        with pytest.raises(WrongState):
            await desk.signal("approval", {"yes": True}, turn=sent.turn)
        turn = await desk.turn(sent.turn)
    assert ([step.wait_outcome for step in turn.steps], turn.attempt, paid) == (["TIMED_OUT"], 1, [])


tokens: dict[str, str] = {}
"""What the printer was given, by what it is to print."""


@workflow("printing-house", version="v1")
async def ordering(ctx: Context, state: Any, message: str) -> Outcome:
    callback = ctx.callback("printed")
    await ctx.step("order", lambda: tokens.update({message: callback.token}))
    try:
        return ctx.done(None, result=await callback.result())
    except CallbackRejected as no:
        return ctx.done(None, result=[no.failure.reason, no.failure.message, no.failure.details])


@workflow("printing-house-thread", version="v1")
def ordering_in_a_thread(ctx: SyncContext, state: Any, message: str) -> Outcome:
    callback = ctx.callback("printed")
    ctx.step("order", lambda: tokens.update({message: callback.token}))
    return ctx.done(None, result=callback.result(timeout=60))


async def test_a_callback_that_is_answered_and_one_that_is_rejected(client: Client, working: Working) -> None:
    async with working(ordering, ordering_in_a_thread):
        for book, flow in (("book", ordering), ("map", ordering), ("card", ordering_in_a_thread)):
            await client.send(book, book, create=flow)
            await wait_until(lambda book=book: _waits(client, book))
        answer = await client.resolve_callback(tokens["book"], {"pages": 80})
        assert (answer.instance_id, answer.turn) == ("book", 1)
        assert await client.resolve_callback(tokens["book"], {"pages": 80}) == answer
        with pytest.raises(BodyConflict):
            await client.reject_callback(tokens["book"], "too late")
        await client.reject_callback(tokens["map"], "no paper", reason="NO_PAPER", details={"left": 3})
        await client.resolve_callback(tokens["card"], "done")
        assert (await client.await_turn("book", 1)).result() == {"pages": 80}
        assert (await client.await_turn("map", 1)).result() == ["NO_PAPER", "no paper", {"left": 3}]
        assert (await client.await_turn("card", 1)).result() == "done"
    step = (await client.get_turn("map", 1)).steps[1]
    assert (step.kind, step.wait_outcome, step.failure and step.failure.reason) == (
        "callback",
        "REJECTED",
        "NO_PAPER",
    )


async def test_an_answer_before_the_turn_waits(client: Client, working: Working) -> None:
    @workflow("quick-printer", version="v1")
    async def quick(ctx: Context, state: Any, message: Any) -> Outcome:
        callback = ctx.callback("printed")
        await ctx.step("order", lambda: client.resolve_callback(callback.token, "already done"))
        return ctx.done(None, result=await callback.result())

    async with working(quick):
        sent = await client.send("book", None, create=quick, wait=20)
    assert sent.result() == "already done"
