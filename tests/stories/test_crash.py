"""A crash replays only the unfinished turn, and only what it had not saved."""

from __future__ import annotations

from pathlib import Path

from pawl import Client, NewInstance
from tests.stories.conftest import Launch
from tests.support.wait import wait_until

ORDER = NewInstance("order", "v1", {"paid": 0})


async def test_a_crash_replays_only_the_unfinished_turn(
    client: Client, launch: Launch, story_folder: Path
) -> None:
    trace = story_folder / "trace"
    worker = launch("tests.stories.flows:order")
    first = await client.send("order-1", {"amount": 10}, create=ORDER, wait=20)
    assert first.result() == "shipped"

    # The second order is charged, and the worker is killed while it ships.
    (story_folder / "stop-before-shipping").touch()
    second = await client.send("order-1", {"amount": 20})
    await wait_until(lambda: trace.read_text().endswith("ship 20\n"))
    await worker.kill()
    (story_folder / "stop-before-shipping").unlink()

    launch("tests.stories.flows:order")
    turn = await client.await_turn("order-1", second.turn, wait=30)
    assert turn.result() == "shipped"
    # Nobody was charged twice: only the step that had been cut off ran again.
    assert trace.read_text().split("\n") == ["charge 10", "ship 10", "charge 20", "ship 20", "ship 20", ""]
    turn = await client.get_turn("order-1", second.turn)
    assert turn.attempt == 2
    assert [(step.key, step.attempt) for step in turn.steps] == [("charge", 1), ("ship", 2)]
    assert (await client.get("order-1")).state == {"paid": 30}


async def test_a_worker_that_is_told_to_stop_gives_its_turn_back_for_free(
    client: Client, launch: Launch, story_folder: Path
) -> None:
    trace = story_folder / "trace"
    (story_folder / "stop-before-shipping").touch()
    worker = launch("tests.stories.flows:order", "--grace", "0")
    sent = await client.send("order-2", {"amount": 7}, create=ORDER)
    await wait_until(lambda: trace.exists() and trace.read_text().endswith("ship 7\n"), timeout=20)
    assert await worker.stop() == 0

    (story_folder / "stop-before-shipping").unlink()
    launch("tests.stories.flows:order")
    assert (await client.await_turn("order-2", sent.turn, wait=20)).result() == "shipped"
    turn = await client.get_turn("order-2", sent.turn)
    assert turn.attempt == 1
    assert trace.read_text().count("charge") == 1
