"""What the client returns: plain, immutable values. Times are aware datetimes of the engine's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from pawl._running import Operation, ProgressView, Signal, SignalWait
from pawl.errors import TurnFailed, TurnUnfinished
from pawl.payloads import Payload, decode

T = TypeVar("T")

FINISHED = frozenset({"COMPLETED", "CANCELLED", "SKIPPED", "PARKED", "EXPIRED"})
"""Turn states that never change again."""

BLOCKED = frozenset({"FAILED", "UNCERTAIN"})
"""Turn states that only a decision ends."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing."""

    items: list[T]
    next_page_token: str
    """Token of the next page; empty on the last one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt did not complete. Maps to Failure."""

    reason: str
    message: str
    non_retryable: bool
    attempt: int
    fail_time: datetime | None
    truncated: bool
    details_payload: Payload | None = field(repr=False, default=None)
    cause: Failure | None = None
    """What caused it, with causes of its own."""

    @property
    def details(self) -> Any:
        """Structured details, or None. Raises PayloadError if they can't be decoded."""
        return None if self.details_payload is None else decode(self.details_payload)


@dataclass(frozen=True, slots=True)
class Origin:
    """How a message came to be. Maps to Origin."""

    kind: str
    """"client", "continuation" or "redrive"."""
    client: bytes = b""
    """Bytes given by the sender."""
    turn: int = 0
    """Turn that continued with the message, or that was parked; 0 for other kinds."""
    message_id: str = ""
    """Message id of that turn."""


