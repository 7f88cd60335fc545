"""What a handler is given: the interface, apart from its implementation in `pawl._runtime`.

Async handlers get a `Context`, sync handlers (which run in threads) a `SyncContext`; they differ in
`step`, `sleep` and the waits alone.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from pawl._unset import UNSET
from pawl.models import Failure, Origin, RetryPolicy

T = TypeVar("T")

DEFAULT_STEP_TIMEOUT = 300.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ends well; made by `ctx.done` and `ctx.continue_with`, returned by the handler."""

    state: Any
    result: Any = None
    continuation: Any = None
    continues: bool = False


class Step(ABC):
    """What a step's function may ask for as its only argument."""

    __slots__ = ()

    @property
    @abstractmethod
    def key(self) -> str:
        """Name of the step, unique in the turn."""

    @property
    @abstractmethod
    def effect_id(self) -> str:
        """Stable id of the step's effect, for idempotency downstream.

        The same 32 hexadecimal digits in every attempt and after every recovery; see
        `pawl.effects.effect_id`. The effect can happen before its checkpoint is saved, so it is delivered at
        least once under this id.
        """

    @property
    @abstractmethod
    def attempt(self) -> int:
        """Number of the attempt, from 1."""

    @property
    @abstractmethod
    def fence(self) -> int:
        """Fencing number of the lease, for conditional writes downstream: rises with every lease."""

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """True once the step should stop.

        The turn is being cancelled, the lease was lost, the worker stops, or the timeout has passed.
        """

    @property
    @abstractmethod
    def checkpoint(self) -> Any:
        """Where to go on: what an earlier attempt, or this one, gave to `heartbeat` last; else None."""

    @abstractmethod
    def heartbeat(self, details: Any = None, *, checkpoint: Any = UNSET) -> None:
        """Says that the step is alive, how far it is, and where the next attempt could go on.

        May be called from any thread and as often as wanted: the newest report is sent at once, then at most
        once a second, or twice within the heartbeat timeout. What was not sent when the step raises travels
        with the failure.

        Args:
            details: anything for people who look at the turn, at most 8 KiB when encoded; None leaves the
                last ones out.
            checkpoint: what `step.checkpoint` gives to the next attempt, at most 32 KiB when encoded; left
                out, the last one stays.

        Raises StepError for what is too large or can't be encoded: the step fails for good.
        """

    @abstractmethod
    def progress(self, phase: str, done: int = 0, total: int | None = None, *, unit: str = "") -> None:
        """Says how far the step is in a form that clients draw: "reading pages", 40 of 97 pages.

        Sent at once when the phase changes, else at most every 3 s, or twice within the heartbeat timeout;
        the last value is always sent. The checkpoint of the last `heartbeat` stays.

        Args:
            phase: plain words, 1 to 80 characters.
            done: units done, at least 0.
            total: units in all, at least 0; None if that is not known.
            unit: what is counted, 1 to 32 letters, digits, spaces, `-` or `_`; may be empty.

        Raises StepError for anything else: the step fails for good.
        """


@dataclass(frozen=True, slots=True)
class Received:
    """How a wait for a signal ended."""

    received: bool
    """False if the time was over first."""
    value: Any = None
    """What was sent, which may be None; None if nothing was received."""


class StepOptions(TypedDict, total=False):
    """Options of `Context.step`."""

    kind: str
    """Free word for what the step does, `[A-Za-z0-9_.-]{1,128}`; default is "step"."""
    timeout: float
    """Seconds that the function may take, 0.1 to 86,400; default is 300.

    An async one is stopped; of any other the server ends the attempt, also while its worker lives and renews.
    """
    heartbeat_timeout: float | None
    """Seconds, 0.1 to `timeout`, within which the function must report again, else the attempt fails.

    Only `step.heartbeat` and `step.progress` count. Default is none.
    """
    retry: RetryPolicy | None
    """What decides about failures of the step in place of the type's policy.

    Its `max_attempts` counts failures in a row of the step.
    """
    on_restart: Literal["retry", "park"]
    """What becomes of the turn if its worker dies, or its time runs out, while the function runs.

    "retry", the default, runs the step again; "park" leaves the turn UNCERTAIN until somebody looks what
    happened and calls `Client.resolve_step`.
    """
    returns: Any
    """Type of the value, where it is a dataclass, struct or model; default is the function's annotation."""


