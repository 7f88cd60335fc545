"""A counter counts."""

from __future__ import annotations

from examples.counter import counter
from pawl import Client
from tests.stories.conftest import Working


async def test_a_counter_counts(client: Client, working: Working) -> None:
    async with working(counter):
        await client.create("clicks", counter)
        for expected in (2, 4, 6):
            sent = await client.send("clicks", {"add": 2}, wait=10)
            assert sent.result() == expected
        assert (await client.get("clicks")).state == {"count": 6}


async def test_sending_the_same_message_again_counts_once(client: Client, working: Working) -> None:
    async with working(counter):
        await client.create("clicks", counter)
        first = await client.send("clicks", {"add": 5}, id="click-1", wait=10)
        again = await client.send("clicks", {"add": 5}, id="click-1", wait=10)
        assert (again.turn, again.result()) == (first.turn, 5)
        assert (await client.get("clicks")).state == {"count": 5}


async def test_a_turn_that_continues_is_followed_by_another(client: Client, working: Working) -> None:
    async with working(counter):
        await client.create("clicks", counter)
        sent = await client.send("clicks", {"add": 1, "remaining": 4})
        turn = await client.await_turn("clicks", sent.turn, wait=10)
        while turn.continuation_turn:
            turn = await client.await_turn("clicks", turn.continuation_turn, wait=10)
        assert turn.result() == 4
        turns = [one async for one in client.list_turns("clicks")]
        assert [one.turn for one in turns] == [4, 3, 2, 1]
        assert [one.origin.kind for one in turns] == ["continuation"] * 3 + ["client"]
        assert turns[-1].continuation_turn == 2


async def test_a_message_waits_until_there_is_a_worker(client: Client, working: Working) -> None:
    await client.create("clicks", counter)
    sent = await client.send("clicks", {"add": 1}, wait=0)
    assert sent.outcome is not None
    assert sent.outcome.state == "QUEUED"
    async with working(counter):
        assert (await client.await_turn("clicks", sent.turn, wait=10)).result() == 1
