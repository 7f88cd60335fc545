"""The error tree, and how statuses and refusals become exceptions."""

from __future__ import annotations

import copy
import pickle

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

import pawl
from pawl._reasons import REASONS, error_of, refusal_error
from pawl._transport.retry import Backoff, is_retryable
from pawl._transport.status import _MESSAGES, error_from_status
from pawl.v1.error_pb2 import Reason
from tests.sdk.fake_server import refusal

ENDS_NO_CALL = {"UNSPECIFIED", "UNDELIVERABLE", "WORKER_LOST"}
NAMES = sorted({name.removeprefix("REASON_") for name in Reason.keys()} - ENDS_NO_CALL)  # noqa: SIM118


def status(
    reason: str, code: int = 5, domain: str = "pawl", retry: float | None = None, **metadata: str
) -> bytes:
    info = _MESSAGES["ErrorInfo"](reason=reason, domain=domain)
    for key, value in metadata.items():
        info.metadata.add(key=key, value=value)
    message = _MESSAGES["Status"](code=code, message="told by the server")
    message.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    if retry is not None:
        delay = _MESSAGES["RetryInfo"]()
        delay.retry_delay.seconds = int(retry)
        delay.retry_delay.nanos = round(retry % 1 * 1e9)
        message.details.add(
            type_url="type.googleapis.com/google.rpc.RetryInfo", value=delay.SerializeToString()
        )
    return message.SerializeToString()


@pytest.mark.parametrize("reason", NAMES)
def test_every_reason_has_its_exception(reason: str) -> None:
    error = error_from_status("UNKNOWN", "text", status(reason, field="x"))
    assert type(error) is REASONS[reason]
    assert error.reason == reason
    assert error.message == "told by the server"
    assert error.metadata == {"field": "x"}
    assert type(refusal_error(refusal(reason, limit="steps_per_turn"))) is REASONS[reason]


@pytest.mark.spec("R-SDK-14")
@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("INVALID_ARGUMENT", pawl.InvalidField),
        ("NOT_FOUND", pawl.NotFound),
        ("ALREADY_EXISTS", pawl.BodyConflict),
        ("UNAVAILABLE", pawl.Unavailable),
        ("DEADLINE_EXCEEDED", pawl.DeadlineExceeded),
        ("UNIMPLEMENTED", pawl.Unimplemented),
        ("INTERNAL", pawl.InternalError),
        ("RESOURCE_EXHAUSTED", pawl.LimitExceeded),
        ("PERMISSION_DENIED", pawl.ServerError),
    ],
)
@pytest.mark.spec("R-SDK-14")
def test_an_unknown_reason_goes_by_its_code(code: str, cls: type[pawl.ServerError]) -> None:
    for details in (status("FROM_THE_FUTURE"), b"", None, b"\xff\xff"):
        error = error_from_status(code, "text", details)
        assert type(error) is cls
        assert error.code == code


def test_other_domains_are_not_ours() -> None:
    error = error_from_status("ABORTED", "text", status("STALE_FENCE", domain="other"))
    assert type(error) is pawl.ServerError
    assert not error.reason


def test_retry_info() -> None:
    error = error_from_status("RESOURCE_EXHAUSTED", "", status("OVERLOADED", retry=1.5))
    assert isinstance(error, pawl.Overloaded)
    assert error.retry_after == 1.5


def test_the_private_messages_equal_the_standard_ones() -> None:
    mine = _MESSAGES["RetryInfo"]()
    mine.retry_delay.seconds = 3
    assert Duration.FromString(mine.retry_delay.SerializeToString()).seconds == 3
    packed = _MESSAGES["Status"](code=5)
    packed.details.add(type_url="t", value=b"v")
    assert AnyMessage.FromString(packed.details[0].SerializeToString()).value == b"v"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pawl.Unavailable("x"), True),
        (pawl.Overloaded("x"), True),
        (error_of("", "RST_STREAM", code="INTERNAL"), True),
        (error_of("INTERNAL", "bug", code="INTERNAL"), False),
        (error_of("", "cancelled", code="CANCELLED"), True),
        (pawl.LimitExceeded("x"), False),
        (pawl.NotFound("x"), False),
        (pawl.DeadlineExceeded("x"), False),
    ],
)
def test_what_is_worth_repeating(error: pawl.ServerError, expected: bool) -> None:
    assert is_retryable(error) is expected


def test_typed_details() -> None:
    assert pawl.LimitExceeded("", metadata={"limit": "steps_per_turn", "value": "65", "max": "64"}).max == 64
    assert pawl.LeaseEnded("", metadata={"how": "completed"}).how == "completed"
    assert pawl.CommandGap("", metadata={"last": "3"}).last == 3
    assert pawl.CommandGap("").last == -1
    assert pawl.InvalidField("", metadata={"field": "message_id"}).field == "message_id"
    assert pawl.WrongState("", metadata={"state": "FAILED"}).state == "FAILED"
    assert pawl.RevisionConflict("", metadata={"revision": "2"}).revision == 2
    assert pawl.InternalError("", metadata={"incident": "abc"}).incident == "abc"


@pytest.mark.parametrize(
    "error",
    [
        pawl.LimitExceeded("m", reason="LIMIT_EXCEEDED", code="C", metadata={"limit": "x"}, retry_after=1.0),
        pawl.ReplayError(1, "a", "b"),
        pawl.WorkflowError("m", reason="R", details={"a": 1}),
    ],
)
def test_errors_survive_copies(error: Exception) -> None:
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert {k: v for k, v in vars(other).items() if k != "args"} == vars(error)


def test_control_flow_passes_except_exception() -> None:
    assert not issubclass(pawl.AttemptEnded, Exception)


def test_backoff_grows_with_full_jitter_and_starts_over() -> None:
    backoff = Backoff(0.05, 5.0)
    delays = [backoff.next() for _ in range(200)]
    assert all(0.05 <= delay <= 5.0 for delay in delays)
    assert max(delays[:2]) <= 0.2
    assert max(delays) > 1.0
    assert len({round(delay, 4) for delay in delays}) > 100
    assert backoff.next(at_least=9.0) == 9.0
    backoff.reset()
    assert backoff.next() <= 0.1
