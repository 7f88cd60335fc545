"""Handlers run for one turn, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from logging import LogRecord
from typing import Any, Literal

from pawl._requests import UNSET
from pawl.context import Outcome
from pawl.errors import ReplayError
from pawl.models import Failure, Origin, SavedStep
from pawl.payloads import Payload, decode
from pawl.testing._attempts import CONTINUE, DONE, FAILED, Played, play
from pawl.testing._entries import STEP_KIND, WAIT_KIND, entries_of, payload_of, wait_entry
from pawl.testing._replays import check_replays
from pawl.testing._reports import Heartbeat, ProgressReport
from pawl.v1.turn_pb2 import Origin as OriginMessage
from pawl.v1.worker_service_pb2 import LeasedTurn, WaitSignal
from pawl.v1.worker_service_pb2 import Sleep as SleepCommand
from pawl.workflow import Workflow

ADMITTED = datetime(2027, 1, 15, 8, tzinfo=UTC)
CALLBACK_BASE = "cb1test."


@dataclass(frozen=True, slots=True)
class Sleep:
    """A sleep that a turn asked for."""

    key: str
    """Key of the sleep."""
    duration: timedelta
    """How long."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that a turn asked for."""

    key: str
    """Key of the wait."""
    name: str
    """Name of the signal; empty for a callback."""
    callback: bool
    """True if it waits for the callback of that key."""
    timeout: timedelta | None
    """How long; None for without end."""


@dataclass(frozen=True, slots=True)
class Deferral:
    """How a turn was put off."""

    delay: timedelta
    """Until the turn starts over."""
    reason: str
    """Why; empty if the handler did not say."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a handler did with one turn."""

    outcome: Literal["done", "continue", "failed", "sleep", "wait", "defer"]
    """How the attempt ended: "done", "continue" (done, and continued with a message), "failed", "sleep",
    "wait" or "defer"."""
    state: Any
    """New state, the object that the handler gave; the old one, decoded as the handler got it, unless the
    turn is done."""
    result: Any
    """Reply of the turn, the object that the handler gave; None if there is none."""
    continuation: Any
    """Message that the handler continued with, the object that it gave."""
    steps: dict[str, Any]
    """Values of the steps that ran, by key, in order, decoded without annotation; not of those given as
    saved, nor what waits received."""
    failure: Failure | None
    """Why the attempt failed, if it did."""
    state_payload: Payload
    """The state as it is stored; `pawl.payloads.decode` shows what a reader without annotations sees."""
    result_payload: Payload | None = None
    """The reply as it is stored."""
    continuation_payload: Payload | None = None
    """The message that the handler continued with, as it is stored."""
    exception: BaseException | None = field(default=None, compare=False)
    """What the handler raised, if the attempt failed with it."""
    retry_delay: timedelta | None = None
    """Time to the next attempt, if a RetryableError named one."""
    sleep: Sleep | None = None
    """What the turn sleeps for, if the attempt ended with it."""
    deferral: Deferral | None = None
    """How the turn was put off, if the attempt ended with it."""
    slept: tuple[Sleep, ...] = ()
    """Sleeps that were over at once, with `wake`."""
    wait: Wait | None = None
    """What the turn waits for, if the attempt ended with it."""
    waited: tuple[Wait, ...] = ()
    """Waits that were over at once, with `waits`."""
    progress: tuple[ProgressReport, ...] = ()
    """What steps reported by `step.progress`, in order."""
    heartbeats: tuple[Heartbeat, ...] = ()
    """What steps reported by `step.heartbeat`, in order."""
    logs: tuple[LogRecord, ...] = field(default=(), compare=False)
    """What `ctx.log` was given, of all levels; nothing while saved steps were replayed."""

    @property
    def continues(self) -> bool:
        """True if the handler continued with a message."""
        return self.outcome == "continue"


