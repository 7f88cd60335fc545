"""What the reference model is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Reply = tuple[Any, ...]
FINAL = frozenset({"COMPLETED", "CANCELLED", "SKIPPED", "PARKED", "EXPIRED"})
TIMED = {"BACKOFF": "backoff", "SLEEPING": "sleep", "WAITING": "wait", "DEFERRED": "defer"}
"""States that end by themselves, with the kind of their timer; a wait only if it has a deadline."""
HELD = frozenset({"RUNNING", "CANCELLING"})
"""States of a turn that is leased."""
RECEIVED, TIMED_OUT = 1, 2
"""Outcomes of waits."""
BLOCK, SKIP, PARK = 1, 2, 3
"""Exhaustion policies."""
KEPT_REQUESTS = 8
"""Requests that are remembered of an id, and of an instance."""


@dataclass
class Settings:
    """Settings of a workflow type; the defaults of the product where nothing else is said."""

    lease_ms: int = 60_000
    max_attempts: int = 3
    attempt_timeout_ms: int = 3_600_000
    min_turns: int = 256
    max_age_ms: int = 86_400_000
    max_turns: int = 2_000
    on_exhausted: int = BLOCK


@dataclass
class Lease:
    """One lease of one turn, also after its end."""

    fence: int
    conn: str
    deadline: int
    leased: int
    accepted: bool = False
    orphaned: bool = False
    how: str = ""
    n: int = 0
    digest: bytes = b""
    answer: Reply = ()


@dataclass
class Operation:
    """A registered step."""

    key: str
    unseen: bool
    """Whether it must not be repeated unseen."""
    deadline: int
    heartbeat_ms: int
    heartbeat_at: int
    resume: bytes
    sequence: int = 0
    digest: bytes = b""
    active: bool = True

    @property
    def due(self) -> int:
        """When it is out of time; 0 if it does not run."""
        if not self.active:
            return 0
        return min(self.deadline, self.heartbeat_at or self.deadline)


@dataclass
class Signal:
    """Something that a turn received."""

    signal_id: str
    name: str
    callback: str
    digest: bytes
    received: int
    value: bytes
    to_instance: bool
    position: int = 0
    at_once: bool = False
    """Whether it was consumed as it came."""

    @property
    def waited_for(self) -> tuple[str, str]:
        """What a wait names to get it."""
        return (self.name, self.callback)


@dataclass
class Turn:
    """One turn; `lease` is its newest lease, `previous` the one before."""

    number: int
    message_id: str
    digest: bytes
    body: bytes
    admitted: int
    expires: int = 0
    state: str = "QUEUED"
    steps: list[str] = field(default_factory=list)
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    extra: int = 0
    extra_lost: int = 0
    deliveries: int = 0
    releases: int = 0
    defers: int = 0
    operation: Operation | None = None
    lease: Lease | None = None
    previous: Lease | None = None
    deadline: int = 0
    cancel_at: int = 0
    finished: int = 0
    claimed: tuple[str, int, int] | None = None
    signals: list[Signal] = field(default_factory=list)
    wait: tuple[str, str, str] = ("", "", "")
    """What it waits for: step key, name, callback key."""
    outcomes: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """How its waits ended, by step key, with what they gave."""

    @property
    def final(self) -> bool:
        """Whether the turn has ended."""
        return self.state in FINAL


@dataclass(order=True)
class Delayed:
    """A message that is admitted later."""

    due: int
    arrival: int
    message_id: str
    digest: bytes
    body: bytes
    ttl_ms: int


@dataclass
class Dead:
    """What is remembered of a deleted instance."""

    inc: int
    tail: int
    seq: int
    time: int
    request_id: str
    born_by: str
    message_ids: set[str]
    background: bool
    earlier: list[tuple[str, bool]] = field(default_factory=list)
    """Further deletions, newest first: request id, and whether that went on in the background."""
    earlier_births: list[str] = field(default_factory=list)
    """Request ids of the creation of earlier lives, newest first."""
    answers: list[tuple[str, bytes, Reply]] = field(default_factory=list)
    """Answers of control calls, newest first: request id, digest, reply."""

    def add(self, request_id: str, background: bool) -> list[tuple[str, bool]]:
        """`earlier` with one more."""
        return [(request_id, background), *self.earlier][:KEPT_REQUESTS] if request_id else self.earlier

    def births(self) -> list[str]:
        """`earlier_births` once this life is an earlier one itself."""
        more = [self.born_by] if self.born_by else []
        return [*more, *self.earlier_births][:KEPT_REQUESTS]


@dataclass
class Instance:
    """One instance. `turns` holds every turn of this life; `kept` and `oldest` say what is still stored."""

    id: str
    tv: str
    inc: int
    created: int
    digest: bytes
    state: bytes
    lease_ms: int
    max_attempts: int
    born_by: str = ""
    first: int = 1
    """Number of the first turn of this life."""
    first_seq: int = 1
    turns: list[Turn] = field(default_factory=list)
    head: int = 1
    kept: int = 1
    oldest: int = 1
    events: list[str] = field(default_factory=list)
    latest: list[int] = field(default_factory=list)
    """For each event a time that is not before its own."""
    paused: bool = False
    deleted: int | None = None
    """When its deletion began, while that goes on."""
    delayed: list[Delayed] = field(default_factory=list)
    parked: dict[int, Turn] = field(default_factory=dict)
    early: list[Signal] = field(default_factory=list)
    """Signals for the next turn."""
    answers: list[tuple[str, bytes, Reply]] = field(default_factory=list)

    def at(self, number: int) -> Turn:
        """The turn of a number."""
        return self.turns[number - self.first]

    @property
    def tail(self) -> int:
        """Number of the newest turn."""
        return self.first + len(self.turns) - 1

    @property
    def current(self) -> Turn | None:
        """The turn at the head, if it has not ended."""
        turn = self.at(self.head) if self.head <= self.tail else None
        return None if turn is None or turn.final else turn

    @property
    def behind(self) -> bool:
        """Whether the head has still to pass turns that have ended."""
        return self.head <= self.tail and self.current is None

    @property
    def pending(self) -> int:
        """Unfinished turns."""
        return sum(not turn.final for turn in self.turns[self.head - self.first :])

    @property
    def seq(self) -> int:
        """Number of the newest event."""
        return self.first_seq + len(self.events) - 1

    @property
    def deleting(self) -> bool:
        """Whether its deletion goes on."""
        return self.deleted is not None

    @property
    def status(self) -> int:
        """Status, as in pawl.v1.InstanceStatus."""
        if self.paused:
            return 4
        if self.current and self.current.state in ("FAILED", "UNCERTAIN"):
            return 3
        return 2 if self.pending else 1
