"""The reference model of inboxes: admission, what time decides, and turns that end."""

from __future__ import annotations

from typing import Any

from tests.model.parts import (
    HELD,
    PARK,
    SKIP,
    TIMED,
    TIMED_OUT,
    Dead,
    Delayed,
    Instance,
    Reply,
    Settings,
    Turn,
)

DAY_MS = 86_400_000
PASSED_AT_ONCE = 16
MAX_PARKED = 1_000


class Inboxes:
    """The instances of one partition in virtual time, and what becomes of their messages.

    Every public method of this class and of those that extend it is named after a script, takes its item
    fields and arguments by name, and returns the reply that the script must give: its word and fields.
    """

    def __init__(self, now: int, types: dict[str, Settings]) -> None:
        self.now = now
        self.types = types
        self.fence = self.incarnation = 0
        self.instances: dict[str, Instance] = {}
        self.ready: dict[str, dict[str, int]] = {}
        self.dead: dict[str, Dead] = {}

    def order(self, tv: str) -> list[str]:
        """Ready instances of one type:version, oldest first."""
        return sorted(self.ready.get(tv, {}), key=lambda name: (self.ready[tv][name], name))

    # What every script does with an instance it touches.

    def touch(self, name: str) -> tuple[Instance | None, Reply]:
        """The instance as it stands now, or None and why not."""
        one = self.instances.get(name)
        if one is None or one.deleting:
            return None, ("DELETING",) if one else ("NOT_FOUND",)
        self.settle(one)
        return one, ()

    def settle(self, one: Instance) -> None:
        """Applies what time has decided."""
        turn = one.current
        if turn and turn.state == "CANCELLING" and turn.cancel_at <= self.now:
            self._head_end(one, turn, "CANCELLED")
            turn = one.current
        if turn and turn.state in TIMED and 0 < turn.deadline <= self.now:
            if turn.state == "WAITING":
                turn.steps.append(turn.wait[0])
                turn.operation = None
                turn.outcomes[turn.wait[0]] = (TIMED_OUT, b"")
                one.events.append("STEP_SAVED")
            one.events.append("TURN_READY")
            self._queue(one, turn)
        if one.behind:
            self._pass(one)
        for turn in self._expired(one):
            head = turn is one.current
            if head and turn.state != "QUEUED":
                continue
            (self._head_end if head else self._queued_end)(one, turn, "EXPIRED")
        for message in sorted(message for message in one.delayed if message.due <= self.now):
            one.delayed.remove(message)
            self._admit(one, message.message_id, message.digest, message.body, message.ttl_ms)

    def _expired(self, one: Instance) -> list[Turn]:
        """Turns whose time to live is over and that have not begun, by that time."""
        found = [
            turn
            for turn in one.turns[one.head - one.first :]
            if not turn.final and not turn.attempt and turn.expires and turn.expires <= self.now
        ]
        return sorted(found, key=lambda turn: (turn.expires, str(turn.number)))

    def _settings(self, one: Instance) -> Settings:
        settings = self.types[one.tv.partition(":")[0]]
        lease_ms, attempts = one.lease_ms or settings.lease_ms, one.max_attempts or settings.max_attempts
        return Settings(**{**vars(settings), "lease_ms": lease_ms, "max_attempts": attempts})

    def _state(self, one: Instance, turn: int) -> Reply | str:
        """The state of a turn, or the reply for one that is not there."""
        if turn < 1 or turn > one.tail:
            return ("NOT_FOUND",)
        return one.at(turn).state if turn >= one.oldest else ("PRUNED",)

    def _queue(self, one: Instance, turn: Turn) -> None:
        turn.state, turn.deadline = "QUEUED", 0
        if not one.paused:
            self.ready.setdefault(one.tv, {})[one.id] = self.now

    def _unqueue(self, one: Instance) -> None:
        self.ready.get(one.tv, {}).pop(one.id, None)

    def _again(self, one: Instance, turn: Turn, delay: int) -> None:
        if delay > 0:
            turn.state, turn.deadline = "BACKOFF", self.now + delay
        else:
            self._queue(one, turn)

    # Turns that end.

    def _pass(self, one: Instance) -> None:
        """Moves the head past turns that have ended, some at a time, and makes the next one ready."""
        if one.pending == 0:
            one.head = one.tail + 1
            return
        last = one.head + PASSED_AT_ONCE
        while one.at(one.head).final and one.head < last:
            one.head += 1
        if one.current:
            self._queue(one, one.current)

    def _advance(self, one: Instance) -> None:
        one.head += 1
        self._pass(one)

    def _head_end(self, one: Instance, turn: Turn, state: str) -> None:
        if turn.state in HELD:
            assert turn.lease
            turn.lease.how = "cancelled"
        self._unqueue(one)
        turn.state, turn.finished = state, self.now
        one.events.append(f"TURN_{state}")
        self._advance(one)

    def _queued_end(self, one: Instance, turn: Turn, state: str) -> None:
        turn.state, turn.finished = state, self.now
        one.events.append(f"TURN_{state}")
        if one.behind:
            self._pass(one)

    def _unsent_end(self, one: Instance, message: Delayed, state: str) -> int:
        """Ends a message that was never admitted; the turn that it is now."""
        turn = Turn(one.tail + 1, message.message_id, message.digest, message.body, self.now)
        turn.state, turn.finished = state, self.now
        idle = one.head == turn.number
        one.turns.append(turn)
        if idle:
            one.head += 1
        return turn.number

    def _exhausted(self, one: Instance, turn: Turn) -> str:
        """The turn fails for good; its state then."""
        policy = self._settings(one).on_exhausted
        turn.state = "FAILED"
        one.events.append("TURN_FAILED")
        if policy == SKIP:
            self._head_end(one, turn, "SKIPPED")
        elif policy == PARK and len(one.parked) < MAX_PARKED:
            one.parked[turn.number] = turn
            self._head_end(one, turn, "PARKED")
        return turn.state

    # Senders.

    def _remembered(self, name: str) -> Dead | None:
        dead = self.dead.get(name)
        return dead if dead and self.now - dead.time < DAY_MS else None

    def create(
        self,
        id: str,
        type: str,
        version: str,
        digest: bytes,
        state: bytes,
        lease_ms: int,
        max_attempts: int,
        request_id: str,
    ) -> Reply:
        one, why = self.touch(id)
        if one:
            same = one.digest == digest
            ok = ("OK", one.inc, one.created, one.first, one.first_seq)
            return ok if same else ("BODY_CONFLICT", one.tv)
        if why[0] == "DELETING":
            return why
        dead = self._remembered(id)
        if dead and request_id and request_id in (dead.born_by, *dead.earlier_births):
            return ("INSTANCE_DELETED",)
        one = self._born(id, f"{type}:{version}", digest, state, lease_ms, max_attempts)
        one.born_by = request_id
        return ("OK", one.inc, self.now, one.first, one.first_seq)

    def _born(
        self, name: str, tv: str, digest: bytes, state: bytes, lease_ms: int = 0, max_attempts: int = 0
    ) -> Instance:
        self.incarnation += 1
        one = Instance(name, tv, self.incarnation, self.now, digest, state, lease_ms, max_attempts)
        dead = self._remembered(name)
        if dead:
            one.first, one.first_seq = dead.tail + 1, dead.seq + 1
            one.head = one.kept = one.oldest = one.first
        one.events.append("CREATED")
        self.instances[name] = one
        return one

    def send(
        self,
        id: str,
        message_id: str,
        digest: bytes,
        message: bytes,
        max_pending: int,
        delay_ms: int,
        ttl_ms: int,
        **new: Any,
    ) -> Reply:
        one, why = self.touch(id)
        refusal = self._repeated(one, message_id, digest) if one else None
        if refusal is None and one is None:
            dead = self._remembered(id)
            if why[0] != "DELETING" and dead and message_id in dead.message_ids:
                return ("INSTANCE_DELETED",)
            refusal = None if new["create"] and why[0] == "NOT_FOUND" else why
        elif refusal is None and one is not None:
            refusal = self._full(one, max_pending)
            if new["create"] and one.tv != f"{new['type']}:{new['version']}":
                refusal = ("BODY_CONFLICT", "create_if_absent", one.tv)
        if refusal:
            return refusal
        one = one or self._born(id, f"{new['type']}:{new['version']}", new["create_digest"], b"")
        if delay_ms:
            one.events.append("MESSAGE_SCHEDULED")
            due = self.now + delay_ms
            one.delayed.append(Delayed(due, one.seq, message_id, digest, message, ttl_ms))
            return ("OK", 0, one.inc, 0, False, due)
        turn = self._admit(one, message_id, digest, message, ttl_ms)
        return ("OK", turn, one.inc, self.now, False, 0)

    def _repeated(self, one: Instance, message_id: str, digest: bytes) -> Reply | None:
        """The answer to a message that is known already."""
        for message in one.delayed:
            if message.message_id == message_id:
                same = message.digest == digest
                return (
                    ("OK", 0, one.inc, 0, False, message.due)
                    if same
                    else ("BODY_CONFLICT", "message", one.tv)
                )
        for turn in one.turns[one.oldest - one.first :]:
            if turn.message_id == message_id:
                ok = ("OK", turn.number, one.inc, turn.admitted, False, 0)
                return ok if turn.digest == digest else ("BODY_CONFLICT", "message", one.tv)
        return None

    def _full(self, one: Instance, max_pending: int) -> Reply | None:
        waiting = one.pending + len(one.delayed)
        if waiting >= max_pending:
            return ("LIMIT_EXCEEDED", "pending_messages", waiting + 1, max_pending)
        between = one.tail - one.head + 1
        if between >= 8 * max_pending:
            return ("LIMIT_EXCEEDED", "pending_messages", between + 1, 8 * max_pending)
        return None

    def _admit(self, one: Instance, message_id: str, digest: bytes, body: bytes, ttl_ms: int = 0) -> int:
        expires = self.now + ttl_ms if ttl_ms else 0
        turn = Turn(one.tail + 1, message_id, digest, body, self.now, expires)
        one.turns.append(turn)
        turn.signals, one.early = one.early, []
        one.events.append("TURN_ADMITTED")
        if one.current is turn:
            self._queue(one, turn)
        return turn.number
