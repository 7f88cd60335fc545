"""Sleeping turns, turns that are put off, messages that come later or not at all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pawl import Client, Context, Defer, Outcome, SyncContext, TurnFailed, testing, workflow
from tests.stories.conftest import Working


async def test_a_sleep_is_passed_once_and_costs_no_attempt(client: Client, working: Working) -> None:
    seen: list[str] = []

    @workflow("napping", version="v1")
    async def napping(ctx: Context, state: Any, message: Any) -> Outcome:
        seen.append(f"begin {ctx.attempt}")
        await ctx.step("before", lambda: seen.append("before"))
        await ctx.sleep("nap", timedelta(milliseconds=30))
        await ctx.step("between", lambda: seen.append("between"))
        await ctx.sleep("another", 0.03)
        return ctx.done(None, result=[ctx.attempt, ctx.replaying])

    async with working(napping):
        sent = await client.send("bed", None, create=napping, wait=20)
    assert sent.result() == [1, False]
    assert seen == ["begin 1", "before", "begin 1", "between", "begin 1"]
    steps = (await client.get_turn("bed", 1)).steps
    assert [(step.key, step.kind) for step in steps] == [
        ("before", "step"),
        ("nap", "sleep"),
        ("between", "step"),
        ("another", "sleep"),
    ]


async def test_a_sync_handler_sleeps_as_well(client: Client, working: Working) -> None:
    runs: list[int] = []

    @workflow("napping-thread", version="v1")
    def napping(ctx: SyncContext, state: Any, message: Any) -> Outcome:
        runs.append(ctx.step("count", lambda: len(runs)))
        ctx.sleep("nap", 0.02)
        return ctx.done(None, result=ctx.step("after", lambda: "awake"))

    async with working(napping):
        sent = await client.send("bed", None, create=napping, wait=20)
    assert (sent.result(), runs) == ("awake", [0, 0])


async def test_swallowing_the_sleep_does_not_end_the_turn(client: Client, working: Working) -> None:
    @workflow("stubborn", version="v1")
    async def stubborn(ctx: Context, state: Any, message: Any) -> Outcome:
        try:
            await ctx.sleep("nap", 0.02)
        except BaseException:
            pass
        return ctx.done(None, result="awake")

    async with working(stubborn):
        sent = await client.send("bed", None, create=stubborn, wait=20)
    assert sent.result() == "awake"
    assert (await client.get_turn("bed", 1)).step_count == 1, "it slept"


async def test_a_turn_is_put_off_without_an_attempt(client: Client, working: Working) -> None:
    busy = [True, True]
    saved: list[str] = []

    @workflow("waiting", version="v1")
    async def waiting(ctx: Context, state: Any, message: Any) -> Outcome:
        await ctx.step("prepare", lambda: saved.append("prepare"))
        if busy:
            busy.pop()
            raise Defer(0.02, reason="BUSY")
        return ctx.done(None, result=ctx.attempt)

    async with working(waiting):
        sent = await client.send("desk", None, create=waiting, wait=20)
    assert (sent.result(), saved, busy) == (1, ["prepare"], [])


@pytest.mark.parametrize("duration", [-1, 400 * 86_400, float("nan")])
async def test_a_sleep_out_of_range_fails_for_good(client: Client, working: Working, duration: float) -> None:
    @workflow("sleepless", version="v1")
    async def sleepless(ctx: Context, state: Any, message: Any) -> Outcome:
        await ctx.sleep("nap", duration)
        return ctx.done(None)

    async with working(sleepless):
        sent = await client.send("bed", None, create=sleepless, wait=20)
    with pytest.raises(TurnFailed, match="365 days"):
        sent.result()


async def test_messages_that_come_later() -> None:
    order: list[str] = []

    @workflow("listening", version="v1")
    async def listening(ctx: Context, state: Any, message: str) -> Outcome:
        order.append(message)
        return ctx.done(None, result=message)

    async with testing.server(virtual_time=True) as server, server.worker(listening):
        ear = server.client.instance("ear")
        later = await ear.send("later", id="l", create=listening, delay=timedelta(hours=3))
        assert (later.turn, later.due_time is not None) == (0, True)
        taken_back = await ear.send("never", id="n", delay=60)
        now = await ear.send("now", wait=20)
        assert (now.turn, now.result()) == (1, "now"), "a delayed message holds up nobody"
        waiting = asyncio.create_task(server.client.await_message("ear", "n", wait=20))
        assert await ear.cancel_message(taken_back.message_id) == 2
        never = await waiting
        assert never is not None
        assert (never.turn, never.state) == (2, "CANCELLED")
        assert (await ear.send("never", id="n", delay=60)).turn == 2, "a late repeat sends nothing"
        await server.advance(timedelta(hours=3))
        done = await server.client.await_message("ear", "l", wait=20)
    assert done is not None
    assert (done.result(), order) == ("later", ["now", "later"])


async def test_messages_that_nobody_wants_late(client: Client, working: Working) -> None:
    started = asyncio.Event()
    go_on = asyncio.Event()

    @workflow("slow", version="v1")
    async def slow(ctx: Context, state: Any, message: str) -> Outcome:
        started.set()
        await go_on.wait()
        return ctx.done(None, result=message)

    async with working(slow):
        first = await client.send("clerk", "first", create=slow, ttl=60)
        await asyncio.wait_for(started.wait(), 20)
        stale = await client.send("clerk", "stale", ttl=0.05)
        fresh = await client.send("clerk", "fresh", ttl=60)
        assert (await client.await_turn("clerk", stale.turn, wait=20)).state == "EXPIRED"
        go_on.set()
        done = await client.await_turn("clerk", fresh.turn, wait=20)
    assert (done.result(), (await client.get_turn("clerk", first.turn)).state) == ("fresh", "COMPLETED")
