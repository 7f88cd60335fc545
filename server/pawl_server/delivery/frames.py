"""Frames to a worker: built in place from what the store answered, numbered, cut by bytes and items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pawl.v1 import error_pb2, failure_pb2, payload_pb2
from pawl.v1 import worker_service_pb2 as pb
from pawl.v1.fleet_pb2 import Fleet
from pawl.v1.message_service_pb2 import Refusal
from pawl_server.domain.callback import callback_base
from pawl_server.domain.errors import Refused
from pawl_server.domain.lease import Lease
from pawl_server.domain.limits import FRAME_CUT_BYTES, FRAME_ITEMS
from pawl_server.engine import views
from pawl_server.engine.peers import Peer
from pawl_server.store import records

TURN_OVERHEAD = 1_200
"""Most bytes of a turn in a frame beyond its records: lease, names, numbers, times."""
STEP_OVERHEAD = 64
RESULT_BYTES = 160
EVENT_BYTES = 320

REASONS: dict[str, error_pb2.Reason.ValueType] = {
    name.removeprefix("REASON_"): value for name, value in error_pb2.Reason.items()
}


Frame = pb.WorkResponse | pb.ClaimResponse


def numbered(number: int) -> Frame:
    """An empty frame of a work stream."""
    return pb.WorkResponse(frame=number)


def unnumbered(_: int) -> Frame:
    """An empty frame of a Claim stream."""
    return pb.ClaimResponse()


class Outbox:
    """What waits to be sent on one stream, as frames.

    `bytes` and `turns` say how much waits, `taken` is the number of the last frame that was taken. A frame
    gets its number when its first item comes; frames leave in order, so numbers have no gaps. `new` makes an
    empty one.
    """

    def __init__(self, new: Callable[[int], Frame] = numbered) -> None:
        self.bytes = 0
        self.turns = 0
        self.taken = 0
        self._new = new
        self._number = 0
        self._sealed: deque[tuple[Frame, int, int]] = deque()
        self._frame: Frame | None = None
        self._frame_bytes = 0
        self._frame_items = 0
        self._frame_turns = 0

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return self._frame is None and not self._sealed

    def frame(self) -> Frame:
        """The frame under construction, for what is neither cut nor counted: hello, beat, drain."""
        frame = self._frame
        if frame is None:
            self._number += 1
            frame = self._frame = self._new(self._number)
            self._frame_bytes = self._frame_items = self._frame_turns = 0
        return frame

    def _room(self, size: int) -> Frame:
        if self._frame_items and (
            self._frame_items >= FRAME_ITEMS or self._frame_bytes + size > FRAME_CUT_BYTES
        ):
            self._seal()
        frame = self._frame
        if frame is None:
            frame = self.frame()
        self._frame_items += 1
        self._frame_bytes += size
        self.bytes += size
        return frame

    def _seal(self) -> None:
        if self._frame is not None:
            self._sealed.append((self._frame, self._frame_bytes, self._frame_turns))
            self._frame = None

    def result(self, size: int = RESULT_BYTES) -> pb.CommandResult:
        """Adds a result of about `size` bytes, to be filled in by the caller; only for work streams."""
        return self._room(size).results.add()  # pyright: ignore[reportAttributeAccessIssue]

    def event(self, lease: bytes, ended: Refused | None, cancel_ms: int = 0) -> None:
        """Adds a lease event: the end, or `cancel_ms` until it if the turn is to be cancelled."""
        event = self._room(EVENT_BYTES).lease_events.add()
        event.lease = lease
        if ended is not None:
            fill_refusal(event.ended, ended)
        elif cancel_ms:
            fill_ms(event.cancel_grace, cancel_ms)

    def turn(self, size: int) -> tuple[pb.LeasedTurn, int]:
        """Adds a turn of about `size` bytes, to be filled in, and says which frame carries it."""
        turn = self._room(size).turns.add()
        self.turns += 1
        self._frame_turns += 1
        return turn, self._number

    def take(self) -> Frame | None:
        """The next frame to send; None when nothing waits."""
        if self._sealed:
            frame, size, turns = self._sealed.popleft()
        elif self._frame is not None:
            frame, size, turns = self._frame, self._frame_bytes, self._frame_turns
            self._frame = None
        else:
            return None
        self.bytes -= size
        self.turns -= turns
        self.taken += 1
        return frame


def fill_refusal(target: Refusal, refused: Refused) -> None:
    """Copies a refusal."""
    target.reason = REASONS[refused.reason]
    target.message = refused.message
    for key, value in refused.metadata.items():
        target.metadata[key] = value


def turn_size(view: list[Any]) -> int:
    """Upper bound of a claimed turn's bytes in a frame, from its records; see claim_view in lib/claim.lua."""
    size = TURN_OVERHEAD + len(view[8]) + len(view[9]) + len(view[10]) + len(view[14])
    steps = view[11]
    if steps:
        size += sum(map(len, steps)) + STEP_OVERHEAD * len(steps)
    return size


