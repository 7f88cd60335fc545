"""What a reply that is not OK, or a failed call, means to the worker that asked."""

from __future__ import annotations

from typing import Any

from pawl_server.domain.errors import LimitExceeded, NotFound, Reason, Refused
from pawl_server.domain.lease import Lease
from pawl_server.engine import problems

OVER = frozenset((Reason.STALE_FENCE, Reason.LEASE_ENDED, Reason.NOT_FOUND, Reason.SUPERSEDED))
"""Reasons that say: the lease is over for this stream."""
WRONG_STATES = {
    "step_saved": "the turn has a step with this key or at this place already",
    "operation": "it does not go with the step that is registered now, or none is",
    "cancelling": "the turn is to be cancelled: no step may start",
}


def refused(lease: Lease, reply: Any) -> Refused:
    """The refusal for any reply word but OK and ALREADY, and for any exception that took a reply's place."""
    if isinstance(reply, Exception):
        return problems.refused(reply, f"a command for {lease.instance_id}")
    word: str = reply.word
    match word:
        case "GAP":
            return Refused(word, f"the last command applied is {reply.last}", {"last": str(reply.last)})
        case "LEASE_ENDED":
            return ended(reply.how)
        case "LIMIT_EXCEEDED":
            return LimitExceeded(reply.limit, reply.value, reply.max)
        case "WRONG_STATE":
            return Refused(word, WRONG_STATES[reply.state], {"state": reply.state})
        case "NOT_FOUND":
            return NotFound("instance", lease.instance_id)
        case "BODY_CONFLICT":
            return Refused(word, "a command with this number and another body was applied before")
        case "SUPERSEDED":
            return superseded()
        case "STALE_FENCE":
            return Refused(word, f"fence {lease.fence} is not the current one of {lease.instance_id}")
    raise AssertionError(f"unexpected reply {word}")


def ended(how: str) -> Refused:
    """The lease ended before; `how` is one of the endings of lib/record.lua."""
    return Refused(Reason.LEASE_ENDED, f"the lease is over: {how}", {"how": how})


def superseded() -> Refused:
    """The lease belongs to another stream now."""
    return Refused(Reason.SUPERSEDED, "a newer stream of the session has the lease")
