"""Commands on a stream: order, repeats, refusals, and what a finish claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_pb2 import (
    TURN_STATE_COMPLETED,
    TURN_STATE_FAILED,
    TURN_STATE_RUNNING,
    Turn,
)
from pawl.v1.turn_service_pb2 import GetTurnRequest
from tests.support.api import CALL_S, Api, json
from tests.support.stream import Stream, checkpoint, fail, finish, refusal, release, started


async def turn_of(api: Api, instance_id: str, turn: int = 1) -> Turn:
    """A turn as GetTurn shows it."""
    request = GetTurnRequest(instance_id=instance_id, turn=turn)
    return (await api.turns.GetTurn(request, timeout=CALL_S)).turn


@pytest.mark.spec("R-LEASE-1")
async def test_a_turn_carries_what_it_needs(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        await api.create("a", state=json(b"0"), max_attempts=5)
        await api.send("a", "m1", b"hello", origin=b"me")
        turn = await stream.turn()
        assert (turn.instance_id, turn.workflow_type, turn.version, turn.turn) == ("a", "t", "v1", 1)
        assert (turn.message_id, turn.message.data, turn.message.encoding) == ("m1", b"hello", "json")
        assert (turn.state.data, turn.origin.client, turn.namespace) == (b"0", b"me", "default")
        assert (turn.attempt, turn.max_attempts, len(turn.steps)) == (1, 5, 0)
        assert turn.lease_timeout.seconds == 60
        assert turn.attempt_timeout.seconds == 3_600
        assert 0 < len(turn.lease) <= 256
        assert turn.fence > 0
        assert turn.lease_time.ToMilliseconds() >= turn.admit_time.ToMilliseconds() > 0
        assert not turn.HasField("last_failure")


@pytest.mark.spec("R-STEP-1")
async def test_steps_and_the_last_failure_reach_the_next_attempt(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        first = await stream.command(turn, checkpoint("one", b"1"))
        second = await stream.command(turn, checkpoint("two", b"2", kind="call"))
        assert (first.checkpoint.position, second.checkpoint.position) == (1, 2)
        await stream.command(turn, fail("RATE_LIMITED", delay_ms=0))
        again = await stream.turn()
        assert again.attempt == 2
        assert [(s.position, s.key, s.kind, s.output.data, s.attempt) for s in again.steps] == [
            (1, "one", "step", b"1", 1),
            (2, "two", "call", b"2", 1),
        ]
        assert (again.last_failure.reason, again.last_failure.attempt) == ("RATE_LIMITED", 1)
        assert again.fence > turn.fence


@pytest.mark.spec("R-FINISH-1")
async def test_a_finish_commits_everything_at_once(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        done = finish(b"9", b"reply", again=b"more", step=("last", b"out"))
        result = await stream.command(turn, done)
        assert result.finish.continuation_turn == 2
        assert result.finish.finish_time.seconds > 0
        stored = await turn_of(api, "a")
        assert (stored.state, stored.reply.data) == (TURN_STATE_COMPLETED, b"reply")
        next_turn = await stream.turn()
        assert (next_turn.turn, next_turn.message.data, next_turn.state.data) == (2, b"more", b"9")
        assert (next_turn.message_id, next_turn.origin.continuation.turn) == ("continue-1", 1)
        assert next_turn.origin.continuation.message_id == "m1"


@pytest.mark.spec("R-CMD-1", "R-WORK-4")
async def test_each_command_gets_its_result_and_repeats_the_first_answer(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        assert (await stream.command(turn, checkpoint("one", b"1"), n=1)).checkpoint.position == 1
        assert (await stream.command(turn, checkpoint("one", b"1"), n=1)).checkpoint.position == 1
        assert refusal(await stream.command(turn, checkpoint("one", b"2"), n=1))[0] == "BODY_CONFLICT"
        assert refusal(await stream.command(turn, checkpoint("x", b"2"), n=3)) == ("GAP", {"last": "1"})
        assert (await stream.command(turn, checkpoint("two", b"2"), n=2)).checkpoint.position == 2
        assert (await stream.command(turn, checkpoint("one", b"1"), n=1)).already
        first = await stream.command(turn, finish(), n=3)
        assert (await stream.command(turn, finish(), n=3)).finish == first.finish
        assert refusal(await stream.command(turn, finish(reply=b"other"), n=3))[0] == "BODY_CONFLICT"


@pytest.mark.spec("R-CMD-5")
async def test_commands_of_one_frame_are_applied_in_order(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        keys = [f"k{number}" for number in range(10)]
        await stream.say(
            commands=[
                *(stream.build(turn, checkpoint(key)) for key in keys),
                stream.build(turn, finish(step=("last", b"x"))),
            ]
        )
        results = [await stream.result() for _ in range(11)]
        assert [result.n for result in results] == list(range(1, 12))
        assert [result.checkpoint.position for result in results[:-1]] == list(range(1, 11))
        assert [step.key for step in (await turn_of(api, "a")).steps] == [*keys, "last"]


@pytest.mark.spec("R-CMD-5")
async def test_commands_behind_a_refused_one_answer_gap(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        bad = checkpoint("one", b"x" * 65_537)
        await stream.say(
            commands=[
                stream.build(turn, checkpoint("zero")),
                stream.build(turn, bad),
                stream.build(turn, checkpoint("two")),
                stream.build(turn, finish()),
            ]
        )
        answers = [refusal(await stream.result()) for _ in range(4)]
        limit = {"limit": "step_output_bytes", "value": "65537", "max": "65536"}
        gap = ("GAP", {"last": "1"})
        assert answers == [("", {}), ("LIMIT_EXCEEDED", limit), gap, gap]
        assert (await turn_of(api, "a")).state == TURN_STATE_RUNNING
        assert (await stream.command(turn, checkpoint("one"), n=2)).checkpoint.position == 2


@pytest.mark.spec("R-CMD-3")
async def test_what_follows_a_finish_in_the_same_frame_finds_the_lease_over(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        await stream.say(commands=[stream.build(turn, finish()), stream.build(turn, fail())])
        assert refusal(await stream.result())[0] == ""
        assert refusal(await stream.result()) == ("LEASE_ENDED", {"how": "completed"})


@pytest.mark.spec("R-FAIL-2")
async def test_a_final_failure_ends_the_turn_for_good(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        result = await stream.command(turn, fail(final=True))
        assert (result.fail.state, result.fail.HasField("retry_delay")) == (TURN_STATE_FAILED, False)


@pytest.mark.spec("R-FAIL-1")
async def test_a_failed_turn_comes_back_when_its_delay_is_over(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        await stream.command(turn, fail(delay_ms=30))
        assert (await stream.turn()).attempt == 2  # the timer, not a poll: it takes milliseconds


@pytest.mark.spec("R-FAIL-3")
async def test_a_long_failure_text_is_cut_at_a_character(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        body = fail(delay_ms=0)
        body["fail"].failure.message = "ä" * 1_025
        await stream.command(turn, body)
        failure = (await stream.turn()).last_failure
        assert (failure.message, failure.truncated) == ("ä" * 1_024, True)


@pytest.mark.spec("R-LEASE-9")
async def test_a_released_turn_comes_back_at_once_as_the_same_attempt(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        assert refusal(await stream.command(turn, release()))[0] == ""
        again = await stream.turn()
        assert (again.turn, again.attempt) == (1, 1)
        assert again.fence > turn.fence


@pytest.mark.spec("R-FINISH-2")
async def test_a_repeated_finish_hands_out_its_turn_again_while_nobody_received_it(api: Api) -> None:
    async with Stream(api, credits=1, acks=False) as stream:
        turn = await started(api, stream, messages=2)
        result = await stream.command(turn, finish(), credits_total=2)
        claimed = await stream.turn()
        async with Stream(api, session="other", credits=1) as other:
            again = await other.command(turn, finish(), n=1)
            assert again.finish == result.finish
            assert await other.turn() == claimed
            assert refusal(await other.command(claimed, finish()))[0] == ""
            repeated = await other.command(turn, finish(), n=1, credits_total=2)
            assert repeated.finish == result.finish
            assert other.waiting("turns") == 0


async def test_credits_of_the_frame_of_a_finish_are_used_by_it(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream, messages=3)
        stream.credits_total += 1
        await stream.command(turn, finish())
        frame = stream.frames[-1]
        assert (len(frame.results), len(frame.turns)) == (1, 1)


@pytest.mark.parametrize(
    ("field", "action"),
    [
        ("checkpoint.key", checkpoint("")),
        ("checkpoint.key", checkpoint("k" * 129)),
        ("checkpoint.kind", checkpoint("k", kind="a b")),
        (
            "checkpoint.output.encoding",
            {"checkpoint": pb.Checkpoint(key="k", output=Payload(encoding="a b"))},
        ),
        ("finish.last_step.key", finish(step=("", b"x"))),
        ("finish.state.digest", {"finish": pb.Finish(state=Payload(digest=b"x" * 33))}),
        ("fail.failure.reason", fail("")),
        ("fail.failure.reason", fail("not good")),
        ("fail.retry_delay", fail(delay_ms=86_400_001)),
        ("fail.retry_delay", fail(delay_ms=-1)),
    ],
)  # fmt: skip
async def test_a_bad_command_names_its_field_and_applies_nothing(
    api: Api, field: str, action: dict[str, Any]
) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        answer = refusal(await stream.command(turn, action, n=1))
        assert answer == ("INVALID_FIELD", {"field": field})
        assert refusal(await stream.command(turn, checkpoint("good"), n=1))[0] == ""  # its number stays free


@pytest.mark.parametrize("n", [0, -1])
async def test_command_numbers_begin_at_one(api: Api, n: int) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        assert refusal(await stream.command(turn, release(), n=n)) == ("INVALID_FIELD", {"field": "n"})


async def test_a_command_that_the_server_does_not_know_is_unimplemented(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        assert refusal(await stream.command(turn, {}, n=1))[0] == "UNIMPLEMENTED"
        sends = pb.Finish()
        sends.sends.add(instance_id="b")
        assert refusal(await stream.command(turn, {"finish": sends}, n=1))[0] == "UNIMPLEMENTED"
        assert refusal(await stream.command(turn, finish(), n=1))[0] == ""


@pytest.mark.parametrize(
    "lease", [b"", b"junk", b"\x95\x01\xa1a\x01\x01", b"\x95\x7f\xa1a\x01\x01\x01", b"x" * 257]
)
async def test_a_lease_that_was_never_given_is_a_bad_field(api: Api, lease: bytes) -> None:
    async with Stream(api) as stream:
        assert refusal(await stream.command(lease, release(), n=1)) == ("INVALID_FIELD", {"field": "lease"})
        assert await stream.done() == "OK"


@pytest.mark.spec("R-FENCE-3")
async def test_commands_under_foreign_leases_change_nothing(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        await stream.command(turn, release())
        current = await stream.turn()
        stale = await stream.command(turn, finish(reply=b"stolen"))
        assert refusal(stale) == ("LEASE_ENDED", {"how": "released"})
        await stream.command(current, release())
        await stream.credit(1)
        newest = await stream.turn()
        assert refusal(await stream.command(turn, finish(reply=b"stolen")))[0] == "STALE_FENCE"
        assert refusal(await stream.command(newest, finish(reply=b"own")))[0] == ""
        assert (await turn_of(api, "a")).reply.data == b"own"


@pytest.mark.spec("R-FINISH-4", "R-LIMIT-1")
@pytest.mark.parametrize(
    ("limit", "maximum", "make"),
    [
        ("state_bytes", 65_536, lambda data: finish(state=data)),
        ("reply_bytes", 65_536, lambda data: finish(reply=data)),
        ("message_bytes", 32_768, lambda data: finish(again=data)),
        ("step_output_bytes", 65_536, lambda data: finish(step=("k", data))),
    ],
)
async def test_a_finish_at_the_limit_is_taken_and_one_above_refused(
    api: Api, limit: str, maximum: int, make: Callable[[bytes], dict[str, Any]]
) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        answer = refusal(await stream.command(turn, make(b"x" * (maximum + 1)), n=1))
        assert answer == (
            "LIMIT_EXCEEDED",
            {"limit": limit, "value": str(maximum + 1), "max": str(maximum)},
        )
        assert (await turn_of(api, "a")).state == TURN_STATE_RUNNING
        assert refusal(await stream.command(turn, make(b"x" * maximum), n=1))[0] == ""
