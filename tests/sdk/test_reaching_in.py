"""What a caller sends into a turn and reads of it, with a turn service that the test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest

import pawl
import pawl.sync
from pawl import Client, NewInstance, Principal, RetryPolicy, WorkflowError
from pawl._convert import instance_of, turn_of
from pawl._events import event_of
from pawl._requests import spec_of
from pawl.payloads import decode, encode
from pawl.v1 import event_pb2, instance_pb2, turn_pb2
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.error_pb2 import Reason
from pawl.v1.failure_pb2 import Failure
from pawl.v1.message_service_pb2 import Refusal
from pawl.v1.payload_pb2 import Payload
from pawl.v1.signal_pb2 import PrincipalClass
from pawl.v1.turn_service_pb2_grpc import TurnServiceServicer, add_TurnServiceServicer_to_server

BREAK = object()


class Turns(TurnServiceServicer):
    """Answers with what the test gives; fails the first calls with `fails`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails: list[grpc.StatusCode] = []
        self.redrives: list[list[Any]] = []

    async def _take(self, request: Any, context: Any) -> None:
        self.calls.append(request)
        if self.fails:
            await context.abort(self.fails.pop(0), "failed by the test")

    async def SignalTurn(self, request: Any, context: Any) -> Any:
        await self._take(request, context)
        answer = turns.SignalTurnResponse(consumed_position=3)
        answer.receive_time.FromSeconds(7)
        return answer

    async def SignalInstance(self, request: Any, context: Any) -> Any:
        await self._take(request, context)
        return turns.SignalInstanceResponse(turn=5)

    async def ResolveCallback(self, request: Any, context: Any) -> Any:
        await self._take(request, context)
        return turns.ResolveCallbackResponse(instance_id="i-1", turn=2)

    async def ResolveStep(self, request: Any, context: Any) -> Any:
        await self._take(request, context)
        return turns.ResolveStepResponse(state=turn_pb2.TURN_STATE_QUEUED)

    async def RedriveAllParked(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._take(request, context)
        for frame in self.redrives.pop(0):
            if frame is BREAK:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
            yield frame


@pytest.fixture
async def answering() -> AsyncIterator[tuple[Turns, str]]:
    fake = Turns()  # pyright: ignore[reportAbstractUsage]
    server = grpc.aio.server()
    add_TurnServiceServicer_to_server(fake, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield fake, address
    await server.stop(0)


@pytest.fixture
def fake(answering: tuple[Turns, str]) -> Turns:
    return answering[0]


@pytest.fixture
async def client(answering: tuple[Turns, str]) -> AsyncIterator[Client]:
    async with Client(answering[1], timeout=10) as made:
        yield made


async def test_a_signal_to_a_turn(fake: Turns, client: Client) -> None:
    told = await client.signal(
        "i-1", "go", {"a": 1}, turn=4, id="s-1", incarnation=2, sender=Principal("ann", "PERSON")
    )
    (request,) = fake.calls
    assert (request.instance_id, request.turn, request.signal_id, request.name, request.incarnation) == (
        *("i-1", 4, "s-1", "go", 2),
    )
    assert decode(request.value) == {"a": 1}
    assert (request.sender.name, getattr(request.sender, "class")) == (
        "ann",
        PrincipalClass.PRINCIPAL_CLASS_PERSON,
    )
    assert (told.turn, told.signal_id, told.consumed_position) == (4, "s-1", 3)
    assert told.receive_time is not None
    assert told.receive_time.timestamp() == 7


async def test_a_signal_to_whichever_turn_is_there(fake: Turns, client: Client) -> None:
    told = await client.instance("i-1").signal("go")
    (request,) = fake.calls
    assert isinstance(request, turns.SignalInstanceRequest)
    # None is a value, not the absence of one.
    assert (request.HasField("value"), decode(request.value)) == (True, None)
    assert getattr(request.sender, "class") == PrincipalClass.PRINCIPAL_CLASS_SERVICE
    assert (told.turn, told.signal_id) == (5, request.signal_id)
    assert len(told.signal_id) == 36
    with pytest.raises(ValueError, match="no kind"):
        await client.signal("i-1", "go", sender=Principal("ann", "CAT"))


@pytest.mark.spec("R-SDK-31")
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.signal("i-1", "go"),
        lambda client: client.signal("i-1", "go", turn=1),
        lambda client: client.resolve_callback("t", 1),
        lambda client: client.reject_callback("t", "no"),
        lambda client: client.resolve_step("i-1", 1, "k", retry=True),
    ],
)
async def test_hidden_repeats_are_exact(fake: Turns, client: Client, call: Callable[[Client], Any]) -> None:
    fake.fails = [grpc.StatusCode.UNAVAILABLE] * 2
    await call(client)
    assert len(fake.calls) == 3
    assert len({request.SerializeToString(deterministic=True) for request in fake.calls}) == 1


