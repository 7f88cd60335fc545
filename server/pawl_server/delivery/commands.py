"""Commands of workers: checked, digested, and made into items of script calls.

Digests cover what a command does, each payload by its own digest where the worker gives one. Raises
InvalidField or Refused for what can't be applied; nothing is sent then.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from struct import Struct
from typing import Any

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.operation_pb2 import OnRestart, Progress
from pawl.v1.payload_pb2 import Payload
from pawl_server.domain.errors import InvalidField, LimitExceeded, Reason, Refused
from pawl_server.domain.ids import check_id
from pawl_server.domain.lease import Lease
from pawl_server.domain.limits import PROGRESS_DETAILS_BYTES, RESUME_BYTES
from pawl_server.domain.payload import DIGEST_BYTES, check_payload, payload_digest
from pawl_server.domain.times import DAY, SECOND, duration_ms
from pawl_server.engine.failures import read_failure
from pawl_server.engine.policies import read_policy
from pawl_server.store.records import ProgressRecord, pack_policy, pack_progress
from pawl_server.store.scripts_gen import (
    CheckpointItem,
    DeferItem,
    FailItem,
    FinishItem,
    ReleaseItem,
    ReportProgressItem,
    SleepItem,
    StartOperationItem,
    WaitSignalItem,
)

MAX_N = 1 << 40
WAIT_MAX = 365 * DAY
RELEASE_DIGEST = b"release\0"
STEP_KIND = "step"
NO_POLICY = {"max_attempts": 3}
"""What keeps the policy of a step from being empty, which would mean that it has none."""
NO_REPORT: tuple[Any, ...] = (0, "", 0, b"", b"", b"", b"")
"""In place of the last seven fields of a ReportProgressItem."""
OPERATION_MIN = 100
OPERATION_DEFAULT = 300 * SECOND
"""Of the timeout of a registered step, in ms."""
MAX_SEQUENCE = (1 << 53) - 1
PHASE_CHARS = 80
_UNIT = re.compile(r"[\w -]{1,32}")

_lengths = {count: Struct(f">{count}I").pack for count in range(1, 16)}


def _digest(*parts: bytes) -> bytes:
    head = _lengths[len(parts)](*map(len, parts))
    return blake2b(b"".join((head, *parts)), digest_size=DIGEST_BYTES).digest()


def _payload(field: str, payload: Payload) -> tuple[bytes, bytes]:
    """The stored form of a payload, and what stands for it in a digest."""
    encoding, digest = payload.encoding, payload.digest
    if encoding or digest:
        check_payload(field, encoding, digest)
        blob = b"%b\0%b" % (encoding.encode(), payload.data)
        return blob, b"d%b\0%b" % (encoding.encode(), digest) if digest else b"p" + blob
    blob = b"\0" + payload.data
    return blob, b"p" + blob


def check_n(n: int) -> int:
    """The number of a command."""
    if not 0 < n < MAX_N:
        raise InvalidField("n", f"is {n}, not 1 or more")
    return n


def checkpoint(lease: Lease, n: int, step: pb.Checkpoint) -> CheckpointItem:
    """Checks a Checkpoint."""
    key, kind, output, digest = _step("checkpoint", step)
    return CheckpointItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, digest, key, kind, output
    )


def _step(field: str, step: pb.Checkpoint) -> tuple[str, str, bytes, bytes]:
    key = check_id(f"{field}.key", step.key)
    kind = step.kind
    if not kind:
        kind = STEP_KIND
    elif kind != STEP_KIND:
        check_id(f"{field}.kind", kind)
    output, part = _payload(f"{field}.output", step.output)
    return key, kind, output, _digest(key.encode(), kind.encode(), part)


def finish(lease: Lease, n: int, body: pb.Finish, conn: str = "") -> FinishItem:
    """Checks a Finish; the item claims nothing yet, and what it will claim is for `conn`."""
    if body.sends:
        raise Refused(Reason.UNIMPLEMENTED, "sends of a finish are not implemented")
    key = kind = ""
    output = state = reply = message = message_digest = b""
    step_digest = state_part = reply_part = b""
    has_step = body.HasField("last_step")
    if has_step:
        key, kind, output, step_digest = _step("finish.last_step", body.last_step)
    has_state = body.HasField("state")
    if has_state:
        state, state_part = _payload("finish.state", body.state)
    has_reply = body.HasField("reply")
    if has_reply:
        reply, reply_part = _payload("finish.reply", body.reply)
    has_next = body.HasField("continuation")
    if has_next:
        next_ = body.continuation
        message, _ = _payload("finish.continuation", next_)
        message_digest = payload_digest(next_.encoding, next_.data, next_.digest)
    return FinishItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, n,
        _digest(step_digest, state_part, reply_part, message_digest),
        has_step, key, kind, output, step_digest, has_state, state, has_reply, reply,
        has_next, message_digest, message, "", conn,
    )  # fmt: skip


def finish_bytes(item: FinishItem) -> int:
    """About how many bytes it has."""
    return len(item.output) + len(item.state) + len(item.result) + len(item.next_message)


def fail(lease: Lease, n: int, body: pb.Fail) -> FailItem:
    """Checks a Fail. A message that is too long is cut."""
    failure = body.failure
    stated = read_failure("fail.failure", failure)
    part = _payload("fail.failure.details", failure.details)[1] if stated.details else b""
    delay = -1
    if body.HasField("retry_delay"):
        delay = duration_ms("fail.retry_delay", body.retry_delay, 0, DAY)
    step = check_id("fail.step_key", body.step_key) if body.step_key else ""
    policy = b""
    if body.HasField("step_retry"):
        if not step:
            raise InvalidField("fail.step_key", "is needed with step_retry")
        policy = pack_policy({**NO_POLICY, **read_policy("fail.step_retry.", body.step_retry, attempts=True)})
    last: tuple[Any, ...] = NO_REPORT
    last_digest = b""
    if body.HasField("last_progress"):
        report = report_progress(lease, n, body.last_progress, "fail.last_progress.")
        last = report[4:]
        last_digest = b"%d %d %b\0%b" % (report.position, report.sequence, report.key.encode(), report.digest)
    digest = _digest(
        stated.reason.encode(), failure.message.encode(), part, b"%d %d" % (stated.final, delay),
        failure.cause.SerializeToString(deterministic=True), step.encode(), policy, last_digest,
    )  # fmt: skip
    return FailItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, digest,
        stated.reason, stated.message, stated.truncated, stated.details, stated.final, delay,
        stated.cause, step, policy, *last,
    )  # fmt: skip


def sleep(lease: Lease, n: int, body: pb.Sleep) -> SleepItem:
    """Checks a Sleep."""
    key = check_id("sleep.key", body.key)
    ms = duration_ms("sleep.duration", body.duration, 1, WAIT_MAX)
    digest = _digest(key.encode(), b"%d" % ms)
    return SleepItem(lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, digest, key, ms)


def defer(lease: Lease, n: int, body: pb.Defer) -> DeferItem:
    """Checks a Defer."""
    ms = duration_ms("defer.delay", body.delay, 1, WAIT_MAX)
    reason = check_id("defer.reason", body.reason) if body.reason else ""
    digest = _digest(b"%d" % ms, reason.encode())
    return DeferItem(lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, digest, ms, reason)


def start_operation(lease: Lease, _: int, body: pb.StartOperation) -> StartOperationItem:
    """Checks a StartOperation."""
    position = _position("start_operation.position", body.position)
    key = check_id("start_operation.key", body.key)
    kind = check_id("start_operation.kind", body.kind) if body.kind else STEP_KIND
    timeout, heartbeat = OPERATION_DEFAULT, 0
    if body.HasField("timeout"):
        timeout = duration_ms("start_operation.timeout", body.timeout, OPERATION_MIN, DAY)
    if body.HasField("heartbeat_timeout"):
        field = "start_operation.heartbeat_timeout"
        heartbeat = duration_ms(field, body.heartbeat_timeout, OPERATION_MIN, timeout)
    if body.on_restart not in OnRestart.values():
        raise InvalidField("start_operation.on_restart", f"is {body.on_restart}, which is not known")
    on_restart = body.on_restart or OnRestart.ON_RESTART_RETRY
    return StartOperationItem._make((*lease[1:], position, key, kind, timeout, heartbeat, on_restart))


def report_progress(
    lease: Lease, _: int, body: pb.ReportProgress, at: str = "report_progress."
) -> ReportProgressItem:
    """Checks a ReportProgress; `at` is its path, with the dot."""
    position = _position(f"{at}position", body.position)
    key = check_id(f"{at}key", body.key)
    if not 1 <= body.sequence <= MAX_SEQUENCE:
        raise InvalidField(f"{at}sequence", f"is {body.sequence}, not 1 to {MAX_SEQUENCE}")
    progress = details = resume = details_part = resume_part = b""
    if body.HasField("progress"):
        progress = pack_progress(_progress(f"{at}progress.", body.progress))
    if body.HasField("details"):
        if len(body.details.data) > PROGRESS_DETAILS_BYTES:
            raise LimitExceeded("progress_details_bytes", len(body.details.data), PROGRESS_DETAILS_BYTES)
        details, details_part = _payload(f"{at}details", body.details)
    if body.HasField("resume"):
        if len(body.resume.data) > RESUME_BYTES:
            raise LimitExceeded("resume_bytes", len(body.resume.data), RESUME_BYTES)
        resume, resume_part = _payload(f"{at}resume", body.resume)
    digest = _digest(progress, details_part, resume_part)
    return ReportProgressItem._make(
        (*lease[1:], position, key, body.sequence, digest, progress, details, resume)
    )


def _position(field: str, position: int) -> int:
    if position < 1:
        raise InvalidField(field, f"is {position}, not 1 or more")
    return position


def _progress(at: str, progress: Progress) -> ProgressRecord:
    phase, unit = progress.phase, progress.unit
    if not 1 <= len(phase) <= PHASE_CHARS:
        raise InvalidField(f"{at}phase", f"has {len(phase)} characters, not 1 to {PHASE_CHARS}")
    if progress.done < 0:
        raise InvalidField(f"{at}done", f"is {progress.done}, below 0")
    total = progress.total if progress.HasField("total") else -1
    if progress.HasField("total") and total < 0:
        raise InvalidField(f"{at}total", f"is {total}, below 0")
    if unit and not _UNIT.fullmatch(unit):
        raise InvalidField(f"{at}unit", "is not 1 to 32 letters, digits, spaces, - or _")
    return ProgressRecord(phase, progress.done, total, unit)


def wait_signal(lease: Lease, n: int, body: pb.WaitSignal) -> WaitSignalItem:
    """Checks a WaitSignal."""
    key = check_id("wait_signal.key", body.key)
    name, callback, ms = body.name, body.callback_key, 0
    if name and callback:
        raise InvalidField("wait_signal.callback_key", "excludes name")
    if callback:
        check_id("wait_signal.callback_key", callback)
    else:
        check_id("wait_signal.name", name)
    if body.HasField("timeout"):
        ms = duration_ms("wait_signal.timeout", body.timeout, 1, WAIT_MAX)
    digest = _digest(key.encode(), name.encode(), callback.encode(), b"%d" % ms)
    return WaitSignalItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, digest, key, name, callback, ms
    )


def undeliverable(lease: Lease, size: int, maximum: int) -> FailItem:
    """Ends an attempt whose turn does not fit into the largest frame that the worker accepts."""
    text = f"the turn takes about {size} bytes, the worker accepts frames of at most {maximum}"
    return FailItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, 1, _digest(text.encode()),
        Reason.UNDELIVERABLE.value, text, False, b"", False, -1, b"", "", b"", *NO_REPORT,
    )  # fmt: skip


def release(lease: Lease, n: int) -> ReleaseItem:
    """Gives a turn back."""
    return ReleaseItem(lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, RELEASE_DIGEST)