class UnusedNames(AssertionError):
    """Names given to `run` that the handler has not asked for.

    Attributes:
        names: the names.
        keys: keys of the steps that the handler asked for, in order; for saved steps, of sleeps and waits
            too; for `waits`, of waits.
    """

    def __init__(self, workflow: str, given: str, names: tuple[str, ...], keys: tuple[str, ...]) -> None:
        self.names = names
        self.keys = keys
        asked = (
            f"for {', '.join(map(repr, keys))}"
            if keys
            else f"for no {'wait' if given == 'waits' else 'step'}"
        )
        super().__init__(
            f"{given} has {', '.join(map(repr, names))}, but the handler of {workflow!r} asked {asked}"
        )


async def run(
    workflow: Workflow,
    message: Any,
    *,
    state: Any = UNSET,
    steps: Mapping[str, Any] | Iterable[SavedStep] | None = None,
    fakes: Mapping[str, Any] | None = None,
    waits: Mapping[str, Any] | None = None,
    resume: Mapping[str, Any] | None = None,
    wake: bool = False,
    replay: bool = False,
    instance_id: str = "test",
    message_id: str = "m-1",
    turn: int = 1,
    attempt: int = 1,
    max_attempts: int = 3,
    origin: bytes | Origin = b"",
    last_failure: Failure | None = None,
    admit_time: datetime = ADMITTED,
    namespace: str = "test",
) -> Ran:
    """Runs a handler for one attempt at one turn, by the code that runs it in a worker, without a server.

    What fails the attempt is not raised: look at `Ran.outcome`, `Ran.failure` and `Ran.exception`. Sizes and
    numbers of steps are not limited here, as these limits are the server's.

    Args:
        workflow: what to run.
        message: the message: a value, or a Payload that is taken as it is.
        state: state before the turn, likewise; default is the workflow's initial state.
        steps: steps saved by an earlier attempt, in order: their values by key (`SLEPT` for a sleep that is
            over; for a wait a `pawl.Received`, `TIMED_OUT`, or what rejected it), or the `steps` of a turn
            that a client read. They are replayed: their functions do not run.
        fakes: what stands in for the functions of steps, by key: a value, an exception to raise, or a
            function of no argument or of one `Step`. Steps that are not named run as they are.
        waits: how waits for signals and callbacks end, by key of the wait: the value that is there already, a
            `pawl.Received`, `TIMED_OUT` if the time is over first (the handler starts over then), or for a
            callback that is rejected a `CallbackRejected` or `Failure`. The turn ends with "wait" at one that
            is not named.
        resume: what `step.checkpoint` gives at first, as an earlier attempt reported it: the key of the step
            that it ended in, and the value. At most one key.
        wake: sleeps are over at once, as if their time had passed: the handler starts over with what is
            saved.
        replay: afterwards replays the turn from each place where it could be interrupted, with the values
            that the steps gave, and raises NonDeterminism where the handler does something else. Steps do
            not run again.
        instance_id, message_id, turn, attempt, max_attempts, origin, last_failure: as the handler shall see
            them. `origin` is what a sender gave, or a whole `Origin`.
        admit_time: when the message was admitted, which `ctx.now()`, `ctx.uuid()` and `ctx.random()` derive
            from; default is 2027-01-15T08:00Z.
        namespace: part of the steps' effect ids.

    Callback tokens are `cb1test.` and the key; every report of a step is taken.

    Raises UnusedNames if the turn is done and the handler has not asked for one of `fakes`, `waits` or
    `resume` (an attempt that ends otherwise may not have come to all of them), and if an attempt ends without
    a ReplayError although the handler has not asked for one of `steps`. Raises ValueError for a wait that
    can't end as it is said to: a signal is not rejected, and a wait without timeout does not time out.
    """
    leased = LeasedTurn(
        lease=b"test",
        fence=1,
        instance_id=instance_id,
        incarnation=1,
        workflow_type=workflow.name,
        version=workflow.version,
        turn=turn,
        message_id=message_id,
        message=payload_of(message),
        origin=_origin(origin),
        state=workflow.initial_state if state is UNSET else payload_of(state),
        attempt=attempt,
        max_attempts=max(max_attempts, attempt),
        namespace=namespace,
        callback_base=CALLBACK_BASE,
    )
    leased.admit_time.FromDatetime(admit_time)
    if last_failure is not None:
        leased.last_failure.reason = last_failure.reason
        leased.last_failure.message = last_failure.message
        leased.last_failure.attempt = last_failure.attempt
        leased.last_failure.non_retryable = last_failure.non_retryable
    _set_resume(leased, resume or {})
    saved = list(entries_of(steps))
    received = {key: wait_entry(key, given) for key, given in (waits or {}).items()}
    played = await play(workflow, leased, saved, fakes or {}, received, wakes=lambda _: wake)
    _check_used(workflow, played, [entry.key for entry in saved], fakes or {}, received, resume or {})
    if replay:
        await check_replays(workflow, leased, played)
    return _ran(played, len(saved))