async def test_callbacks(fake: Turns, client: Client) -> None:
    answer = await client.resolve_callback("token", {"paid": True})
    assert (answer.instance_id, answer.turn) == ("i-1", 2)
    await client.reject_callback("token", "too dear", reason="PRICE", details={"limit": 3})
    await client.reject_callback("token")
    first, second, third = fake.calls
    assert (first.token, first.WhichOneof("result"), decode(first.value)) == (
        "token",
        "value",
        {"paid": True},
    )
    assert second.WhichOneof("result") == "failure"
    assert (second.failure.reason, second.failure.message) == ("PRICE", "too dear")
    assert decode(second.failure.details) == {"limit": 3}
    assert (third.failure.reason, third.failure.HasField("details")) == ("REJECTED", False)


async def test_decisions_about_a_step(fake: Turns, client: Client) -> None:
    handle = client.instance("i-1")
    state = await client.resolve_step("i-1", 3, "pay", output=None, attempt=2, comment="seen", request_id="r")
    assert state == "QUEUED"
    await handle.resolve_step(3, "pay", retry=True)
    await handle.resolve_step(3, "pay", failure=WorkflowError("lost", reason="LOST", details=[1]))
    saved, again, failed = fake.calls
    assert (saved.key, saved.attempt, saved.comment, saved.request_id) == ("pay", 2, "seen", "r")
    assert (saved.WhichOneof("decision"), decode(saved.output)) == ("output", None)
    assert (again.WhichOneof("decision"), again.retry) == ("retry", True)
    assert (failed.failure.reason, failed.failure.message, decode(failed.failure.details)) == (
        *("LOST", "lost", [1]),
    )
    for words in ({}, {"output": 1, "retry": True}, {"retry": True, "failure": WorkflowError()}):
        with pytest.raises(ValueError, match="one of"):
            await client.resolve_step("i-1", 3, "pay", **words)
    assert len(fake.calls) == 3


def part(seen: int, redriven: int, *, done: bool = False, refused: int = 0) -> Any:
    frame = turns.RedriveAllParkedResponse(seen=seen, redriven=redriven, refused=refused, done=done)
    if refused:
        reason = Reason.REASON_LIMIT_EXCEEDED
        frame.last_refusal.CopyFrom(Refusal(reason=reason, message="full", metadata={"limit": "x"}))
    return frame


@pytest.mark.spec("R-SDK-32")
async def test_redriving_goes_on_after_a_broken_stream(fake: Turns, client: Client) -> None:
    fake.redrives = [
        [part(3, 2, refused=1), BREAK],
        [BREAK],
        [part(1, 0, refused=1), part(5, 4, refused=1, done=True)],
    ]
    found = [one async for one in client.redrive_all_parked("test", reason="BROKEN", discard=True)]
    assert [(one.seen, one.redriven, one.refused, one.done) for one in found] == [
        *((3, 2, 1, False), (3, 2, 1, False), (7, 6, 1, True)),
    ]
    assert isinstance(found[-1].last_refusal, pawl.LimitExceeded)
    assert found[-1].skipped == 0
    assert {(one.workflow_type, one.reason, one.discard) for one in fake.calls} == {("test", "BROKEN", True)}


async def test_redriving_gives_up_without_an_answer(fake: Turns, client: Client) -> None:
    fake.redrives = [[BREAK]] * 100
    with pytest.raises(pawl.Unavailable):
        _ = [one async for one in client.redrive_all_parked("test", timeout=0.3)]
    assert len(fake.calls) >= 2


async def test_without_an_event_loop(answering: tuple[Turns, str]) -> None:
    fake, address = answering
    fake.redrives = [[part(1, 1, done=True)]]

    def story() -> None:
        with pawl.sync.Client(address) as client:
            assert client.instance("i-1").signal("go", id="s").turn == 5
            assert client.resolve_callback("t").turn == 2
            assert client.resolve_step("i-1", 1, "k", retry=True) == "QUEUED"
            assert [one.redriven for one in client.redrive_all_parked("test")] == [1]

    await asyncio.to_thread(story)


def turn(**fields: Any) -> turn_pb2.Turn:
    return turn_pb2.Turn(instance_id="i-1", turn=1, **fields)


def test_what_a_turn_shows() -> None:
    message = turn(state=turn_pb2.TURN_STATE_WAITING)
    bare = turn_of(message)
    assert (bare.operation, bare.wait, bare.signals, bare.total_deadline, bare.cancel_deadline) == (
        *(None, None, (), None, None),
    )
    running = message.operation
    running.key, running.kind, running.position, running.active, running.sequence = "read", "tool", 2, True, 4
    running.progress.phase, running.progress.done, running.progress.unit = "reading", 3, "pages"
    running.details.CopyFrom(encode({"page": 3}))
    running.resume.CopyFrom(encode(17))
    running.deadline.FromSeconds(9)
    message.wait.key, message.wait.name = "k", "go"
    rejection = Failure(reason="NO", message="never")
    data = rejection.SerializeToString()
    sender = {"name": "ann", "class": PrincipalClass.PRINCIPAL_CLASS_PERSON}
    message.signals.add(signal_id="s", name="go", value=encode(5), consumed_position=1, sender=sender)
    message.signals.add(callback_key="c", rejected=True, value=Payload(data=data, encoding="pawl/failure"))
    message.cancel_deadline.FromSeconds(8)
    found = turn_of(message)
    assert found.operation is not None
    assert (found.operation.details, found.operation.checkpoint, found.operation.on_restart) == (
        *({"page": 3}, 17, "RETRY"),
    )
    assert found.operation.progress == pawl.Progress("reading", 3, None, "pages")
    assert found.operation.deadline is not None
    assert (found.operation.deadline.timestamp(), found.operation.heartbeat_deadline) == (9, None)
    assert found.wait is not None
    assert (found.wait.key, found.wait.name, found.wait.callback, found.wait.deadline) == (
        *("k", "go", False, None),
    )
    one, two = found.signals
    assert (one.value, one.sender, one.consumed_position, one.failure) == (
        *(5, Principal("ann", "PERSON"), 1, None),
    )
    assert two.failure is not None
    assert (two.value, two.failure.reason, two.failure.message, two.sender.kind) == (None, "NO", "never", "")
    assert found.cancel_deadline is not None


