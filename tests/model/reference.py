"""What the transitions must do, in plain Python: instances, inboxes, leases, attempts, receipts, control.

Limits of bytes and trimming are simpler than in Lua: how far history is trimmed is told by `trimmed`, which
checks the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.inbox import DAY_MS
from tests.model.leases import MAX_LOST
from tests.model.parts import HELD, KEPT_REQUESTS, Dead, Instance, Reply, Settings, Turn
from tests.model.signals import Signals

JUMP = 2**32
RECEIPT_MS = 900_000


class Reference(Signals):
    """One partition: operators and servers, besides senders and workers."""

    def failover(self) -> None:
        """Redis lost a suffix, and another one took over."""
        self.fence += JUMP
        self.incarnation += JUMP

    def sweep(self, dead: str, grace_ms: int) -> int:
        """Orphans the leases of a server; how many there were."""
        orphaned = 0
        for name in list(self.instances):
            one, _ = self.touch(name)
            turn = one.current if one else None
            if turn and turn.state in HELD and turn.lease and turn.lease.conn.startswith(f"{dead}."):
                self._orphan(turn.lease, grace_ms)
                orphaned += 1
        self.dead = {name: dead for name, dead in self.dead.items() if self.now - dead.time < DAY_MS}
        return orphaned

    # Control calls.

    def _control(
        self, decide: Callable[[Instance], Reply], id: str, request_id: str, digest: bytes, inc: int = 0
    ) -> Reply:
        one, refusal = self.touch(id)
        if one and inc and inc != one.inc:
            refusal = ("NOT_FOUND",)
        dead = self._remembered(id)
        answers = one.answers if one and not refusal else []
        for known, body, answer in [*answers, *(dead.answers if dead else ())] if request_id else ():
            if known == request_id:
                return answer if body == digest else ("BODY_CONFLICT",)
        if refusal or not one:
            return refusal
        reply = decide(one)
        if reply[0] == "OK" and request_id:
            one.answers = [(request_id, digest, reply), *one.answers][:KEPT_REQUESTS]
        return reply

    def pause(self, comment: str, **call: Any) -> Reply:
        def decide(one: Instance) -> Reply:
            changed, one.paused = not one.paused, True
            if changed:
                self._unqueue(one)
                one.events.append("PAUSED")
            return ("OK", changed)

        return self._control(decide, **call)

    def resume(self, comment: str, **call: Any) -> Reply:
        def decide(one: Instance) -> Reply:
            changed, one.paused = one.paused, False
            if changed:
                one.events.append("RESUMED")
                if one.current and one.current.state == "QUEUED":
                    self._queue(one, one.current)
            return ("OK", changed)

        return self._control(decide, **call)

    def wake(self, comment: str, **call: Any) -> Reply:
        def decide(one: Instance) -> Reply:
            turn = one.current
            woken = turn is not None and turn.state in ("BACKOFF", "DEFERRED")
            if turn and woken:
                one.events.append("TURN_WOKEN")
                self._queue(one, turn)
            return ("OK", woken)

        return self._control(decide, **call)

    def _failed(self, one: Instance, turn: int, attempt: int, decide: Callable[[Turn], Reply]) -> Reply:
        """A decision about a turn that has failed for good."""
        state = self._state(one, turn)
        if not isinstance(state, str):
            return state
        if state != "FAILED":
            return ("WRONG_STATE", state, 0)
        failed = one.at(turn)
        return (
            ("WRONG_STATE", state, failed.attempt) if attempt not in (0, failed.attempt) else decide(failed)
        )

    def retry(self, turn: int, attempt: int, comment: str, **call: Any) -> Reply:
        def decide(one: Instance, failed: Turn) -> Reply:
            failed.extra, failed.extra_lost, failed.deliveries = failed.failures, failed.lost, 0
            one.events.append("TURN_RETRIED")
            self._queue(one, failed)
            return ("OK", "QUEUED", self._settings(one).max_attempts + failed.extra)

        return self._control(
            lambda one: self._failed(one, turn, attempt, lambda failed: decide(one, failed)), **call
        )

    def skip(self, turn: int, attempt: int, comment: str, **call: Any) -> Reply:
        def decide(one: Instance, failed: Turn) -> Reply:
            self._head_end(one, failed, "SKIPPED")
            return ("OK", self.now)

        return self._control(
            lambda one: self._failed(one, turn, attempt, lambda failed: decide(one, failed)), **call
        )

    def park(self, turn: int, attempt: int, comment: str, **call: Any) -> Reply:
        def decide(one: Instance, failed: Turn) -> Reply:
            one.parked[failed.number] = failed
            self._head_end(one, failed, "PARKED")
            return ("OK", self.now)

        return self._control(
            lambda one: self._failed(one, turn, attempt, lambda failed: decide(one, failed)), **call
        )

    def resolve_step(
        self,
        turn: int,
        attempt: int,
        key: str,
        decision: int,
        output: bytes,
        max_steps: int,
        max_step: int,
        comment: str,
        **call: Any,
    ) -> Reply:
        def decide(one: Instance) -> Reply:
            state = self._state(one, turn)
            if not isinstance(state, str):
                return state
            at = one.at(turn)
            if state != "UNCERTAIN":
                return ("WRONG_STATE", state, 0, "")
            if attempt not in (0, at.attempt):
                return ("WRONG_STATE", state, at.attempt, "")
            assert at.operation
            if at.operation.key != key:
                return ("WRONG_STATE", state, 0, at.operation.key)
            refusal = self._step(at, key, output, max_steps, max_step) if decision == 1 else None
            return refusal or self._resolved(one, at, key, decision)

        return self._control(decide, **call)

    def _resolved(self, one: Instance, turn: Turn, key: str, decision: int) -> Reply:
        if decision == 3:
            if turn.attempt > turn.failures + turn.lost:
                turn.failures += 1
            one.events.append("STEP_RESOLVED")
            return ("OK", self._exhausted(one, turn))
        exhausted = turn.failures >= self._settings(one).max_attempts + turn.extra
        if exhausted or turn.lost >= MAX_LOST + turn.extra_lost:
            turn.extra, turn.extra_lost, turn.deliveries = turn.failures, turn.lost, 0
        if decision == 1:
            self._save(one, turn, key)
        one.events.append("STEP_RESOLVED")
        self._queue(one, turn)
        return ("OK", "QUEUED")

    def redrive(self, turn: int, discard: bool, max_pending: int, comment: str, **call: Any) -> Reply:
        def decide(one: Instance) -> Reply:
            if turn not in one.parked:
                state = self._state(one, turn)
                return ("WRONG_STATE", state, 0) if isinstance(state, str) else state
            if not discard and one.pending >= max_pending:
                return ("LIMIT_EXCEEDED", "pending_messages", one.pending + 1, max_pending)
            parked = one.parked.pop(turn)
            admitted = 0
            if not discard:
                admitted = self._admit(one, f"pawl-redrive-{turn}", parked.digest, parked.body)
            one.events.append("TURN_REDRIVEN")
            return ("OK", admitted)

        return self._control(decide, **call)

    def cancel(self, turn: int, force: bool, grace_ms: int, comment: str, **call: Any) -> Reply:
        def decide(one: Instance) -> Reply:
            state = self._state(one, turn)
            if not isinstance(state, str):
                return state
            at = one.at(turn)
            if at.final:
                return ("WRONG_STATE", state, 0)
            if at.lease and state in HELD and not force:
                if state == "RUNNING":
                    at.state, at.cancel_at = "CANCELLING", self.now + grace_ms
                    at.lease.deadline = min(at.lease.deadline, at.cancel_at)
                    one.events.append("TURN_CANCELLING")
                return ("OK", 0, state, "CANCELLING", at.cancel_at)
            (self._head_end if at is one.current else self._queued_end)(one, at, "CANCELLED")
            return ("OK", self.now, state, "CANCELLED", 0)

        return self._control(decide, **call)

    def cancel_message(self, message_id: str, comment: str, **call: Any) -> Reply:
        def decide(one: Instance) -> Reply:
            for message in one.delayed:
                if message.message_id == message_id:
                    one.delayed.remove(message)
                    one.events.append("MESSAGE_CANCELLED")
                    return ("OK", self._unsent_end(one, message, "CANCELLED"))
            known = [turn for turn in one.turns[one.oldest - one.first :] if turn.message_id == message_id]
            if not known:
                return ("NOT_FOUND",)
            at = known[0]
            if at.final or at.attempt:
                return ("WRONG_STATE", at.state)
            (self._head_end if at is one.current else self._queued_end)(one, at, "CANCELLED")
            return ("OK", at.number)

        return self._control(decide, **call)

    def delete(self, id: str, inc: int, max_turns: int, request_id: str) -> Reply:
        one, _ = self.touch(id)
        dead = self._remembered(id)
        at = one or self.instances.get(id)
        repeated = self._deleted_before(dead, at.inc if at else 0, request_id)
        if repeated:
            return repeated
        if at is None:
            return ("OK", False, False)
        if inc and inc != at.inc:
            return ("NOT_FOUND",)
        if one is None:
            if dead and request_id and request_id != dead.request_id:
                dead.earlier = dead.add(request_id, True)
            return ("OK", True, True)
        background = one.tail - one.oldest + 1 > max_turns
        known = [turn.message_id for turn in one.turns[max(0, one.oldest - one.first) :][-256:]]
        ids = {message.message_id for message in one.delayed} | set(known)
        one.events.append("DELETED")
        self.dead[id] = Dead(one.inc, one.tail, one.seq, self.now, request_id, one.born_by, ids, background)
        self.dead[id].answers = one.answers
        if dead:
            self.dead[id].earlier = dead.add(dead.request_id, dead.background)
            self.dead[id].earlier_births = dead.births()
            self.dead[id].answers = [*one.answers, *dead.answers][:KEPT_REQUESTS]
        self._unqueue(one)
        one.deleted = self.now
        if not background:
            del self.instances[id]
        return ("OK", True, background)

    def _deleted_before(self, dead: Dead | None, inc: int, request_id: str) -> Reply | None:
        """The answer to a deletion that is repeated; `inc` is the life that the id has now, 0 for none."""
        if dead is None or not request_id:
            return None
        for earlier, background in dead.earlier:
            if earlier == request_id:
                return ("OK", True, background)
        if dead.request_id == request_id and dead.inc != inc:
            return ("OK", True, dead.background)
        return None

    # History.

    def trimmed(self, name: str, kept: int, oldest: int, *, fully: bool) -> None:
        """Takes over how far history was trimmed; `fully` if nothing that may go should be left."""
        one = self.instances[name]
        settings = self._settings(one)
        last_kept, last_oldest = one.kept, one.oldest
        while one.head - last_kept > settings.min_turns and self._old(one, last_kept, settings):
            last_kept += 1
        while last_oldest < last_kept and self.now - one.at(last_oldest).finished >= RECEIPT_MS:
            last_oldest += 1
        assert one.kept <= kept <= last_kept, f"{name}: payloads from {kept} on, trimmed too far or back"
        assert one.oldest <= oldest <= last_oldest, f"{name}: receipts from {oldest} on, too far or back"
        assert not fully or (kept, oldest) == (last_kept, last_oldest), f"{name}: not trimmed enough"
        one.kept, one.oldest = kept, oldest

    def _old(self, one: Instance, turn: int, settings: Settings) -> bool:
        age = self.now - one.at(turn).finished
        # Where no age is kept, a clock that went back keeps none either.
        return not settings.max_age_ms or age >= settings.max_age_ms or one.head - turn > settings.max_turns
