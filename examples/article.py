"""Draft, human review, delivery: a turn that calls a model, waits for a person, and delivers once.

```sh
pawl dev
pawl worker examples.article:article
pawl send whales '{"topic": "whales"}' --type article --version v1
pawl watch whales
pawl respond whales
pawl respond whales '"say more about their songs"'
pawl respond whales true
```

The model and the tool that delivers are called over HTTP, at MODEL_URL and TOOL_URL. Where one is not set, a
stand-in on this machine answers (`stand_in.py`). Kill the worker at any time and start it again: parts that
were written are not written again, but for those of the last second, and nothing is delivered twice.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from examples.stand_in import StandIn
from pawl import Context, Outcome, Step, workflow

ROUNDS = 3
"""Drafts that are shown to people before the turn gives up."""
REVIEW_TIME = timedelta(days=3)
CALL_S = 30.0
"""Longest time of one call of the model or the tool."""


@dataclass
class Order:
    """The message: what to write about, and in how many parts."""

    topic: str
    parts: int = 4


@functools.cache
def stand_in() -> StandIn:
    """Starts the stand-in, once in this process."""
    return StandIn()


def model_url() -> str:
    """Where the model is."""
    return os.environ.get("MODEL_URL") or f"{stand_in().url}/model"


def tool_url() -> str:
    """Where the tool that delivers is."""
    return os.environ.get("TOOL_URL") or f"{stand_in().url}/tool"


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Sends JSON, reads JSON. What urllib raises fails the attempt, so that it is tried again."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=CALL_S) as answer:
        return json.loads(answer.read())


async def write(step: Step, order: Order, note: str) -> list[str]:
    """Asks the model for part after part; goes on behind those that an earlier attempt got."""
    parts: list[str] = step.checkpoint or []
    while len(parts) < order.parts:
        step.progress("writing", len(parts), order.parts, unit="parts")
        asked = {"topic": order.topic, "part": len(parts) + 1, "note": note}
        parts.append((await asyncio.to_thread(post, model_url(), asked))["text"])
        step.heartbeat(checkpoint=parts)
    step.progress("writing", len(parts), order.parts, unit="parts")
    return parts


async def deliver(step: Step, parts: list[str]) -> str:
    """Delivers under the id of the step's effect, by which the tool knows a repeat."""
    return (await asyncio.to_thread(post, tool_url(), {"id": step.effect_id, "parts": parts}))["receipt"]


@workflow("article", version="v1", initial_state={"delivered": 0})
async def article(ctx: Context, state: dict[str, Any], message: Order) -> Outcome:
    """Drafts until somebody answers true; any other answer is a note for the next draft."""
    note = ""
    for number in range(1, ROUNDS + 1):
        writing = functools.partial(write, order=message, note=note)
        parts = await ctx.step(
            f"draft-{number}", writing, kind="model", timeout=600.0, heartbeat_timeout=2 * CALL_S
        )
        review = await ctx.wait_for_signal(f"review-{number}", name="review", timeout=REVIEW_TIME)
        if not review.received:
            return ctx.done(state, result={"delivered": False, "why": "nobody reviewed it in time"})
        if review.value is True:
            sending = functools.partial(deliver, parts=parts)
            receipt = await ctx.step("deliver", sending, kind="tool", timeout=2 * CALL_S)
            state = {"delivered": state["delivered"] + 1}
            return ctx.done(state, result={"delivered": True, "receipt": receipt, "drafts": number})
        note = str(review.value)
    return ctx.done(state, result={"delivered": False, "why": f"{ROUNDS} drafts were sent back"})
