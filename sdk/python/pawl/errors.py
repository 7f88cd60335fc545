"""Every exception that Pawl raises, as one tree.

```
PawlError
├── ServerError               the server refused a request, or could not be reached
│   ├── InvalidField          a field has a bad value; never succeeds unchanged
│   ├── LimitExceeded         a limit was hit; `limit`, `value` and `max` say which
│   ├── NotFound              no such instance or turn
│   │   ├── Pruned            the turn existed; its history was trimmed
│   │   └── InstanceDeleted   the request belongs to a life of the id that was deleted
│   ├── BodyConflict          the id was used before with another body
│   ├── StaleFence            the lease is not the current one
│   ├── LeaseEnded            the lease ended earlier; `how` says how
│   ├── CommandGap            a command number was left out
│   ├── WrongState            the object's state, `state`, does not allow it
│   ├── RevisionConflict      the settings were changed meanwhile
│   ├── Compacted             events after the cursor were trimmed; `oldest_seq` is the oldest kept
│   ├── Rewound               the store lost its newest writes, and what the cursor names with them
│   ├── Unimplemented         this server does not offer the call or option
│   ├── InternalError         a bug or damaged data; `incident` leads to the server's log
│   ├── Unavailable           not reachable, stopping, or its store does not answer: retried by the client
│   ├── Overloaded            too much at once: retried by the client
│   └── DeadlineExceeded      the call's own time ran out; the outcome is unknown, repeating is safe
├── PayloadError              a value can't be encoded, or stored bytes can't be decoded
├── TurnFailed                the awaited turn failed for good
├── TurnUnfinished            the awaited turn is not finished yet
├── StepTimeout               a step's function took longer than its `timeout`
├── Defer                     raised by a handler: not now, start over after `delay`
├── RetryableError            raised by a handler: fail this attempt, try again after `delay`
└── WorkflowError             raised by a handler: fail the turn for good
    ├── CallbackRejected      a callback that was waited for was rejected
    ├── CallbackTimeout       a callback had no result in time
    ├── StepError             steps were used in a way that can't be replayed
    └── ReplayError           the code asks for other steps than the ones saved

BaseException
└── AttemptEnded              the lease is over, the turn sleeps, waits or is cancelled: unwinds a handler
```

Ordinary exceptions of a handler fail the attempt and are retried by the type's retry policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pawl.models import Failure

MAX_DELAY = 365 * 86_400.0
"""Longest sleep or delay, in seconds."""


class PawlError(Exception):
    """Base of every error that Pawl raises, except `AttemptEnded`."""


class ServerError(PawlError):
    """The server refused a request, or could not be reached.

    Attributes:
        reason: machine-readable reason such as "BODY_CONFLICT" (enum `Reason` of the API, without its
            prefix); empty if the status carried none.
        message: text for people.
        code: name of the gRPC status code, for example "ALREADY_EXISTS".
        metadata: details by name, as listed with each reason of `pawl.v1.Reason`.
        retry_after: seconds after which the server suggests to repeat the call, or None.
    """

    reason: str
    default_code: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.code = code or self.default_code
        self.metadata: dict[str, str] = dict(metadata or {})
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.reason or self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.reason, self.code, self.metadata, self.retry_after)


def _rebuild(
    cls: type[ServerError],
    message: str,
    reason: str,
    code: str,
    metadata: dict[str, str],
    retry_after: float | None,
) -> ServerError:
    return cls(message, reason=reason, code=code, metadata=metadata, retry_after=retry_after)


class InvalidField(ServerError):
    """A field has a bad value, or a page token is malformed. Never succeeds unchanged."""

    default_code = "INVALID_ARGUMENT"

    @property
    def field(self) -> str:
        """Name of the field, empty if the server did not say."""
        return self.metadata.get("field", "")


class LimitExceeded(ServerError):
    """A limit was hit. Succeeds later where the limit counts things in use, such as `pending_messages`."""

    default_code = "RESOURCE_EXHAUSTED"

    @property
    def limit(self) -> str:
        """Name of the limit, for example "pending_messages"; empty if the server did not say."""
        return self.metadata.get("limit", "")

    @property
    def value(self) -> int:
        """What the request would have reached; -1 if the server did not say."""
        return int(self.metadata.get("value", -1))

    @property
    def max(self) -> int:
        """Highest value allowed; -1 if the server did not say."""
        return int(self.metadata.get("max", -1))


class NotFound(ServerError):
    """No such instance or turn. Succeeds once the object exists."""

    default_code = "NOT_FOUND"


class Pruned(NotFound):
    """The turn existed; its history was trimmed."""


class InstanceDeleted(NotFound):
    """The instance was deleted within the last day, and the request belongs to its former life."""


class Compacted(ServerError):
    """Events after the cursor were trimmed."""

    default_code = "OUT_OF_RANGE"

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest event that is kept; -1 if the server did not say."""
        return int(self.metadata.get("oldest_seq", -1))


