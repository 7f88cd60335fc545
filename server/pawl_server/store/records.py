"""Readers of the packed records that the scripts keep in Redis.

Every record but `y` is a msgpack array whose first element is a format version; elements beyond the ones
named here are ignored. The Lua side is lib/record.lua, inbox.lua, step.lua, operation.lua, receipt.lua,
retry.lua, born.lua, ledger.lua and transitions/beat.lua. Times are engine time in ms since the epoch; blobs
are `encoding NUL data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

RECORD_FIELDS = 51


def unpack(raw: bytes) -> list[Any]:
    """The elements of a packed record; text stays bytes."""
    return msgpack.unpackb(raw, raw=True, strict_map_key=False)


class InstanceRecord(NamedTuple):
    """Record `r` of an instance; see lib/record.lua."""

    version: int
    flags: int
    incarnation: int
    head: int
    tail: int
    pending: int
    oldest: int
    kept: int
    kept_bytes: int
    seq: int
    gc_at_ms: int
    state: int
    bytes: int
    steps: int
    attempt: int
    failures: int
    lost: int
    deliveries: int
    fence: int
    conn: bytes | int
    deadline_ms: int
    leased_ms: int
    bits: int
    how: int
    n: int
    digest: bytes | int
    word: int
    answer1: int
    answer2: bytes | int
    """Of a deferral its reason; 0 if it gave none."""
    previous_fence: int
    previous_how: int
    previous_n: int
    previous_digest: bytes | int
    previous_word: int
    previous_answer1: int
    previous_answer2: int
    releases: int
    defers: int
    extra_attempts: int
    extra_losses: int
    operation: int
    operation_at_ms: int
    total_at_ms: int
    cancel_at_ms: int
    failing_ms: int
    step_failures: int
    delayed: int
    delayed_at_ms: int
    expires_at_ms: int
    parked_turns: int
    signalled: int

    @property
    def paused(self) -> bool:
        """Whether dispatch is stopped."""
        return bool(self.flags & 1)

    @property
    def deleting(self) -> bool:
        """Whether the instance is being deleted."""
        return bool(self.flags & 2)

    @property
    def accepted(self) -> bool:
        """Whether the newest lease was received by a worker."""
        return bool(self.bits & 1)

    @property
    def operation_active(self) -> bool:
        """Whether the registered step of the head runs."""
        return self.operation > 1

    @property
    def orphaned(self) -> bool:
        """Whether the newest lease lost its stream."""
        return bool(self.bits & 2)


def instance_record(raw: bytes) -> InstanceRecord:
    """Decodes `r`; zeros that were not stored are filled in."""
    values = unpack(raw)[:RECORD_FIELDS]
    return InstanceRecord._make(values + [0] * (RECORD_FIELDS - len(values)))


class Birth(NamedTuple):
    """Fields `y` and `o` of an instance: what it was created with."""

    type: str
    version: str
    created_ms: int
    digest: bytes
    lease_ms: int
    """0: the type's."""
    max_attempts: int
    """0: the type's."""
    correlation_key: str = ""
    tags: tuple[str, ...] = ()
    retry: bytes = b""
    """Packed retry policy; empty for the type's."""


def birth(tv: str, raw: bytes) -> Birth:
    """Decodes `y` (type:version) and `o`."""
    name, _, version = tv.partition(":")
    o = unpack(raw)
    words: bytes = o[5] if len(o) > 5 else b""
    key, *tags = words.decode().split("\0")[:-1] or [""]
    return Birth(name, version, o[1], o[2], o[3], o[4], key, tuple(tags), o[9] if len(o) > 9 else b"")


class MessageRecord(NamedTuple):
    """Field `<turn>.m`."""

    message_id: str
    digest: bytes
    blob: bytes
    """Empty if it was discarded."""
    origin: bytes
    admitted_ms: int
    from_turn: int
    """Turn that continued with this message or was redriven; 0 if it was sent."""
    from_id: str
    redriven: bool = False
    expire_ms: int = 0
    """When it expires unless an attempt has begun; 0 for never."""


