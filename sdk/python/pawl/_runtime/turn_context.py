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
from typing import Any
from uuid import UUID

from pawl._convert import failure_of, origin_of
from pawl._runtime.attempt import Attempt
from pawl._runtime.calls import decoder_of, round_trip, wants_step
from pawl._runtime.journal import Journal
from pawl._runtime.suspend import SLEEP_KIND, Suspended, sleep_of
from pawl.context import DEFAULT_STEP_TIMEOUT, Context, Outcome, Step, SyncContext, TurnInfo
from pawl.effects import effect_id
from pawl.errors import PayloadError, StepError, StepTimeout
from pawl.models import Failure, Origin
from pawl.v1.step_pb2 import Step as SavedStep
from pawl.v1.worker_service_pb2 import Checkpoint, Sleep

MIN_TIMEOUT, MAX_TIMEOUT = 0.1, 86_400.0


class StepHandle(Step):
    """What a step's function gets."""

    __slots__ = ("_attempt", "_end", "_key")

    def __init__(self, attempt: Attempt, key: str, timeout: float) -> None:
        self._attempt = attempt
        self._key = key
        self._end = time.monotonic() + timeout

    @property
    def key(self) -> str:
        return self._key

    @property
    def effect_id(self) -> str:
        turn = self._attempt.turn
        return effect_id(turn.namespace, turn.incarnation, turn.instance_id, turn.message_id, self._key)

    @property
    def attempt(self) -> int:
        return self._attempt.turn.attempt

    @property
    def fence(self) -> int:
        return self._attempt.turn.fence

    @property
    def cancelled(self) -> bool:
        return self._attempt.ended is not None or time.monotonic() > self._end


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
        saved = self._begin(key, MIN_TIMEOUT)
        if saved is None:
            return sleep
        if saved.kind != SLEEP_KIND:
            raise self._journal.breaks(
                StepError(f"{key!r} was saved as a step of kind {saved.kind!r}, and is a sleep now")
            )
        self._passed(key)
        return None

    def _suspend(self, sleep: Sleep) -> Suspended:
        self._suspended = Suspended(sleep)
        return self._suspended

    def _begin(self, key: str, timeout: float) -> SavedStep | None:
        self._attempt.check()
        if self._suspended is not None:
            raise self._suspended
        if not MIN_TIMEOUT <= timeout <= MAX_TIMEOUT:
            raise self._journal.breaks(
                StepError(f"timeout of step {key!r} must be 0.1 to 86,400 s, not {timeout!r}")
            )
        return self._journal.begin(key)

    def _passed(self, key: str) -> None:
        self._journal.end(key)
        self._drawn = 0
        self._random = None

    def _replay(self, saved: SavedStep, fn: Callable[..., Any], returns: Any) -> Any:
        if saved.kind == SLEEP_KIND:
            raise self._journal.breaks(StepError(f"{saved.key!r} was saved as a sleep, and is a step now"))
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

    def _checkpoint(self, key: str, kind: str, value: Any, fn: Any, returns: Any) -> tuple[Checkpoint, Any]:
        try:
            payload, value = round_trip(value, decoder_of(fn, returns))
        except PayloadError as error:
            error.where = f"value of step {key!r}"
            raise
        return Checkpoint(key=key, kind="" if kind == "step" else kind, output=payload), value

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


async def _within(key: str, value: Awaitable[Any], timeout: float) -> Any:
    scope = asyncio.timeout(timeout)
    try:
        async with scope:
            return await value
    except TimeoutError:
        if scope.expired():
            raise StepTimeout(key, timeout) from None
        raise


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
        *,
        kind: str = "step",
        timeout: float = DEFAULT_STEP_TIMEOUT,
        returns: Any = None,
    ) -> Awaitable[Any]:
        if self._created is not None:
            raise self._unawaited(f"step {key!r} was created")
        step = self._step(key, fn, kind, timeout, returns)
        self._created = (key, step)
        return step

    async def _step(self, key: str, fn: Callable[..., Any], kind: str, timeout: float, returns: Any) -> Any:
        self._created = None
        saved = self._begin(key, timeout)
        if saved is not None:
            return self._replay(saved, fn, returns)
        attempt = self._attempt
        try:
            if attempt.unsettled:
                await attempt.settle()
            value = fn(StepHandle(attempt, key, timeout)) if self._wants_step(key, fn) else fn()
            if hasattr(value, "__await__"):
                value = await _within(key, value, timeout)
            checkpoint, value = self._checkpoint(key, kind, value, fn, returns)
            attempt.hold(checkpoint)
        except BaseException:
            self._journal.failed(key)
            raise
        self._passed(key)
        return value

    def sleep(self, key: str, duration: float | timedelta) -> Awaitable[None]:
        if self._created is not None:
            raise self._unawaited(f"sleep {key!r} was created")
        sleep = self._sleep(key, duration)
        self._created = (key, sleep)
        return sleep

    async def _sleep(self, key: str, duration: float | timedelta) -> None:
        self._created = None
        sleep = self._enter_sleep(key, duration)
        if sleep is not None:
            if self._attempt.unsettled:
                await self._attempt.settle()
            raise self._suspend(sleep)

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
        *,
        kind: str = "step",
        timeout: float = DEFAULT_STEP_TIMEOUT,
        returns: Any = None,
    ) -> Any:
        saved = self._begin(key, timeout)
        if saved is not None:
            return self._replay(saved, fn, returns)
        handle = StepHandle(self._attempt, key, timeout)
        loop = self._attempt.host.loop
        try:
            value = fn(handle) if self._wants_step(key, fn) else fn()
            if hasattr(value, "__await__"):
                value = asyncio.run_coroutine_threadsafe(_within(key, value, timeout), loop).result()
            checkpoint, value = self._checkpoint(key, kind, value, fn, returns)
            self._attempt.save_from_thread(checkpoint)
        except BaseException:
            self._journal.failed(key)
            raise
        self._passed(key)
        return value

    def sleep(self, key: str, duration: float | timedelta) -> None:
        sleep = self._enter_sleep(key, duration)
        if sleep is not None:
            raise self._suspend(sleep)