@dataclass(frozen=True, slots=True)
class SavedStep:
    """One saved step of a turn. Maps to Step."""

    position: int
    key: str
    kind: str
    save_time: datetime | None
    attempt: int
    output_payload: Payload = field(repr=False)
    wait_outcome: str = ""
    """"RECEIVED", "TIMED_OUT" or "REJECTED", of kinds "signal" and "callback"; may grow."""
    resolved: bool = False
    """True if `resolve_step` saved it, not its function."""
    failure: Failure | None = None
    """What a callback was rejected with."""

    @property
    def output(self) -> Any:
        """What the step returned, or what was received; None if a wait was in vain.

        Raises PayloadError if it can't be decoded.
        """
        return None if self.wait_outcome in ("TIMED_OUT", "REJECTED") else decode(self.output_payload)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message and everything that happened to it. Maps to Turn."""

    instance_id: str
    incarnation: int
    turn: int
    state: str
    """For example "QUEUED", "RUNNING", "WAITING", "BACKOFF", "FAILED" or "COMPLETED"; may grow."""
    message_id: str
    origin: Origin
    attempt: int
    step_count: int
    steps: tuple[SavedStep, ...]
    last_failure: Failure | None
    admit_time: datetime | None
    finish_time: datetime | None
    due_time: datetime | None
    trimmed: bool
    continuation_turn: int
    """Turn that this one continued with, or that its message was redriven as; 0 if none."""
    expire_time: datetime | None
    """When it ends EXPIRED unless an attempt has begun."""
    defer_reason: str
    """Why its worker put it off; only while DEFERRED, and empty if the worker did not say."""
    discarded: bool
    """True if the message was dropped by `redrive_parked` with `discard`."""
    operation: Operation | None
    """The step that runs, as far as it is registered; of a turn that failed or backs off, the last one."""
    wait: SignalWait | None
    """What it waits for; only while WAITING."""
    signals: tuple[Signal, ...]
    """What it received, in order of arrival."""
    total_deadline: datetime | None
    """When it fails unless it has finished; None for never, and before it is at the head."""
    cancel_deadline: datetime | None
    """When its lease ends whatever its worker does; only while CANCELLING."""
    message_payload: Payload | None = field(repr=False)
    reply_payload: Payload | None = field(repr=False)

    @property
    def finished(self) -> bool:
        """True once nothing about the turn changes any more."""
        return self.state in FINISHED

    @property
    def blocked(self) -> bool:
        """True while it waits for a decision: it has FAILED, or is UNCERTAIN. Nothing behind it runs."""
        return self.state in BLOCKED

    @property
    def message(self) -> Any:
        """What was sent; None if trimmed, discarded or not asked for. Raises PayloadError if undecodable."""
        return None if self.message_payload is None else decode(self.message_payload)

    @property
    def reply(self) -> Any:
        """What the turn returned; None if nothing, not yet or trimmed. Raises PayloadError if undecodable."""
        return None if self.reply_payload is None else decode(self.reply_payload)

    def result(self) -> Any:
        """Gives the reply of a completed turn.

        Raises TurnFailed if it failed, is UNCERTAIN or ended otherwise, TurnUnfinished if it goes on,
        PayloadError if the reply can't be decoded.
        """
        if self.state == "COMPLETED":
            return self.reply
        if self.blocked or self.finished:
            reason = self.last_failure.reason if self.last_failure else ""
            text = self.last_failure.message if self.last_failure else ""
            raise TurnFailed(self.instance_id, self.turn, self.state, reason, text)
        raise TurnUnfinished(self.instance_id, self.turn, self.state)


@dataclass(frozen=True, slots=True)
class Instance:
    """One durable entity. Maps to Instance."""

    id: str
    workflow_type: str
    version: str
    incarnation: int
    status: str
    """For example "IDLE", "ACTIVE" or "BLOCKED"; may grow."""
    create_time: datetime | None
    pending_turns: int
    head_turn: int
    last_turn: int
    oldest_kept_turn: int
    lease_timeout: timedelta | None
    max_attempts: int
    last_seq: int
    delayed_messages: int
    tags: tuple[str, ...]
    correlation_key: str
    paused: bool
    parked_turns: int
    retry: RetryPolicy | None
    """What it was created with; overrides single fields of the type's policy."""
    progress: ProgressView | None
    """Progress of the turn that runs; only by `Client.get`, and while it runs."""
    state_payload: Payload | None = field(repr=False)

    @property
    def state(self) -> Any:
        """Saved state; None where it was left out. Raises PayloadError if it can't be decoded."""
        return None if self.state_payload is None else decode(self.state_payload)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Answer to the cancellation of a turn. Maps to CancelTurnResponse."""

    state: str
    """"CANCELLED", or "CANCELLING" while its worker may finish the step that runs."""
    former_state: str
    """The state that it was in, for example "QUEUED" or "RUNNING"."""
    finish_time: datetime | None
    """Unset if it is CANCELLING."""
    cancel_deadline: datetime | None
    """When its lease ends whatever its worker does; only if it is CANCELLING."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Answer to one message. Maps to SendMessageResponse."""

    instance_id: str
    message_id: str
    turn: int
    """0 while the message is delayed."""
    incarnation: int
    admit_time: datetime | None
    outcome: Turn | None = None
    """The turn at the end of the wait, if one was asked for."""
    due_time: datetime | None = None
    """When a delayed message will be admitted."""

    def result(self) -> Any:
        """Gives the reply, after a send that waited. Raises as `Turn.result` does."""
        if self.outcome is None:
            raise TurnUnfinished(self.instance_id, self.turn, "QUEUED")
        return self.outcome.result()


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One message that has not ended. Maps to InboxEntry."""

    turn: Turn
    """A delayed message has turn 0 and a `due_time`."""
    message_bytes: int


@dataclass(frozen=True, slots=True)
class InboxPage(Page[InboxEntry]):
    """A page of an inbox: unfinished turns, then delayed messages. Maps to ListInboxResponse."""

    pending_turns: int
    """Of the whole inbox."""
    delayed_messages: int
    oldest_admit_time: datetime | None
    newest_admit_time: datetime | None


@dataclass(frozen=True, slots=True)
class BacklogEntry:
    """One instance with unfinished turns. Maps to BacklogEntry."""

    instance: Instance
    head: Turn | None
    """The turn at the head, without payloads."""


@dataclass(frozen=True, slots=True)
class TypeWorkload:
    """What waits of one type and version. Maps to TypeWorkload."""

    workflow_type: str
    version: str
    ready_turns: int
    oldest_ready_age: timedelta | None
    busy_instances: int
    blocked_instances: int
    paused_instances: int
    starved: bool
    """Ready for two minutes, and no worker is there for it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What waits in the namespace. Maps to GetWorkloadResponse."""

    types: tuple[TypeWorkload, ...]
    more: bool
    """True if more types and versions than listed have unfinished turns."""
    parked_turns: int
    damaged_records: int
    timers: int
    late_timers: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something stored that is not as it has to be. Maps to Finding."""

    instance_id: str
    """Empty for an entry or key that belongs to no instance."""
    key: str
    """Key without the partition's prefix; empty for a whole instance."""
    entry: str
    text: str
    partition: int


