"""What a handler is given: the interface, apart from its implementation in `pawl._runtime`.

Async handlers get a `Context`, sync handlers (which run in threads) a `SyncContext`; they differ in
`step` and `sleep` alone.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload
from uuid import UUID

from pawl.models import Failure, Origin

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
        """True once the step should stop: the lease was lost, the worker stops, or the timeout has passed."""


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
        self,
        key: str,
        fn: Callable[[], Awaitable[T]],
        *,
        kind: str = ...,
        timeout: float = ...,
        returns: Any = ...,
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self,
        key: str,
        fn: Callable[[Step], Awaitable[T]],
        *,
        kind: str = ...,
        timeout: float = ...,
        returns: Any = ...,
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self, key: str, fn: Callable[[], T], *, kind: str = ..., timeout: float = ..., returns: Any = ...
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self, key: str, fn: Callable[[Step], T], *, kind: str = ..., timeout: float = ..., returns: Any = ...
    ) -> Awaitable[T]: ...
    @abstractmethod
    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        *,
        kind: str = "step",
        timeout: float = DEFAULT_STEP_TIMEOUT,
        returns: Any = None,
    ) -> Awaitable[Any]:
        """Runs `fn` once and saves what it returns; later attempts get the saved value without running it.

        Steps are awaited one after the other; their order and keys must not change within a version. The
        value comes back as it reads from storage (a tuple as a list), the same live and on replay.

        Args:
            key: `[A-Za-z0-9_.-]{1,128}`, unique in the turn.
            fn: sync or async function of no argument, or of one `Step`. A sync function runs on the event
                loop, so it must be quick; wrap blocking work in `asyncio.to_thread`.
            kind: free word for what the step does, `[A-Za-z0-9_.-]{1,128}`. Maps to Checkpoint.kind.
            timeout: seconds, 0.1 to 86,400, that an async `fn` may take.
            returns: type of the value, where it is a dataclass, struct or model; default is the annotation of
                `fn`.

        Raises:
            StepError: used in parallel, key used twice or malformed, timeout out of range, another step has
            failed.
            ReplayError: an earlier attempt saved another step at this place.
            StepTimeout: `fn` took too long.
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


class SyncContext(TurnInfo):
    """Context of a sync handler, which runs in a thread."""

    __slots__ = ()

    @abstractmethod
    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        *,
        kind: str = "step",
        timeout: float = DEFAULT_STEP_TIMEOUT,
        returns: Any = None,
    ) -> Any:
        """Same as `Context.step`, and waits: the value is saved when it returns.

        A sync `fn` runs in the handler's own thread and can't be interrupted: after `timeout` seconds
        `step.cancelled` turns true. An async `fn` runs on the worker's event loop.
        """

    @abstractmethod
    def sleep(self, key: str, duration: float | timedelta) -> None:
        """Same as `Context.sleep`."""
