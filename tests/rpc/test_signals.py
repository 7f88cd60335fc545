"""Signals over the wire: who gets them, what is answered and refused, and what reads show."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.event_service_pb2 import ListEventsRequest
from pawl.v1.failure_pb2 import Failure
from pawl.v1.payload_pb2 import Payload
from pawl.v1.signal_pb2 import PRINCIPAL_CLASS_PERSON, Principal
from pawl.v1.step_pb2 import WaitOutcome
from pawl.v1.turn_pb2 import Turn, TurnState
from pawl_server.domain.callback import callback_base
from pawl_server.domain.limits import Limits
from tests.support.api import CALL_S, Api, json, refusal_of
from tests.support.raw_worker import ByPolls
from tests.support.stream import finish, wait_signal
from tests.support.wait import wait_until

LIMITS = Limits()
ANN = Principal(name="ann", **{"class": PRINCIPAL_CLASS_PERSON})


async def turn_of(api: Api, turn: int = 1) -> Turn:
    """A turn as GetTurn shows it."""
    return (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=turn), timeout=CALL_S)).turn


async def to_instance(
    api: Api, signal_id: str, data: str = "1", **fields: Any
) -> turns.SignalInstanceResponse:
    """Sends a signal to the instance."""
    request = turns.SignalInstanceRequest(
        instance_id="a", signal_id=signal_id, name="go", value=json(data), **fields
    )
    return await api.turns.SignalInstance(request, timeout=CALL_S)


@pytest.mark.spec("R-SIGNAL-1", "R-SIGNAL-2", "R-SIGNAL-8")
async def test_reads_show_what_a_turn_received_and_waits_for(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    await api.signal("a", "s1", "other", "kept", sender=ANN)
    async with ByPolls(api) as worker:
        turn = await worker.turn()
        assert (await worker.do(turn, wait_signal("answer", ms=60_000))).ok
        waiting = await turn_of(api)
        assert waiting.state == TurnState.TURN_STATE_WAITING
        assert (waiting.wait.key, waiting.wait.name, waiting.wait.callback) == ("answer", "go", False)
        lasts = waiting.wait.deadline.ToMilliseconds() - waiting.wait.start_time.ToMilliseconds()
        assert (lasts, waiting.due_time) == (60_000, waiting.wait.deadline)
        inbox = await api.messages.ListInbox(messages.ListInboxRequest(instance_id="a"))
        assert (inbox.entries[0].turn.wait, len(inbox.entries[0].turn.signals)) == (waiting.wait, 0)
        backlog = await api.messages.ListBacklog(messages.ListBacklogRequest(workflow_type="t"))
        assert backlog.entries[0].head.wait == waiting.wait
        sent = await api.signal("a", "s2", "go", "now", sender=ANN)
        assert sent.consumed_position == 1
        shown = await turn_of(api)
        kept, used = shown.signals
        assert (kept.signal_id, kept.name, kept.value.data, kept.consumed_position) == (
            "s1",
            "other",
            b"kept",
            0,
        )
        assert (used.signal_id, used.HasField("value"), used.consumed_position) == ("s2", False, 1)
        assert (used.sender, used.receive_time) == (ANN, sent.receive_time)
        assert (shown.steps[0].output.data, shown.steps[0].wait_outcome) == (
            b"now",
            WaitOutcome.WAIT_OUTCOME_RECEIVED,
        )
        assert not shown.HasField("wait")
        await worker.do(await worker.turn(), finish())
    for payloads in (False, True):
        request = turns.ListTurnsRequest(instance_id="a", include_payloads=payloads)
        [listed] = (await api.turns.ListTurns(request)).turns
        assert len(listed.signals) == (2 if payloads else 0)
    events = (await api.events.ListEvents(ListEventsRequest(instance_id="a"))).events
    received = [event for event in events if event.HasField("signal_received")]
    assert [(event.turn, event.signal_received.name) for event in received] == [(1, "other"), (1, "go")]
    assert received[1].signal_received.sender == ANN


@pytest.mark.spec("R-SIGNAL-4", "R-SIGNAL-5", "R-API-1")
async def test_refusals_and_repeats(api: Api) -> None:
    await api.create("a")
    for number in (1, 2):
        await api.send("a", f"m{number}")
    first = await api.signal("a")
    assert await api.signal("a") == first
    assert await api.signal("a", sender=ANN) == first
    problem = await refusal_of(api.signal("a", data="2"))
    assert (problem.code, problem.reason) == ("ALREADY_EXISTS", "BODY_CONFLICT")
    assert problem.metadata == {"resource": "signal", "name": "s1"}
    assert (await refusal_of(api.signal("a", name="other"))).reason == "BODY_CONFLICT"
    absent_ones: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nobody", {}),
        ("a", {"turn": 3}),
        ("a", {"incarnation": 99}),
    )
    for absent, fields in absent_ones:
        problem = await refusal_of(api.signal(absent, "s9", **fields))
        assert (problem.code, problem.reason) == ("NOT_FOUND", "NOT_FOUND")
        assert problem.metadata == {"resource": "turn", "name": f"{absent}/{fields.get('turn', 1)}"}
    async with ByPolls(api) as worker:
        await worker.do(await worker.turn(), finish())
    assert await api.signal("a") == first
    problem = await refusal_of(api.signal("a", "s2"))
    assert (problem.code, problem.reason, problem.metadata) == (
        "FAILED_PRECONDITION", "WRONG_STATE", {"state": "COMPLETED"},
    )  # fmt: skip


@pytest.mark.spec("R-SIGNAL-6", "R-LIMIT-1")
async def test_limits(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    problem = await refusal_of(api.signal("a", data=b"x" * (LIMITS.signal_bytes + 1)))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED")
    assert problem.metadata == {"limit": "signal_bytes", "value": "32769", "max": "32768"}
    for number in range(7):
        await api.signal("a", f"large{number}", data=b"x" * LIMITS.signal_bytes)
    problem = await refusal_of(api.signal("a", "large7", data=b"x" * LIMITS.signal_bytes))
    assert (problem.metadata["limit"], problem.metadata["max"]) == ("turn_bytes", str(LIMITS.turn_bytes))
    many = await asyncio.gather(*(api.signal("a", f"s{number}") for number in range(64 - 7)))
    assert len({answer.receive_time.ToMilliseconds() for answer in many}) > 0
    problem = await refusal_of(api.signal("a", "one-more"))
    assert problem.metadata == {"limit": "signals_per_turn", "value": "65", "max": "64"}


@pytest.mark.spec("R-ID-1", "R-SIGNAL-8")
async def test_fields(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("instance_id", {"instance_id": ""}),
        ("signal_id", {"signal_id": ""}),
        ("signal_id", {"signal_id": "a b"}),
        ("name", {"name": ""}),
        ("turn", {"turn": 0}),
        ("incarnation", {"incarnation": -1}),
        ("value.encoding", {"value": Payload(encoding="a b")}),
        ("sender.name", {"sender": Principal(name="x" * 129)}),
        ("sender.name", {"sender": Principal(name="a\nb")}),
        ("sender.class", {"sender": Principal(**cast("dict[str, Any]", {"class": 9}))}),
    )
    for field, fields in bad:
        usual = {"instance_id": "a", "turn": 1, "signal_id": "s", "name": "go"}
        problem = await refusal_of(api.turns.SignalTurn(turns.SignalTurnRequest(**{**usual, **fields})))
        assert (problem.reason, problem.metadata) == ("INVALID_FIELD", {"field": field})
        if "turn" not in fields:
            del usual["turn"]
            request = turns.SignalInstanceRequest(**{**usual, **fields})
            problem = await refusal_of(api.turns.SignalInstance(request))
            assert (problem.reason, problem.metadata) == ("INVALID_FIELD", {"field": field})
    assert (await turn_of(api)).signals == []
    await api.signal("a", sender=Principal(name="x" * 128))
    unset = turns.SignalTurnRequest(instance_id="a", turn=1, signal_id="unset", name="go")
    await api.turns.SignalTurn(unset)
    assert [signal.sender.name for signal in (await turn_of(api)).signals] == ["x" * 128, ""]


@pytest.mark.spec("R-SIGNAL-7")
async def test_a_signal_to_the_instance(api: Api) -> None:
    await api.create("a")
    early = await to_instance(api, "s1", "early")
    assert (early.turn, early.consumed_position) == (1, 0)
    await api.send("a", "m1")
    await api.send("a", "m2")
    async with ByPolls(api) as worker:
        turn = await worker.turn()
        got = await worker.do(turn, wait_signal("one"))
        assert dict(got.detail)["outcome"] == "WAIT_OUTCOME_RECEIVED"
        await worker.do(turn, wait_signal("two"))
        second = await to_instance(api, "s2")
        assert (second.turn, second.consumed_position) == (1, 2)
        await worker.do(await worker.turn(), finish())
        assert (await to_instance(api, "s3")).turn == 2
        assert [await to_instance(api, "s1", "early"), await to_instance(api, "s2")] == [early, second]
        problem = await refusal_of(to_instance(api, "s1", "late"))
        assert problem.metadata == {"resource": "signal", "name": "s1"}
    problem = await refusal_of(
        api.turns.SignalInstance(turns.SignalInstanceRequest(instance_id="b", signal_id="s", name="go"))
    )
    assert problem.metadata == {"resource": "instance", "name": "b"}


@pytest.mark.spec("R-SIGNAL-1", "R-SIGNAL-2")
async def test_a_list_of_signals_resumes_each_turn_that_waits(api: Api) -> None:
    names = [f"i{number}" for number in range(20)]
    async with ByPolls(api) as worker:
        for name in names:
            await api.create(name)
            await api.send(name, "m1")
            await worker.do(await worker.turn(), wait_signal())
        sent = await asyncio.gather(*(api.signal(name) for name in names))
        assert {answer.consumed_position for answer in sent} == {1}
        done = set()
        for _ in names:
            turn = await worker.turn()
            assert turn.steps[0].output.data == b"1"
            await worker.do(turn, finish())
            done.add(turn.instance_id)
        assert done == set(names)


@pytest.mark.spec("R-SIGNAL-3")
async def test_the_timer_of_a_wait_fires_by_itself(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with ByPolls(api) as worker:
        await worker.do(await worker.turn(), wait_signal(ms=30))

        async def over() -> bool:
            events = (await api.events.ListEvents(ListEventsRequest(instance_id="a"))).events
            return events[-1].HasField("turn_ready")

        await wait_until(over)
        assert (await worker.turn()).steps[0].wait_outcome == WaitOutcome.WAIT_OUTCOME_TIMED_OUT


def answer(token: str, **fields: Any) -> turns.ResolveCallbackRequest:
    """The result of a callback."""
    return turns.ResolveCallbackRequest(token=token, **fields)


@pytest.mark.spec("R-CALLBACK-1", "R-CALLBACK-2", "R-CALLBACK-3", "R-CALLBACK-4")
async def test_a_callback_is_answered_by_its_token(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with ByPolls(api) as worker:
        turn = await worker.turn()
        await worker.do(turn, wait_signal("one", callback="call.1"))
        waiting = (await turn_of(api)).wait
        token = turn.callback_base + "call.1"
        assert (waiting.callback, waiting.callback_token) == (True, token)
        done = await api.turns.ResolveCallback(answer(token, value=json("yes"), sender=ANN))
        assert (done.instance_id, done.turn) == ("a", 1)
        assert await api.turns.ResolveCallback(answer(token, value=json("yes"))) == done
        for other in (
            answer(token, value=json("no")),
            answer(token, value=Payload(data=b"yes")),
            answer(token, failure=Failure(reason="NO")),
        ):
            problem = await refusal_of(api.turns.ResolveCallback(other))
            assert (problem.reason, problem.metadata) == (
                "BODY_CONFLICT", {"resource": "callback", "name": "call.1"},
            )  # fmt: skip
        turn = await worker.turn()
        assert turn.callback_base + "call.1" == token, "the same in every lease"
        assert [(step.kind, step.output.data) for step in turn.steps] == [("callback", b"yes")]
        [signal] = (await turn_of(api)).signals
        assert (signal.signal_id, signal.name, signal.callback_key, signal.sender) == ("", "", "call.1", ANN)
        await worker.do(turn, finish())
    assert await api.turns.ResolveCallback(answer(token, value=json("yes"))) == done
    late = answer(turn.callback_base + "other", value=json("yes"))
    assert (await refusal_of(api.turns.ResolveCallback(late))).reason == "WRONG_STATE"


@pytest.mark.spec("R-CALLBACK-1")
async def test_a_callback_is_rejected(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m1")
    async with ByPolls(api) as worker:
        turn = await worker.turn()
        await worker.do(turn, wait_signal("one", callback="call"))
        failure = Failure(reason="DENIED", message="x" * 3_000, cause=Failure(reason="POLICY"))
        request = answer(turn.callback_base + "call", failure=failure)
        done = await api.turns.ResolveCallback(request)
        assert await api.turns.ResolveCallback(request) == done
        [step] = (await worker.turn()).steps
        assert (step.wait_outcome, step.output.encoding) == (
            WaitOutcome.WAIT_OUTCOME_REJECTED,
            "pawl/failure",
        )
        kept = Failure.FromString(step.output.data)
        assert (kept.reason, len(kept.message), kept.truncated, kept.cause.reason) == (
            "DENIED",
            2_048,
            True,
            "POLICY",
        )


@pytest.mark.spec("R-CALLBACK-3", "R-SIGNAL-6", "R-API-1")
async def test_results_that_are_refused(api: Api) -> None:
    instance = await api.create("a")
    await api.send("a", "m1")
    base = callback_base("default", "a", instance.incarnation, 1)
    bad: tuple[tuple[str, turns.ResolveCallbackRequest], ...] = (
        ("token", answer("junk", value=json("1"))),
        ("token", answer(base + "a b", value=json("1"))),
        ("value", answer(base + "key")),
        ("value.encoding", answer(base + "key", value=Payload(encoding="a b"))),
        ("failure.reason", answer(base + "key", failure=Failure())),
        ("sender.name", answer(base + "key", value=json("1"), sender=Principal(name="x" * 129))),
    )
    for field, request in bad:
        problem = await refusal_of(api.turns.ResolveCallback(request))
        assert (problem.reason, problem.metadata) == ("INVALID_FIELD", {"field": field})
    for token in (
        callback_base("default", "nobody", 1, 1),
        callback_base("default", "a", instance.incarnation + 1, 1),
        callback_base("default", "a", instance.incarnation, 2),
    ):
        problem = await refusal_of(api.turns.ResolveCallback(answer(token + "key", value=json("1"))))
        assert (problem.code, problem.reason) == ("NOT_FOUND", "NOT_FOUND")
    problem = await refusal_of(api.turns.ResolveCallback(answer(base + "key", value=json(b"x" * 32_769))))
    assert problem.metadata["limit"] == "signal_bytes"
    assert list((await turn_of(api)).signals) == []
    null = await api.turns.ResolveCallback(answer(base + "key", value=Payload()))
    assert null.turn == 1