class Rewound(ServerError):
    """The store lost its newest writes, the event of the cursor among them."""

    default_code = "ABORTED"

    @property
    def last_seq(self) -> int:
        """Number of the newest event there is now; -1 if the server did not say."""
        return int(self.metadata.get("last_seq", -1))


class BodyConflict(ServerError):
    """The id was used before with another body. Never succeeds."""

    default_code = "ALREADY_EXISTS"


class StaleFence(ServerError):
    """The lease named by the request is not the current one, or a newer stream of the session took it."""

    default_code = "ABORTED"


class LeaseEnded(ServerError):
    """The lease ended earlier."""

    default_code = "FAILED_PRECONDITION"

    @property
    def how(self) -> str:
        """For example `completed`, `failed`, `released`, `expired`, `lost`, `returned` or `cancelled`.

        May grow; the set is in error.proto.
        """
        return self.metadata.get("how", "")


class CommandGap(ServerError):
    """The command number is not the next one."""

    default_code = "ABORTED"

    @property
    def last(self) -> int:
        """Last command number that was applied; -1 if the server did not say."""
        return int(self.metadata.get("last", -1))


class WrongState(ServerError):
    """The state of the object does not allow the request."""

    default_code = "FAILED_PRECONDITION"

    @property
    def state(self) -> str:
        """The state it is in; empty if the server did not say."""
        return self.metadata.get("state", "")

    @property
    def attempt(self) -> int:
        """The attempt the turn is at, if the caller had seen another one; else 0."""
        return int(self.metadata.get("attempt", 0))


class RevisionConflict(ServerError):
    """The workflow type was changed since its revision was read."""

    default_code = "ABORTED"

    @property
    def revision(self) -> int:
        """The current revision; -1 if the server did not say."""
        return int(self.metadata.get("revision", -1))


class Unimplemented(ServerError):
    """This server does not offer the call or option."""

    default_code = "UNIMPLEMENTED"


class InternalError(ServerError):
    """A bug of the server or damaged data."""

    default_code = "INTERNAL"

    @property
    def incident(self) -> str:
        """Id to look up in the server's log; empty if the server did not say."""
        return self.metadata.get("incident", "")


class Unavailable(ServerError):
    """The server can't be reached, is stopping, or its store does not answer.

    The request may or may not have taken effect; repeating it is safe. The client repeats it within the
    call's timeout before it raises this.
    """

    default_code = "UNAVAILABLE"


class Overloaded(ServerError):
    """Too many calls are in flight, or the store is near its memory limit. Repeated by the client first."""

    default_code = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(ServerError):
    """The call's own time ran out. The outcome is unknown; repeating the call is safe."""

    default_code = "DEADLINE_EXCEEDED"