def test_how_a_wait_ended() -> None:
    message = turn(state=turn_pb2.TURN_STATE_COMPLETED)
    outcomes = ("WAIT_OUTCOME_RECEIVED", "WAIT_OUTCOME_TIMED_OUT", "WAIT_OUTCOME_REJECTED")
    rejected = Payload(data=Failure(reason="NO").SerializeToString(), encoding="pawl/failure")
    for outcome, output in zip(outcomes, (encode(None), Payload(), rejected), strict=True):
        message.steps.add(wait_outcome=outcome, output=output)
    message.steps.add(output=encode(1), resolved=True)
    found = turn_of(message).steps
    assert [(one.wait_outcome, one.output, one.resolved) for one in found] == [
        *(("RECEIVED", None, False), ("TIMED_OUT", None, False), ("REJECTED", None, False), ("", 1, True)),
    ]
    assert [one.failure and one.failure.reason for one in found] == [None, None, "NO", None]


def test_an_uncertain_turn_waits_for_a_decision() -> None:
    found = turn_of(turn(state=turn_pb2.TURN_STATE_UNCERTAIN, last_failure=Failure(reason="WORKER_LOST")))
    assert (found.blocked, found.finished) == (True, False)
    with pytest.raises(pawl.TurnFailed) as caught:
        found.result()
    assert (caught.value.state, caught.value.reason) == ("UNCERTAIN", "WORKER_LOST")
    waiting = turn_of(turn(state=turn_pb2.TURN_STATE_WAITING))
    assert not waiting.blocked
    with pytest.raises(pawl.TurnUnfinished):
        waiting.result()


def test_what_an_instance_shows() -> None:
    message = instance_pb2.Instance(id="i-1")
    assert (instance_of(message).progress, instance_of(message).retry) == (None, None)
    message.progress.progress.phase, message.progress.progress.total = "reading", 0
    message.progress.report_time.FromSeconds(5)
    message.retry.max_delay.FromSeconds(3)
    found = instance_of(message)
    assert found.progress is not None
    assert found.progress.progress == pawl.Progress("reading", 0, 0, "")
    assert found.retry == RetryPolicy(max_delay=timedelta(seconds=3))


def test_a_policy_of_an_instance() -> None:
    policy = RetryPolicy(jitter=0.0, max_elapsed=timedelta(seconds=9), non_retryable_reasons=["GONE"])
    spec = spec_of(NewInstance("t", "v1", retry=policy))
    assert (spec.retry.HasField("jitter"), spec.retry.max_elapsed.seconds) == (True, 9)
    assert list(spec.retry.non_retryable_reasons) == ["GONE"]
    assert not spec.retry.HasField("initial_delay")
    assert not spec_of(NewInstance("t", "v1")).HasField("retry")


def test_what_events_say() -> None:
    def event(**fields: Any) -> pawl.Event:
        return event_of(event_pb2.Event(instance_id="i-1", seq=1, **fields))

    waits = event(turn_waiting={"key": "k", "name": "go", "timeout": {"seconds": 5}})
    assert (waits.type, waits.key, waits.name, waits.timeout) == (
        *("TURN_WAITING", "k", "go", timedelta(seconds=5)),
    )
    assert event(turn_waiting={"key": "k"}).timeout is None
    sender = {"name": "ann", "class": "PRINCIPAL_CLASS_PERSON"}
    came = event(signal_received={"signal_id": "s", "name": "go", "sender": sender})
    assert (came.signal_id, came.callback_key, came.sender) == ("s", "", Principal("ann", "PERSON"))
    started = event(operation_started={"key": "k", "kind": "tool"})
    assert (started.type, started.kind) == ("OPERATION_STARTED", "tool")
    decided = event(step_resolved={"key": "k", "decision": "STEP_DECISION_SAVE", "comment": "seen"})
    assert (decided.decision, decided.comment) == ("SAVE", "seen")
    assert event(turn_uncertain={"key": "k"}).key == "k"
    assert event(turn_cancelling={"comment": "stop"}).comment == "stop"
    assert event(turn_sleeping={"key": "k", "duration": {"seconds": 2}}).delay == timedelta(seconds=2)
