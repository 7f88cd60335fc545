"""A message can bring its instance with it."""

from __future__ import annotations

import asyncio

import pytest

from examples.counter import counter
from pawl import BodyConflict, Client, NewInstance, NotFound
from tests.stories.conftest import Working


async def test_upsert_and_send(client: Client, working: Working) -> None:
    with pytest.raises(NotFound):
        await client.send("new", {"add": 1})
    async with working(counter):
        first = await client.send("new", {"add": 1}, create=counter, wait=10)
        second = await client.send("new", {"add": 1}, create=counter, wait=10)
    assert (first.result(), second.result()) == (1, 2)


async def test_many_senders_make_one_instance(client: Client, working: Working) -> None:
    async with working(counter):
        await asyncio.gather(*(client.send("shared", {"add": 1}, create=counter) for _ in range(30)))
        await client.await_turn("shared", 30, wait=20)
    assert (await client.get("shared")).state == {"count": 30}
    assert [instance.id async for instance in client.list(counter)] == ["shared"]


async def test_an_instance_of_another_kind_is_not_touched(client: Client) -> None:
    await client.create("taken", "invoice", version="v1", state={"total": 1})
    with pytest.raises(BodyConflict):
        await client.send("taken", {"add": 1}, create=counter)
    with pytest.raises(BodyConflict):
        await client.send("taken", {"add": 1}, create=NewInstance("invoice", "v2"))
    assert (await client.get("taken")).last_turn == 0
    # With the right type and version its present state does not matter.
    await client.send("taken", {"add": 1}, create=NewInstance("invoice", "v1", {"total": 99}))
    assert (await client.get("taken")).state == {"total": 1}
