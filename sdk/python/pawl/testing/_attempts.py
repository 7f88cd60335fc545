"""Attempts at a turn by the worker's own code, on a host that acknowledges every command at once."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from pawl._convert import failure_of
from pawl._runtime.attempt import Attempt
from pawl._runtime.calls import returned_by
from pawl._runtime.executor import Executor
from pawl._runtime.operation import Operation
from pawl._runtime.options import Options
from pawl._runtime.suspend import CALLBACK_KIND, SIGNAL_KIND, SLEEP_KIND
from pawl._runtime.turn_context import SyncTurnContext, TurnContext
from pawl.context import Outcome
from pawl.errors import PayloadError
from pawl.models import Failure
from pawl.payloads import Payload, decode
from pawl.testing._entries import REJECTED, STEP_KIND, TIME_OVER, WAIT_KIND, Entry
from pawl.testing._reports import Heartbeat, ProgressReport, RecordingAttempt
from pawl.v1.step_pb2 import Step
from pawl.v1.worker_service_pb2 import (
    Command,
    CommandResult,
    Defer,
    Finish,
    LeasedTurn,
    Sleep,
    WaitSignal,
    WaitSignalResult,
)
from pawl.workflow import Workflow

Ending = Literal["done", "continue", "failed", "sleep", "wait", "defer"]
DONE: Final = "done"
CONTINUE: Final = "continue"
FAILED: Final = "failed"
SLEEP: Final = "sleep"
WAIT: Final = "wait"
DEFER: Final = "defer"


class Stray(BaseException):
    """Unwinds a handler that asked for what the test can't give."""


@dataclass(slots=True)
class Played:
    """What came of a turn: its steps, and how the last attempt ended."""

    entries: list[Entry]
    ending: Ending = FAILED
    outcome: Outcome | None = None
    old_state: Any = None
    state: Payload = field(default_factory=Payload)
    reply: Payload | None = None
    continuation: Payload | None = None
    failure: Failure | None = None
    retry_delay: Any = None
    exception: BaseException | None = None
    sleep: Sleep | None = None
    deferral: Defer | None = None
    slept: list[Sleep] = field(default_factory=list)
    wait: WaitSignal | None = None
    waited: list[WaitSignal] = field(default_factory=list)
    """Waits that are over."""
    raised: dict[str, BaseException] = field(default_factory=dict)
    """What steps raised, by key."""
    asked: dict[str, str] = field(default_factory=dict)
    """Keys that the handler asked for, in order, with "step", "sleep" or "wait"."""
    stray: str = ""
    """Key of a step that there was no value for."""
    misuse: ValueError | None = None
    """Why the test can't give what a wait is said to receive."""
    reports: list[ProgressReport | Heartbeat] = field(default_factory=list)
    logs: list[logging.LogRecord] = field(default_factory=list)


async def play(
    workflow: Workflow,
    turn: LeasedTurn,
    saved: Collection[Entry],
    fakes: Mapping[str, Any],
    waits: Mapping[str, Entry],
    *,
    wakes: Callable[[str], bool],
    strict: bool = False,
) -> Played:
    """Runs a handler with saved steps; starts it over after sleeps that `wakes` has pass at once.

    `fakes` stand in for the functions of steps. If `strict`, the functions themselves never run. `waits` says
    how waits end; the handler starts over after those whose time is over. Raises ValueError for one that
    can't end so.
    """
    played = Played(list(saved), state=turn.state, old_state=_old_state(turn, workflow))
    while True:
        await _Host(workflow, turn, played, fakes, waits, strict).run()
        if played.misuse is not None:
            raise played.misuse
        if played.sleep is not None and played.ending == SLEEP and wakes(played.sleep.key):
            played.entries.append(Entry(played.sleep.key, None, SLEEP_KIND))
            played.slept.append(played.sleep)
            played.sleep = None
        elif played.wait is not None and played.wait.key in waits:
            played.entries.append(_ended(waits[played.wait.key], played.wait.callback_key))
            played.waited.append(played.wait)
            played.wait = None
        else:
            return played


def _ended(entry: Entry, callback: str) -> Entry:
    return dataclasses.replace(entry, kind=CALLBACK_KIND if callback else SIGNAL_KIND)


def _old_state(turn: LeasedTurn, workflow: Workflow) -> Any:
    try:
        return workflow.decode_state(turn.state)
    except PayloadError:
        return decode(turn.state)


