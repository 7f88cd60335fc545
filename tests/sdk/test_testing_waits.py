"""`pawl.testing.run`: what waits receive, and what steps report."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import pawl
from pawl import CallbackRejected, Context, Received, Step, SyncContext, testing, workflow
from pawl.models import SavedStep
from pawl.payloads import Payload, encode
from pawl.testing import TIMED_OUT, NonDeterminism, UnusedNames, Wait
from pawl.v1.failure_pb2 import Failure as FailureMessage
from tests.sdk.handlers import Point, run

DAY = timedelta(days=1)
NO = pawl.Failure("NO", "not this one", False, 0, None, False, encode({"n": 3}))

pytestmark = pytest.mark.spec("R-SDK-49")


@workflow("approval", version="v1")
async def approval(ctx: Context, state: None, message: Any) -> Any:
    asked = await ctx.step("ask", lambda: "asked")
    got = await ctx.wait_for_signal("review", name="reviewed", timeout=DAY)
    said = await ctx.step("tell", lambda: [asked, got.received, got.value])
    return ctx.done(None, result=said)


@workflow("sync-approval", version="v1")
def sync_approval(ctx: SyncContext, state: None, message: Any) -> Any:
    asked = ctx.step("ask", lambda: "asked")
    got = ctx.wait_for_signal("review", name="reviewed", timeout=DAY)
    said = ctx.step("tell", lambda: [asked, got.received, got.value])
    return ctx.done(None, result=said)


@workflow("calling", version="v1")
async def calling(ctx: Context, state: None, message: Any) -> Any:
    callback = ctx.callback("pay")
    await ctx.step("order", lambda: callback.token)
    try:
        return ctx.done(None, result=await callback.result(timeout=DAY))
    except CallbackRejected as error:
        return ctx.done(None, result=["rejected", error.failure.reason, error.failure.details])


@workflow("sync-calling", version="v1")
def sync_calling(ctx: SyncContext, state: None, message: Any) -> Any:
    callback = ctx.callback("pay")
    ctx.step("order", lambda: callback.token)
    try:
        return ctx.done(None, result=callback.result(timeout=DAY))
    except CallbackRejected as error:
        return ctx.done(None, result=["rejected", error.failure.reason, error.failure.details])


approvals = pytest.mark.parametrize("flow", [approval, sync_approval])
callings = pytest.mark.parametrize("flow", [calling, sync_calling])
REVIEW = Wait("review", "reviewed", callback=False, timeout=DAY)
PAY = Wait("pay", "", callback=True, timeout=DAY)


class TestSignals:
    @approvals
    async def test_the_turn_waits(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, None, replay=True)
        assert (ran.outcome, ran.wait, ran.waited) == ("wait", REVIEW, ())
        assert ran.steps == {"ask": "asked"}
        assert (ran.failure, ran.exception) == (None, None)

    @approvals
    @pytest.mark.parametrize("value", [{"ok": True}, None, [1]])
    async def test_a_value_is_there_already(self, flow: pawl.Workflow, value: Any) -> None:
        for given in (value, encode(value), Received(True, value)):
            ran = await testing.run(flow, None, waits={"review": given}, replay=True)
            assert (ran.outcome, ran.result) == ("done", ["asked", True, value])
            assert (ran.wait, ran.waited) == (None, (REVIEW,))
        assert ran.steps == {"ask": "asked", "tell": ["asked", True, value]}

    @approvals
    @pytest.mark.parametrize("given", [TIMED_OUT, Received(False)])
    async def test_the_time_is_over_first(self, flow: pawl.Workflow, given: Any) -> None:
        ran = await testing.run(flow, None, waits={"review": given}, replay=True)
        assert (ran.outcome, ran.result, ran.waited) == ("done", ["asked", False, None], (REVIEW,))

    async def test_the_handler_starts_over_when_the_time_is_over(self) -> None:
        begun = itertools.count(1)

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            number = next(begun)
            got = await ctx.wait_for_signal("a", timeout=1)
            return ctx.done(None, result=[number, got.received])

        assert (await run(handler, waits={"a": 1})).result == [1, True]
        assert (await run(handler, waits={"a": TIMED_OUT})).result == [3, False]

    @approvals
    async def test_saved_waits(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, None, steps={"ask": 1, "review": Received(True, 2)}, replay=True)
        assert (ran.result, ran.waited, ran.steps) == ([1, True, 2], (), {"tell": [1, True, 2]})
        for over in (TIMED_OUT, Received(False)):
            ran = await testing.run(flow, None, steps={"ask": 1, "review": over}, replay=True)
            assert ran.result == [1, False, None]

    @approvals
    async def test_waits_of_a_turn_that_was_read(self, flow: pawl.Workflow) -> None:
        first = SavedStep(1, "ask", "step", None, 1, encode(1))
        received = SavedStep(2, "review", "signal", None, 1, encode(2), wait_outcome="RECEIVED")
        over = SavedStep(2, "review", "signal", None, 1, Payload(), wait_outcome="TIMED_OUT")
        ran = await testing.run(flow, None, steps=[first, received], replay=True)
        assert ran.result == [1, True, 2]
        ran = await testing.run(flow, None, steps=[first, over], replay=True)
        assert ran.result == [1, False, None]

    async def test_the_value_is_built_as_asked(self) -> None:
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            got = await ctx.wait_for_signal("a", returns=Point)
            return ctx.done(None, result=got.value.y)

        assert (await run(handler, waits={"a": Point(1, 5)}, replay=True)).result == 5
        ran = await run(handler, waits={"a": {"z": 1}})
        assert (ran.outcome, ran.failure and ran.failure.reason) == ("failed", "UNDECODABLE")
        assert (await run(handler)).wait == Wait("a", "a", callback=False, timeout=None)

    @pytest.mark.parametrize("sync", [False, True])
    async def test_a_handler_that_swallows_its_end_waits_all_the_same(self, sync: bool) -> None:
        unwound: list[str] = []

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            try:
                await ctx.wait_for_signal("a")
            except BaseException:
                unwound.append("a")
                raise ValueError from None

        def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
            try:
                ctx.wait_for_signal("a")
            except BaseException:
                unwound.append("a")
                return ctx.done(None)

        ran = await run(sync_handler if sync else handler)
        assert (ran.outcome, ran.failure, unwound) == ("wait", None, ["a"])


class TestCallbacks:
    @callings
    async def test_the_turn_waits(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, None, replay=True)
        assert (ran.outcome, ran.wait) == ("wait", PAY)
        assert ran.steps == {"order": "cb1test.pay"}

    @callings
    async def test_a_result(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, None, waits={"pay": "paid"}, replay=True)
        assert (ran.result, ran.waited) == ("paid", (PAY,))
        ran = await testing.run(flow, None, steps={"order": "x", "pay": Received(True, "paid")})
        assert ran.result == "paid"

    @callings
    @pytest.mark.parametrize("given", [NO, CallbackRejected("other", NO)])
    async def test_a_rejection(self, flow: pawl.Workflow, given: Any) -> None:
        ran = await testing.run(flow, None, waits={"pay": given}, replay=True)
        assert (ran.result, ran.waited) == (["rejected", "NO", {"n": 3}], (PAY,))
        ran = await testing.run(flow, None, steps={"order": "x", "pay": given}, replay=True)
        assert ran.result == ["rejected", "NO", {"n": 3}]

    @callings
    async def test_a_rejection_that_was_read(self, flow: pawl.Workflow) -> None:
        data = FailureMessage(reason="NO").SerializeToString()
        rejection = Payload(encoding="pawl/failure", data=data)
        saved = [
            SavedStep(1, "order", "step", None, 1, encode("x")),
            SavedStep(2, "pay", "callback", None, 1, rejection, wait_outcome="REJECTED"),
        ]
        ran = await testing.run(flow, None, steps=saved, replay=True)
        assert ran.result == ["rejected", "NO", None]

    @callings
    async def test_the_time_is_over_first(self, flow: pawl.Workflow) -> None:
        ran = await testing.run(flow, None, waits={"pay": TIMED_OUT}, replay=True)
        assert ran.failure is not None
        assert (ran.outcome, ran.failure.reason) == ("failed", "CallbackTimeout")
        assert isinstance(ran.exception, pawl.CallbackTimeout)


class TestMistakes:
    @approvals
    async def test_unused_names(self, flow: pawl.Workflow) -> None:
        with pytest.raises(UnusedNames, match="waits has 'reviewed', 'ask', but") as caught:
            await testing.run(flow, None, waits={"review": 1, "reviewed": 2, "ask": 3})
        assert (caught.value.names, caught.value.keys) == (("reviewed", "ask"), ("review",))
        with pytest.raises(UnusedNames, match="fakes has 'review'"):
            await testing.run(flow, None, waits={"review": 1}, fakes={"review": 1})
        # The turn may come to it later.
        assert (await testing.run(flow, None, waits={"later": 1})).outcome == "wait"

    async def test_unused_names_of_a_turn_without_waits(self) -> None:
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            return ctx.done(None)

        with pytest.raises(UnusedNames, match="asked for no wait"):
            await run(handler, waits={"a": 1})

    @approvals
    @pytest.mark.parametrize("given", [NO, CallbackRejected("review", NO)])
    async def test_a_signal_is_not_rejected(self, flow: pawl.Workflow, given: Any) -> None:
        with pytest.raises(ValueError, match="waits has 'review' rejected, but it waits for a signal"):
            await testing.run(flow, None, waits={"review": given})
        with pytest.raises(ValueError, match="steps has 'review' rejected"):
            await testing.run(flow, None, steps={"ask": 1, "review": given})

    async def test_a_wait_without_end_does_not_time_out(self) -> None:
        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.wait_for_signal("a")

        def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
            ctx.wait_for_callback("a")

        for each in (handler, sync_handler):
            with pytest.raises(ValueError, match="waits has 'a' timed out, but it waits without end"):
                await run(each, waits={"a": TIMED_OUT})
            with pytest.raises(ValueError, match="steps has 'a' timed out"):
                await run(each, steps={"a": TIMED_OUT})

    async def test_a_saved_step_is_no_wait(self) -> None:
        ran = await testing.run(approval, None, steps={"ask": 1, "review": 2})
        assert ran.failure is not None
        assert ran.failure.message == (
            "'review' was saved as a step of kind 'step', and is a wait for a signal now"
        )
        ran = await testing.run(approval, None, steps={"ask": Received(True, 2)})
        assert ran.failure is not None
        assert "is a step now" in ran.failure.message
        # A step may be of any kind, by chance of this one too.
        named = [SavedStep(1, "ask", "wait", None, 1, encode(1))]
        assert (await testing.run(approval, None, steps=named)).outcome == "wait"


class TestReplays:
    async def test_another_wait_is_found(self) -> None:
        count = itertools.count(1)

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.wait_for_signal("a", name=f"a-{next(count)}", timeout=5)

        with pytest.raises(
            NonDeterminism, match="wait 'a' for signal 'a-2' for 0:00:05, not with wait 'a' for signal 'a-1'"
        ):
            await run(handler, replay=True)

    async def test_a_wait_in_place_of_a_step_is_found(self) -> None:
        first = iter([True])

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            if next(first, False):
                await ctx.wait_for_signal("a")
            else:
                await ctx.wait_for_callback("a")
            return ctx.done(None)

        what = "wait for a callback 'a' came at position 1, where wait for a signal 'a' had been"
        with pytest.raises(NonDeterminism, match=what):
            await run(handler, waits={"a": 1}, replay=True)

    async def test_what_a_handler_keeps_outside_is_found_after_a_wait(self) -> None:
        kept: list[Any] = []

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            if not ctx.replaying:
                kept.append(1)
            got = await ctx.wait_for_signal("a", timeout=5)
            return ctx.done(None, result=[len(kept), got.received])

        with pytest.raises(NonDeterminism, match="0 of 1 steps saved, its result"):
            await run(handler, waits={"a": 1}, replay=True)


def uploading(sync: bool, **options: Any) -> Callable[..., Any]:
    """A handler whose step reports, and takes up where it was."""

    def upload(step: Step) -> int:
        done = step.checkpoint or 0
        step.heartbeat()
        for part in range(done, 3):
            step.progress("sending", part + 1, 3, unit="parts")
            step.heartbeat({"part": part}, checkpoint=part + 1)
        step.heartbeat("all")
        return step.checkpoint - done

    async def handler(ctx: Context, state: Any, message: Any) -> Any:
        return ctx.done(None, result=await ctx.step("upload", upload, **options))

    def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
        return ctx.done(None, result=ctx.step("upload", upload, **options))

    return sync_handler if sync else handler


@pytest.mark.parametrize("sync", [False, True])
class TestReports:
    @pytest.mark.parametrize("options", [{}, {"heartbeat_timeout": 5.0}, {"on_restart": "park"}])
    async def test_reports_in_order(self, sync: bool, options: dict[str, Any]) -> None:
        ran = await run(uploading(sync, **options), replay=True)
        assert ran.result == 3
        assert ran.progress == tuple(
            testing.ProgressReport("upload", "sending", n, 3, "parts") for n in (1, 2, 3)
        )
        assert ran.heartbeats == (
            testing.Heartbeat("upload", None, None),
            *(testing.Heartbeat("upload", {"part": n}, n + 1) for n in (0, 1, 2)),
            testing.Heartbeat("upload", "all", 3),
        )

    async def test_a_step_goes_on_where_it_was(self, sync: bool) -> None:
        ran = await run(uploading(sync), resume={"upload": 2}, replay=True)
        assert (ran.result, [report.done for report in ran.progress]) == (1, [3])
        with pytest.raises(UnusedNames, match=r"resume has 'download', but .* asked for 'upload'"):
            await run(uploading(sync), resume={"download": 2})
        with pytest.raises(ValueError, match="resume has 2 keys"):
            await run(uploading(sync), resume={"upload": 2, "b": 1})

    async def test_a_report_out_of_range_fails_the_step(self, sync: bool) -> None:
        def work(step: Step) -> None:
            step.progress("begin")
            step.progress("")

        async def handler(ctx: Context, state: Any, message: Any) -> Any:
            await ctx.step("a", work)

        def sync_handler(ctx: SyncContext, state: Any, message: Any) -> Any:
            ctx.step("a", work)

        ran = await run(sync_handler if sync else handler)
        assert ran.failure is not None
        assert "phase must be text" in ran.failure.message
        assert [report.phase for report in ran.progress] == ["begin"]
