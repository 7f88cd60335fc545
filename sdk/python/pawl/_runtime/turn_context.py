"""The contexts that handlers are given."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Unpack
from uuid import UUID

from pawl._convert import failure_of, origin_of
from pawl._runtime.attempt import Attempt
from pawl._runtime.calls import decoder_of, round_trip, wants_step
from pawl._runtime.journal import Journal
from pawl._runtime.options import Options
from pawl._runtime.step_handle import StepHandle
from pawl._runtime.suspend import (
    CALLBACK_KIND,
    KINDS,
    SIGNAL_KIND,
    SLEEP_KIND,
    Suspended,
    sleep_of,
    wait_of,
)
from pawl.context import Context, Outcome, Received, StepOptions, SyncContext, TurnInfo
from pawl.errors import CallbackRejected, CallbackTimeout, PayloadError, StepError, StepTimeout
from pawl.models import Failure, Origin
from pawl.payloads import Payload, decode, decoder_for
from pawl.v1.failure_pb2 import Failure as FailureMessage
from pawl.v1.step_pb2 import Step as SavedStep
from pawl.v1.step_pb2 import WaitOutcome
from pawl.v1.worker_service_pb2 import Checkpoint, Sleep, WaitSignal
from pawl.workflow import check_id


class _TurnLog(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, journal: Journal, extra: dict[str, Any]) -> None:
        super().__init__(logger, extra)
        self._journal = journal

    def isEnabledFor(self, level: int) -> bool:
        return not self._journal.replaying and super().isEnabledFor(level)


class _Base(TurnInfo):
    __slots__ = ("_attempt", "_drawn", "_journal", "_log", "_random", "_suspended")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._journal = Journal(attempt.turn.steps)
        self._drawn = 0
        self._random: random.Random | None = None
        self._log: _TurnLog | None = None
        self._suspended: Suspended | None = None

    @property
    def instance_id(self) -> str:
        return self._attempt.turn.instance_id

    @property
    def turn(self) -> int:
        return self._attempt.turn.turn

    @property
    def message_id(self) -> str:
        return self._attempt.turn.message_id

    @property
    def attempt(self) -> int:
        return self._attempt.turn.attempt

    @property
    def max_attempts(self) -> int:
        return self._attempt.turn.max_attempts

    @property
    def fence(self) -> int:
        return self._attempt.turn.fence

    @property
    def remaining(self) -> float:
        return max(0.0, self._attempt.deadline - self._attempt.host.loop.time())

    @property
    def origin(self) -> Origin:
        return origin_of(self._attempt.turn.origin)

    @property
    def last_failure(self) -> Failure | None:
        turn = self._attempt.turn
        return failure_of(turn.last_failure) if turn.HasField("last_failure") else None

    @property
    def replaying(self) -> bool:
        return self._journal.replaying

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        if self._log is None:
            extra = {"instance_id": self.instance_id, "turn": self.turn, "attempt": self.attempt}
            self._log = _TurnLog(self._logger(), self._journal, extra)
        return self._log

    def _logger(self) -> logging.Logger:
        return logging.getLogger(f"pawl.workflow.{self._attempt.turn.workflow_type}")

    def now(self) -> datetime:
        self._drawn += 1
        admitted = self._attempt.turn.admit_time.ToDatetime(tzinfo=UTC)
        return admitted + timedelta(milliseconds=self._journal.position, microseconds=self._drawn)

    def uuid(self) -> UUID:
        self._drawn += 1
        return UUID(bytes=self._digest(f"uuid {self._drawn}"), version=4)

    def random(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self._digest("random"))
        return self._random

    def _digest(self, purpose: str) -> bytes:
        # Seeded by the steps passed, not by the calls made: what a step's function draws does not shift later
        # values, because on replay it does not run.
        turn = self._attempt.turn
        text = (
            f"{turn.namespace}\n{turn.instance_id}\n{turn.incarnation}\n{turn.turn}\n{turn.message_id}\n"
            f"{turn.admit_time.seconds}.{turn.admit_time.nanos}\n{self._journal.position}\n{purpose}"
        )
        return blake2b(text.encode(), digest_size=16).digest()

    def _enter_sleep(self, key: str, duration: float | timedelta) -> Sleep | None:
        """Enters a sleep; None if it is over, else the command."""
        try:
            sleep = sleep_of(key, duration)
        except (TypeError, ValueError) as error:
            raise self._journal.breaks(StepError(str(error))) from None
        saved = self._begin(key)
        if saved is None:
            return sleep
        self._same_kind(saved, SLEEP_KIND)
        self._passed(key)
        return None

    def _enter_wait(
        self, key: str, timeout: float | timedelta | None, *, name: str = "", callback: str = ""
    ) -> tuple[SavedStep | None, WaitSignal]:
        """Enters a wait: the saved step if it is over, and the command."""
        try:
            wait = wait_of(key, timeout, name=name, callback=callback)
        except (TypeError, ValueError) as error:
            raise self._journal.breaks(StepError(str(error))) from None
        saved = self._begin(key)
        if saved is not None:
            self._same_kind(saved, CALLBACK_KIND if callback else SIGNAL_KIND)
        return saved, wait

    def _same_kind(self, saved: SavedStep, kind: str) -> None:
        if saved.kind != kind:
            before = KINDS.get(saved.kind, f"a step of kind {saved.kind!r}")
            raise self._journal.breaks(
                StepError(f"{saved.key!r} was saved as {before}, and is {KINDS[kind]} now")
            )

    def _waited(self, key: str, outcome: int, value: Payload, returns: Any) -> Received:
        """How a wait ended; it is passed. Raises CallbackRejected, PayloadError."""
        if outcome == WaitOutcome.WAIT_OUTCOME_REJECTED:
            self._passed(key)
            raise CallbackRejected(key, failure_of(FailureMessage.FromString(value.data)))
        if outcome != WaitOutcome.WAIT_OUTCOME_RECEIVED:
            self._passed(key)
            return Received(False)
        try:
            found = (decode if returns is None else decoder_for(returns))(value)
        except PayloadError as error:
            turn = self._attempt.turn
            error.where = f"what {key!r} of turn {turn.turn} of {turn.instance_id} received"
            self._journal.failed(key)
            raise
        self._passed(key)
        return Received(True, found)

    def _result(self, key: str, received: Received) -> Any:
        """The value that a callback was given. Raises CallbackTimeout."""
        if not received.received:
            raise CallbackTimeout(key)
        return received.value

    def callback_token(self, key: str) -> str:
        base = self._attempt.turn.callback_base
        if not base:
            raise self._journal.breaks(StepError("this server does not offer callbacks"))
        try:
            return base + check_id(key, "callback key")
        except ValueError as error:
            raise self._journal.breaks(StepError(str(error))) from None

    def _suspend(self, key: str, sleep: Sleep | None = None) -> Suspended:
        self._suspended = Suspended(key, sleep)
        return self._suspended

    def _options(self, key: str, options: Options) -> Options:
        try:
            options.check(key)
        except (TypeError, ValueError) as error:
            raise self._journal.breaks(StepError(str(error))) from None
        return options

    def _begin(self, key: str) -> SavedStep | None:
        self._attempt.check_start()
        if self._suspended is not None:
            raise self._suspended
        return self._journal.begin(key)

    def _failed(self, key: str, options: Options, error: BaseException) -> None:
        """The function of a step raised, or its value can't be saved."""
        self._journal.failed(key)
        operation = self._attempt.operation
        if operation is not None and operation.error is not None and isinstance(error, Exception):
            raise self._journal.breaks(operation.error) from error
        self._attempt.failing = (key, options.retry)

    def _passed(self, key: str) -> None:
        self._journal.end(key)
        self._attempt.failing = None
        self._drawn = 0
        self._random = None

    def _replay(self, saved: SavedStep, fn: Callable[..., Any], returns: Any) -> Any:
        if saved.kind in KINDS:
            raise self._journal.breaks(
                StepError(f"{saved.key!r} was saved as {KINDS[saved.kind]}, and is a step now")
            )
        try:
            value = decoder_of(fn, returns)(saved.output)
        except PayloadError as error:
            turn = self._attempt.turn
            error.where = f"step {saved.position} {saved.key!r} of turn {turn.turn} of {turn.instance_id}"
            self._journal.failed(saved.key)
            raise
        self._passed(saved.key)
        return value

    def _wants_step(self, key: str, fn: Callable[..., Any]) -> bool:
        if inspect.iscoroutine(fn):
            fn.close()
            raise self._journal.breaks(
                StepError(f"step {key!r} was given a coroutine; pass the function that makes it")
            )
        try:
            return wants_step(fn)
        except (TypeError, ValueError) as error:
            raise self._journal.breaks(StepError(f"step {key!r}: {error}")) from None

    def _checkpoint(self, key: str, options: Options, value: Any, fn: Any) -> tuple[Checkpoint, Any]:
        try:
            payload, value = round_trip(value, decoder_of(fn, options.returns))
        except PayloadError as error:
            error.where = f"value of step {key!r}"
            raise
        return Checkpoint(key=key, kind=options.wire_kind, output=payload), value

    def _end_step(self) -> None:
        """The function has returned: what it reported last is sent. Raises StepError for a bad report."""
        operation = self._attempt.operation
        if operation is not None:
            if operation.error is not None:
                raise operation.error
            operation.finish()
            self._attempt.operation = None

    def close(self, outcome: Any) -> Outcome:
        """Checks that the handler may end the turn with this. Raises StepError, ReplayError or Suspended."""
        if self._suspended is not None:
            raise self._suspended
        self._journal.close()
        if not isinstance(outcome, Outcome):
            raise StepError(
                f"the handler returned {type(outcome).__name__}, not ctx.done(...) or ctx.continue_with(...)"
            )
        return outcome


