"""Waiters below gRPC: what they cost, and what wakes them."""

from __future__ import annotations

import asyncio

import pytest

from pawl_server.domain.errors import NotFound, Refused
from pawl_server.engine import Engine
from pawl_server.store.errors import StoreUnavailable
from tests.support.hand import Hand
from tests.support.items import send_item
from tests.support.server import lanes
from tests.support.wait import wait_until


async def send(engine: Engine, instance_id: str, count: int) -> None:
    """Creates an instance with `count` pending turns."""
    for at in range(count):
        await engine.inbox.send(send_item(instance_id, f"m{at}", create=True))


def looked(engine: Engine) -> int:
    """How many turns were looked at so far."""
    tallies = [lane.scripts.get("await") for lane in lanes(engine.store, "hot")]
    return sum(tally.items for tally in tallies if tally)


async def looks(engine: Engine) -> int:
    """The same once no look is under way, which would find an end as well."""
    await wait_until(lambda: not engine.awaits._looks)
    return looked(engine)


@pytest.mark.spec("R-AWAIT-1")
async def test_an_end_costs_one_look_however_many_wait_behind_it(engine: Engine) -> None:
    await send(engine, "a", 100)
    waiting = [asyncio.ensure_future(engine.awaits.wait("a", turn, 30)) for turn in range(1, 101)]
    await wait_until(lambda: looked(engine) == 100)
    hand = Hand(engine, engine.server_run)
    for turn in range(1, 101):
        before = await looks(engine)
        await hand.finish("a")
        engine.awaits.notify("a", turn)
        assert await waiting[turn - 1]
        assert await looks(engine) - before <= 1
    assert engine.awaits.count == 0


async def test_a_hint_that_came_late_ends_all_before_it(engine: Engine) -> None:
    await send(engine, "a", 5)
    waiting = [asyncio.ensure_future(engine.awaits.wait("a", turn, 30)) for turn in range(1, 6)]
    await wait_until(lambda: engine.awaits.count == 5)
    hand = Hand(engine)
    for _ in range(4):
        await hand.finish("a")
    await hand.fail("a")
    engine.awaits.notify("a", 2)
    assert await asyncio.gather(*waiting) == [True] * 5, "the look behind the hint finds the rest"


async def test_hints_for_nobody_cost_nothing(engine: Engine) -> None:
    engine.awaits.notify("a", 1)
    await engine.store.ping()  # whatever was sent before it is answered
    assert await looks(engine) == 0


@pytest.mark.spec("R-AWAIT-1")
async def test_a_wait_that_ends_says_so(engine: Engine) -> None:
    await send(engine, "a", 1)
    assert await engine.awaits.wait("a", 1, 0.01) is False
    with pytest.raises(NotFound):
        await engine.awaits.wait("a", 2, 30)
    await Hand(engine).finish("a")
    assert await engine.awaits.wait("a", 1, 30) is True
    assert engine.awaits.count == 0


async def test_a_cancelled_waiter_leaves_the_others_alone(engine: Engine) -> None:
    await send(engine, "a", 1)
    gone, kept = [asyncio.ensure_future(engine.awaits.wait("a", 1, 30)) for _ in range(2)]
    await wait_until(lambda: engine.awaits.count == 2)
    gone.cancel()
    await wait_until(lambda: engine.awaits.count == 1)
    engine.awaits.notify("a", 1)
    assert await kept


async def test_a_store_that_is_away_fails_the_first_look_and_no_later_one(engine: Engine) -> None:
    await send(engine, "a", 1)
    waiting = asyncio.ensure_future(engine.awaits.wait("a", 1, 30))
    await wait_until(lambda: engine.awaits.count == 1)
    await send(engine, "b", 1)  # answered after the first look
    await engine.store.close()
    engine.awaits.notify("a", 0)
    with pytest.raises(StoreUnavailable):
        await engine.awaits.wait("a", 1, 30)
    assert engine.awaits.count == 1
    engine.awaits.close()
    with pytest.raises(Refused, match="DRAINING"):
        await waiting
    with pytest.raises(Refused, match="DRAINING"):
        await engine.awaits.wait("a", 1, 30)
