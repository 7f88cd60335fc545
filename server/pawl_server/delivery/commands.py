"""Commands of workers: checked, digested, and made into items of script calls.

Digests cover what a command does, each payload by its own digest where the worker gives one. Raises
InvalidField or Refused for what can't be applied; nothing is sent then.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.payload_pb2 import Payload
from pawl_server.domain.errors import InvalidField, Reason, Refused
from pawl_server.domain.ids import check_id
from pawl_server.domain.lease import Lease
from pawl_server.domain.payload import DIGEST_BYTES, check_payload, payload_digest
from pawl_server.domain.times import DAY, duration_ms
from pawl_server.engine.failures import read_failure
from pawl_server.engine.policies import read_policy
from pawl_server.store.records import pack_policy
from pawl_server.store.scripts_gen import (
    CheckpointItem,
    DeferItem,
    FailItem,
    FinishItem,
    ReleaseItem,
    SleepItem,
)

MAX_N = 1 << 40
WAIT_MAX = 365 * DAY
RELEASE_DIGEST = b"release\0"
STEP_KIND = "step"
NO_POLICY = {"max_attempts": 3}
"""What keeps the policy of a step from being empty, which would mean that it has none."""

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
    digest = _digest(
        stated.reason.encode(), failure.message.encode(), part, b"%d %d" % (stated.final, delay),
        failure.cause.SerializeToString(deterministic=True), step.encode(), policy,
    )  # fmt: skip
    return FailItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, digest,
        stated.reason, stated.message, stated.truncated, stated.details, stated.final, delay,
        stated.cause, step, policy,
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


def undeliverable(lease: Lease, size: int, maximum: int) -> FailItem:
    """Ends an attempt whose turn does not fit into the largest frame that the worker accepts."""
    text = f"the turn takes about {size} bytes, the worker accepts frames of at most {maximum}"
    return FailItem(
        lease.instance_id, lease.incarnation, lease.turn, lease.fence, 1, _digest(text.encode()),
        Reason.UNDELIVERABLE.value, text, False, b"", False, -1, b"", "", b"",
    )  # fmt: skip


def release(lease: Lease, n: int) -> ReleaseItem:
    """Gives a turn back."""
    return ReleaseItem(lease.instance_id, lease.incarnation, lease.turn, lease.fence, n, RELEASE_DIGEST)
