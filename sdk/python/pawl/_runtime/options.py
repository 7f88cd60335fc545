"""Options of steps, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

from pawl._convert import set_policy
from pawl.context import DEFAULT_STEP_TIMEOUT
from pawl.models import RetryPolicy
from pawl.v1.workflow_type_pb2 import RetryPolicy as PolicyMessage

MIN_TIMEOUT, MAX_TIMEOUT = 0.1, 86_400.0
REGISTER_AFTER = 1.0
"""Seconds after which a step is registered that has reported nothing; half its timeouts if that is less."""


class Options(NamedTuple):
    """How a step is to be run; see `Context.step`."""

    kind: str = "step"
    timeout: float = DEFAULT_STEP_TIMEOUT
    heartbeat_timeout: float | None = None
    retry: RetryPolicy | None = None
    on_restart: str = "retry"
    returns: Any = None

    @property
    def wire_kind(self) -> str:
        """The kind as it is sent."""
        return "" if self.kind == "step" else self.kind

    @property
    def registers_first(self) -> bool:
        """Whether the server has to know of the step before its function runs."""
        return self.on_restart == "park" or self.heartbeat_timeout is not None

    @property
    def register_after(self) -> float:
        """Seconds after which the server has to know of it in any case."""
        return min(REGISTER_AFTER, self.timeout / 2)

    @property
    def policy(self) -> PolicyMessage | None:
        """The retry policy as it is sent."""
        if self.retry is None:
            return None
        message = PolicyMessage()
        set_policy(message, self.retry)
        return message

    def check(self, key: str) -> None:
        """Raises ValueError for what is out of range."""
        if not MIN_TIMEOUT <= self.timeout <= MAX_TIMEOUT:
            raise ValueError(f"timeout of step {key!r} must be 0.1 to 86,400 s, not {self.timeout!r}")
        heartbeat = self.heartbeat_timeout
        if heartbeat is not None and not MIN_TIMEOUT <= heartbeat <= self.timeout:
            raise ValueError(
                f"heartbeat_timeout of step {key!r} must be 0.1 s to its timeout of {self.timeout:g} s, "
                f"not {heartbeat!r}"
            )
        if self.on_restart not in ("retry", "park"):
            raise ValueError(f'on_restart of step {key!r} must be "retry" or "park", not {self.on_restart!r}')