async def _within(attempt: Attempt, key: str, position: int, value: Awaitable[Any], options: Options) -> Any:
    """Awaits a step's function, at most for its timeout; the server gets to know of it if it takes long."""
    scope = asyncio.timeout(options.timeout)
    timer = attempt.host.loop.call_later(options.register_after, _register, attempt, key, position, options)
    try:
        async with scope:
            return await value
    except TimeoutError:
        if scope.expired():
            raise StepTimeout(key, options.timeout) from None
        raise
    finally:
        timer.cancel()


def _register(attempt: Attempt, key: str, position: int, options: Options) -> None:
    if attempt.ended is None:
        attempt.begin_step(key, position, options).register()


class TurnContext(_Base, Context):
    """Context of an async handler."""

    __slots__ = ("_created",)

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt)
        self._created: tuple[str, Coroutine[Any, Any, Any]] | None = None

    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        **options: Unpack[StepOptions],
    ) -> Awaitable[Any]:
        return self._create(key, f"step {key!r}", self._step(key, fn, Options(**options)))

    def _create(self, key: str, what: str, made: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        if self._created is not None:
            made.close()
            raise self._unawaited(f"{what} was created")
        self._created = (key, made)
        return made

    async def _step(self, key: str, fn: Callable[..., Any], options: Options) -> Any:
        self._created = None
        self._options(key, options)
        saved = self._begin(key)
        if saved is not None:
            return self._replay(saved, fn, options.returns)
        attempt = self._attempt
        position = self._journal.position + 1
        try:
            if attempt.unsettled:
                await attempt.settle()
            if options.registers_first:
                await attempt.begin_step(key, position, options).registered()
                attempt.check_start()
            wants = self._wants_step(key, fn)
            attempt.thread_step = (key, position, options, time.monotonic())
            value = fn(StepHandle(attempt, key, position, options)) if wants else fn()
            attempt.thread_step = None
            if hasattr(value, "__await__"):
                value = await _within(attempt, key, position, value, options)
            checkpoint, value = self._checkpoint(key, options, value, fn)
            self._end_step()
            attempt.hold(checkpoint)
        except BaseException as error:
            attempt.thread_step = None
            self._failed(key, options, error)
            raise
        self._passed(key)
        return value

    def sleep(self, key: str, duration: float | timedelta) -> Awaitable[None]:
        return self._create(key, f"sleep {key!r}", self._sleep(key, duration))

    async def _sleep(self, key: str, duration: float | timedelta) -> None:
        self._created = None
        sleep = self._enter_sleep(key, duration)
        if sleep is not None:
            if self._attempt.unsettled:
                await self._attempt.settle()
            raise self._suspend(key, sleep)

    def wait_for_signal(
        self, key: str, *, name: str = "", timeout: float | timedelta | None = None, returns: Any = None
    ) -> Awaitable[Received]:
        made = self._wait(key, timeout, returns, name=name or key)
        return self._create(key, f"wait {key!r}", made)

    def wait_for_callback(
        self, key: str, *, timeout: float | timedelta | None = None, returns: Any = None
    ) -> Awaitable[Any]:
        return self._create(key, f"wait {key!r}", self._wait_callback(key, timeout, returns))

    async def _wait_callback(self, key: str, timeout: float | timedelta | None, returns: Any) -> Any:
        return self._result(key, await self._wait(key, timeout, returns, callback=key))

    async def _wait(
        self,
        key: str,
        timeout: float | timedelta | None,
        returns: Any,
        *,
        name: str = "",
        callback: str = "",
    ) -> Received:
        self._created = None
        saved, wait = self._enter_wait(key, timeout, name=name, callback=callback)
        if saved is not None:
            return self._waited(key, saved.wait_outcome, saved.output, returns)
        attempt = self._attempt
        if attempt.unsettled:
            await attempt.settle()
        result = await attempt.wait_signal(wait)
        if attempt.closing:
            raise self._suspend(key)
        return self._waited(key, result.outcome, result.value, returns)

    def _unawaited(self, what: str) -> StepError:
        assert self._created is not None
        key, step = self._created
        self._created = None
        step.close()
        return self._journal.breaks(
            StepError(f"{what} while step {key!r} was not awaited; await each step before the next one")
        )

    def close(self, outcome: Any) -> Outcome:
        if self._created is not None:
            raise self._unawaited("the handler returned")
        return super().close(outcome)

    def discard(self) -> None:
        """Drops a step that was created and never awaited, when the attempt ends otherwise."""
        if self._created is not None:
            self._created[1].close()
            self._created = None


class SyncTurnContext(_Base, SyncContext):
    """Context of a sync handler. All methods are called from the handler's thread."""

    __slots__ = ()

    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        **options: Unpack[StepOptions],
    ) -> Any:
        return self._step(key, fn, Options(**options))

    def _step(self, key: str, fn: Callable[..., Any], options: Options) -> Any:
        self._options(key, options)
        saved = self._begin(key)
        if saved is not None:
            return self._replay(saved, fn, options.returns)
        attempt, loop = self._attempt, self._attempt.host.loop
        position = self._journal.position + 1
        try:
            if options.registers_first:
                operation = attempt.begin_step(key, position, options)
                asyncio.run_coroutine_threadsafe(operation.registered(), loop).result()
                attempt.check_start()
            attempt.thread_step = (key, position, options, time.monotonic())
            wants = self._wants_step(key, fn)
            value = fn(StepHandle(attempt, key, position, options)) if wants else fn()
            if hasattr(value, "__await__"):
                within = _within(attempt, key, position, value, options)
                value = asyncio.run_coroutine_threadsafe(within, loop).result()
            attempt.thread_step = None
            checkpoint, value = self._checkpoint(key, options, value, fn)
            if attempt.operation is not None:
                asyncio.run_coroutine_threadsafe(self._ended(), loop).result()
            attempt.save_from_thread(checkpoint)
        except BaseException as error:
            attempt.thread_step = None
            self._failed(key, options, error)
            raise
        self._passed(key)
        return value

    async def _ended(self) -> None:
        self._end_step()

    def wait_for_signal(
        self, key: str, *, name: str = "", timeout: float | timedelta | None = None, returns: Any = None
    ) -> Received:
        return self._wait(key, timeout, returns, name=name or key)

    def wait_for_callback(
        self, key: str, *, timeout: float | timedelta | None = None, returns: Any = None
    ) -> Any:
        return self._result(key, self._wait(key, timeout, returns, callback=key))

    def _wait(
        self,
        key: str,
        timeout: float | timedelta | None,
        returns: Any,
        *,
        name: str = "",
        callback: str = "",
    ) -> Received:
        saved, wait = self._enter_wait(key, timeout, name=name, callback=callback)
        if saved is not None:
            return self._waited(key, saved.wait_outcome, saved.output, returns)
        attempt = self._attempt
        result = asyncio.run_coroutine_threadsafe(attempt.wait_signal(wait), attempt.host.loop).result()
        if attempt.closing:
            raise self._suspend(key)
        return self._waited(key, result.outcome, result.value, returns)

    def sleep(self, key: str, duration: float | timedelta) -> None:
        sleep = self._enter_sleep(key, duration)
        if sleep is not None:
            raise self._suspend(key, sleep)
