"""The two workflows: one reads a document, one collects what the others found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from pawl._transport import Backoff
from pawl.client import Client
from pawl.context import Context, Outcome, Step
from pawl.demo import analyse
from pawl.demo.marks import MarkFile
from pawl.errors import LimitExceeded
from pawl.workflow import Workflow, workflow

T = TypeVar("T")

DOCUMENT = "demo-document"
COLLECTOR = "demo-collector"
VERSION = "v1"
COLLECTOR_ID = "collector"
MESSAGE_ID = "ingest"
"""Message id of every document's only turn."""

STEPS = ("read", "hash", "extract", "count", "summarise", "notify")
"""Steps of a document's turn, in order."""

FAILING_STEP = "count"
SUMMARY_SECONDS = 0.03
BATCH = 50
"""Documents that the collector adds up at a time."""

FAILED_ONCE = "failed-once"
"""File that appears when the failing step has failed and left its mark."""


class UnreadableOnce(Exception):
    """Raised on purpose: an ordinary exception, so the turn is tried again."""


def document_workflow(client: Client, marks: MarkFile, folder: Path) -> Workflow:
    """Builds the workflow of a document; its steps leave marks in this worker's file.

    A message is `{"path": …, "fail": bool}`; with `fail` the step `count` raises, once unless its worker is
    killed while it does.
    """

    async def run(ctx: Context, key: str, body: Callable[[Step], Awaitable[T]]) -> T:
        async def marked(step: Step) -> T:
            facts = (step.effect_id, key, ctx.instance_id, step.attempt, step.fence)
            await marks.write("S", *facts)
            try:
                value = await body(step)
            except UnreadableOnce:
                # The mark first: a worker killed in between fails once more, rather than never.
                await marks.write("F", *facts)
                (folder / FAILED_ONCE).touch()
                raise
            except Exception:
                await marks.write("F", *facts)
                raise
            await marks.write("E", *facts)
            return value

        if ctx.replaying:
            await marks.write("R", "-", key, ctx.instance_id, ctx.attempt, ctx.fence)
        return await ctx.step(key, marked)

    @workflow(DOCUMENT, version=VERSION, initial_state={})
    async def document(ctx: Context, state: dict[str, Any], message: dict[str, Any]) -> Outcome:
        path = Path(message["path"])

        def step(key: str, function: Callable[[], T]) -> Awaitable[T]:
            return run(ctx, key, lambda _: asyncio.to_thread(function))

        def counted() -> dict[str, Any]:
            if message["fail"] and not (folder / FAILED_ONCE).exists():
                raise UnreadableOnce("fails on purpose, until the failure is on record")
            return analyse.count(source["text"])

        source = await step("read", lambda: analyse.read(path))
        digest = await step("hash", lambda: analyse.digest(source["text"]))
        found = await step("extract", lambda: analyse.extract(source["text"], python=path.suffix == ".py"))
        counts = await step("count", counted)
        summary = await step("summarise", lambda: summarised(source["text"], counts["top"]))
        facts = {
            "document": ctx.instance_id,
            "words": counts["words"],
            "definitions": found["definitions"],
            "links": found["links"],
        }
        told = await run(ctx, "notify", lambda step: tell_collector(client, step, facts))
        return ctx.done({"sha256": digest, "summary": summary, **facts}, result={**facts, **told})

    return document


def summarised(text: str, top: list[str]) -> str:
    """Summarises a text, and takes its time, as a call to another service would."""
    time.sleep(SUMMARY_SECONDS)
    return analyse.summarise(text, top)


async def tell_collector(client: Client, step: Step, facts: dict[str, Any]) -> dict[str, int]:
    """Sends what was found under the step's effect id, so that sending it twice counts once.

    The collector's inbox has a limit; a refusal for that reason is repeated after a pause, and counted.
    """
    refused = 0
    backoff = Backoff(0.02, 0.5)
    while True:
        try:
            sent = await client.send(COLLECTOR_ID, facts, id=step.effect_id)
        except LimitExceeded as error:
            if error.limit != "pending_messages":
                raise
            refused += 1
            await asyncio.sleep(backoff.next())
        else:
            return {"collector_turn": sent.turn, "refused": refused}


EMPTY = {"documents": 0, "words": 0, "definitions": 0, "links": 0, "batches": 0, "open": [], "closing": False}
"""State that the collector starts with."""

_SUMS = ("words", "definitions", "links")


@workflow(COLLECTOR, version=VERSION, initial_state=EMPTY)
async def collector(ctx: Context, state: dict[str, Any], message: dict[str, Any]) -> Outcome:
    """Takes one message per document, and continues with a turn of its own that adds up a full batch."""
    if message.get("close_batch"):
        batch = state["open"]
        sums = await ctx.step("add-up", lambda: {name: sum(one[name] for one in batch) for name in _SUMS})
        total = {name: state[name] + sums[name] for name in _SUMS}
        documents = state["documents"] + len(batch)
        closed = {
            **total,
            "documents": documents,
            "batches": state["batches"] + 1,
            "open": [],
            "closing": False,
        }
        return ctx.done(closed, result={**total, "documents": documents, "batches": closed["batches"]})
    state = {**state, "open": [*state["open"], message]}
    if len(state["open"]) >= BATCH and not state["closing"]:
        return ctx.continue_with({**state, "closing": True}, {"close_batch": True})
    return ctx.done(state)