def message_record(raw: bytes) -> MessageRecord:
    """Decodes `<turn>.m`."""
    m = unpack(raw)
    more = (bool(m[8]), m[9]) if len(m) > 9 else ()
    return MessageRecord(m[1].decode(), m[2], m[3], m[4], m[5], m[6], m[7].decode(), *more)


class StepRecord(NamedTuple):
    """Field `<turn>.<position>`."""

    key: str
    kind: str
    blob: bytes
    digest: bytes
    saved_ms: int
    attempt: int
    outcome: int = 0
    """WaitOutcome, of a step that was a wait."""
    resolved: bool = False
    """Whether somebody else than its worker said what it gave."""


def step_record(raw: bytes) -> StepRecord:
    """Decodes `<turn>.<position>`."""
    return _step(unpack(raw))


def _step(s: list[Any]) -> StepRecord:
    more = (s[7], bool(s[8])) if len(s) > 8 else ()
    return StepRecord(s[1].decode(), s[2].decode(), s[3], s[4], s[5], s[6], *more)


class FailureRecord(NamedTuple):
    """Field `<turn>.f`."""

    attempt: int
    failed_ms: int
    reason: str
    message: str
    details: bytes
    """Blob; empty for none."""
    final: bool
    truncated: bool
    cause: bytes = b""
    """The cause with its own, as a serialized Failure; empty for none."""


def failure_record(raw: bytes) -> FailureRecord:
    """Decodes `<turn>.f`."""
    f = unpack(raw)
    cause = f[8] if len(f) > 8 else b""
    return FailureRecord(f[1], f[2], f[3].decode(), f[4].decode(), f[5], bool(f[6]), bool(f[7]), cause)


class ProgressRecord(NamedTuple):
    """How far a registered step has come."""

    phase: str
    done: int
    total: int
    """-1 if it is not known."""
    unit: str


class OperationRecord(NamedTuple):
    """Field `<turn>.o`: a registered step; see lib/operation.lua."""

    key: str
    kind: str
    position: int
    attempt: int
    start_ms: int
    deadline_ms: int
    heartbeat_ms: int
    """Longest time without a report; 0 for any."""
    heartbeat_at_ms: int
    sequence: int
    """0 before the first report; then the next two have no meaning."""
    digest: bytes
    report_ms: int
    progress: ProgressRecord | None
    details: bytes
    """Blob; empty for none."""
    resume: bytes
    """Blob; empty for none."""
    on_restart: int


def pack_progress(progress: ProgressRecord) -> bytes:
    """Progress as `<turn>.o` keeps it."""
    packed: bytes = msgpack.packb(progress)  # pyright: ignore[reportAssignmentType]
    return packed


def operation_record(raw: bytes) -> OperationRecord:
    """Decodes `<turn>.o`."""
    o = unpack(raw)
    progress = None
    if o[12]:
        phase, done, total, unit = unpack(o[12])
        progress = ProgressRecord(phase.decode(), done, total, unit.decode())
    return OperationRecord._make((o[1].decode(), o[2].decode(), *o[3:12], progress, *o[13:16]))


class Receipt(NamedTuple):
    """Field `<turn>.h` of a finished turn; see lib/receipt.lua."""

    state: int
    finished_ms: int
    attempts: int
    steps: int
    bytes: int
    fence: int
    n: int
    command_digest: bytes
    continuation: int
    claimed_id: str
    """Instance of the turn that the finish claimed; empty if none."""
    claimed_incarnation: int
    claimed_turn: int
    claimed_fence: int
    reply: bytes | None
    """Blob; None if there is none or it was trimmed."""
    last_step: StepRecord | None
    trimmed: bool
    """Whether the payloads were trimmed; only then are the next three set."""
    message_id: str
    message_digest: bytes
    admitted_ms: int


def receipt(raw: bytes) -> Receipt:
    """Decodes `<turn>.h`."""
    h = unpack(raw)
    message_id: Any = h[16] if len(h) > 16 else 0
    trimmed = message_id != 0
    claimed = h[10].decode() if h[10] else ""
    reply = h[14] if h[14] != 0 else None
    last_step = _step(h[15]) if h[15] != 0 else None
    message = (message_id.decode(), h[17], h[18]) if trimmed else ("", b"", 0)
    return Receipt._make((*h[1:10], claimed, *h[11:14], reply, last_step, trimmed, *message))


