"""Declaring workflows."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pawl.payloads import Decoder, Payload, decode, decoder_for, encode

Handler = Callable[..., Any]

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z", re.ASCII)


def check_id(value: str, what: str) -> str:
    """Gives back a well-formed id. Raises ValueError for any other than `[A-Za-z0-9_.-]{1,128}`."""
    if not isinstance(value, str) or not _ID.match(value):
        raise ValueError(f"{what} must be 1 to 128 characters of A-Z a-z 0-9 _ . -, not {value!r}")
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Workflow:
    """A declared workflow: what `@workflow` makes of a handler. Calling it calls the handler."""

    name: str
    version: str
    handler: Handler
    initial_state: Payload
    """State that an instance starts with when none is given."""
    lease_timeout: timedelta | None
    max_attempts: int | None
    is_async: bool
    decode_state: Decoder = field(repr=False, default=decode)
    decode_message: Decoder = field(repr=False, default=decode)

    def __call__(self, *args: Any) -> Any:
        """Calls the handler itself, without a server; for tests."""
        return self.handler(*args)


def workflow(
    name: str,
    *,
    version: str,
    initial_state: Any = None,
    lease_timeout: float | timedelta | None = None,
    max_attempts: int | None = None,
) -> Callable[[Handler], Workflow]:
    """Declares a handler `(ctx, state, message)` as version `version` of workflow type `name`.

    The handler may be a coroutine function, or an ordinary one, which runs in a thread. It returns
    `ctx.done(...)` or `ctx.continue_with(...)`. Annotations of `state` and `message` decide how they are
    decoded.

    Args:
        name: workflow type, `[A-Za-z0-9_.-]{1,128}`, not beginning with "pawl.".
        version: code version. Change it when steps change their order or keys; old instances stay on theirs.
        initial_state: state of an instance that was created without one. Maps to InstanceSpec.state.
        lease_timeout: seconds or timedelta, 1 s to 1 h; the default lease of the type, used by a worker when
            the type was never stored. Maps to WorkflowType.lease_timeout.
        max_attempts: 1 to 1,000, likewise. Maps to WorkflowType.max_attempts.

    Raises ValueError for a malformed name, version or setting, TypeError for a handler with other parameters,
    PayloadError for a state that can't be encoded.
    """
    check_id(name, "workflow name")
    check_id(version, "version")
    if name.startswith("pawl."):
        raise ValueError("workflow names that begin with 'pawl.' are reserved")
    lease = _span(lease_timeout)
    if lease is not None and not timedelta(seconds=1) <= lease <= timedelta(hours=1):
        raise ValueError("lease_timeout must be 1 s to 1 h")
    if max_attempts is not None and not 1 <= max_attempts <= 1000:
        raise ValueError("max_attempts must be 1 to 1,000")

    def declare(handler: Handler) -> Workflow:
        state_type, message_type = _annotations(handler, sys._getframe(1).f_locals)
        return Workflow(
            name=name,
            version=version,
            handler=handler,
            initial_state=encode(initial_state),
            lease_timeout=lease,
            max_attempts=max_attempts,
            is_async=inspect.iscoroutinefunction(handler),
            decode_state=decoder_for(state_type),
            decode_message=decoder_for(message_type),
        )

    return declare


def _span(value: float | timedelta | None) -> timedelta | None:
    return value if value is None or isinstance(value, timedelta) else timedelta(seconds=value)


def _annotations(handler: Handler, scope: dict[str, Any]) -> tuple[Any, Any]:
    parameters = list(inspect.signature(handler).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 3 or any(p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY):
        raise TypeError(f"a workflow handler takes (ctx, state, message); {handler!r} does not")
    return _resolve(handler, positional[1], scope), _resolve(handler, positional[2], scope)


def _resolve(handler: Handler, parameter: inspect.Parameter, scope: dict[str, Any]) -> Any:
    """Evaluates a postponed annotation, seeing classes of the function that declares the workflow, too."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(handler, "__globals__", {}), scope)
    except NameError as error:
        raise TypeError(
            f"annotation {annotation!r} of {parameter.name!r} can't be resolved: {error}"
        ) from error
