"""Retry policies of requests, checked, and as they are stored."""

from __future__ import annotations

from typing import Any

from pawl.v1.workflow_type_pb2 import RetryPolicy
from pawl_server.domain.errors import InvalidField, LimitExceeded
from pawl_server.domain.ids import check_id
from pawl_server.domain.limits import RETRY_REASONS
from pawl_server.domain.times import DAY, duration, duration_ms

Policy = dict[str, float | str | None]
"""By the names of store/records.py POLICY_FIELDS; None, or absent, means what the level below says."""


def read_policy(at: str, retry: RetryPolicy, *, attempts: bool) -> Policy:
    """Checks a policy; `at` is its path with a dot. Raises InvalidField, LimitExceeded("retry_reasons").

    `attempts` says whether it may have `max_attempts`.
    """
    policy: Policy = {}
    spans: tuple[tuple[str, str, int], ...] = (
        ("initial_delay", "backoff_initial_ms", DAY),
        ("max_delay", "backoff_max_ms", DAY),
        ("max_elapsed", "max_elapsed_ms", 365 * DAY),
    )
    message: Any = retry
    for field, name, longest in spans:
        if message.HasField(field):
            policy[name] = duration_ms(f"{at}{field}", getattr(message, field), 1, longest)
    if retry.factor:
        policy["backoff_factor"] = _number(f"{at}factor", retry.factor, 1, 100)
    if retry.HasField("jitter"):
        policy["jitter"] = _number(f"{at}jitter", retry.jitter, 0, 1)
    reasons = retry.non_retryable_reasons
    if len(reasons) > RETRY_REASONS:
        raise LimitExceeded("retry_reasons", len(reasons), RETRY_REASONS)
    if reasons:
        named = [
            check_id(f"{at}non_retryable_reasons[{place}]", reason) for place, reason in enumerate(reasons)
        ]
        policy["final_reasons"] = "\0".join(("", *sorted(set(named)), ""))
    if retry.max_attempts:
        if not attempts:
            raise InvalidField(f"{at}max_attempts", "belongs to the policy of a step")
        if not 1 <= retry.max_attempts <= 1_000:
            raise InvalidField(f"{at}max_attempts", f"is {retry.max_attempts}, not within 1 to 1000")
        policy["max_attempts"] = retry.max_attempts
    return policy


def _number(field: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise InvalidField(field, f"is {value}, not within {low} to {high}")
    return value


def policy_message(policy: Policy) -> RetryPolicy:
    """A policy as a message; what it leaves to the level below stays unset."""
    message = RetryPolicy()
    spans: tuple[tuple[str, Any], ...] = (
        ("backoff_initial_ms", message.initial_delay),
        ("backoff_max_ms", message.max_delay),
        ("max_elapsed_ms", message.max_elapsed),
    )
    for name, span in spans:
        value = policy.get(name)
        if value:
            span.CopyFrom(duration(int(value)))
    factor, jitter, reasons = (policy.get(name) for name in ("backoff_factor", "jitter", "final_reasons"))
    if factor is not None:
        message.factor = float(factor)
    if jitter is not None:
        message.jitter = float(jitter)
    if isinstance(reasons, str):
        message.non_retryable_reasons.extend(reason for reason in reasons.split("\0") if reason)
    message.max_attempts = int(policy.get("max_attempts") or 0)
    return message
