"""What fails is tried again, until it succeeds or is given up; then it blocks nobody else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pawl import Client, Context, Outcome, RetryPolicy, TurnFailed, WorkflowError, WorkflowType, workflow
from tests.stories.conftest import Working
from tests.support.wait import wait_until

QUICK = RetryPolicy(initial_delay=timedelta(milliseconds=1), max_delay=timedelta(milliseconds=10))


async def test_a_failed_step_is_retried(client: Client, working: Working) -> None:
    calls: list[str] = []

    @workflow("fragile", version="v1")
    async def fragile(ctx: Context, state: Any, message: Any) -> Outcome:
        def prepare() -> str:
            calls.append("prepare")
            return "ready"

        def risky() -> str:
            calls.append("risky")
            if len(calls) < 4:
                raise ConnectionError("the other side was away")
            return "done"

        ready = await ctx.step("prepare", prepare)
        return ctx.done(None, result=[ready, await ctx.step("risky", risky), ctx.attempt])

    await client.put_workflow_type(WorkflowType("fragile", retry=QUICK))
    async with working(fragile):
        sent = await client.send("thing", None, create=fragile, wait=20)
    assert sent.result() == ["ready", "done", 3]
    assert calls == ["prepare", "risky", "risky", "risky"]


async def test_an_error_that_will_not_go_away_is_not_retried(client: Client, working: Working) -> None:
    @workflow("refusing", version="v1")
    async def refusing(ctx: Context, state: Any, message: Any) -> Outcome:
        if message == "bad":
            raise WorkflowError("no such account", reason="NO_ACCOUNT")
        return ctx.done(message)

    async with working(refusing):
        bad = await client.send("one", "bad", create=refusing, wait=20)
        with pytest.raises(TurnFailed, match="NO_ACCOUNT: no such account"):
            bad.result()
        assert bad.outcome is not None
        assert bad.outcome.attempt == 1
        # Its inbox is blocked until somebody decides; every other instance goes on.
        behind = await client.send("one", "good")
        assert (await client.get("one")).status == "BLOCKED"
        assert (await client.send("two", "good", create=refusing, wait=20)).outcome is not None
        assert (await client.get("two")).state == "good"
        assert (await client.get_turn("one", behind.turn)).state == "QUEUED"


async def test_attempts_run_out(client: Client, working: Working) -> None:
    attempts: list[int] = []

    @workflow("hopeless", version="v1", max_attempts=2)
    async def hopeless(ctx: Context, state: Any, message: Any) -> Outcome:
        attempts.append(ctx.attempt)
        raise ConnectionError("still away")

    await client.put_workflow_type(WorkflowType("hopeless", retry=QUICK, max_attempts=2))
    async with working(hopeless):
        sent = await client.send("thing", None, create=hopeless, wait=20)
    with pytest.raises(TurnFailed, match="still away"):
        sent.result()
    assert attempts == [1, 2]


async def test_the_next_attempt_knows_why_the_last_one_failed(client: Client, working: Working) -> None:
    @workflow("learning", version="v1")
    async def learning(ctx: Context, state: Any, message: Any) -> Outcome:
        if ctx.last_failure is None:
            raise TimeoutError("too slow")
        return ctx.done(None, result=f"{ctx.last_failure.reason}: {ctx.last_failure.message}")

    await client.put_workflow_type(WorkflowType("learning", retry=QUICK))
    async with working(learning):
        sent = await client.send("thing", None, create=learning)
        await wait_until(lambda: _is_finished(client, sent.turn), timeout=20)
    assert (await client.get_turn("thing", sent.turn)).reply == "TimeoutError: too slow"


async def _is_finished(client: Client, turn: int) -> bool:
    return (await client.get_turn("thing", turn)).finished