@dataclass(frozen=True, slots=True)
class CheckPage(Page[Finding]):
    """What one part of a check found. Maps to CheckDataResponse."""

    instances: int
    """Looked at in this part."""
    entries: int
    partitions_done: int
    partitions: int


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to try again, and when not. Maps to RetryPolicy.

    The delay before attempt k+1 is min(max_delay, initial_delay × factor^(k−1)), less a part drawn at random.
    None means the default; in a policy of an instance, what its type says.
    """

    initial_delay: timedelta | None = None
    """1 ms to 24 h; None means 1 s."""
    max_delay: timedelta | None = None
    """1 ms to 24 h; None means 60 s."""
    factor: float | None = None
    """1 to 100; None means 2."""
    jitter: float | None = None
    """Largest part of a delay that is taken off at random, 0 to 1; None means 0."""
    max_elapsed: timedelta | None = None
    """No attempt begins later than that after the first one that failed; None means no limit."""
    non_retryable_reasons: Sequence[str] = ()
    """Failure reasons, such as names of exceptions, that are not worth another attempt; at most 32."""
    max_attempts: int | None = None
    """Only in the policy of a step: failures in a row of the step, 1 to 1,000; None means 3."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of finished turns. None means the default. Maps to Retention."""

    min_turns: int | None = None
    """The newest turns that are always kept, 0 to 2,000; None means 256."""
    max_age: timedelta | None = None
    """Beyond those, turns younger than this are kept, 0 to 365 d; None means 24 h."""
    max_turns: int | None = None
    """At most as many in all, 1 to 100,000; None means 2,000."""
    max_bytes: int | None = None
    """And at most as many bytes, 1 KiB to 1 GiB; None means 4 MiB."""
    keep_none: bool = False
    """Keeps receipts only. Excludes the other fields."""


@dataclass(frozen=True, slots=True)
class WorkflowType:
    """Stored settings of a workflow type. None means the default. Maps to WorkflowType."""

    name: str
    lease_timeout: timedelta | None = None
    """How long a worker holds a turn without a sign of life, 1 s to 1 h; None means 60 s."""
    max_attempts: int | None = None
    """Attempts that may fail or expire, 1 to 1,000; None means 3."""
    retry: RetryPolicy | None = None
    attempt_timeout: timedelta | None = None
    """Longest attempt, renewals included, 1 s to 7 d; None means 1 h."""
    retention: Retention | None = None
    on_exhausted: str | None = None
    """What happens to a turn that failed for good: "BLOCK", "SKIP" or "PARK"; None means "BLOCK"."""
    queue_timeout: timedelta | None = None
    """Time from admission until an attempt must have begun, 1 ms to 365 d; None for any.

    After it the turn ends EXPIRED. Holds for messages that are sent, not for continuations.
    """
    total_timeout: timedelta | None = None
    """Time from admission until the turn must have finished, 1 ms to 365 d; None for any.

    After it the turn fails for good with TOTAL_DEADLINE, once it is at the head.
    """
    revision: int = 0
    """Rises with each change; 0 for a type that was never stored. Set by the server."""
    update_time: datetime | None = None
    """Time of the last change. Set by the server."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself. Maps to GetServerInfoResponse."""

    version: str
    server_name: str
    """Stays the same over restarts."""
    server_run: str
    """Changes with each start."""
    namespace: str
    partitions: int
    durability: str
    """"FSYNC", "EVERYSEC", "MEMORY" or "ASSUMED"; may grow."""
    durability_assumed: str
    """Level that the operator vouches for if `durability` is "ASSUMED", else ""."""
    store: str
    """Name and version, such as "valkey 9.1.2"."""
    limits: Mapping[str, int]
    """Limits in force by name."""
    beat_interval: timedelta | None
    """Interval of beats on work streams."""
    capabilities: tuple[str, ...]
    """Optional features; may grow."""
    engine_time: datetime | None
    """Time by the clock of Redis, the one that counts."""
    start_time: datetime | None
    virtual_time: bool
    store_reachable: bool
    """Whether the store answered just now; while it does not, most calls raise Unavailable."""
    own_address: str = ""
    """Address of this very server, past any load balancer; "" if it knows none."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the servers that hand out turns of the namespace, by `server_run`."""
