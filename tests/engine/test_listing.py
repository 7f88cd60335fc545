"""Pages that neither skip nor repeat, whatever happens between them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from pawl_server.domain.errors import Refused
from pawl_server.engine import Engine
from tests.support.hand import Hand
from tests.support.invariants import violations_everywhere
from tests.support.items import create_item, send_item
from tests.support.redis_server import RedisServer
from tests.support.server import open_engine


@pytest.fixture(params=[1, 2, 7], ids=lambda count: f"{count} partitions")
async def engine(
    request: pytest.FixtureRequest, redis_server: RedisServer, redis_url: str
) -> AsyncIterator[Engine]:
    """An engine in virtual time."""
    async with open_engine(redis_url, partitions=request.param) as engine:
        yield engine
    assert violations_everywhere(redis_server) == []


async def create(engine: Engine, instance_id: str, workflow_type: str = "t") -> None:
    """Creates an instance."""
    await engine.instances.create(create_item(instance_id, type=workflow_type))


async def send(engine: Engine, instance_id: str, message_id: str, message: bytes = b"json\0x") -> None:
    """Sends a message."""
    await engine.inbox.send(send_item(instance_id, message_id, message=message))


@pytest.mark.spec("R-READ-4")
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_instances_in_order_of_creation(engine: Engine, size: int) -> None:
    """Many are created in the same millisecond, and new ones come while the list is read."""
    dice = random.Random(size)
    wanted: list[tuple[int, str]] = []
    for name in dice.sample(range(1000), 60):
        engine.now_ms += dice.choice((0, 0, 0, 1))
        await create(engine, f"i{name}")
        wanted.append((engine.now_ms, f"i{name}"))
    await create(engine, "other", "u")
    found: list[str] = []
    token, fresh = "", 0
    while True:
        page, token = await engine.instances.list("t", size, token)
        found += [instance.id for instance in page]
        assert len(page) == size or not token
        if not token:
            break
        if fresh < 9:
            engine.now_ms += 1
            await create(engine, f"new{fresh}")
            fresh += 1
    assert found[:60] == [name for _, name in sorted(wanted)]
    assert found[60:] == [f"new{at}" for at in range(len(found) - 60)]


@pytest.mark.spec("R-READ-4")
async def test_an_instance_born_before_the_cursor_disturbs_nobody(engine: Engine) -> None:
    """A clock that is set back makes newer instances older than the cursor."""
    for at in range(6):
        engine.now_ms += 1
        await create(engine, f"i{at}")
    page, token = await engine.instances.list("t", 3, "")
    engine.now_ms -= 4
    await create(engine, "late")
    rest, end = await engine.instances.list("t", 10, token)
    assert [instance.id for instance in page + rest] == [f"i{at}" for at in range(6)]
    assert end == ""
    everything, _ = await engine.instances.list("t", 10, "")
    assert len(everything) == 7


async def test_a_last_page_that_is_full_is_the_last(engine: Engine) -> None:
    for at in range(4):
        await create(engine, f"i{at}")
    page, token = await engine.instances.list("t", 2, "")
    assert (len(page), bool(token)) == (2, True)
    page, token = await engine.instances.list("t", 2, token)
    assert (len(page), token) == (2, "")
    assert await engine.instances.list("none", 2, "") == ([], "")


@pytest.mark.spec("R-READ-3")
@pytest.mark.parametrize("size", [1, 4, 100])
async def test_turns_newest_first_whatever_finishes_meanwhile(engine: Engine, size: int) -> None:
    await create(engine, "a")
    for at in range(1, 21):
        await send(engine, "a", f"m{at}")
    hand = Hand(engine)
    found: list[int] = []
    token, sent = "", 20
    while True:
        page, token = await engine.turns.list("a", size, token, payloads=True)
        found += [turn.turn for turn in page]
        if not token:
            break
        await hand.finish("a")
        sent += 1
        await send(engine, "a", f"m{sent}")
    assert found == list(range(20, 0, -1))


@pytest.mark.spec("R-READ-3")
async def test_pages_are_cut_by_bytes(engine: Engine) -> None:
    await create(engine, "a")
    for at in range(80):
        await send(engine, "a", f"m{at}", b"json\0" + b"x" * 32_000)
    found: list[int] = []
    token, pages = "", 0
    while True:
        page, token = await engine.turns.list("a", 100, token, payloads=True)
        assert sum(turn.ByteSize() for turn in page) < 2 << 20
        found += [turn.turn for turn in page]
        pages += 1
        if not token:
            break
    assert found == list(range(80, 0, -1))
    assert pages > 1


@pytest.mark.spec("R-READ-2", "R-READ-3", "R-TRIM-2", "R-SEND-2")
async def test_trimmed_turns(engine: Engine) -> None:
    await engine.types.put("t", {"min_turns": 0, "max_age_ms": 0})
    await create(engine, "a")
    await send(engine, "a", "m1")
    await send(engine, "a", "m2")
    hand = Hand(engine)
    await hand.finish("a")
    receipt = await engine.turns.get("a", 1)
    assert receipt.trimmed
    assert (receipt.message_id, receipt.attempt, receipt.step_count) == ("m1", 1, 1)
    assert not receipt.HasField("message")
    assert not receipt.HasField("reply")
    assert receipt.admit_time.ToMilliseconds() == engine.now_ms
    assert (await engine.instances.get("a")).oldest_kept_turn == 2
    engine.now_ms += 16 * 60_000
    await hand.finish("a")
    with pytest.raises(Refused) as pruned:
        await engine.turns.get("a", 1)
    assert pruned.value.reason == "PRUNED"
    assert pruned.value.metadata == {"resource": "turn", "name": "a/1"}
    page, token = await engine.turns.list("a", 10, "", payloads=True)
    assert ([turn.turn for turn in page], token) == ([2], "")


@pytest.mark.spec("R-READ-9")
async def test_what_is_ready_for_two_minutes_and_nobody_there(engine: Engine) -> None:
    for name in ("a", "b"):
        await create(engine, name)
        await send(engine, name, "m")
    await create(engine, "c", "other")
    await send(engine, "c", "m")
    engine.now_ms += 119_999
    load = await engine.listing.workload()
    assert {one.workflow_type: one.starved for one in load.types} == {"t": False, "other": False}
    assert load.types[0].oldest_ready_age.ToMilliseconds() == 119_999
    engine.now_ms += 1
    load = await engine.listing.workload()
    assert {one.workflow_type: one.starved for one in load.types} == {"t": True, "other": True}
    await Hand(engine).claim("c", "other:v1")
    load = await engine.listing.workload()
    assert {one.workflow_type: one.starved for one in load.types} == {"t": True, "other": False}
