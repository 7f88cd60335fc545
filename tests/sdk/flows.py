"""Workflows of the stream tests."""

from __future__ import annotations

import asyncio
from typing import Any

from pawl import Context, workflow


@workflow("test", version="v1", initial_state={"count": 0})
async def counter(ctx: Context, state: dict, message: dict) -> Any:
    amount = await ctx.step("add", lambda: message["add"])
    return ctx.done({"count": state["count"] + amount}, result=amount)


class Gates:
    """Workflow whose handler runs its steps when the test lets it."""

    def __init__(self, *keys: str) -> None:
        self.open = {key: asyncio.Event() for key in [*keys, "end"]}
        self.entered: list[str] = []
        self.cancelled: list[str] = []

        @workflow("test", version="v1")
        async def gated(ctx: Context, state: Any, message: Any) -> Any:
            try:
                for key in keys:
                    await ctx.step(key, lambda key=key: self._enter(key))
                self.entered.append("end")
                await self.open["end"].wait()
            except asyncio.CancelledError:
                self.cancelled.append(ctx.instance_id)
                raise
            return ctx.done({"done": True})

        self.workflow = gated

    async def _enter(self, key: str) -> str:
        self.entered.append(key)
        await self.open[key].wait()
        return key