class _Host:
    """Runs one attempt, in place of a worker."""

    def __init__(
        self,
        workflow: Workflow,
        turn: LeasedTurn,
        played: Played,
        fakes: Mapping[str, Any],
        waits: Mapping[str, Entry],
        strict: bool,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.played = played
        self.logger = _Logger(workflow.name, played.logs)
        self._workflow = dataclasses.replace(workflow, handler=self._listening(workflow))
        self._turn = LeasedTurn()
        self._turn.CopyFrom(turn)
        self._turn.steps.extend(entry.step(at) for at, entry in enumerate(played.entries, 1))
        self._fakes = fakes
        self._waits = waits
        self._strict = strict
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Returns when the attempt has ended."""
        executor = _Executor(self.loop, threads=1)
        attempt = RecordingAttempt(self._turn, self._workflow, self, None, float("inf"))
        executor.start(attempt)
        try:
            await self._over.wait()
            if self.played.wait is not None and attempt.task is not None:
                # The lease is over before the handler is unwound.
                await asyncio.wait([attempt.task])
        finally:
            if attempt.task is not None and not attempt.task.done():
                attempt.task.cancel()
            executor.close()

    def stand_in(self, key: str, fn: Any, returns: Any) -> tuple[Any, Any]:
        """What runs in place of a step's function, and what its value is decoded to."""
        if inspect.iscoroutine(fn) or (key not in self._fakes and not self._strict):
            return fn, returns
        returns = returned_by(fn) if returns is None else returns
        if key not in self._fakes:
            self.played.stray = key
            return _raising(Stray(key)), returns
        fake = self._fakes[key]
        if isinstance(fake, BaseException) or (isinstance(fake, type) and issubclass(fake, BaseException)):
            return _raising(fake), returns
        return (fake if callable(fake) else lambda: fake), returns

    def enter_wait(self, key: str, timeout: float | timedelta | None, callback: str) -> None:
        """The handler comes to a wait. Raises Stray if the test can't let it end as it says."""
        self.played.asked[key] = WAIT
        for at, entry in enumerate(self.played.entries):
            if entry.key == key and entry.is_wait:
                self._check_wait("steps", entry, timeout, callback)
                if entry.kind == WAIT_KIND:
                    self.played.entries[at] = entry = _ended(entry, callback)
                    self._turn.steps[at].kind = entry.kind
                return
        if key in self._waits:
            self._check_wait("waits", self._waits[key], timeout, callback)

    def _check_wait(self, given: str, entry: Entry, timeout: float | timedelta | None, callback: str) -> None:
        if entry.kind != WAIT_KIND:  # as the turn had it
            return
        if entry.outcome == REJECTED and not callback:
            why = "rejected, but it waits for a signal, which can't be"
        elif entry.outcome == TIME_OVER and timeout is None:
            why = "timed out, but it waits without end"
        else:
            return
        self.played.misuse = ValueError(f"{given} has {entry.key!r} {why}")
        raise Stray(entry.key)

    def _listening(self, workflow: Workflow) -> Callable[..., Any]:
        """The handler, with what it returns and raises kept."""
        played = self.played

        async def run_async(*given: Any) -> Any:
            try:
                played.outcome = await workflow.handler(*given)
            except BaseException as error:
                played.exception = error
                raise
            return played.outcome

        def run_sync(*given: Any) -> Any:
            try:
                played.outcome = workflow.handler(*given)
            except BaseException as error:
                played.exception = error
                raise
            return played.outcome

        return run_async if workflow.is_async else run_sync

    # What an attempt wants of its host.

    def transmit(self, attempt: Attempt) -> None:
        command = attempt.command
        assert command is not None
        result = CommandResult(lease=attempt.lease, n=command.n)
        if self.played.wait is None:  # else the lease is over, whatever the handler makes of it
            self._take(command, result)
        self.loop.call_soon(attempt.answered, result, None)

    def transmit_early(self, operation: Operation) -> None:
        command = operation.command
        assert command is not None
        kind: Any = command.WhichOneof("action")
        result = CommandResult(lease=command.lease)
        getattr(result, kind).position = operation.position
        if kind == "report_progress":
            result.report_progress.sequence = command.report_progress.sequence
        self.loop.call_soon(operation.answered, result)

    def abandoned(self, attempt: Attempt) -> None:
        pass

    def superseded(self, stream: Any) -> bool:
        return False

    def free(self, attempt: Attempt) -> None:
        pass

    def forget(self, attempt: Attempt) -> None:
        self._over.set()

    def _take(self, command: Command, result: CommandResult) -> None:
        played = self.played
        match command.WhichOneof("action"):
            case "checkpoint":
                played.entries.append(Entry(command.checkpoint.key, command.checkpoint.output))
            case "finish":
                self._finished(command.finish)
            case "sleep":
                played.ending, played.sleep = SLEEP, command.sleep
            case "wait_signal":
                self._wait(command.wait_signal, result.wait_signal)
            case "defer":
                played.ending, played.deferral = DEFER, command.defer
            case "fail":
                fail = command.fail
                played.ending, played.failure = FAILED, failure_of(fail.failure)
                if fail.HasField("retry_delay"):
                    played.retry_delay = fail.retry_delay.ToTimedelta()

    def _wait(self, wait: WaitSignal, result: WaitSignalResult) -> None:
        played, entry = self.played, self._waits.get(wait.key)
        if entry is None or entry.outcome == TIME_OVER:
            played.ending, played.wait = WAIT, wait
            result.suspended = True
            return
        played.entries.append(_ended(entry, wait.callback_key))
        played.waited.append(wait)
        result.position = len(played.entries)
        result.outcome = entry.outcome
        result.value.CopyFrom(entry.output or Payload())

    def _finished(self, finish: Finish) -> None:
        played = self.played
        if finish.HasField("last_step"):
            played.entries.append(Entry(finish.last_step.key, finish.last_step.output))
        if finish.HasField("state"):
            played.state = finish.state
        if finish.HasField("reply"):
            played.reply = finish.reply
        played.ending = DONE
        if finish.HasField("continuation"):
            played.ending, played.continuation = CONTINUE, finish.continuation


def _raising(error: Any) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


class _Logger(logging.Logger):
    """Keeps the records of all levels; passes on those that the workflow's logger would write."""

    def __init__(self, workflow_type: str, records: list[logging.LogRecord]) -> None:
        super().__init__(f"pawl.workflow.{workflow_type}")
        self._records = records
        self._real = logging.getLogger(self.name)

    def handle(self, record: logging.LogRecord) -> None:
        self._records.append(record)
        if self._real.isEnabledFor(record.levelno):
            self._real.handle(record)


def _host(context: TurnContext | SyncTurnContext) -> _Host:
    host: Any = context._attempt.host
    return host


class _Context(TurnContext):
    __slots__ = ()

    async def _step(self, key: str, fn: Callable[..., Any], options: Options) -> Any:
        host = _host(self)
        host.played.asked[key] = STEP_KIND
        fn, returns = host.stand_in(key, fn, options.returns)
        try:
            return await super()._step(key, fn, options._replace(returns=returns))
        except BaseException as error:
            host.played.raised[key] = error
            raise

    def _enter_sleep(self, key: str, duration: float | timedelta) -> Sleep | None:
        _host(self).played.asked[key] = SLEEP_KIND
        return super()._enter_sleep(key, duration)

    def _enter_wait(
        self, key: str, timeout: float | timedelta | None, *, name: str = "", callback: str = ""
    ) -> tuple[Step | None, WaitSignal]:
        _host(self).enter_wait(key, timeout, callback)
        return super()._enter_wait(key, timeout, name=name, callback=callback)

    def _logger(self) -> logging.Logger:
        return _host(self).logger


class _SyncContext(SyncTurnContext):
    __slots__ = ()

    def _step(self, key: str, fn: Callable[..., Any], options: Options) -> Any:
        host = _host(self)
        host.played.asked[key] = STEP_KIND
        fn, returns = host.stand_in(key, fn, options.returns)
        try:
            return super()._step(key, fn, options._replace(returns=returns))
        except BaseException as error:
            host.played.raised[key] = error
            raise

    def _enter_sleep(self, key: str, duration: float | timedelta) -> Sleep | None:
        _host(self).played.asked[key] = SLEEP_KIND
        return super()._enter_sleep(key, duration)

    def _enter_wait(
        self, key: str, timeout: float | timedelta | None, *, name: str = "", callback: str = ""
    ) -> tuple[Step | None, WaitSignal]:
        _host(self).enter_wait(key, timeout, callback)
        return super()._enter_wait(key, timeout, name=name, callback=callback)

    def _logger(self) -> logging.Logger:
        return _host(self).logger


class _Executor(Executor):
    async_context = _Context
    sync_context = _SyncContext
