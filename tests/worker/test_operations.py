"""Steps that are registered while they run, by every way of being a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.instance_pb2 import INSTANCE_STATUS_ACTIVE, INSTANCE_STATUS_BLOCKED, Instance
from pawl.v1.instance_service_pb2 import GetInstanceRequest
from pawl.v1.operation_pb2 import ON_RESTART_PARK, ON_RESTART_RETRY, OnRestart, Operation, Progress
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_pb2 import TURN_STATE_BACKOFF, TURN_STATE_QUEUED, TURN_STATE_RUNNING, TURN_STATE_UNCERTAIN
from pawl.v1.turn_service_pb2 import GetTurnRequest, ListTurnsRequest, ResolveStepRequest
from tests.support.api import CALL_S, Api, json
from tests.support.raw_worker import Answer
from tests.support.stream import (
    Stream,
    checkpoint,
    defer,
    fail,
    finish,
    refusal,
    release,
    report_progress,
    sleep,
    start_operation,
    started,
)
from tests.worker.test_both_ways import DONE, WAYS, Play, no, ok

STARTED = ok(position=1, remaining=True)
DETAILS, RESUME = 8_192, 32_768

Scenario = Callable[[Play], Awaitable[list[Answer]]]
SCENARIOS: dict[str, tuple[Scenario, list[Answer]]] = {}


def answers(*expected: Answer) -> Callable[[Scenario], Scenario]:
    """Says what a scenario is answered."""

    def keep(scenario: Scenario) -> Scenario:
        SCENARIOS[scenario.__name__] = (scenario, list(expected))
        return scenario

    return keep


def reported(sequence: int, **detail: Any) -> Answer:
    """A report that was taken in, or was before."""
    return ok(position=1, sequence=str(sequence), **detail)


async def instance_of(play: Play) -> Instance:
    """The instance as GetInstance shows it."""
    request = GetInstanceRequest(instance_id=play.id)
    return (await play.api.instances.GetInstance(request, timeout=CALL_S)).instance


@answers(STARTED, reported(1), STARTED, reported(1), ok(position=1), DONE)
async def a_step_with_progress(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    step = start_operation(key="fetch", kind="tool")
    got = [await do(turn, step)]
    shown = (await play.turn_of()).operation
    assert (shown.key, shown.kind, shown.position, shown.attempt, shown.active) == (
        "fetch",
        "tool",
        1,
        1,
        True,
    )
    assert shown.deadline.ToMilliseconds() - shown.start_time.ToMilliseconds() == 60_000
    assert (shown.sequence, shown.on_restart, shown.HasField("report_time")) == (0, ON_RESTART_RETRY, False)
    assert not shown.HasField("heartbeat_deadline")
    assert not (await instance_of(play)).HasField("progress")
    report = report_progress(
        key="fetch",
        phase="Reading pages",
        done=(1 << 62) + 1,
        total=1 << 62,
        unit="pages",
        details=b"d",
        resume=b"r",
    )
    got += [await do(turn, report), await do(turn, step), await do(turn, report)]
    shown = (await play.turn_of()).operation
    assert shown.progress == Progress(phase="Reading pages", done=(1 << 62) + 1, total=1 << 62, unit="pages")
    assert (shown.details, shown.resume, shown.sequence) == (json(b"d"), json(b"r"), 1)
    instance = await instance_of(play)
    assert instance.status == INSTANCE_STATUS_ACTIVE
    assert instance.progress.progress == shown.progress
    assert instance.progress.start_time == shown.start_time
    assert instance.progress.report_time == shown.report_time
    [listed] = (await play.api.turns.ListTurns(ListTurnsRequest(instance_id=play.id), timeout=CALL_S)).turns
    assert listed.operation.progress == shown.progress
    assert not listed.operation.HasField("resume"), "payloads only where they are asked for"
    got.append(await do(turn, checkpoint("fetch", b"out")))
    assert not (await play.turn_of()).HasField("operation")
    assert not (await instance_of(play)).HasField("progress")
    return [*got, await do(turn, finish())]


@answers(
    no("GAP", last="0"), STARTED, no("WRONG_STATE", state="operation"), ok(position=1),
    no("WRONG_STATE", state="step_saved"), DONE,
)  # fmt: skip
async def places_that_are_not_the_next(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    return [
        await do(turn, start_operation(2, "two")),
        await do(turn, start_operation(1, "one")),
        await do(turn, start_operation(1, "other")),
        await do(turn, checkpoint("one")),
        await do(turn, start_operation(1, "one")),
        await do(turn, finish()),
    ]


@answers(
    no("WRONG_STATE", state="operation"), STARTED, reported(2, heartbeatRemaining=True),
    reported(1, heartbeatRemaining=True), no("BODY_CONFLICT"), no("WRONG_STATE", state="operation"),
    *[no("WRONG_STATE", state="operation")] * 2, DONE,
)  # fmt: skip
async def reports_that_are_not_taken_in(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [
        await do(turn, report_progress()),
        await do(turn, start_operation(heartbeat_ms=30_000)),
        await do(turn, report_progress(2, phase="new")),
        await do(turn, report_progress(1, phase="old")),
        await do(turn, report_progress(2, phase="other")),
        await do(turn, report_progress(3, key="other")),
        await do(turn, sleep(), n=1),
        await do(turn, defer(), n=1),
    ]
    assert (await play.turn_of()).operation.progress.phase == "new"
    assert (await play.turn_of()).operation.HasField("heartbeat_deadline")
    return [*got, await do(turn, finish(), n=1)]


@answers(STARTED, reported(3), ok(state="TURN_STATE_QUEUED"), STARTED, ok(position=1), DONE)
async def where_the_next_attempt_goes_on(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    assert not turn.HasField("operation")
    got = [await do(turn, start_operation(key="fetch"))]
    got.append(await do(turn, report_progress(3, key="fetch", phase="half", resume=b"page 5")))
    got.append(await do(turn, fail(delay_ms=0)))
    again = await play.worker.turn()
    last: Operation = again.operation
    assert (last.key, last.attempt, last.active, last.sequence) == ("fetch", 1, False, 3)
    assert (last.resume, last.progress.phase) == (json(b"page 5"), "half")
    assert not last.HasField("deadline")
    assert (await play.turn_of()).operation == last
    assert not (await instance_of(play)).HasField("progress")
    got.append(await do(again, start_operation(key="fetch")))
    assert (await play.turn_of()).operation.resume == json(b"page 5")
    got.append(await do(again, checkpoint("fetch")))
    return [*got, await do(again, finish())]


@answers(STARTED, no("LEASE_ENDED", how="expired"), DONE)
async def a_step_that_hangs(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, start_operation(timeout_ms=100))]
    await play.until(TURN_STATE_BACKOFF)
    got.append(await do(turn, checkpoint("step")))
    again = await play.worker.turn()
    assert (again.attempt, again.last_failure.reason) == (2, "OPERATION_TIMEOUT")
    return [*got, await do(again, finish())]


@answers(
    STARTED,
    no("LIMIT_EXCEEDED", limit="progress_details_bytes", value=str(DETAILS + 1), max=str(DETAILS)),
    no("LIMIT_EXCEEDED", limit="resume_bytes", value=str(RESUME + 1), max=str(RESUME)),
    reported(1),
    DONE,
)
async def as_much_as_fits(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [
        await do(turn, start_operation()),
        await do(turn, report_progress(details=b"x" * (DETAILS + 1))),
        await do(turn, report_progress(resume=b"x" * (RESUME + 1))),
        await do(turn, report_progress(details=b"x" * DETAILS, resume=b"x" * RESUME)),
    ]
    shown = (await play.turn_of()).operation
    assert (len(shown.details.data), len(shown.resume.data)) == (DETAILS, RESUME)
    return [*got, await do(turn, finish())]


def payload_report(**payloads: Any) -> dict[str, Any]:
    """A report with payloads as they are given."""
    return {"report_progress": pb.ReportProgress(position=1, key="k", sequence=1, **payloads)}


@answers(
    no("INVALID_FIELD", field="fail.last_progress.sequence"),
    no("LIMIT_EXCEEDED", limit="resume_bytes", value=str(RESUME + 1), max=str(RESUME)),
    no("WRONG_STATE", state="operation"),
    *[ok(state="TURN_STATE_QUEUED")] * 2,
    no("BODY_CONFLICT"),
    DONE,
)
async def the_last_report_of_a_failure(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do

    def failed(sequence: int = 1, **report: Any) -> dict[str, Any]:
        return fail(delay_ms=0, last=report_progress(sequence, **report)["report_progress"])

    got = [
        await do(turn, failed(0), n=1),
        await do(turn, failed(resume=b"x" * (RESUME + 1)), n=1),
        await do(turn, failed(position=2), n=1),
        await do(turn, failed(phase="half", details=b"d", resume=b"page 5"), n=1),
        await do(turn, failed(phase="half", details=b"d", resume=b"page 5"), n=1),
        await do(turn, failed(phase="half", details=b"d", resume=b"page 6"), n=1),
    ]
    again = await play.worker.turn()
    last = again.operation
    assert (last.key, last.kind, last.sequence, last.progress.phase) == ("step", "step", 1, "half")
    assert (last.details, last.resume) == (json(b"d"), json(b"page 5"))
    return [*got, await do(again, finish())]


@answers(STARTED, ok(), no("LEASE_ENDED", how="released"), DONE)
async def a_step_of_unknown_outcome(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, start_operation(on_restart=ON_RESTART_PARK)), await do(turn, release())]
    shown = await play.turn_of()
    assert (shown.state, shown.operation.active) == (TURN_STATE_UNCERTAIN, False)
    assert (await instance_of(play)).status == INSTANCE_STATUS_BLOCKED
    got.append(await do(turn, checkpoint("step"), n=2))
    request = ResolveStepRequest(instance_id=play.id, turn=1, key="step", output=json(b"known"))
    assert (await play.api.turns.ResolveStep(request, timeout=CALL_S)).state == TURN_STATE_QUEUED
    again = await play.worker.turn()
    [step] = again.steps
    assert (step.key, step.output, step.resolved) == ("step", json(b"known"), True)
    assert (await play.turn_of()).steps[0] == step
    assert not again.HasField("operation")
    return [*got, await do(again, finish())]


FINE: tuple[dict[str, Any], ...] = (
    report_progress(1, phase="p" * 80, done=0, total=0, unit="kB_2 of-x"),
    report_progress(2, phase="é", done=7, total=3, unit="Ü" * 32),
    report_progress((1 << 53) - 1, phase="p"),
)
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("start_operation.position", start_operation(0)),
    ("start_operation.position", start_operation(-1)),
    ("start_operation.key", start_operation(1, "")),
    ("start_operation.kind", start_operation(1, kind="a b")),
    ("start_operation.timeout", start_operation(1, timeout_ms=99)),
    ("start_operation.timeout", start_operation(1, timeout_ms=86_400_001)),
    ("start_operation.heartbeat_timeout", start_operation(1, heartbeat_ms=99)),
    ("start_operation.heartbeat_timeout", start_operation(1, timeout_ms=500, heartbeat_ms=501)),
    ("start_operation.heartbeat_timeout", start_operation(1, timeout_ms=None, heartbeat_ms=300_001)),
    ("start_operation.on_restart", start_operation(1, on_restart=OnRestart.ValueType(3))),
    ("report_progress.position", report_progress(1, 0)),
    ("report_progress.key", report_progress(1, key="a b")),
    ("report_progress.sequence", report_progress(0)),
    ("report_progress.sequence", report_progress(1 << 53)),
    ("report_progress.progress.phase", report_progress(phase="")),
    ("report_progress.progress.phase", report_progress(phase="p" * 81)),
    ("report_progress.progress.done", report_progress(phase="p", done=-1)),
    ("report_progress.progress.total", report_progress(phase="p", total=-1)),
    ("report_progress.progress.unit", report_progress(phase="p", unit="a/b")),
    ("report_progress.progress.unit", report_progress(phase="p", unit="u" * 33)),
    (
        "report_progress.details.encoding",
        payload_report(details=Payload(encoding="a b")),
    ),
    (
        "report_progress.resume.digest",
        payload_report(resume=Payload(digest=b"x" * 33)),
    ),
)  # fmt: skip


@answers(
    STARTED,
    *[reported(report["report_progress"].sequence) for report in FINE],
    *[no("INVALID_FIELD", field=field) for field, _ in BAD],
    DONE,
)
async def bad_fields(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, start_operation())]
    got += [await do(turn, report) for report in FINE]
    got += [await do(turn, command) for _, command in BAD]
    return [*got, await do(turn, finish())]


@answers(*[ok(position=1, remaining=True)] * 2, DONE)
async def the_least_and_the_most(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, start_operation(timeout_ms=86_400_000, heartbeat_ms=86_400_000))]
    await do(turn, release())
    turn = await play.worker.turn()
    got.append(await do(turn, start_operation(timeout_ms=None, heartbeat_ms=300_000)))
    shown = (await play.turn_of()).operation
    assert shown.deadline.ToMilliseconds() - shown.start_time.ToMilliseconds() == 300_000, "the default"
    assert shown.heartbeat_deadline == shown.deadline
    return [*got, await do(turn, finish())]


@answers(ok(), *[no("LEASE_ENDED", how="released")] * 2, ok(), *[no("STALE_FENCE")] * 2, DONE)
async def leases_of_the_past(play: Play) -> list[Answer]:
    turn = await play.turn_given()
    do = play.worker.do
    got = [await do(turn, release()), await do(turn, start_operation()), await do(turn, report_progress())]
    second = await play.worker.turn()
    got.append(await do(second, release()))
    third = await play.worker.turn()
    got += [await do(turn, start_operation()), await do(turn, report_progress())]
    return [*got, await do(third, finish())]


@pytest.mark.spec(
    "R-OP-1",
    "R-OP-2",
    "R-OP-3",
    "R-OP-4",
    "R-OP-6",
    "R-PROGRESS-1",
    "R-PROGRESS-2",
    "R-PROGRESS-3",
    "R-UNCERTAIN-1",
    "R-WORKER-1",
)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_every_way_gets_the_same_answers(api: Api, scenario: str) -> None:
    played, expected = SCENARIOS[scenario]
    for at, (way, opened) in enumerate(WAYS.items()):
        async with opened(api) as worker:
            got = await played(Play(api, worker, f"instance-{at}"))
        assert got == expected, way


@pytest.mark.spec("R-CMD-5")
async def test_the_order_of_commands_of_a_lease_is_kept(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        actions = [
            start_operation(1, "one"),
            report_progress(1, 1, "one", phase="first"),
            checkpoint("one"),
            start_operation(2, "two"),
            report_progress(1, 2, "two", phase="second"),
            checkpoint("two"),
            report_progress(2, 2, "two"),
            finish(),
        ]
        await stream.say(commands=[stream.build(turn, action) for action in actions])
        results = [await stream.result() for _ in actions]
        assert [result.WhichOneof("detail") for result in results] == [next(iter(each)) for each in actions]
        assert [result.n for result in results] == [0, 0, 1, 0, 0, 2, 0, 3]
        refused = [at for at, result in enumerate(results) if result.HasField("refusal")]
        assert refused == [6], "that step is saved"


@pytest.mark.spec("R-CMD-5", "R-PROGRESS-1")
async def test_a_refused_command_stops_only_the_numbered_ones_behind_it(api: Api) -> None:
    async with Stream(api, credits=1) as stream:
        turn = await started(api, stream)
        commands = [
            stream.build(turn, start_operation(1, "one")),
            stream.build(turn, report_progress(0, 1, "one")),
            stream.build(turn, checkpoint("one", b"x" * 65_537)),
            stream.build(turn, report_progress(1, 1, "one", phase="still")),
            stream.build(turn, finish()),
            stream.build(turn, start_operation(1, "other")),
            stream.build(turn, report_progress(2, 1, "one", phase="on")),
            pb.Command(lease=turn.lease, n=4, report_progress=pb.ReportProgress(position=1, sequence=9)),
        ]
        await stream.say(commands=commands)
        results = [await stream.result() for _ in commands]
        got = {
            (result.n, result.report_progress.sequence, result.WhichOneof("detail")): refusal(result)[0]
            for result in results
        }
        assert got == {
            (0, 0, "start_operation"): got[0, 0, "start_operation"],
            (0, 0, "report_progress"): "INVALID_FIELD",
            (1, 0, None): "LIMIT_EXCEEDED",
            (0, 1, "report_progress"): "",
            (2, 0, None): "GAP",
            (0, 2, "report_progress"): "",
            (4, 9, "report_progress"): "INVALID_FIELD",
        }
        starts = [refusal(result)[0] for result in results if result.HasField("start_operation")]
        assert starts == ["", "WRONG_STATE"]
        assert (await stream.command(turn, finish(), n=1)).HasField("finish")


@pytest.mark.spec("R-OP-2", "R-EXPIRE-5")
async def test_the_stream_hears_of_a_timeout_while_its_server_renews(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        await stream.command(turn, start_operation(timeout_ms=60_000, heartbeat_ms=200))
        event = await stream.event()
        assert (event.lease, refusal(event)) == (turn.lease, ("LEASE_ENDED", {"how": "expired"}))
        again = await stream.turn()
        assert (again.attempt, again.last_failure.reason) == (2, "HEARTBEAT_TIMEOUT")
        assert again.operation.key == "step"
        assert (await stream.command(again, finish())).HasField("finish")


@pytest.mark.spec("R-OP-1")
async def test_a_running_turn_shows_no_deadline_once_its_step_is_over(api: Api) -> None:
    async with Stream(api, credits=2) as stream:
        turn = await started(api, stream)
        await stream.command(turn, start_operation())
        await stream.command(turn, release())
        await stream.turn()
        shown = (await api.turns.GetTurn(GetTurnRequest(instance_id="a", turn=1), timeout=CALL_S)).turn
        assert (shown.state, shown.operation.active) == (TURN_STATE_RUNNING, False)
        assert not shown.operation.HasField("deadline")