class ClaimedTurn(NamedTuple):
    """A leased turn as `claim` and `finish` hand it out; see claim_view in lib/claim.lua."""

    instance_id: str
    incarnation: int
    turn: int
    fence: int
    attempt: int
    max_attempts: int
    lease_ms: int
    attempt_timeout_ms: int
    message: MessageRecord
    state: bytes
    """Blob; empty for none."""
    failure: FailureRecord | None
    steps: list[StepRecord]
    tv: str
    """type:version"""
    leased_ms: int
    operation: OperationRecord | None
    """The registered step of an earlier attempt, unless it was saved."""
    total_ms: int
    """Time until the total deadline; 0 for none."""


def claimed_turn(view: list[Any]) -> ClaimedTurn:
    """Decodes one claimed turn."""
    return ClaimedTurn(
        view[0].decode(),
        view[1],
        view[2],
        view[3],
        view[4],
        view[5],
        view[6],
        view[7],
        message_record(view[8]),
        view[9],
        failure_record(view[10]) if view[10] else None,
        [step_record(raw) for raw in view[11]] if view[11] else [],
        view[12].decode(),
        view[13],
        operation_record(view[14]) if view[14] else None,
        view[15],
    )


class ParkedRecord(NamedTuple):
    """Field `<turn>.p`: what is kept of a parked turn."""

    message: MessageRecord
    failure: FailureRecord | None
    parked_ms: int


def parked_record(raw: bytes) -> ParkedRecord:
    """Decodes `<turn>.p`."""
    p = unpack(raw)
    return ParkedRecord(message_record(p[1]), failure_record(p[2]) if p[2] else None, p[3])


class DelayedRecord(NamedTuple):
    """Field `q:<message id>`: a message that is admitted later."""

    message_id: str
    digest: bytes
    blob: bytes
    origin: bytes
    sent_ms: int
    due_ms: int
    ttl_ms: int


def delayed_record(raw: bytes) -> DelayedRecord:
    """Decodes `q:<message id>`."""
    q = unpack(raw)
    return DelayedRecord(q[1].decode(), q[2], q[3], q[4], q[5], q[6], q[8])


class SignalRecord(NamedTuple):
    """One entry of field `<turn>.g`; see lib/signal.lua."""

    signal_id: str
    name: str
    callback_key: str
    received_ms: int
    position: int
    """Step that consumed it; 0 while it is buffered."""
    rejected: bool
    sender: str
    principal: int
    value: bytes
    """Blob; empty once consumed."""


def signal_records(raw: bytes, values: list[bytes]) -> list[SignalRecord]:
    """Decodes `<turn>.g` together with the values of its entries."""
    return [
        SignalRecord(
            g[0].decode(), g[1].decode(), g[2].decode(), g[4], g[5], bool(g[6]), g[7].decode(), g[8], value
        )
        for g, value in zip(unpack(raw)[1:], values, strict=True)
    ]


class WaitRecord(NamedTuple):
    """Field `w`: what a turn waits for."""

    key: str
    name: str
    """Empty for a callback."""
    callback_key: str
    began_ms: int
    deadline_ms: int
    """0 for never."""


def wait_record(raw: bytes) -> WaitRecord:
    """Decodes `w`."""
    w = unpack(raw)
    return WaitRecord(w[1].decode(), w[2].decode(), w[3].decode(), w[4], w[5])


class TurnView(NamedTuple):
    """A turn as get_turn and list_turns read it; see view_turn in lib/view.lua."""

    turn: int
    message: MessageRecord | None
    """None once trimmed."""
    receipt: Receipt | None
    """None until the turn is finished."""
    failure: FailureRecord | None
    steps: list[StepRecord]
    """The saved steps in order, if they were asked for; the one saved by the finish is always there."""
    operation: OperationRecord | None
    """The registered step, as long as it is not saved."""
    signals: list[SignalRecord]
    """What it has received, if that was asked for."""
    wait: WaitRecord | None
    """What it waits for, if it does."""


