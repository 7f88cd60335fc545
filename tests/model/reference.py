"""What the transitions must do, in plain Python: instances, inboxes, leases, attempts, receipts.

Every method is named after a script, takes its item fields and arguments by name, and returns the reply that
the script must give: its word and fields; claimed turns as (instance, turn, fence). Limits of bytes and
trimming are simpler than in Lua: how far history is trimmed is told by `trimmed`, which checks the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

JUMP = 2**32
RECEIPT_MS = 900_000
HOW = {"fail": "failed", "release": "released"}
Reply = tuple[Any, ...]


@dataclass
class Settings:
    """Settings of a workflow type; the defaults of the product where nothing else is said."""

    lease_ms: int = 60_000
    max_attempts: int = 3
    attempt_timeout_ms: int = 3_600_000
    min_turns: int = 256
    max_age_ms: int = 86_400_000
    max_turns: int = 2_000


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
class Turn:
    """One turn; `lease` is its newest lease, `previous` the one before."""

    number: int
    message_id: str
    digest: bytes
    body: bytes
    admitted: int
    state: str = "QUEUED"
    steps: list[str] = field(default_factory=list)
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    deliveries: int = 0
    releases: int = 0
    lease: Lease | None = None
    previous: Lease | None = None
    deadline: int = 0
    finished: int = 0
    claimed: tuple[str, int, int] | None = None


@dataclass
class Instance:
    """One instance. `turns` holds every turn there ever was; `kept` and `oldest` say what is still stored."""

    id: str
    tv: str
    inc: int
    created: int
    digest: bytes
    state: bytes
    lease_ms: int
    max_attempts: int
    turns: list[Turn] = field(default_factory=list)
    head: int = 1
    kept: int = 1
    oldest: int = 1
    events: list[str] = field(default_factory=list)

    @property
    def current(self) -> Turn | None:
        """The turn at the head."""
        return self.turns[self.head - 1] if self.head <= len(self.turns) else None


class Reference:
    """One partition in virtual time."""

    def __init__(self, now: int, types: dict[str, Settings]) -> None:
        self.now = now
        self.types = types
        self.fence = self.incarnation = 0
        self.instances: dict[str, Instance] = {}
        self.ready: dict[str, dict[str, int]] = {}

    def order(self, tv: str) -> list[str]:
        """Ready instances of one type:version, oldest first."""
        return sorted(self.ready.get(tv, {}), key=lambda name: (self.ready[tv][name], name))

    def failover(self) -> None:
        """Redis lost a suffix, and another one took over."""
        self.fence += JUMP
        self.incarnation += JUMP

    # What every script does with an instance it touches.

    def _load(self, name: str) -> Instance | None:
        one = self.instances.get(name)
        turn = one.current if one else None
        if one and turn and turn.state == "BACKOFF" and turn.deadline <= self.now:
            self._queue(one, turn)
        return one

    def _settings(self, one: Instance) -> Settings:
        settings = self.types[one.tv.partition(":")[0]]
        lease_ms, attempts = one.lease_ms or settings.lease_ms, one.max_attempts or settings.max_attempts
        return Settings(**{**vars(settings), "lease_ms": lease_ms, "max_attempts": attempts})

    def _queue(self, one: Instance, turn: Turn) -> None:
        turn.state, turn.deadline = "QUEUED", 0
        self.ready.setdefault(one.tv, {})[one.id] = self.now

    def _again(self, one: Instance, turn: Turn, delay: int) -> None:
        if delay > 0:
            turn.state, turn.deadline = "BACKOFF", self.now + delay
        else:
            self._queue(one, turn)

    def _blocked(self, one: Instance, turn: Turn) -> None:
        turn.state = "FAILED"
        one.events.append("TURN_FAILED")

    # Senders.

    def create(
        self, id: str, type: str, version: str, digest: bytes, state: bytes, lease_ms: int, max_attempts: int
    ) -> Reply:
        one = self._load(id)
        if one:
            same = one.digest == digest
            return ("OK", one.inc, one.created) if same else ("BODY_CONFLICT", one.tv)
        one = self._born(id, f"{type}:{version}", digest, state, lease_ms, max_attempts)
        return ("OK", one.inc, self.now)

    def _born(
        self, name: str, tv: str, digest: bytes, state: bytes, lease_ms: int = 0, max_attempts: int = 0
    ) -> Instance:
        self.incarnation += 1
        one = Instance(name, tv, self.incarnation, self.now, digest, state, lease_ms, max_attempts)
        one.events.append("CREATED")
        self.instances[name] = one
        return one

    def send(
        self, id: str, message_id: str, digest: bytes, message: bytes, max_pending: int, **new: Any
    ) -> Reply:
        one = self._load(id)
        if one:
            known = [turn for turn in one.turns[one.oldest - 1 :] if turn.message_id == message_id]
            if known:
                same = known[0].digest == digest
                ok = ("OK", known[0].number, one.inc, known[0].admitted, False)
                return ok if same else ("BODY_CONFLICT", "message", one.tv)
            if new["create"] and one.tv != f"{new['type']}:{new['version']}":
                return ("BODY_CONFLICT", "create_if_absent", one.tv)
            pending = len(one.turns) - one.head + 1
            if pending >= max_pending:
                return ("LIMIT_EXCEEDED", "pending_messages", pending + 1, max_pending)
        elif not new["create"]:
            return ("NOT_FOUND",)
        else:
            one = self._born(id, f"{new['type']}:{new['version']}", new["create_digest"], b"")
        return ("OK", self._admit(one, message_id, digest, message), one.inc, self.now, False)

    def _admit(self, one: Instance, message_id: str, digest: bytes, body: bytes) -> int:
        turn = Turn(len(one.turns) + 1, message_id, digest, body, self.now)
        one.turns.append(turn)
        one.events.append("TURN_ADMITTED")
        if one.current is turn:
            self._queue(one, turn)
        return turn.number

    # Leases.

    def claim(self, tv: str, limit: int, conn: str) -> list[tuple[str, int, int]]:
        """Leases up to `limit` heads."""
        return [self._lease(name, tv, conn) for name in self.order(tv)[:limit]]

    def _lease(self, name: str, tv: str, conn: str) -> tuple[str, int, int]:
        turn = self.instances[name].current
        assert turn
        assert turn.state == "QUEUED"
        del self.ready[tv][name]
        self.fence += 1
        turn.previous, turn.lease = turn.lease, Lease(self.fence, conn, self.now + 5_000, self.now)
        turn.state = "RUNNING"
        return (name, turn.number, self.fence)

    def _accept(self, one: Instance, turn: Turn, lease: Lease) -> None:
        attempt = turn.failures + turn.lost + 1
        if not lease.accepted and turn.attempt != attempt:
            turn.attempt = attempt
            one.events.append("ATTEMPT_STARTED")
        lease.accepted, lease.orphaned = True, False

    def _alive(self, one: Instance, turn: Turn, lease: Lease) -> None:
        settled = lease.accepted and not lease.orphaned
        self._accept(one, turn, lease)
        settings = self._settings(one)
        if not settled or lease.deadline < self.now + settings.lease_ms * 2 / 3:
            lease.deadline = min(self.now + settings.lease_ms, lease.leased + settings.attempt_timeout_ms)

    def _end(self, turn: Turn, how: str) -> Lease:
        lease = turn.lease
        assert lease
        lease.how, lease.conn, lease.deadline = how, "", 0
        lease.accepted = lease.orphaned = False
        return lease

    def _check(self, id: str, inc: int, turn: int, fence: int) -> tuple[Reply | None, Any]:
        """The reply if the lease is not current, else (None, (instance, turn, lease))."""
        one = self._load(id)
        if not one:
            return ("NOT_FOUND",), None
        if inc != one.inc or not one.oldest <= turn <= len(one.turns) or turn > one.head:
            return ("STALE_FENCE",), None
        at = one.turns[turn - 1]
        if at.lease and at.lease.fence == fence:
            if at.lease.how:
                return ("LEASE_ENDED", at.lease.how), None
            return None, (one, at, at.lease)
        if turn == one.head and at.previous and at.previous.fence == fence:
            return ("LEASE_ENDED", at.previous.how), None
        return ("STALE_FENCE",), None

    def renew(self, id: str, inc: int, turn: int, fence: int, ordinal: int, detach_ms: int) -> Reply:
        refusal, held = self._check(id, inc, turn, fence)
        if refusal:
            return refusal
        self._alive(*held)
        lease: Lease = held[2]
        if detach_ms and (not ordinal or not lease.conn or int(lease.conn.split(".")[1]) <= ordinal):
            lease.conn = ""
            self._orphan(lease, detach_ms)
        return ("OK", max(0, lease.deadline - self.now))

    def adopt(self, id: str, inc: int, turn: int, fence: int, conn: str) -> Reply:
        refusal, held = self._check(id, inc, turn, fence)
        if refusal:
            return refusal
        lease: Lease = held[2]
        if lease.conn and int(lease.conn.split(".")[1]) > int(conn.split(".")[1]):
            return ("SUPERSEDED",)
        self._alive(*held)
        lease.conn = conn
        return ("OK", max(0, lease.deadline - self.now))

    def orphan(
        self, id: str, inc: int, turn: int, fence: int, conn: str, accepted: bool, grace_ms: int
    ) -> Reply:
        refusal, held = self._check(id, inc, turn, fence)
        if refusal:
            return refusal
        lease: Lease = held[2]
        if lease.conn != conn:
            return ("SUPERSEDED",)
        if accepted:
            self._alive(*held)
        self._orphan(lease, grace_ms)
        return ("OK", lease.deadline)

    def _orphan(self, lease: Lease, grace_ms: int) -> None:
        lease.orphaned = True
        lease.deadline = min(lease.deadline, self.now + grace_ms)

    # Commands.

    def _begin(
        self, id: str, inc: int, turn: int, fence: int, n: int, digest: bytes
    ) -> tuple[Reply | None, Any]:
        """The reply if the command is not to be applied, else (None, (instance, turn, lease))."""
        refusal, held = self._check(id, inc, turn, fence)
        if refusal and refusal[0] != "LEASE_ENDED":
            return refusal, None
        one = self.instances[id]
        at = one.turns[turn - 1]
        lease = at.lease if at.lease and at.lease.fence == fence else at.previous
        assert lease
        if not refusal and n == lease.n + 1:
            return None, held
        if not refusal:
            self._alive(*held)
        if n == lease.n > 0:
            return (lease.answer if digest == lease.digest else ("BODY_CONFLICT",)), None
        if n < lease.n:
            return ("ALREADY",), None
        return refusal or ("GAP", lease.n), None

    def _applied(self, lease: Lease, n: int, digest: bytes, *answer: Any) -> Reply:
        lease.n, lease.digest, lease.answer = n, digest, answer
        return answer

    def _step(self, turn: Turn, key: str, output: bytes, max_steps: int, max_step: int) -> Reply | None:
        if len(turn.steps) >= max_steps:
            return ("LIMIT_EXCEEDED", "steps_per_turn", len(turn.steps) + 1, max_steps)
        if len(output) - 1 > max_step:
            return ("LIMIT_EXCEEDED", "step_output_bytes", len(output) - 1, max_step)
        return ("WRONG_STATE", "step_saved") if key in turn.steps else None

    def checkpoint(
        self,
        n: int,
        digest: bytes,
        key: str,
        output: bytes,
        max_steps: int,
        max_step: int,
        kind: str,
        **lease: Any,
    ) -> Reply:
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return reply
        self._alive(*held)
        _, turn, at = held
        refusal = self._step(turn, key, output, max_steps, max_step)
        if refusal:
            return refusal
        turn.steps.append(key)
        return self._applied(at, n, digest, "OK", len(turn.steps))

    def fail(self, n: int, digest: bytes, final: bool, delay_ms: int, reason: str, **lease: Any) -> Reply:
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return reply
        one, turn, at = held
        self._accept(one, turn, at)
        turn.failures += 1
        self._end(turn, "failed")
        one.events.append("ATTEMPT_FAILED")
        delay = delay_ms if delay_ms >= 0 else min(60_000, 1_000 * 2 ** (turn.failures - 1))
        if final or turn.failures >= self._settings(one).max_attempts:
            self._blocked(one, turn)
            return self._applied(at, n, digest, "OK", "FAILED", 0)
        self._again(one, turn, delay)
        return self._applied(at, n, digest, "OK", turn.state, delay)

    def release(self, n: int, digest: bytes, **lease: Any) -> Reply:
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return reply
        one, turn, at = held
        self._end(turn, "released")
        turn.releases += 1
        self._again(one, turn, 1_000 if turn.releases > 10 else 0)
        one.events.append("TURN_RELEASED")
        return self._applied(at, n, digest, "OK")

    def finish(
        self, n: int, digest: bytes, tv: str, conn: str, max_steps: int, max_step: int, **given: Any
    ) -> Reply:
        lease = {name: given[name] for name in ("id", "inc", "turn", "fence")}
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return (*reply, self._once_more(lease, conn)) if reply[0] == "OK" else reply
        one, turn, at = held
        refusal = given["has_step"] and self._step(turn, given["key"], given["output"], max_steps, max_step)
        if refusal:
            self._alive(*held)
            return refusal
        self._accept(one, turn, at)
        if given["has_step"]:
            turn.steps.append(given["key"])
        if given["has_state"]:
            one.state = given["state"]
        self._end(turn, "completed")
        turn.state, turn.finished = "COMPLETED", self.now
        waiting = self.order(tv)
        one.head += 1
        one.events.append("TURN_COMPLETED")
        if one.current:
            self._queue(one, one.current)
        onward = 0
        if given["has_next"]:
            onward = self._admit(one, f"continue-{turn.number}", given["next_digest"], given["next_message"])
        # What became ready in this very script comes last.
        names = waiting + [name for name in self.order(tv) if name not in waiting]
        claims = [self._lease(name, tv, conn) for name in names[:1]] if tv else []
        turn.claimed = claims[0] if claims else None
        return (*self._applied(at, n, digest, "OK", self.now, onward), claims)

    def _once_more(self, lease: dict[str, Any], conn: str) -> list[tuple[str, int, int]]:
        """A repeated finish hands out the turn it claimed while nobody has received it."""
        claimed = self.instances[lease["id"]].turns[lease["turn"] - 1].claimed
        if not claimed:
            return []
        name, number, fence = claimed
        one = self._load(name)
        turn = one.current if one else None
        if not turn or turn.number != number or not turn.lease:
            return []
        if turn.lease.fence != fence or turn.lease.how or turn.lease.accepted:
            return []
        turn.lease.conn, turn.lease.orphaned, turn.lease.deadline = conn, False, self.now + 5_000
        return [claimed]

    # Timers.

    def _timers(self) -> list[tuple[int, str, str]]:
        due: list[tuple[int, str, str]] = []
        for one in self.instances.values():
            turn = one.current
            if turn and turn.state == "RUNNING" and turn.lease:
                due.append((turn.lease.deadline, f"lease:{one.id}", one.id))
            elif turn and turn.state == "BACKOFF":
                due.append((turn.deadline, f"backoff:{one.id}", one.id))
        return sorted(due)

    def expire(self) -> list[Reply]:
        """Everything that is due, but for trimming."""
        return [self._fire(member, name) for at, member, name in self._timers() if at <= self.now]

    def _fire(self, member: str, name: str) -> Reply:
        one = self.instances[name]
        turn = one.current
        assert turn
        if member.startswith("backoff"):
            self._queue(one, turn)
            return ("FIRED", "backoff", name, one.inc, turn.number, 0, "", "ready")
        lease = turn.lease
        assert lease
        conn, accepted, orphaned = lease.conn, lease.accepted, lease.orphaned
        self._end(turn, "returned" if not accepted else "lost" if orphaned else "expired")
        outcome = self._outcome(one, turn, accepted, orphaned)
        if outcome == "failed":
            self._blocked(one, turn)
        else:
            self._again(one, turn, 0)
        return ("FIRED", "lease", name, one.inc, turn.number, lease.fence, conn, outcome)

    def _outcome(self, one: Instance, turn: Turn, accepted: bool, orphaned: bool) -> str:
        if accepted and orphaned:
            turn.lost += 1
            one.events.append("ATTEMPT_LOST")
            return "failed" if turn.lost >= 10 else "lost"
        if not accepted:
            turn.deliveries += 1
            if turn.deliveries <= 10:
                return "returned"
            turn.attempt = turn.failures + turn.lost + 1
        turn.failures += 1
        one.events.append("ATTEMPT_EXPIRED")
        return "failed" if turn.failures >= self._settings(one).max_attempts else "expired"

    def sweep(self, dead: str, grace_ms: int) -> int:
        """Orphans the leases of a server; how many there were."""
        orphaned = 0
        for name in list(self.instances):
            one = self._load(name)
            turn = one.current if one else None
            if turn and turn.state == "RUNNING" and turn.lease and turn.lease.conn.startswith(f"{dead}."):
                self._orphan(turn.lease, grace_ms)
                orphaned += 1
        return orphaned

    # History.

    def trimmed(self, name: str, kept: int, oldest: int, *, fully: bool) -> None:
        """Takes over how far history was trimmed; `fully` if nothing that may go should be left."""
        one = self.instances[name]
        settings = self._settings(one)
        last_kept, last_oldest = one.kept, one.oldest
        while one.head - last_kept > settings.min_turns and self._old(one, last_kept, settings):
            last_kept += 1
        while last_oldest < last_kept and self.now - one.turns[last_oldest - 1].finished >= RECEIPT_MS:
            last_oldest += 1
        assert one.kept <= kept <= last_kept, f"{name}: payloads from {kept} on, trimmed too far or back"
        assert one.oldest <= oldest <= last_oldest, f"{name}: receipts from {oldest} on, too far or back"
        assert not fully or (kept, oldest) == (last_kept, last_oldest), f"{name}: not trimmed enough"
        one.kept, one.oldest = kept, oldest

    def _old(self, one: Instance, turn: int, settings: Settings) -> bool:
        age = self.now - one.turns[turn - 1].finished
        return age >= settings.max_age_ms or one.head - turn > settings.max_turns
