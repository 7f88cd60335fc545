"""`pawl.testing.run`: what it gives, what stands in for steps, and what a replay finds."""

from __future__ import annotations

import itertools
import logging
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pawl
from pawl import Context, Defer, Origin, Step, SyncContext, testing, workflow
from pawl.models import SavedStep
from pawl.payloads import encode
from pawl.testing import SLEPT, NonDeterminism, UnusedNames
from tests.sdk.handlers import Point, run

HOUR = timedelta(hours=1)


def never(what: str) -> Any:
    raise AssertionError(f"{what} ran")


@workflow("order", version="v1", initial_state=0)
async def order(ctx: Context, state: int, message: dict) -> Any:
    price = await ctx.step("price", lambda: message["price"])
    await ctx.sleep("cool-off", HOUR)
    paid = await ctx.step("pay", lambda: price * 2)
    return ctx.done(state + paid, result=paid)


@workflow("sync-order", version="v1", initial_state=0)
def sync_order(ctx: SyncContext, state: int, message: dict) -> Any:
    price = ctx.step("price", lambda: message["price"])
    ctx.sleep("cool-off", HOUR)
    paid = ctx.step("pay", lambda: price * 2)
    return ctx.done(state + paid, result=paid)


@workflow("broke", version="v1")
async def broke(ctx: Context, state: None, message: dict) -> Any:
    await ctx.step("price", lambda: never("price"))
    await ctx.sleep("cool-off", HOUR)
    raise ArithmeticError


@workflow("sync-broke", version="v1")
def sync_broke(ctx: SyncContext, state: None, message: dict) -> Any:
    ctx.step("price", lambda: never("price"))
    ctx.sleep("cool-off", HOUR)
    raise ArithmeticError


class TestEndings:
    async def test_done_and_continue(self) -> None:
        ran = await run(lambda_handler(lambda ctx: ctx.done(1, result=2)))
        assert (ran.outcome, ran.state, ran.result, ran.continues) == ("done", 1, 2, False)
        ran = await run(lambda_handler(lambda ctx: ctx.continue_with(1, None)))
        assert (ran.outcome, ran.continues, ran.continuation) == ("continue", True, None)
        assert ran.continuation_payload == encode(None)

    async def test_a_failure_names_the_exception(self) -> None:
        error = pawl.RetryableError("later", delay=90)

        def fail(ctx: Any) -> Any:
            raise error

        ran = await run(lambda_handler(fail), state={"a": 1})
        assert (ran.outcome, ran.state, ran.result) == ("failed", {"a": 1}, None)
        assert ran.failure is not None
        assert (ran.failure.reason, ran.failure.message, ran.failure.non_retryable) == (
            "RetryableError",
            "later",
            False,
        )
        assert (ran.exception, ran.retry_delay) == (error, timedelta(seconds=90))

    @pytest.mark.parametrize("flow", [order, sync_order])
    async def test_a_sleep(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, {"price": 5}, state=1)
        assert (ran.outcome, ran.sleep, ran.state) == ("sleep", testing.Sleep("cool-off", HOUR), 1)
        assert ran.steps == {"price": 5}
        ran = await testing.run(flow, {"price": 5}, steps={"price": 7, "cool-off": SLEPT})
        assert (ran.outcome, ran.state, ran.steps, ran.sleep) == ("done", 14, {"pay": 14}, None)

    @pytest.mark.parametrize("flow", [order, sync_order])
    async def test_sleeps_may_be_over_at_once(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, {"price": 5}, wake=True, replay=True)
        assert (ran.outcome, ran.result, ran.slept) == ("done", 10, (testing.Sleep("cool-off", HOUR),))
        assert ran.steps == {"price": 5, "pay": 10}

    async def test_a_deferral(self) -> None:
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda: 1)
            raise Defer(HOUR, reason="busy")

        ran = await run(handler, replay=True)
        assert (ran.outcome, ran.deferral) == ("defer", testing.Deferral(HOUR, "busy"))
        assert ran.steps == {"a": 1}

    def test_without_an_event_loop(self) -> None:
        assert testing.run_sync(sync_order, {"price": 5}, wake=True).result == 10
        assert testing.run_sync(order, {"price": 5}, wake=True).result == 10