def turn_view(view: list[Any]) -> TurnView:
    """Decodes one turn view."""
    done = receipt(view[2]) if view[2] else None
    steps = [step_record(raw) for raw in view[4] if raw]
    if done and done.last_step:
        steps.append(done.last_step)
    return TurnView(
        view[0],
        message_record(view[1]) if view[1] else None,
        done,
        failure_record(view[3]) if view[3] else None,
        steps,
        operation_record(view[5]) if view[5] else None,
        signal_records(view[6], view[7]) if view[6] else [],
        wait_record(view[8]) if view[8] else None,
    )


class LedgerEvent(NamedTuple):
    """One element of `e:<id>`; the numbers of `type` are in lib/ledger.lua."""

    type: int
    gen: int
    time_ms: int
    turn: int
    attempt: int
    state: int
    status: int
    seq: int
    detail: Any
    """Text as bytes; a list or a number for some types."""


def ledger_event(raw: bytes) -> LedgerEvent:
    """Decodes one ledger event."""
    event = unpack(raw)
    return LedgerEvent._make([*event[1:9], event[9] if len(event) > 9 else b""])


class ServerRecord(NamedTuple):
    """One field of `servers`."""

    name: str
    address: str
    build: str
    beat_ms: int
    draining: bool
    orphaned: bool


def server_record(raw: bytes) -> ServerRecord:
    """Decodes one field of `servers`."""
    s = unpack(raw)
    return ServerRecord(s[1].decode(), s[2].decode(), s[3].decode(), s[4], bool(s[5]), bool(s[6]))


TYPE_FIELDS = (
    "lease_ms",
    "max_attempts",
    "backoff_initial_ms",
    "backoff_max_ms",
    "backoff_factor",
    "attempt_timeout_ms",
    "min_turns",
    "max_age_ms",
    "max_turns",
    "max_bytes",
    "on_exhausted",
    "jitter",
    "max_elapsed_ms",
    "final_reasons",
    "queue_timeout_ms",
    "total_timeout_ms",
)
TYPE_DEFAULTS: dict[str, float | str] = dict(
    zip(
        TYPE_FIELDS,
        (60_000, 3, 1_000, 60_000, 2, 3_600_000, 256, 86_400_000, 2_000, 4_194_304, 1, 0, 0, "", 0, 0),
        strict=True,
    )
)


def pack_type(values: Mapping[str, float | str | None]) -> bytes:
    """Packs the settings of a workflow type; None or absent means the default (-1 in the record)."""
    fields = (values.get(name) for name in TYPE_FIELDS)
    packed = msgpack.packb([1, 0, *(-1 if value is None else value for value in fields)])
    assert packed is not None
    return packed


def unpack_type(raw: bytes) -> tuple[int, dict[str, float | str | None]]:
    """Time of the last change, and the settings; None for the default."""
    record = unpack(raw)
    return record[1], _settings(TYPE_FIELDS, record[2:])


POLICY_FIELDS = (
    "backoff_initial_ms",
    "backoff_max_ms",
    "backoff_factor",
    "jitter",
    "max_elapsed_ms",
    "final_reasons",
    "max_attempts",
)


def pack_policy(values: Mapping[str, float | str | None]) -> bytes:
    """Packs a retry policy; see lib/policy.lua. Nothing if it sets nothing."""
    fields = [values.get(name) for name in POLICY_FIELDS]
    if all(value is None for value in fields):
        return b""
    packed = msgpack.packb([-1 if value is None else value for value in fields])
    assert packed is not None
    return packed


def unpack_policy(raw: bytes) -> dict[str, float | str | None]:
    """Decodes a retry policy; None for what it leaves to the level below."""
    return _settings(POLICY_FIELDS, unpack(raw) if raw else [])


def _settings(names: tuple[str, ...], values: list[Any]) -> dict[str, float | str | None]:
    def of(value: Any) -> float | str | None:
        return None if value == -1 else value.decode() if isinstance(value, bytes) else value

    return {name: of(value) for name, value in zip(names, values, strict=False)}