def _set_resume(leased: LeasedTurn, resume: Mapping[str, Any]) -> None:
    if len(resume) > 1:
        raise ValueError(f"resume has {len(resume)} keys; an attempt ends in one step")
    for key, value in resume.items():
        leased.operation.key = key
        leased.operation.resume.CopyFrom(payload_of(value))


def _check_used(
    workflow: Workflow,
    played: Played,
    saved: list[str],
    fakes: Mapping[str, Any],
    waits: Mapping[str, Any],
    resume: Mapping[str, Any],
) -> None:
    if played.failure is None or played.failure.reason != ReplayError.__name__:
        unused = tuple(key for key in saved if key not in played.asked)
        if unused:
            raise UnusedNames(workflow.name, "steps", unused, tuple(played.asked)) from played.exception
    if played.ending not in (DONE, CONTINUE):
        return
    for given, names, kind in (
        ("fakes", fakes, STEP_KIND),
        ("waits", waits, WAIT_KIND),
        ("resume", resume, STEP_KIND),
    ):
        unused = tuple(key for key in names if played.asked.get(key) != kind)
        if unused:
            keys = tuple(key for key, asked in played.asked.items() if asked == kind)
            raise UnusedNames(workflow.name, given, unused, keys)


def run_sync(workflow: Workflow, message: Any, **options: Any) -> Ran:
    """Same as `run`, for tests without an event loop. `options` are those of `run`."""
    return asyncio.run(run(workflow, message, **options))


def _origin(origin: bytes | Origin) -> OriginMessage:
    if not isinstance(origin, Origin):
        return OriginMessage(client=origin)
    if origin.kind == "client":
        return OriginMessage(client=origin.client)
    message = OriginMessage()
    source = getattr(message, origin.kind)
    source.turn = origin.turn
    source.message_id = origin.message_id
    return message


def _ran(played: Played, given: int) -> Ran:
    outcome = played.outcome
    done = outcome if played.ending in (DONE, CONTINUE) and isinstance(outcome, Outcome) else None
    return Ran(
        outcome=played.ending,
        state=done.state if done else played.old_state,
        result=done.result if done else None,
        continuation=done.continuation if done else None,
        steps={
            entry.key: decode(entry.output)
            for entry in played.entries[given:]
            if entry.kind == STEP_KIND and entry.output is not None
        },
        failure=played.failure,
        state_payload=played.state,
        result_payload=played.reply,
        continuation_payload=played.continuation,
        exception=played.exception if played.ending == FAILED else None,
        retry_delay=played.retry_delay,
        sleep=_sleep(played.sleep) if played.sleep else None,
        deferral=Deferral(played.deferral.delay.ToTimedelta(), played.deferral.reason)
        if played.deferral
        else None,
        slept=tuple(_sleep(sleep) for sleep in played.slept),
        wait=_wait(played.wait) if played.wait else None,
        waited=tuple(_wait(wait) for wait in played.waited),
        progress=tuple(each for each in played.reports if isinstance(each, ProgressReport)),
        heartbeats=tuple(each for each in played.reports if isinstance(each, Heartbeat)),
        logs=tuple(played.logs),
    )


def _sleep(sleep: SleepCommand) -> Sleep:
    return Sleep(sleep.key, sleep.duration.ToTimedelta())


def _wait(wait: WaitSignal) -> Wait:
    timeout = wait.timeout.ToTimedelta() if wait.HasField("timeout") else None
    return Wait(wait.key, wait.name, bool(wait.callback_key), timeout)