class PayloadError(PawlError, ValueError):
    """A value can't be encoded, or stored bytes can't be decoded.

    Attributes:
        where: what was being read or written, for example "message of turn 3 of order-7".
        encoding: name of the encoding.
        position: offset in bytes or characters of the first bad place, or None.
        decoding: True if stored bytes could not be decoded. A turn whose message, state or saved step can't
            be decoded fails its attempt with reason UNDECODABLE; a value that can't be encoded fails the
            turn.
    """

    def __init__(
        self,
        message: str,
        *,
        encoding: str,
        position: int | None = None,
        where: str = "",
        decoding: bool = True,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.encoding = encoding
        self.position = position
        self.where = where
        self.decoding = decoding

    def __str__(self) -> str:
        verb = "decode" if self.decoding else "encode"
        place = "" if self.position is None else f" at position {self.position}"
        what = f"{self.where}: " if self.where else ""
        return f"{what}can't {verb} {self.encoding!r} payload{place}: {self.message}"


class TurnFailed(PawlError):
    """The awaited turn did not complete.

    Attributes:
        instance_id, turn: the turn.
        state: its state, for example "FAILED".
        reason: the failure's short cause, as given by the worker or the server; empty if there is none.
        message: the failure's text.
    """

    def __init__(self, instance_id: str, turn: int, state: str, reason: str, message: str) -> None:
        super().__init__(f"turn {turn} of {instance_id} is {state}: {reason}: {message}")
        self.instance_id = instance_id
        self.turn = turn
        self.state = state
        self.reason = reason
        self.message = message


class TurnUnfinished(PawlError):
    """The awaited turn is not finished yet; waiting again is safe.

    Attributes:
        instance_id, turn: the turn.
        state: its state, for example "QUEUED".
    """

    def __init__(self, instance_id: str, turn: int, state: str) -> None:
        super().__init__(f"turn {turn} of {instance_id} is not finished: {state}")
        self.instance_id = instance_id
        self.turn = turn
        self.state = state


class StepTimeout(PawlError, TimeoutError):
    """A step's function took longer than its `timeout`. Fails the attempt unless the handler catches it."""

    def __init__(self, key: str, seconds: float) -> None:
        super().__init__(f"step {key!r} took longer than its timeout of {seconds:g} s")
        self.key = key
        self.seconds = seconds


class RetryableError(PawlError):
    """Raised by a handler: fails this attempt; the turn is tried again.

    Args:
        message: text for people, at most 2,048 bytes; longer text is cut.
        delay: seconds before the next attempt, 0 to 86,400; None means the type's retry policy.
            Maps to Fail.retry_delay.
        reason: short machine-readable cause; default is the class name.
        details: optional value, at most 8 KiB when encoded.
    """

    def __init__(
        self, message: str = "", *, delay: float | None = None, reason: str | None = None, details: Any = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.delay = delay
        self.reason = reason or type(self).__name__
        self.details = details


class Defer(PawlError):
    """Raised by a handler or a step: the turn can't run now and is to start over later, at no attempt's cost.

    Saved steps stay. A turn can be put off 10,000 times.

    Args:
        delay: seconds or timedelta, 1 ms to 365 days.
        reason: short machine-readable cause for the ledger, `[A-Za-z0-9_.-]{1,128}`; may be empty.
    """

    def __init__(self, delay: float | timedelta, *, reason: str = "") -> None:
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0.001 <= self.delay <= MAX_DELAY:
            raise ValueError(f"delay must be 0.001 s to 365 days, not {delay!r}")
        self.reason = reason
        super().__init__(f"put off for {self.delay:g} s" + (f": {reason}" if reason else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _defer, (self.delay, self.reason)


def _defer(delay: float, reason: str) -> Defer:
    return Defer(delay, reason=reason)


class WorkflowError(PawlError):
    """Raised by a handler: fails the turn for good, without further attempts.

    Args:
        message: text for people, at most 2,048 bytes; longer text is cut.
        reason: short machine-readable cause `[A-Za-z0-9_.-]{1,128}`; default is the class name.
        details: optional value, at most 8 KiB when encoded.

    What it was raised from is kept as its cause, as of all exceptions.
    """

    def __init__(self, message: str = "", *, reason: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).__name__
        self.details = details


class CallbackRejected(WorkflowError):
    """A callback that the handler waited for was rejected. Fails the turn for good unless it is caught.

    Attributes:
        failure: what it was rejected with.
    """

    def __init__(self, key: str, failure: Failure) -> None:
        text = f": {failure.message}" if failure.message else ""
        super().__init__(f"callback {key!r} was rejected: {failure.reason}{text}", reason=failure.reason)
        self.key = key
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return CallbackRejected, (self.key, self.failure)


class CallbackTimeout(WorkflowError, TimeoutError):
    """A callback had no result when the time was over. Fails the turn for good unless it is caught."""

    def __init__(self, key: str) -> None:
        super().__init__(f"callback {key!r} had no result in time")
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return CallbackTimeout, (self.key,)


class StepError(WorkflowError):
    """Steps were used in a way that can't be replayed: in parallel, unawaited, with a key used twice, or with
    another step after one that failed."""


class ReplayError(WorkflowError):
    """The code asks for other steps than the ones an earlier attempt saved. Give changed code a new version.

    Attributes:
        position: place of the step in the turn, from 1.
        expected: key of the saved step.
        got: key the code asked for; None if the handler returned without asking.
    """

    def __init__(self, position: int, expected: str, got: str | None) -> None:
        asked = "the handler returned" if got is None else f"the code asks for {got!r}"
        super().__init__(
            f"step {position} was saved as {expected!r}, but {asked}; "
            "changed code needs a new workflow version"
        )
        self.position = position
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplayError, (self.position, self.expected, self.got)


class AttemptEnded(BaseException):
    """The attempt lost its lease, its worker stops, or the turn sleeps, waits or is being cancelled.

    Raised inside a handler to unwind it.

    Not an Exception on purpose: code that catches `Exception` lets it pass. If you see it in your own code,
    you caught BaseException around `ctx`; re-raise it.
    """
