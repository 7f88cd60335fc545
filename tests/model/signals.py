"""The reference model of signals, callbacks and waits for them."""

from __future__ import annotations

from typing import Any

from tests.model.leases import Leases
from tests.model.parts import RECEIVED, Instance, Reply, Signal, Turn


class Signals(Leases):
    """Whoever sends something to a turn, and the turn that waits for it."""

    def signal(
        self,
        id: str,
        inc: int,
        turn: int,
        signal_id: str,
        name: str,
        callback: str,
        digest: bytes,
        value: bytes,
        max_signals: int,
    ) -> Reply:
        one, why = self.touch(id)
        if not one:
            return why
        if inc and inc != one.inc:
            return ("NOT_FOUND",)
        at = turn or self._goes_to(one, signal_id)
        entry = Signal(signal_id, name, callback, digest, self.now, value, to_instance=not turn)
        if not turn and at == one.tail + 1:
            return self._receive(one, None, one.early, at, entry, max_signals)
        state = self._state(one, at)
        if not isinstance(state, str):
            return state
        return self._receive(one, one.at(at), one.at(at).signals, at, entry, max_signals)

    def _goes_to(self, one: Instance, signal_id: str) -> int:
        """The turn that a signal to the instance is for."""
        for turn in one.turns[one.oldest - one.first :]:
            if any(each.to_instance and each.signal_id == signal_id for each in turn.signals):
                return turn.number
        if not any(each.signal_id == signal_id for each in one.early):
            while one.behind:
                self._pass(one)
        return one.head if one.current else one.tail + 1

    def _receive(
        self,
        one: Instance,
        turn: Turn | None,
        signals: list[Signal],
        number: int,
        entry: Signal,
        max_signals: int,
    ) -> Reply:
        for known in signals:
            if (known.signal_id, known.callback) == (entry.signal_id, entry.callback):
                if known.digest != entry.digest:
                    return ("BODY_CONFLICT",)
                known.to_instance = known.to_instance or entry.to_instance
                return ("OK", number, known.received, known.position if known.at_once else 0)
        if turn and turn.final:
            return ("WRONG_STATE", turn.state)
        if len(signals) >= max_signals:
            return ("LIMIT_EXCEEDED", "signals_per_turn", len(signals) + 1, max_signals)
        signals.append(entry)
        one.events.append("SIGNAL_RECEIVED")
        if turn and turn is one.current and turn.state == "WAITING" and turn.wait[1:] == entry.waited_for:
            self._consume(one, turn, turn.wait[0], entry)
            entry.at_once = True
            one.events.append("TURN_READY")
            self._queue(one, turn)
        return ("OK", number, self.now, entry.position)

    def _consume(self, one: Instance, turn: Turn, key: str, entry: Signal) -> None:
        entry.position = self._save(one, turn, key)
        turn.outcomes[key] = (RECEIVED, entry.value)

    def wait_signal(
        self, n: int, digest: bytes, key: str, name: str, callback: str, ms: int, max_steps: int, **lease: Any
    ) -> Reply:
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
        for entry in turn.signals:
            if not entry.position and entry.waited_for == (name, callback):
                self._consume(one, turn, key, entry)
                return self._applied(at, n, digest, "OK", entry.position, False, 0, RECEIVED, entry.value)
        self._end(turn, "waiting")
        one.events.append("TURN_WAITING")
        turn.state, turn.wait, turn.deadline = "WAITING", (key, name, callback), self.now + ms if ms else 0
        return self._applied(at, n, digest, "OK", len(turn.steps) + 1, True, turn.deadline, 0, b"")
