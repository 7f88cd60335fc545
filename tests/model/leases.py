"""The reference model of leases, the commands under them, and their end by time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.model.operations import Operations
from tests.model.parts import HELD, TIMED, Instance, Lease, Reply, Turn

MAX_LOST = 10
MAX_DELIVERIES = 10
Claimed = tuple[str, int, int]
"""Instance, turn and fence of a turn that was handed out."""


class Leases(Operations):
    """Workers."""

    def claim(self, tv: str, limit: int, conn: str) -> list[Claimed]:
        """Leases up to `limit` heads."""
        return self._claim(tv, limit, conn, self.order(tv))

    def _claim(self, tv: str, limit: int, conn: str, names: list[str]) -> list[Claimed]:
        claims: list[Claimed] = []
        for name in names:
            if len(claims) == limit:
                break
            one, _ = self.touch(name)
            if one and one.tv == tv:
                self._unqueue(one)
                if one.current and one.current.state == "QUEUED" and not one.paused:
                    claims.append(self._lease(one, one.current, conn))
        return claims

    def _lease(self, one: Instance, turn: Turn, conn: str) -> Claimed:
        self.fence += 1
        turn.previous, turn.lease = turn.lease, Lease(self.fence, conn, self.now + 5_000, self.now)
        turn.state = "RUNNING"
        return (one.id, turn.number, self.fence)

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
            ceiling = lease.leased + settings.attempt_timeout_ms
            lease.deadline = min(self.now + settings.lease_ms, ceiling, turn.cancel_at or ceiling)

    def _grace(self, turn: Turn) -> int:
        return max(0, turn.cancel_at - self.now) if turn.cancel_at else 0

    def _gives_up(self, one: Instance, turn: Turn, lease: Lease) -> Reply | None:
        """The answer to a command that would complete a turn that is to be cancelled, or let it wait."""
        if turn.state != "CANCELLING":
            return None
        self._accept(one, turn, lease)
        self._head_end(one, turn, "CANCELLED")
        return ("LEASE_ENDED", "cancelled")

    def _check(self, id: str, inc: int, turn: int, fence: int) -> tuple[Reply | None, Any]:
        """The reply if the lease is not current, else (None, (instance, turn, lease))."""
        one, why = self.touch(id)
        if not one:
            return why, None
        if inc != one.inc or not one.oldest <= turn <= one.tail or turn > one.head:
            return ("STALE_FENCE",), None
        at = one.at(turn)
        if at.lease and at.lease.fence == fence:
            if at.lease.how:
                return ("LEASE_ENDED", at.lease.how), None
            return None, (one, at, at.lease)
        if at is one.current and at.previous and at.previous.fence == fence:
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
        return ("OK", max(0, lease.deadline - self.now), self._grace(held[1]))

    def adopt(self, id: str, inc: int, turn: int, fence: int, conn: str) -> Reply:
        refusal, held = self._check(id, inc, turn, fence)
        if refusal:
            return refusal
        lease: Lease = held[2]
        if lease.conn and int(lease.conn.split(".")[1]) > int(conn.split(".")[1]):
            return ("SUPERSEDED",)
        self._alive(*held)
        lease.conn = conn
        return ("OK", max(0, lease.deadline - self.now), self._grace(held[1]))

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
        at = self.instances[id].at(turn)
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

    def _save(self, one: Instance, turn: Turn, key: str) -> int:
        turn.steps.append(key)
        turn.operation = None
        one.events.append("STEP_SAVED")
        return len(turn.steps)

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
        one, turn, at = held
        refusal = self._step(turn, key, output, max_steps, max_step)
        return refusal or self._applied(at, n, digest, "OK", self._save(one, turn, key))

    def sleep(self, n: int, digest: bytes, key: str, ms: int, max_steps: int, **lease: Any) -> Reply:
        reply, held = self._begin(n=n, digest=digest, **lease)
        reply = reply or self._gives_up(*held)
        if reply:
            return reply
        self._alive(*held)
        one, turn, at = held
        if turn.operation and turn.operation.active:
            return ("WRONG_STATE", "operation")
        refusal = self._step(turn, key, b"\0", max_steps, 0)
        if refusal:
            return refusal
        position = self._save(one, turn, key)
        self._end(turn, "sleeping")
        one.events.append("TURN_SLEEPING")
        turn.state, turn.deadline = "SLEEPING", self.now + ms
        return self._applied(at, n, digest, "OK", position, turn.deadline)

    def defer(self, n: int, digest: bytes, ms: int, reason: str, max_defers: int, **lease: Any) -> Reply:
        reply, held = self._begin(n=n, digest=digest, **lease)
        reply = reply or self._gives_up(*held)
        if reply:
            return reply
        self._alive(*held)
        one, turn, at = held
        if turn.operation and turn.operation.active:
            return ("WRONG_STATE", "operation")
        if turn.defers >= max_defers:
            return ("LIMIT_EXCEEDED", "defers_per_turn", turn.defers + 1, max_defers)
        turn.defers += 1
        self._end(turn, "deferred")
        one.events.append("TURN_DEFERRED")
        turn.state, turn.deadline = "DEFERRED", self.now + ms
        return self._applied(at, n, digest, "OK", turn.deadline)

    def fail(self, n: int, digest: bytes, final: bool, delay_ms: int, reason: str, **given: Any) -> Reply:
        lease = {name: given[name] for name in ("id", "inc", "turn", "fence")}
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return reply
        one, turn, at = held
        self._accept(one, turn, at)
        op = {name[3:]: value for name, value in given.items() if name.startswith("op_")}
        if op and not self._last_report(one, turn, op):
            self._alive(*held)
            return ("WRONG_STATE", "operation")
        if turn.state == "CANCELLING":
            self._head_end(one, turn, "CANCELLED")
            return self._applied(at, n, digest, "OK", "CANCELLED", 0)
        turn.failures += 1
        self._end(turn, "failed")
        one.events.append("ATTEMPT_FAILED")
        delay = delay_ms if delay_ms >= 0 else self._backoff(turn)
        if final or turn.failures >= self._settings(one).max_attempts + turn.extra:
            return self._applied(at, n, digest, "OK", self._exhausted(one, turn), 0)
        self._again(one, turn, delay)
        return self._applied(at, n, digest, "OK", turn.state, delay)

    def release(self, n: int, digest: bytes, **lease: Any) -> Reply:
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return reply
        one, turn, at = held
        if turn.state == "CANCELLING":
            self._head_end(one, turn, "CANCELLED")
            return self._applied(at, n, digest, "OK")
        unseen = self._unseen(turn)
        self._end(turn, "released")
        turn.releases += 1
        one.events.append("TURN_RELEASED")
        if unseen:
            self._uncertain(one, turn)
        else:
            self._again(one, turn, 1_000 if turn.releases > 10 else 0)
        return self._applied(at, n, digest, "OK")

    def finish(
        self, n: int, digest: bytes, tv: str, conn: str, max_steps: int, max_step: int, **given: Any
    ) -> Reply:
        lease = {name: given[name] for name in ("id", "inc", "turn", "fence")}
        reply, held = self._begin(n=n, digest=digest, **lease)
        if reply:
            return self._finished(reply, lease, conn)
        one, turn, at = held
        refusal = given["has_step"] and self._step(turn, given["key"], given["output"], max_steps, max_step)
        if turn.state == "CANCELLING":
            self._accept(one, turn, at)
            if given["has_step"] and not refusal:
                self._save(one, turn, given["key"])
            return self._gives_up(*held) or ()
        if refusal:
            self._alive(*held)
            return refusal
        self._accept(one, turn, at)
        if given["has_step"]:
            self._save(one, turn, given["key"])
        if given["has_state"]:
            one.state = given["state"]
        turn.operation = None
        self._end(turn, "completed")
        turn.state, turn.finished = "COMPLETED", self.now
        waiting = self.order(tv)
        one.events.append("TURN_COMPLETED")
        self._advance(one)
        onward = 0
        if given["has_next"]:
            onward = self._admit(one, f"continue-{turn.number}", given["next_digest"], given["next_message"])
        # What became ready in this very script comes last.
        names = waiting + [name for name in self.order(tv) if name not in waiting]
        claims = self._claim(tv, 1, conn, names) if tv else []
        turn.claimed = claims[0] if claims else None
        return (*self._applied(at, n, digest, "OK", self.now, onward), claims)

    def _finished(self, reply: Reply, lease: dict[str, Any], conn: str) -> Reply:
        """A repeated command; a finish hands out the turn that it claimed while nobody has received it."""
        turn = self.instances[lease["id"]].at(lease["turn"]) if reply[0] == "OK" else None
        return (*reply, self._once_more(turn, conn)) if turn and turn.state == "COMPLETED" else reply

    def _once_more(self, finished: Turn, conn: str) -> list[Claimed]:
        if not finished.claimed:
            return []
        name, number, fence = finished.claimed
        one, _ = self.touch(name)
        turn = one.current if one else None
        if not turn or turn.number != number or not turn.lease:
            return []
        if turn.lease.fence != fence or turn.lease.how or turn.lease.accepted or turn.state != "RUNNING":
            return []
        turn.lease.conn, turn.lease.orphaned, turn.lease.deadline = conn, False, self.now + 5_000
        return [finished.claimed]

    # Registered steps.

    def start_operation(
        self,
        id: str,
        inc: int,
        turn: int,
        fence: int,
        position: int,
        key: str,
        timeout_ms: int,
        heartbeat_ms: int,
        on_restart: int,
    ) -> Reply:
        refusal, held = self._check(id, inc, turn, fence)
        if refusal:
            return refusal
        self._alive(*held)
        one, at, _ = held
        if position <= len(at.steps) or key in at.steps:
            return ("WRONG_STATE", "step_saved")
        if position > len(at.steps) + 1:
            return ("GAP", len(at.steps))
        step = at.operation if at.operation and at.operation.active else None
        if step and step.key != key:
            return ("WRONG_STATE", "operation")
        if not step and at.state == "CANCELLING":
            return ("WRONG_STATE", "cancelling")
        step = step or self._register(one, at, key, timeout_ms, heartbeat_ms, on_restart)
        return ("OK", step.deadline - self.now)

    def report_progress(
        self,
        id: str,
        inc: int,
        turn: int,
        fence: int,
        position: int,
        key: str,
        sequence: int,
        digest: bytes,
        resume: bytes,
    ) -> Reply:
        refusal, held = self._check(id, inc, turn, fence)
        if refusal:
            return refusal
        self._alive(*held)
        at: Turn = held[1]
        step = at.operation
        if not step or not step.active or step.key != key or position != len(at.steps) + 1:
            return ("WRONG_STATE", "operation")
        if sequence == step.sequence and digest != step.digest:
            return ("BODY_CONFLICT",)
        if sequence > step.sequence:
            self._take_in(step, sequence, digest, resume)
        return ("OK", step.heartbeat_at - self.now if step.heartbeat_at else -1)

    # Timers.

    def expire(self, touched: Iterable[str]) -> list[Reply]:
        """Timers of `touched` fire; what becomes of heads whose time has come."""
        due: list[tuple[int, str, str]] = []
        for one in self.instances.values():
            turn = one.current
            if one.deleted is not None:
                due.append((one.deleted, f"delete:{one.id}", one.id))
            elif turn and turn.state in HELD and turn.lease:
                due.append((turn.lease.deadline, f"lease:{one.id}", one.id))
                if turn.operation and turn.operation.due:
                    # The end of a cancellation comes first.
                    late = turn.state == "CANCELLING" and turn.cancel_at <= self.now
                    due.append((turn.operation.due, f"operation{'-late' * late}:{one.id}", one.id))
            elif turn and turn.state in TIMED and turn.deadline and not one.paused:
                due.append((turn.deadline, f"{TIMED[turn.state]}:{one.id}", one.id))
        fired = [(member, name) for at, member, name in sorted(due) if at <= self.now]
        for name in touched:
            self.touch(name)
        return [self._fire(member.partition(":")[0], name) for member, name in fired]

    def _fire(self, kind: str, name: str) -> Reply:
        one = self.instances[name]
        if kind == "delete":
            del self.instances[name]
            return ("FIRED", kind, name, one.inc, 0, 0, "", "deleted", "")
        turn, number = one.current, one.head
        if kind == "operation":
            return ("FIRED", kind, name, one.inc, number, 0, "", "expired", "")
        if kind == "operation-late":
            return ("STALE", "operation", name)
        if kind == "lease" and not turn:
            return ("STALE", kind, name)
        if kind != "lease" or not turn:
            return ("FIRED", kind, name, one.inc, number, 0, "", "ready", "")
        lease = turn.lease
        if turn.state not in HELD or not lease or lease.deadline > self.now:
            return ("STALE", kind, name)
        conn, accepted, orphaned = lease.conn, lease.accepted, lease.orphaned
        if turn.state == "CANCELLING":
            self._head_end(one, turn, "CANCELLED")
            return ("FIRED", "lease", name, one.inc, number, lease.fence, conn, "cancelled", "cancelled")
        how = "returned" if not accepted else "lost" if orphaned else "expired"
        unseen = self._unseen(turn)
        self._end(turn, how)
        outcome = self._outcome(one, turn, accepted, orphaned)
        if unseen:
            outcome = "uncertain"
            self._uncertain(one, turn)
        elif outcome == "failed":
            self._exhausted(one, turn)
        else:
            self._again(one, turn, 0)
        return ("FIRED", "lease", name, one.inc, number, lease.fence, conn, outcome, how)

    def _outcome(self, one: Instance, turn: Turn, accepted: bool, orphaned: bool) -> str:
        if accepted and orphaned:
            turn.lost += 1
            one.events.append("ATTEMPT_LOST")
            return "failed" if turn.lost >= MAX_LOST + turn.extra_lost else "lost"
        if not accepted:
            turn.deliveries += 1
            if turn.deliveries <= MAX_DELIVERIES:
                return "returned"
            turn.attempt = turn.failures + turn.lost + 1
        turn.failures += 1
        one.events.append("ATTEMPT_EXPIRED")
        return "failed" if turn.failures >= self._settings(one).max_attempts + turn.extra else "expired"