def lease_of(partition: int, claimed: records.ClaimedTurn) -> Lease:
    """The lease that a claim has made."""
    return Lease(partition, claimed.instance_id, claimed.incarnation, claimed.turn, claimed.fence)


def fill_turn(turn: pb.LeasedTurn, key: bytes, claimed: records.ClaimedTurn, namespace: str) -> None:
    """Fills in a leased turn; `key` names the lease."""
    message = claimed.message
    turn.lease = key
    turn.fence = claimed.fence
    turn.instance_id = claimed.instance_id
    turn.incarnation = claimed.incarnation
    turn.workflow_type, _, turn.version = claimed.tv.partition(":")
    turn.turn = claimed.turn
    turn.message_id = message.message_id
    fill_payload(turn.message, message.blob)
    if message.from_turn:
        source = turn.origin.redrive if message.redriven else turn.origin.continuation
        source.turn, source.message_id = message.from_turn, message.from_id
    elif message.origin:
        turn.origin.client = message.origin
    if claimed.state:
        fill_payload(turn.state, claimed.state)
    turn.attempt = claimed.attempt
    turn.max_attempts = claimed.max_attempts
    fill_ms(turn.lease_timeout, claimed.lease_ms)
    fill_ms(turn.attempt_timeout, claimed.attempt_timeout_ms)
    if claimed.total_ms:
        fill_ms(turn.total_remaining, claimed.total_ms)
    fill_ms(turn.admit_time, message.admitted_ms)
    fill_ms(turn.lease_time, claimed.leased_ms)
    turn.namespace = namespace
    turn.callback_base = callback_base(namespace, claimed.instance_id, claimed.incarnation, claimed.turn)
    for position, saved in enumerate(claimed.steps, start=1):
        step = turn.steps.add()
        step.position = position
        step.key = saved.key
        step.kind = saved.kind
        fill_payload(step.output, saved.blob)
        fill_ms(step.save_time, saved.saved_ms)
        step.attempt = saved.attempt
        if saved.outcome:
            step.wait_outcome = saved.outcome  # pyright: ignore[reportAttributeAccessIssue]
        if saved.resolved:
            step.resolved = True
    if claimed.failure is not None:
        _fill_failure(turn.last_failure, claimed.failure)
    if claimed.operation is not None:
        turn.operation.CopyFrom(views.operation(claimed.operation, active=False))


def fill_payload(target: payload_pb2.Payload, blob: bytes) -> None:
    """Fills in a payload from its stored form, `encoding NUL data`."""
    at = blob.find(b"\0")
    if at > 0:
        target.encoding = blob[:at].decode()
    target.data = blob[at + 1 :]


def fill_servers(target: Fleet, servers: Iterable[Peer]) -> None:
    """Adds servers to a fleet."""
    for run, address in servers:
        target.servers.add(server_run=run, address=address)


def fill_ms(target: Any, ms: int) -> None:
    """Sets a Timestamp or a Duration."""
    target.seconds = ms // 1000
    if ms % 1000:
        target.nanos = ms % 1000 * 1_000_000


def _fill_failure(target: failure_pb2.Failure, failure: records.FailureRecord) -> None:
    target.reason = failure.reason
    target.message = failure.message
    if failure.details:
        fill_payload(target.details, failure.details)
    target.non_retryable = failure.final
    target.truncated = failure.truncated
    target.attempt = failure.attempt
    fill_ms(target.fail_time, failure.failed_ms)
    if failure.cause:
        target.cause.MergeFromString(failure.cause)
