"""When `pawl watch` reads the instance for the progress of its turn."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pawl import Client, Event, NotFound
from pawl.cli import live
from tests.support.wait import wait_until


class Reads:
    """Counts what is read; nothing is there, or no server answers."""

    def __init__(self) -> None:
        self.count = 0

    async def get(self, instance_id: str) -> Any:
        self.count += 1
        raise NotFound(instance_id)


def event(kind: str, turn: int = 1) -> Event:
    return Event("a", 1, 1, 1, None, kind, "WORKER", turn, 1, "RUNNING", "ACTIVE")


@pytest.mark.spec("R-CLI-3")
@pytest.mark.parametrize(
    "end", ["STEP_SAVED", "ATTEMPT_FAILED", "TURN_CANCELLED", "TURN_UNCERTAIN", "DELETED"]
)
async def test_the_instance_is_read_while_a_step_runs_only(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0)
    reads = Reads()
    async with live.Live(cast(Client, reads), "a") as one:
        await wait_until(lambda: reads.count == 1, what="the first look")
        one.told(event("TURN_ADMITTED", 2))
        await _turns(50)
        assert reads.count == 1
        one.told(event("OPERATION_STARTED"))
        await wait_until(lambda: reads.count > 5, what="looks while it runs")
        for goes_on in (event("SIGNAL_RECEIVED"), event("TURN_ADMITTED", 2)):
            one.told(goes_on)
        seen = reads.count
        await wait_until(lambda: reads.count > seen + 5, what="looks after that as well")
        one.told(event(end))
        await _turns(5)
        seen = reads.count
        await _turns(50)
        assert reads.count == seen


async def test_without_an_instance_nothing_is_read() -> None:
    reads = Reads()
    async with live.Live(cast(Client, reads), "") as one:
        one.told(event("OPERATION_STARTED"))
        await _turns(50)
    assert reads.count == 0


async def _turns(count: int) -> None:
    """Lets the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)
