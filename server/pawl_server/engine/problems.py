"""Turns whatever went wrong into a refusal with a reason: for unary calls and for the items of a batch.

What a reply word means to the holder of a lease is in refusals.py.
"""

from __future__ import annotations

import logging

from pawl.v1.error_pb2 import Reason as ReasonNumber
from pawl.v1.message_service_pb2 import Refusal
from pawl_server.domain.errors import Reason, Refused
from pawl_server.log_lines import REQUEST_FAILED
from pawl_server.store.errors import StoreDeleting, StoreMemory, StoreMoving, StoreUnavailable

log = logging.getLogger(__name__)

_NUMBERS = {reason: ReasonNumber.Value(f"REASON_{reason}") for reason in Reason}


def refused(error: BaseException, where: str = "") -> Refused:
    """The refusal for any exception; `where` says in the log what was being done.

    What nobody foresaw becomes INTERNAL with an incident id, and is logged under that id.
    """
    match error:
        case Refused():
            return error
        case StoreUnavailable():
            return Refused(Reason.STORE_UNAVAILABLE, f"the store did not answer: {error.why}")
        case StoreMoving():
            return Refused(Reason.MOVING, "the partition is moving to another Redis node")
        case StoreDeleting():
            return Refused(Reason.INSTANCE_DELETING, "the instance is being deleted")
        case StoreMemory():
            return Refused(Reason.OVERLOADED, "Redis has reached its memory limit")
    incident = REQUEST_FAILED(log, error, where=where or "a request")
    return Refused(Reason.INTERNAL, f"internal error, incident {incident}", {"incident": incident})


def refusal(error: BaseException, where: str = "") -> Refusal:
    """`refused`, as the message that batches carry."""
    problem = refused(error, where)
    return Refusal(reason=_NUMBERS[problem.reason], message=problem.message, metadata=problem.metadata)