class TestWhatTheHandlerSees:
    async def test_the_turn(self) -> None:
        seen: dict[str, Any] = {}

        def look(ctx: Any) -> Any:
            for name in ("instance_id", "turn", "message_id", "attempt", "max_attempts", "origin"):
                seen[name] = getattr(ctx, name)
            seen["now"] = ctx.now()
            seen["failure"] = ctx.last_failure
            return ctx.done(None)

        origin = Origin("continuation", turn=3, message_id="m-3")
        last = pawl.Failure("BROKEN", "it was", False, 3, None, False)
        when = datetime(2030, 1, 1, tzinfo=UTC)
        await run(
            lambda_handler(look),
            instance_id="i",
            turn=4,
            message_id="continue-3",
            attempt=4,
            origin=origin,
            last_failure=last,
            admit_time=when,
        )
        assert seen["origin"] == origin
        assert (seen["instance_id"], seen["turn"], seen["message_id"]) == ("i", 4, "continue-3")
        assert (seen["attempt"], seen["max_attempts"]) == (4, 4)
        assert timedelta(0) <= seen["now"] - when < timedelta(milliseconds=1)
        assert (seen["failure"].reason, seen["failure"].attempt) == ("BROKEN", 3)
        await run(lambda_handler(look), origin=b"me")
        assert seen["origin"] == Origin("client", client=b"me")
        await run(lambda_handler(look), origin=Origin("redrive", turn=9, message_id="m-9"))
        assert seen["origin"] == Origin("redrive", turn=9, message_id="m-9")

    async def test_effect_ids_are_those_of_a_server(self) -> None:
        seen: list[str] = []

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda step: seen.append(step.effect_id))
            return ctx.done(None)

        await run(handler, instance_id="i", message_id="m", namespace="shop")
        assert seen == [pawl.effect_id("shop", 1, "i", "m", "a")]

    async def test_steps_of_a_turn_that_was_read(self) -> None:
        saved = [
            SavedStep(1, "price", "step", None, 1, encode(3)),
            SavedStep(2, "cool-off", "sleep", None, 1, encode(None)),
        ]
        ran = await testing.run(order, encode({"price": 5}), state=encode(4), steps=saved)
        assert (ran.state, ran.steps) == (10, {"pay": 6})

    async def test_what_was_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            ctx.log.debug("before %s", "a")
            await ctx.step("a", lambda: 1)
            ctx.log.warning("after")
            return ctx.done(None)

        with caplog.at_level(logging.WARNING, "pawl.workflow.test"):
            ran = await run(handler)
        assert [(each.levelname, each.getMessage()) for each in ran.logs] == [
            ("DEBUG", "before a"),
            ("WARNING", "after"),
        ]
        assert ran.logs[0].__dict__["instance_id"] == "test"
        # Logging itself sees what it would see in a worker.
        assert [each.getMessage() for each in caplog.records if each.name == "pawl.workflow.test"] == [
            "after"
        ]
        assert [each.getMessage() for each in (await run(handler, steps={"a": 1})).logs] == ["after"]


