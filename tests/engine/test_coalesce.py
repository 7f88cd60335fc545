"""Many requests, few script calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from pawl_server.engine.coalesce import MAX_BYTES, MAX_ITEMS, Coalescer
from pawl_server.store.client import PartitionHandle
from pawl_server.store.errors import ScriptFailed, StoreUnavailable
from pawl_server.store.script_call import Result


class Partition:
    """Answers each list with its items in capitals, when told to."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.lists: list[list[str]] = []
        self.answers: list[asyncio.Future[Any]] = []

    def start(self, items: list[str]) -> Awaitable[Any]:
        self.lists.append(items)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def answer(self) -> None:
        """Answers the newest list."""
        self.answers[-1].set_result([item.upper() for item in self.lists[-1]])

    @property
    def handle(self) -> PartitionHandle:
        """This, as the coalescer sees it."""
        partition: Any = self
        return partition


def start(partition: PartitionHandle, items: list[str]) -> Awaitable[Any]:
    fake: Any = partition
    return fake.start(items)


def decode(raw: Sequence[Any]) -> Result[str]:
    return Result(7, list(raw), [])


async def ticks() -> None:
    """Lets what is due in this tick and the next ones run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_in_one_tick_leaves_together_and_the_rest_behind_it() -> None:
    partition = Partition()
    coalescer = Coalescer(start, decode)
    first = [coalescer.submit(partition.handle, item) for item in "abc"]
    assert not partition.lists, "it leaves at the end of the tick"
    await ticks()
    second = [coalescer.submit(partition.handle, item) for item in "de"]
    await ticks()
    third = coalescer.submit(partition.handle, "f")
    await ticks()
    assert partition.lists == [["a", "b", "c"]], "one list at a time"
    partition.answer()
    assert await asyncio.gather(*first) == ["A", "B", "C"]
    assert partition.lists[1:] == [["d", "e", "f"]]
    partition.answer()
    assert await asyncio.gather(*second, third) == ["D", "E", "F"]


async def test_partitions_do_not_wait_for_each_other() -> None:
    one, two = Partition(0), Partition(1)
    coalescer = Coalescer(start, decode)
    coalescer.submit(one.handle, "a")
    quick = coalescer.submit(two.handle, "b")
    await ticks()
    two.answer()
    assert await quick == "B"
    assert one.lists == [["a"]]


async def test_a_list_is_cut_by_items_and_by_bytes() -> None:
    partition = Partition()
    coalescer = Coalescer(start, decode)
    for _ in range(MAX_ITEMS + 1):
        coalescer.submit(partition.handle, "x")
    await ticks()
    partition.answer()
    await ticks()
    assert [len(items) for items in partition.lists] == [MAX_ITEMS, 1]
    partition.answer()
    await ticks()
    for _ in range(5):
        coalescer.submit(partition.handle, "x", MAX_BYTES // 2)
    await ticks()
    assert len(partition.lists[-1]) == 2


async def test_who_went_away_takes_the_item_along_only_while_it_waits() -> None:
    partition = Partition()
    coalescer = Coalescer(start, decode)
    gone, kept = coalescer.submit(partition.handle, "a"), coalescer.submit(partition.handle, "b")
    gone.cancel()
    await ticks()
    assert partition.lists == [["b"]]
    kept.cancel()
    behind = coalescer.submit(partition.handle, "c")
    partition.answer()
    await ticks()
    assert partition.lists == [["b"], ["c"]], "a reply that nobody awaits is no reason to stop"
    partition.answer()
    assert await behind == "C"


async def test_an_outage_fails_those_behind_it_too_and_then_is_over() -> None:
    partition = Partition()
    coalescer = Coalescer(start, decode)
    first = coalescer.submit(partition.handle, "a")
    await ticks()
    behind = coalescer.submit(partition.handle, "b")
    partition.answers[-1].set_exception(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable) as lost:
        await first
    with pytest.raises(StoreUnavailable) as never_sent:
        await behind
    assert (lost.value.maybe_applied, never_sent.value.maybe_applied) == (True, False)
    after = coalescer.submit(partition.handle, "c")
    await ticks()
    partition.answer()
    assert await after == "C"


async def test_a_script_that_fails_fails_its_list_alone() -> None:
    partition = Partition()
    coalescer = Coalescer(start, decode)
    first = coalescer.submit(partition.handle, "a")
    await ticks()
    behind = coalescer.submit(partition.handle, "b")
    partition.answers[-1].set_exception(ScriptFailed("x", "bug"))
    with pytest.raises(ScriptFailed):
        await first
    await ticks()
    partition.answer()
    assert await behind == "B"


async def test_a_store_that_closes_fails_what_is_under_way() -> None:
    partition = Partition()
    coalescer = Coalescer(start, decode)
    first = coalescer.submit(partition.handle, "a")
    await ticks()
    partition.answers[-1].cancel()
    with pytest.raises(StoreUnavailable):
        await first