class TurnInfo(ABC):
    """What handlers of both kinds can read, and how they end their turn."""

    __slots__ = ()

    @property
    @abstractmethod
    def instance_id(self) -> str:
        """Instance the turn belongs to."""

    @property
    @abstractmethod
    def turn(self) -> int:
        """Number of the turn, from 1."""

    @property
    @abstractmethod
    def message_id(self) -> str:
        """Id of the message."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """Number of this attempt, from 1."""

    @property
    @abstractmethod
    def max_attempts(self) -> int:
        """Attempts that may fail or expire in all."""

    @property
    @abstractmethod
    def fence(self) -> int:
        """Fencing number of the lease, see `Step.fence`."""

    @property
    @abstractmethod
    def remaining(self) -> float:
        """Seconds left of the attempt timeout; 0 once it has passed, infinity if the server stated none."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """How the message came to be."""

    @property
    @abstractmethod
    def last_failure(self) -> Failure | None:
        """Why the attempt before this one failed, if one did."""

    @property
    @abstractmethod
    def replaying(self) -> bool:
        """True while steps saved by an earlier attempt are still to be passed."""

    @property
    @abstractmethod
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger "pawl.workflow.<type>", silent while replaying.

        Its records carry `instance_id`, `turn` and `attempt`.
        """

    @abstractmethod
    def now(self) -> datetime:
        """Logical time: when the message was admitted, plus a little for each step and call.

        The same on every replay, so it needs no step. For the real time, use a step.
        """

    @abstractmethod
    def uuid(self) -> UUID:
        """A new UUID (version 4 in form), the same on every replay."""

    @abstractmethod
    def random(self) -> random.Random:
        """A random generator that gives the same numbers on every replay.

        It is seeded anew by each step: ask for it again after a step instead of keeping it.
        """

    @abstractmethod
    def callback_token(self, key: str) -> str:
        """Token by which anybody can give the callback of this key its result, or reject it.

        Hand it out in a step; `Client.resolve_callback` and `reject_callback` take it. The same in every
        attempt.

        Args:
            key: `[A-Za-z0-9_.-]{1,128}`, unique among the callbacks of the turn.
        """

    def done(self, state: Any, result: Any = None) -> Outcome:
        """Ends the turn with a new state and a reply: `return ctx.done(state, result=...)`."""
        return Outcome(state, result)

    def continue_with(self, state: Any, message: Any, *, result: Any = None) -> Outcome:
        """Ends the turn and puts `message` at the end of the inbox, in one transition.

        The message becomes a turn with message id "continue-<turn>", behind those that wait already.
        """
        return Outcome(state, result, message, True)


