"""Workflows that run in processes of their own, and leave traces in the folder PAWL_STORY_FOLDER."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from pawl import Context, Outcome, workflow

FOLDER = Path(os.environ.get("PAWL_STORY_FOLDER", "."))


def trace(text: str) -> None:
    """Appends a line to the story's trace."""
    with (FOLDER / "trace").open("a") as file:
        file.write(f"{text}\n")


@workflow("order", version="v1", initial_state={"paid": 0})
async def order(ctx: Context, state: dict[str, Any], message: dict[str, Any]) -> Outcome:
    """Charges and ships. While the file `stop-before-shipping` is there, shipping waits for a crash."""

    def charge() -> int:
        trace(f"charge {message['amount']}")
        return message["amount"]

    async def ship() -> str:
        trace(f"ship {message['amount']}")
        while (FOLDER / "stop-before-shipping").exists():  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.01)
        return "shipped"

    paid = await ctx.step("charge", charge)
    shipped = await ctx.step("ship", ship)
    return ctx.done({"paid": state["paid"] + paid}, result=shipped)


@workflow("transfer", version="v1", initial_state={"sent": 0})
async def transfer(ctx: Context, state: dict[str, Any], message: dict[str, Any]) -> Outcome:
    """Sends money, never twice unseen. While the file `slow-bank` is there, the bank does not answer."""

    async def send() -> str:
        trace(f"send {message['amount']}")
        while (FOLDER / "slow-bank").exists():  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.01)
        return "sent"

    receipt = await ctx.step("send", send, on_restart="park")
    await ctx.step("book", lambda: trace(f"book {receipt}"))
    return ctx.done({"sent": state["sent"] + message["amount"]}, result=receipt)
