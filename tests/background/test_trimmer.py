"""The walk over all instances: what no timer of theirs tells is found by it."""

from __future__ import annotations

import pytest

from pawl_server.background import trimmer, walks
from pawl_server.background.trimmer import Trimmer
from pawl_server.domain.errors import Refused
from pawl_server.engine import Engine
from pawl_server.engine.events.ledger import Cursor
from tests.support.hand import Hand
from tests.support.items import send_item
from tests.support.wait import wait_until

WEEK_MS = 604_800_000


async def work(engine: Engine, instance_id: str, turns: int) -> None:
    """So many turns of an instance, one after the other."""
    hand = Hand(engine)
    for number in range(turns):
        await engine.inbox.send(send_item(instance_id, f"m{number}", create=True))
        await hand.finish(instance_id)


async def walk(engine: Engine) -> Trimmer:
    """One walk over all partitions."""
    found = Trimmer(engine)
    for partition in engine.store.partitions:
        cursor = await found.page(partition, "0")
        while cursor != "0":
            cursor = await found.page(partition, cursor)
    return found


@pytest.mark.spec("R-TRIM-5", "R-TRIM-6", "R-TYPE-1")
async def test_stricter_settings_reach_instances_that_rest(engine: Engine) -> None:
    names = [f"i{at}" for at in range(40)]
    for name in names:
        await work(engine, name, 3)
    assert (await walk(engine)).trimmed == 0
    await engine.types.put("t", {"min_turns": 1, "max_age_ms": 0})
    assert (await walk(engine)).trimmed == 2 * len(names)
    for name in names:
        assert [(await engine.turns.get(name, turn)).trimmed for turn in (1, 2, 3)] == [True, True, False]
    assert (await walk(engine)).trimmed == 0


@pytest.mark.spec("R-TRIM-6", "R-EVENT-6")
async def test_old_events_of_instances_that_rest_go(engine: Engine) -> None:
    await work(engine, "a", 2)
    engine.now_ms += WEEK_MS
    await engine.inbox.send(send_item("a", "m9"))
    await walk(engine)
    page = await engine.events.list("a", Cursor(), (), 100)
    assert (page.oldest_seq, page.last_seq, len(page.events)) == (10, 10, 1)
    with pytest.raises(Refused) as refused:
        await engine.events.list("a", Cursor(seq=1), (), 100)
    assert (refused.value.reason, refused.value.metadata["oldest_seq"]) == ("COMPACTED", "10")


@pytest.mark.spec("R-TRIM-6")
async def test_the_loops_walk_and_then_rest(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "INTERVAL_S", 0.001)
    monkeypatch.setattr(trimmer, "KEYS", 2)
    for at in range(10):
        await work(engine, f"i{at}", 2)
    await engine.types.put("t", {"min_turns": 0, "max_age_ms": 0})
    found = Trimmer(engine)
    found.start()
    try:
        await wait_until(lambda: found.walks == len(engine.store.partitions))
        assert (found.trimmed, found.errors) == (20, 0)
        await work(engine, "late", 1)
    finally:
        await found.stop()
    assert found.walks == len(engine.store.partitions), "each rests"
