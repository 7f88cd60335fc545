"""A workflow for processes that are killed: its steps write what they do into PAWL_STORY_FOLDER, synced."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from pawl import Context, Outcome, Step, workflow
from pawl.demo.marks import Kind, MarkFile

STEPS = ("read", "think", "write")


@cache
def marks() -> MarkFile:
    """The marks of this process."""
    return MarkFile(Path(os.environ["PAWL_STORY_FOLDER"]), str(os.getpid()))


def effect(place: str) -> Callable[[Step], Awaitable[None]]:
    """The body of a step of the turn `place`: says that it begins and that its effect has happened."""

    async def run(step: Step) -> None:
        kinds: tuple[Kind, ...] = ("S", "E")
        for kind in kinds:
            await marks().write(kind, step.effect_id, step.key, place, step.attempt, step.fence)

    return run


@workflow("book", version="v1", initial_state=[])
async def book(ctx: Context, state: list[int], message: int) -> Outcome:
    """Writes the message into the book that is the instance's state."""
    for key in STEPS:
        await ctx.step(key, effect(f"{ctx.instance_id}/{ctx.turn}"))
    return ctx.done([*state, message], result=message)
