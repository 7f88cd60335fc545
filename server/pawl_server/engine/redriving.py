"""Redriving parked turns in bulk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple

from pawl_server.domain.errors import Reason, Refused
from pawl_server.engine.control import Target

if TYPE_CHECKING:
    from pawl.v1.turn_pb2 import Turn
    from pawl_server.engine.core import Engine

_PAGE = 100
_AT_ONCE = 16
_GONE = frozenset({Reason.NOT_FOUND, Reason.PRUNED, Reason.WRONG_STATE})
"""Somebody else has decided about the turn meanwhile."""


class Redriven(NamedTuple):
    """How far it has come, in totals."""

    seen: int = 0
    redriven: int = 0
    skipped: int = 0
    refused: int = 0
    refusal: Refused | None = None
    """The last one."""
    done: bool = False


class Wanted(NamedTuple):
    """Which parked turns are meant, and what is done with them."""

    workflow_type: str
    instance_id: str = ""
    """Empty for all."""
    reason: str = ""
    """Reason of the last failure; empty for any."""
    discard: bool = False
    comment: str = ""


async def redrive_all(engine: Engine, wanted: Wanted) -> AsyncGenerator[Redriven, None]:
    """Redrives page by page, and says after each how far it has come. Raises NotFound or a StoreError."""
    total, token = Redriven(), ""
    several = asyncio.Semaphore(_AT_ONCE)

    async def one(turn: Turn) -> Refused | None:
        target = Target(turn.instance_id, "", wanted.comment, turn.turn, turn.incarnation)
        async with several:
            try:
                await engine.control.redrive(target, discard=wanted.discard)
            except Refused as refusal:
                return refusal
        return None

    while True:
        turns, token = await engine.listing.parked(wanted.workflow_type, wanted.instance_id, _PAGE, token)
        meant = [turn for turn in turns if wanted.reason in ("", turn.last_failure.reason)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(turn)) for turn in meant]
        answers = [task.result() for task in tasks]
        refusals = [answer for answer in answers if answer is not None and answer.reason not in _GONE]
        total = Redriven(
            seen=total.seen + len(turns),
            redriven=total.redriven + answers.count(None),
            skipped=total.skipped + len(turns) - answers.count(None) - len(refusals),
            refused=total.refused + len(refusals),
            refusal=refusals[-1] if refusals else total.refusal,
            done=not token,
        )
        yield total
        if total.done:
            return