class TestFakes:
    @pytest.mark.parametrize("flow", [order, sync_order])
    async def test_values_functions_and_exceptions(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, {}, fakes={"price": 4, "pay": lambda: 50}, wake=True)
        assert (ran.result, ran.steps) == (50, {"price": 4, "pay": 50})
        ran = await testing.run(flow, {}, fakes={"price": 4, "pay": lambda step: step.key}, wake=True)
        assert ran.steps["pay"] == "pay"
        ran = await testing.run(flow, {}, fakes={"price": ValueError("no price")})
        assert ran.failure is not None
        assert (ran.outcome, ran.failure.reason, ran.failure.message) == ("failed", "ValueError", "no price")
        ran = await testing.run(flow, {}, fakes={"price": pawl.WorkflowError})
        assert ran.failure is not None
        assert ran.failure.non_retryable

    async def test_values_come_back_as_the_step_is_annotated(self) -> None:
        def locate() -> Point:
            return never("locate")

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            first = await ctx.step("a", locate)
            second = await ctx.step("b", lambda: never("b"), returns=Point)
            return ctx.done(None, result=[first.x, second.y])

        ran = await run(handler, fakes={"a": {"x": 3}, "b": Point(1, 5)})
        assert ran.failure is None
        assert ran.result == [3, 5]
        ran = await run(handler, fakes={"a": {"z": 3}})
        assert ran.failure is not None

    async def test_async_functions_and_their_time(self) -> None:
        async def slow(step: Step) -> str:
            return step.effect_id

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            return ctx.done(None, result=await ctx.step("a", lambda: never("a")))

        assert len((await run(handler, fakes={"a": slow})).result) == 32

    async def test_rules_of_steps_hold_for_fakes(self) -> None:
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda: 1)
            await ctx.step("a", lambda: 2)

        ran = await run(handler, fakes={"a": 1})
        assert ran.failure is not None
        assert "used twice" in ran.failure.message

        async def coroutine() -> None:
            never("coroutine")

        async def wrong(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", coroutine())  # pyright: ignore[reportCallIssue, reportArgumentType]

        ran = await run(wrong, fakes={"a": 1})
        assert ran.failure is not None
        assert "was given a coroutine" in ran.failure.message


@pytest.mark.spec("R-SDK-17")
@pytest.mark.spec("R-SDK-18")
class TestUnusedNames:
    @pytest.mark.parametrize("flow", [order, sync_order])
    async def test_fakes_of_a_turn_that_is_done(self, flow: Any) -> None:
        with pytest.raises(UnusedNames) as caught:
            await testing.run(flow, {}, fakes={"prise": 4, "price": 4, "cool-off": 1, "pay": 1}, wake=True)
        assert (caught.value.names, caught.value.keys) == (("prise", "cool-off"), ("price", "pay"))
        says = f"fakes has 'prise', 'cool-off', but the handler of {flow.name!r} asked for 'price', 'pay'"
        assert str(caught.value) == says

    async def test_fakes_of_a_turn_without_steps(self) -> None:
        with pytest.raises(UnusedNames, match="asked for no step"):
            await run(lambda_handler(lambda ctx: ctx.continue_with(1, None)), fakes={"a": 1})

    async def test_fakes_that_are_to_come_later(self) -> None:
        fakes: dict[str, Any] = {"price": 4, "pay": 1}
        assert (await testing.run(order, {}, fakes=fakes)).outcome == "sleep"
        assert (await testing.run(order, {}, fakes=fakes | {"price": ValueError()})).outcome == "failed"

    async def test_fakes_of_saved_steps(self) -> None:
        ran = await testing.run(
            order, {}, steps={"price": 7, "cool-off": SLEPT}, fakes={"price": 1, "pay": 2}
        )
        assert (ran.outcome, ran.result) == ("done", 2)

    @pytest.mark.parametrize("flow", [broke, sync_broke])
    async def test_saved_steps_of_an_attempt_that_fails(self, flow: Any) -> None:
        saved = {"price": 7, "cool-off": SLEPT}
        assert (await testing.run(flow, {}, steps=saved)).outcome == "failed"
        with pytest.raises(UnusedNames, match="steps has 'pay'") as caught:
            await testing.run(flow, {}, steps=saved | {"pay": 1})
        assert (caught.value.names, caught.value.keys) == (("pay",), ("price", "cool-off"))
        assert isinstance(caught.value.__cause__, ArithmeticError)

    async def test_saved_steps_that_come_in_another_place_are_a_failure(self) -> None:
        ran = await testing.run(order, {}, steps={"prise": 7})
        assert (ran.failure.reason if ran.failure else "") == "ReplayError"


class TestReplays:
    async def test_a_sound_handler_passes_and_its_steps_run_once(self) -> None:
        count = itertools.count(1)

        async def handler(ctx: Context, state: dict, message: Any) -> Any:
            first = await ctx.step("a", lambda: next(count))
            drawn = (str(ctx.uuid()), ctx.random().random(), ctx.now().isoformat())
            second = await ctx.step("b", random.random)
            try:
                await ctx.step("c", lambda: never("c"))
            except AssertionError:
                await ctx.step("c", lambda: "mended")
            return ctx.continue_with({"a": first, "b": second, "d": drawn}, {"n": 1}, result=first)

        ran = await run(handler, replay=True)
        assert ran.outcome == "continue"
        assert next(count) == 2

    @pytest.mark.parametrize("kind", ["async", "sync"])
    async def test_values_from_outside_are_found(self, kind: str) -> None:
        count = itertools.count(1)

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda: 1)
            return ctx.done({"n": next(count)})

        def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
            ctx.step("a", lambda: 1)
            return ctx.done({"n": next(count)})

        flow = handler if kind == "async" else sync_handler
        with pytest.raises(
            NonDeterminism, match=r"0 of 1 steps saved, its state was \{'n': 2\}, not"
        ) as caught:
            await run(flow, replay=True)
        assert caught.value.saved == 0

    async def test_another_result_or_continuation_is_found(self) -> None:
        count = itertools.count(1)
        with pytest.raises(NonDeterminism, match="its result was 2, not 1"):
            await run(lambda_handler(lambda ctx: ctx.done(None, result=next(count))), replay=True)
        with pytest.raises(NonDeterminism, match="its continuation was 4, not 3"):
            await run(lambda_handler(lambda ctx: ctx.continue_with(None, next(count))), replay=True)
        with pytest.raises(NonDeterminism, match="its result was 6, not absent"):
            await run(
                lambda_handler(lambda ctx: ctx.done(None, result=None if next(count) == 5 else 6)),
                replay=True,
            )

    async def test_another_step_is_found(self) -> None:
        count = itertools.count(1)

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda: 1)
            await ctx.step(f"b-{next(count)}", lambda: 1)
            return ctx.done(None)

        with pytest.raises(
            NonDeterminism, match="it asked for step 'b-2', for which it had not asked before"
        ):
            await run(handler, replay=True)

    async def test_another_order_is_found(self) -> None:
        orders = itertools.cycle([("a", "b"), ("b", "a")])

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            for key in next(orders):
                await ctx.step(key, lambda: 1)
            return ctx.done(None)

        with pytest.raises(NonDeterminism, match="step 'b' came at position 1, where step 'a' had been"):
            await run(handler, replay=True)

    async def test_steps_left_out_are_found(self) -> None:
        first = iter([True])

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda: 1)
            if next(first, False):
                await ctx.step("b", lambda: 1)
            return ctx.done(None)

        with pytest.raises(NonDeterminism, match="0 of 2 steps saved, it did not ask for step 'b'"):
            await run(handler, replay=True)

    async def test_an_interruption_in_the_middle_is_found(self) -> None:
        @dataclass
        class Cache:
            price: int | None = None

        cache = Cache()

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            if not ctx.replaying:
                cache.price = 5
            else:
                cache.price = None
            await ctx.step("a", lambda: 1)
            return ctx.done(None, result=cache.price)

        with pytest.raises(NonDeterminism, match="1 of 1 steps saved, its result was absent, not 5"):
            await run(handler, replay=True)

    async def test_another_ending_is_found(self) -> None:
        first = iter([True])

        def handler(ctx: Any) -> Any:
            if next(first, False):
                raise Defer(60)
            raise ValueError("no")

        with pytest.raises(
            NonDeterminism, match="ended with the failure ValueError: no, not with being put off"
        ):
            await run(lambda_handler(handler), replay=True)
        count = itertools.count(1)

        async def sleeping(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.sleep("nap", next(count))

        with pytest.raises(NonDeterminism, match="sleep 'nap' of 0:00:02, not with sleep 'nap' of 0:00:01"):
            await run(sleeping, replay=True)

    async def test_a_step_that_fails_fails_in_every_replay(self) -> None:
        count = itertools.count(1)

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", lambda: 1)
            await ctx.step("b", lambda: never(f"b {next(count)}"))

        ran = await run(handler, replay=True)
        assert ran.failure is not None
        assert (ran.failure.message, next(count)) == ("b 1 ran", 2)

    async def test_saved_steps_and_sleeps_are_part_of_it(self) -> None:
        ran = await testing.run(order, {}, steps={"price": 7, "cool-off": SLEPT}, replay=True)
        assert ran.result == 14
        ran = await testing.run(order, {"price": 5}, replay=True)
        assert ran.outcome == "sleep"


def lambda_handler(end: Any) -> Any:
    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        return end(ctx)

    return handler
