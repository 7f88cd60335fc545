"""Workflows for the worker of the command-line tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pawl import CallbackRejected, Context, Defer, Outcome, Step, WorkflowError, workflow
from tests.support.wait import wait_until_sync


@workflow("failing", version="v1")
async def failing(ctx: Context, state: Any, message: Any) -> Outcome:
    """Fails, always."""
    raise WorkflowError("it is broken", reason="BROKEN")


@workflow("full", version="v1")
async def full(ctx: Context, state: Any, message: Any) -> Outcome:
    """Is put off, always."""
    raise Defer(3_600, reason="capacity")


@workflow("tuned", version="v1", lease_timeout=90)
async def tuned(ctx: Context, state: Any, message: Any) -> Outcome:
    """Has settings that its worker stores."""
    return ctx.done(state)


@workflow("asking", version="v1")
async def asking(ctx: Context, state: Any, message: Any) -> Outcome:
    """Waits for somebody to approve what it drafted."""
    await ctx.step("draft", lambda: f"about {message}")
    answer = await ctx.wait_for_signal("approval", name="approve", timeout=86_400)
    return ctx.done(state, result=answer.value)


@workflow("calling", version="v1")
async def calling(ctx: Context, state: Any, message: Any) -> Outcome:
    """Waits for the result of a callback; says why if it is rejected."""
    try:
        return ctx.done(state, result=await ctx.wait_for_callback("paid"))
    except CallbackRejected as error:
        return ctx.done(state, result=[error.failure.reason, error.failure.message])


@workflow("reading", version="v1")
async def reading(ctx: Context, state: Any, message: dict[str, str]) -> Outcome:
    """Reports progress, and ends once the file is there that the message names."""

    async def read(step: Step) -> int:
        step.heartbeat({"shelf": 7}, checkpoint=40)
        step.progress("reading", 40, 97, unit="pages")
        await asyncio.to_thread(wait_until_sync, Path(message["until"]).exists, 60, "the file is there")
        return 97

    return ctx.done(state, result=await ctx.step("read", read, kind="tool"))


@workflow("paying", version="v1")
async def paying(ctx: Context, state: Any, message: Any) -> Outcome:
    """Becomes UNCERTAIN: its step hangs, and nobody knows whether it paid."""
    return ctx.done(state, result=await ctx.step("pay", _hang, heartbeat_timeout=0.1, on_restart="park"))


async def _hang(step: Step) -> str:
    await asyncio.Event().wait()
    return "never"
