"""How handlers fail, and misuse of steps, which no handler can swallow."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import pawl
from pawl import Context, testing
from tests.sdk.handlers import Point, declare, failure, run


@pytest.mark.spec("R-SDK-5")
@pytest.mark.spec("R-SDK-5")
async def test_ordinary_exceptions_are_retried() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise ValueError("bad value")

    failed = await failure(handler)
    assert (failed.reason, failed.message, failed.non_retryable) == ("ValueError", "bad value", False)


@pytest.mark.spec("R-SDK-5")
@pytest.mark.spec("R-SDK-5")
async def test_workflow_errors_are_final() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise pawl.WorkflowError("no such card", reason="CARD_UNKNOWN", details={"card": 1})

    failed = await failure(handler)
    assert (failed.reason, failed.message, failed.non_retryable) == ("CARD_UNKNOWN", "no such card", True)
    assert failed.details == {"card": 1}


async def test_subclasses_name_themselves() -> None:
    class CardRefused(pawl.WorkflowError):
        pass

    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise CardRefused("no")

    failed = await failure(handler)
    assert (failed.reason, failed.non_retryable) == ("CardRefused", True)


async def test_long_texts_and_odd_reasons_are_mended() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise pawl.WorkflowError("ä" * 2000, reason="not a word", details="x" * 9000)

    failed = await failure(handler)
    assert failed.reason == "not_a_word"
    assert len(failed.message.encode()) == 2048
    assert failed.truncated
    assert failed.details is None


async def test_details_that_can_not_be_encoded_do_not_hide_the_error() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise pawl.WorkflowError("no", details=object())

    assert "details left out" in (await failure(handler)).message


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError("odd"), pawl.AttemptEnded("odd")])
async def test_control_flow_of_the_handler_itself_is_a_failure(error: BaseException) -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise error

    failed = await failure(handler)
    assert (failed.reason, failed.non_retryable) == (type(error).__name__, False)


@pytest.mark.parametrize("value", [None, {"count": 1}, 3])
async def test_a_handler_must_say_how_the_turn_ends(value: Any) -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        return value

    failed = await failure(handler)
    assert (failed.reason, failed.non_retryable) == ("StepError", True)
    assert "ctx.done" in failed.message


@pytest.mark.parametrize("part", ["state", "result", "continuation"])
async def test_ends_that_can_not_be_encoded(part: str) -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        if part == "continuation":
            return ctx.continue_with({}, object())
        return ctx.done(object() if part == "state" else {}, result=object())

    failed = await failure(handler)
    assert failed.non_retryable
    assert failed.message.startswith(f"{part} of turn 1")


async def test_a_step_that_can_not_be_encoded_is_final() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        await ctx.step("a", object)
        return ctx.done({})

    failed = await failure(handler)
    assert failed.non_retryable
    assert "'a'" in failed.message


async def test_a_step_timeout() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        await ctx.step("slow", lambda: asyncio.Event().wait(), timeout=0.1)
        return ctx.done({})

    failed = await failure(handler)
    assert (failed.reason, failed.non_retryable) == ("StepTimeout", False)


async def test_a_step_may_be_tried_again_in_place() -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        tries = iter([ValueError("first"), None])

        def flaky() -> str:
            if error := next(tries):
                raise error
            return "second"

        try:
            value = await ctx.step("a", flaky)
        except ValueError:
            value = await ctx.step("a", flaky)
        return ctx.done({}, result=value)

    assert (await run(handler)).result == "second"


def swallowing(body: Any) -> Any:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        try:
            await body(ctx)
        except Exception:
            return ctx.done({}, result="swallowed")
        return ctx.done({}, result="unnoticed")

    return handler


async def gathered(ctx: Context) -> None:
    await asyncio.gather(ctx.step("a", lambda: 1), ctx.step("b", lambda: 2))


async def in_tasks(ctx: Context) -> None:
    first = asyncio.ensure_future(ctx.step("a", lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    try:
        await ctx.step("b", lambda: 2)
    finally:
        first.cancel()


async def unawaited(ctx: Context) -> None:
    ctx.step("a", lambda: 1)


async def left_running(ctx: Context) -> None:
    task = asyncio.ensure_future(ctx.step("a", lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.2, task.cancel)


async def key_twice(ctx: Context) -> None:
    await ctx.step("a", lambda: 1)
    await ctx.step("a", lambda: 2)


async def after_a_failed_one(ctx: Context) -> None:
    def broken() -> None:
        raise ValueError

    try:
        await ctx.step("a", broken)
    except ValueError:
        await ctx.step("b", lambda: 1)


async def bad_key(ctx: Context) -> None:
    await ctx.step("a b", lambda: 1)


async def empty_key(ctx: Context) -> None:
    await ctx.step("", lambda: 1)


async def bad_timeout(ctx: Context) -> None:
    await ctx.step("a", lambda: 1, timeout=0.01)


async def two_parameters(ctx: Context) -> None:
    await ctx.step("a", cast("Any", lambda a, b: 1))


@pytest.mark.spec("R-SDK-4")
async def a_coroutine(ctx: Context) -> None:
    await ctx.step("a", cast("Any", asyncio.sleep(0)))


async def no_function(ctx: Context) -> None:
    await ctx.step("a", cast("Any", 3))


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (gathered, ["'a'", "'b'", "await each step"]),
        (in_tasks, ["'a'", "'b'", "await each step"]),
        (unawaited, ["'a'", "not awaited"]),
        (left_running, ["'a'", "was running"]),
        (key_twice, ["'a'", "twice"]),
        (after_a_failed_one, ["'a'", "'b'", "raised"]),
        (bad_key, ["'a b'"]),
        (empty_key, ["''"]),
        (bad_timeout, ["0.1 to 86,400"]),
        (two_parameters, ["'a'", "one step"]),
        (a_coroutine, ["'a'", "pass the function"]),
        (no_function, ["'a'", "not a callable"]),
    ],
)
@pytest.mark.spec("R-SDK-4")
async def test_misuse_is_refused_clearly(body: Any, texts: list[str]) -> None:
    failed = await failure(swallowing(body))
    assert (failed.reason, failed.non_retryable) == ("StepError", True)
    for text in texts:
        assert text in failed.message


@pytest.mark.spec("R-SDK-3")
@pytest.mark.parametrize(
    ("keys", "position", "expected", "got"),
    [
        (["b", "a"], 1, "a", "b"),
        (["a", "c", "b"], 2, "b", "c"),
        (["a"], 2, "b", None),
        ([], 1, "a", None),
    ],
)
@pytest.mark.spec("R-SDK-3")
async def test_changed_code_is_a_replay_error(
    keys: list[str], position: int, expected: str, got: str | None
) -> None:
    async def body(ctx: Context) -> None:
        for key in keys:
            await ctx.step(key, lambda: 1)

    ran = await testing.run(declare(swallowing(body)), None, steps={"a": 1, "b": 2}, attempt=2)
    assert ran.failure is not None
    assert (ran.failure.reason, ran.failure.non_retryable) == ("ReplayError", True)
    assert ran.failure.message == str(pawl.ReplayError(position, expected, got))


@pytest.mark.spec("R-SDK-12")
async def test_an_undecodable_saved_step_is_undecodable() -> None:
    def point() -> Point:
        return Point(1)

    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        await ctx.step("a", point)
        return ctx.done({})

    failed = await failure(handler, steps={"a": "no point"})
    assert (failed.reason, failed.non_retryable) == ("UNDECODABLE", False)
    assert "step 1 'a' of turn 1 of test" in failed.message


async def test_a_failure_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context, state: dict, message: Any) -> Any:
        raise ValueError("bad value")

    known = pawl.Failure("ValueError", "bad value", False, 1, None, False)
    await run(handler)
    await run(handler, attempt=2, last_failure=known)
    await run(handler, attempt=3, last_failure=known)
    first, second, last = caplog.records
    assert (first.levelname, second.levelname, last.levelname) == ("WARNING", "WARNING", "ERROR")
    assert (first.exc_info is not None, second.exc_info, last.exc_info) == (True, None, None)
    assert (
        first.getMessage() == "turn 1 of test failed in attempt 1 and is tried again: ValueError: bad value"
    )
    assert "failed for good in attempt 3, the instance is blocked: ValueError" in last.getMessage()


async def test_what_explains_itself_is_logged_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context, state: dict, message: Point) -> Any:
        raise pawl.WorkflowError("no")

    assert (await failure(handler, message={"x": "two"})).reason == "UNDECODABLE"
    assert (await failure(handler, message={"x": 2})).reason == "WorkflowError"
    assert [record.exc_info for record in caplog.records] == [None, None]
