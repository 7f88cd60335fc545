"""The reference model of registered steps: their time, their progress, and steps of unknown outcome."""

from __future__ import annotations

from typing import Any

from tests.model.inbox import Inboxes
from tests.model.parts import Instance, Lease, Operation, Turn


class Operations(Inboxes):
    """What time decides about a step that runs."""

    def settle(self, one: Instance) -> None:
        """Applies what time has decided, of the step that runs first."""
        turn = one.current
        if turn and turn.operation and 0 < turn.operation.due <= self.now:
            if turn.state == "CANCELLING":
                self._head_end(one, turn, "CANCELLED")
            else:
                self._overtime(one, turn)
        super().settle(one)

    def _overtime(self, one: Instance, turn: Turn) -> None:
        unseen = self._unseen(turn)
        self._end(turn, "expired")
        turn.failures += 1
        one.events.append("ATTEMPT_EXPIRED")
        if unseen:
            self._uncertain(one, turn)
        elif turn.failures >= self._settings(one).max_attempts + turn.extra:
            self._exhausted(one, turn)
        else:
            self._again(one, turn, self._backoff(turn))

    def _backoff(self, turn: Turn) -> int:
        return min(60_000, 1_000 * 2 ** (turn.failures - turn.extra - 1))

    def _unseen(self, turn: Turn) -> bool:
        """Whether the lease would end in a step that must not be repeated unseen."""
        return bool(turn.operation and turn.operation.active and turn.operation.unseen)

    def _uncertain(self, one: Instance, turn: Turn) -> None:
        turn.state = "UNCERTAIN"
        one.events.append("TURN_UNCERTAIN")

    def _end(self, turn: Turn, how: str) -> Lease:
        lease = turn.lease
        assert lease
        lease.how, lease.conn, lease.deadline = how, "", 0
        lease.accepted = lease.orphaned = False
        if turn.operation:
            turn.operation.active = False
        return lease

    def _head_end(self, one: Instance, turn: Turn, state: str) -> None:
        if turn.operation:
            turn.operation.active = False
        super()._head_end(one, turn, state)

    def _register(
        self, one: Instance, turn: Turn, key: str, timeout_ms: int, heartbeat_ms: int, on_restart: int
    ) -> Operation:
        before = turn.operation
        turn.operation = Operation(
            key=key,
            unseen=on_restart == 2,
            deadline=self.now + timeout_ms,
            heartbeat_ms=heartbeat_ms,
            heartbeat_at=self.now + heartbeat_ms if heartbeat_ms else 0,
            resume=before.resume if before and before.key == key else b"",
        )
        one.events.append("OPERATION_STARTED")
        return turn.operation

    def _take_in(self, step: Operation, sequence: int, digest: bytes, resume: bytes) -> None:
        step.sequence, step.digest = sequence, digest
        step.resume = resume or step.resume
        if step.heartbeat_ms:
            step.heartbeat_at = self.now + step.heartbeat_ms

    def _last_report(self, one: Instance, turn: Turn, op: dict[str, Any]) -> bool:
        """Takes in the report that came with a failure; False if it is of another step."""
        step = turn.operation if turn.operation and turn.operation.active else None
        if op["position"] != len(turn.steps) + 1 or (step and step.key != op["key"]):
            return False
        step = step or self._register(one, turn, op["key"], 0, 0, 1)
        if op["sequence"] > step.sequence:
            self._take_in(step, op["sequence"], op["digest"], op["resume"])
        return True