class Context(TurnInfo):
    """Context of an async handler."""

    __slots__ = ()

    @overload
    def step(
        self, key: str, fn: Callable[[], Awaitable[T]], **options: Unpack[StepOptions]
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self, key: str, fn: Callable[[Step], Awaitable[T]], **options: Unpack[StepOptions]
    ) -> Awaitable[T]: ...
    @overload
    def step(self, key: str, fn: Callable[[], T], **options: Unpack[StepOptions]) -> Awaitable[T]: ...
    @overload
    def step(self, key: str, fn: Callable[[Step], T], **options: Unpack[StepOptions]) -> Awaitable[T]: ...
    @abstractmethod
    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        **options: Unpack[StepOptions],
    ) -> Awaitable[Any]:
        """Runs `fn` once and saves what it returns; later attempts get the saved value without running it.

        Steps are awaited one after the other; their order and keys must not change within a version. The
        value comes back as it reads from storage (a tuple as a list), the same live and on replay.

        Args:
            key: `[A-Za-z0-9_.-]{1,128}`, unique in the turn.
            fn: sync or async function of no argument, or of one `Step`. A sync function runs on the event
                loop, so it must be quick; wrap blocking work in `asyncio.to_thread`.
            options: see StepOptions.

        Raises:
            StepError: used in parallel, key used twice or malformed, timeout out of range, another step has
            failed.
            ReplayError: an earlier attempt saved another step at this place.
            StepTimeout: `fn` took too long.
            AttemptEnded: the turn is being cancelled; also once the lease is lost.
            PayloadError: the value can't be encoded, or the saved one can't be decoded.
            LimitExceeded: too many steps, or too large; may surface at the next step or when the handler
            returns.
            Exception: whatever `fn` raises. It is not saved: let it pass, to try again with the next attempt.
        """

    @abstractmethod
    def sleep(self, key: str, duration: float | timedelta) -> Awaitable[None]:
        """Sleeps durably: the turn is saved and leaves the worker until the time is over; costs no attempt.

        The handler is unwound here (by an `AttemptEnded`, which no code may swallow) and starts over when the
        time is over: it passes its saved steps, and this sleep, and goes on. The sleep counts as a step.

        Args:
            key: as of a step, unique in the turn.
            duration: seconds or timedelta, at most 365 days; less than 1 ms counts as 1 ms. For a point in
                time, save in a step how long is left.

        Raises:
            StepError: as `step`; duration negative or out of range.
            ReplayError: an earlier attempt saved another step at this place.
        """

    @abstractmethod
    def wait_for_signal(
        self,
        key: str,
        *,
        name: str = "",
        timeout: float | timedelta | None = None,
        returns: Any = None,
    ) -> Awaitable[Received]:
        """Waits durably for a signal to this turn; takes the oldest one of the name that was not taken.

        If there is none, the turn leaves the worker until one is received strictly before the time is over;
        the handler is unwound as by `sleep`. Costs no attempt. The wait counts as a step.

        Args:
            key: as of a step, unique in the turn.
            name: of the signal, `[A-Za-z0-9_.-]{1,128}`; default is `key`.
            timeout: seconds or timedelta, 1 ms to 365 days; None waits without end.
            returns: type of the value, as of a step.

        Raises StepError and ReplayError as `step`, PayloadError if the value can't be decoded.
        """

    @abstractmethod
    def wait_for_callback(
        self, key: str, *, timeout: float | timedelta | None = None, returns: Any = None
    ) -> Awaitable[Any]:
        """Waits durably for the result of a callback, see `callback_token`; parameters as `wait_for_signal`.

        Raises CallbackRejected with what it was rejected with, CallbackTimeout if the time was over first;
        both fail the turn for good unless the handler catches them.
        """

    def callback(self, key: str) -> Callback:
        """A callback to hand out and to wait for."""
        return Callback(self, key)


class SyncContext(TurnInfo):
    """Context of a sync handler, which runs in a thread."""

    __slots__ = ()

    @abstractmethod
    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        **options: Unpack[StepOptions],
    ) -> Any:
        """Same as `Context.step`, and waits: the value is saved when it returns.

        A sync `fn` runs in the handler's own thread and can't be interrupted: after `timeout` seconds
        `step.cancelled` turns true. An async `fn` runs on the worker's event loop.
        """

    @abstractmethod
    def sleep(self, key: str, duration: float | timedelta) -> None:
        """Same as `Context.sleep`."""

    @abstractmethod
    def wait_for_signal(
        self,
        key: str,
        *,
        name: str = "",
        timeout: float | timedelta | None = None,
        returns: Any = None,
    ) -> Received:
        """Same as `Context.wait_for_signal`."""

    @abstractmethod
    def wait_for_callback(
        self, key: str, *, timeout: float | timedelta | None = None, returns: Any = None
    ) -> Any:
        """Same as `Context.wait_for_callback`."""

    def callback(self, key: str) -> SyncCallback:
        """A callback to hand out and to wait for."""
        return SyncCallback(self, key)


class Callback:
    """Something that others answer: hand out `token`, then await `result`."""

    def __init__(self, context: Context, key: str) -> None:
        self._context = context
        self.key = key
        self.token = context.callback_token(key)

    async def result(self, *, timeout: float | timedelta | None = None, returns: Any = None) -> Any:
        """Same as `Context.wait_for_callback`."""
        return await self._context.wait_for_callback(self.key, timeout=timeout, returns=returns)


class SyncCallback:
    """Same as `Callback`, for sync handlers."""

    def __init__(self, context: SyncContext, key: str) -> None:
        self._context = context
        self.key = key
        self.token = context.callback_token(key)

    def result(self, *, timeout: float | timedelta | None = None, returns: Any = None) -> Any:
        """Same as `Context.wait_for_callback`."""
        return self._context.wait_for_callback(self.key, timeout=timeout, returns=returns)
