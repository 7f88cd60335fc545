"""The examples run as they stand."""

from __future__ import annotations

import asyncio
import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from examples import article as article_module
from examples import counter as counter_module
from examples import document_pipeline
from examples.article import article
from examples.document_pipeline import ingest
from examples.stand_in import StandIn
from pawl import Client, NewInstance, Received, RetryPolicy, testing
from pawl.cli.main import main
from tests.stories.conftest import Working
from tests.support.wait import wait_until


async def test_the_document_pipeline(client: Client, working: Working, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See https://pawl.example/docs and https://pawl.example/docs again.\n")
    async with working(ingest):
        first = (await client.send("page", {"path": str(page)}, create=ingest, wait=20)).result()
        assert first["changed"]
        assert (first["words"], first["links"]) == (5, ["https://pawl.example/docs"])
        again = (await client.send("page", {"path": str(page)}, wait=20)).result()
        assert not again["changed"]
        assert (await client.get_turn("page", 2)).step_count == 1
        page.write_text("Changed.\n")
        changed = (await client.send("page", {"path": str(page)}, wait=20)).result()
        assert (changed["changed"], changed["words"]) == (True, 1)


async def test_the_document_pipeline_answers_for_a_file_that_is_not_there(
    client: Client, working: Working, tmp_path: Path
) -> None:
    page = tmp_path / "late.md"
    async with working(ingest):
        sent = await client.send("late", {"path": str(page)}, create=ingest, wait=20)
        assert sent.result() == {"error": f"no file {page}"}
        page.write_text("Here.\n")
        assert (await client.send("late", {"path": str(page)}, wait=20)).result()["changed"]


def run_command(*words: str) -> str:
    """Runs `pawl …`, and gives what it printed."""
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


async def in_state(client: Client, name: str, state: str, step: int) -> None:
    """Waits until the first turn is in a state, with so many steps saved."""

    async def there() -> bool:
        turn = await client.get_turn(name, 1)
        return (turn.state, turn.step_count) == (state, step)

    await wait_until(there, 20, f"{name} is {state}")


async def test_an_article_is_reviewed_by_a_person(
    client: Client, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_ADDRESS", client.address)
    stand_in = StandIn()
    monkeypatch.setattr(article_module, "stand_in", lambda: stand_in)
    async with working(article):
        await client.send("whales", {"topic": "whales"}, create=article)
        await in_state(client, "whales", "WAITING", 1)
        shown = await asyncio.to_thread(run_command, "respond", "whales")
        assert "signal review, until" in shown
        assert "Part 4 about whales." in shown
        await asyncio.to_thread(run_command, "respond", "whales", '"more songs"')
        await in_state(client, "whales", "WAITING", 3)
        await asyncio.to_thread(run_command, "respond", "whales", "true", "--sender", "ann")
        result = (await client.await_turn("whales", 1, wait=20)).result()
    turn = await client.get_turn("whales", 1)
    assert (result["delivered"], result["drafts"]) == (True, 2)
    assert [step.key for step in turn.steps] == ["draft-1", "review-1", "draft-2", "review-2", "deliver"]
    assert turn.signals[1].sender.name == "ann"
    (sent,) = stand_in.delivered.values()
    assert sent["parts"][3] == "Part 4 about whales. more songs."
    assert result["receipt"] == f"receipt-{sent['id'][:8]}"
    assert (await client.get("whales")).state == {"delivered": 1}
    stand_in.close()


async def test_an_article_goes_on_where_it_was(
    client: Client, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(StandIn):
        def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path == "/model" and body["part"] == 3 and len(self.asked) < 4:
                self.asked.append((path, body))
                raise ConnectionError("the model is away")
            return super().answer(path, body)

    stand_in = Broken()
    monkeypatch.setenv("MODEL_URL", f"{stand_in.url}/model")
    monkeypatch.setenv("TOOL_URL", f"{stand_in.url}/tool")
    policy = RetryPolicy(initial_delay=timedelta(milliseconds=1), max_delay=timedelta(milliseconds=1))
    async with working(article):
        await client.send("fish", {"topic": "fish", "parts": 3}, create=NewInstance(article, retry=policy))
        await in_state(client, "fish", "WAITING", 1)
        assert [body["part"] for _, body in stand_in.asked] == [1, 2, 3, 3, 3]
        await client.signal("fish", "review", True)
        turn = await client.await_turn("fish", 1, wait=20)
        assert (turn.result()["delivered"], turn.attempt) == (True, 3)
    stand_in.close()


async def test_nobody_reviews_an_article(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(article_module, "stand_in", lambda: stand_in)
    async with testing.server(virtual_time=True) as server, server.worker(article):
        sent = await server.client.send("late", {"topic": "late"}, create=article)
        await in_state(server.client, "late", "WAITING", 1)
        await server.advance(article_module.REVIEW_TIME)
        turn = await server.client.await_turn("late", sent.turn, wait=20)
    assert turn.result() == {"delivered": False, "why": "nobody reviewed it in time"}
    stand_in.close()


async def test_an_article_that_nobody_likes() -> None:
    notes = {f"review-{number}": Received(True, "no") for number in range(1, 4)}
    drafts = {f"draft-{number}": ["text"] for number in range(1, 4)}
    ran = await testing.run(article, {"topic": "sand"}, fakes=drafts, waits=notes)
    assert ran.result == {"delivered": False, "why": "3 drafts were sent back"}


@pytest.mark.parametrize("module", [counter_module, document_pipeline, article_module])
def test_the_commands_in_the_examples_are_understood(module: object) -> None:
    commands = re.findall(r"^(pawl .*)$", module.__doc__ or "", re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        _, name, *words = shlex.split(command)
        found = main.commands.get(name) or main.get_command(None, name)  # pyright: ignore[reportArgumentType]
        assert found is not None
        found.make_context(name, words)
