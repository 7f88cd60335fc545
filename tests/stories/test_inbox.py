"""An inbox keeps order, whoever works; different instances do not wait for each other."""

from __future__ import annotations

import asyncio
from typing import Any

from pawl import Client, Context, Outcome, workflow
from tests.stories.conftest import Working


@workflow("log", version="v1", initial_state=[])
async def book(ctx: Context, state: list[int], message: int) -> Outcome:
    """Writes what it gets into a book, a little slower for every third message."""
    await ctx.step("think", lambda: asyncio.sleep(0.002 if message % 3 == 0 else 0))
    return ctx.done([*state, message])


async def test_an_inbox_keeps_order(client: Client, working: Working) -> None:
    await client.create("diary", book)
    async with working(book), working(book):
        sent = await asyncio.gather(*(client.send("diary", number) for number in range(40)))
        assert [one.turn for one in sent] == list(range(1, 41))
        await client.await_turn("diary", 40, wait=20)
    assert (await client.get("diary")).state == list(range(40))


async def test_one_turn_of_an_instance_runs_at_a_time(client: Client, working: Working) -> None:
    running = 0
    most = 0

    @workflow("careful", version="v1")
    async def careful(ctx: Context, state: Any, message: Any) -> Outcome:
        nonlocal running, most

        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        await ctx.step("work", work)
        return ctx.done(None)

    async with working(careful), working(careful):
        for number in range(20):
            await client.send("one", number, create=careful)
        await client.await_turn("one", 20, wait=20)
    assert most == 1


async def test_instances_do_not_wait_for_each_other(client: Client, working: Working) -> None:
    meeting = asyncio.Barrier(3)

    @workflow("meeting", version="v1")
    async def attend(ctx: Context, state: Any, message: Any) -> Outcome:
        await ctx.step("meet", meeting.wait)
        return ctx.done(None, result="met")

    async with working(attend):
        sent = await asyncio.gather(
            *(client.send(name, None, create=attend, wait=20) for name in ("ann", "bob", "cy"))
        )
    assert [one.result() for one in sent] == ["met"] * 3
