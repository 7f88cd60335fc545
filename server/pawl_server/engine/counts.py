"""What the engine counts for metrics, where no reply word says it all."""

from __future__ import annotations

from pawl_server.domain.states import TurnState


class Counts:
    """Plain counters since start, of what this server did.

    `turns` has how turns ended, by state: the finished states, and FAILED for those that failed for good and
    block their instance. `retries` counts attempts that failed and will be repeated. `leases` has how leases
    ended by time, by outcome of `expire`; `orphaned` what was orphaned, by cause.
    """

    __slots__ = ("leases", "orphaned", "retries", "turns")

    def __init__(self) -> None:
        self.turns: dict[int, int] = {}
        self.retries = 0
        self.leases: dict[str, int] = {}
        self.orphaned = {"stream": 0, "server": 0}

    def turn_ended(self, state: int) -> None:
        """A turn reached this state."""
        self.turns[state] = self.turns.get(state, 0) + 1

    def attempt_failed(self, state: int) -> None:
        """An attempt failed, and the turn is in this state now."""
        if state in _WAITING:
            self.retries += 1
        else:
            self.turn_ended(state)

    def lease_ended(self, outcome: str) -> None:
        """A lease ran out."""
        self.leases[outcome] = self.leases.get(outcome, 0) + 1


_WAITING = frozenset((TurnState.BACKOFF, TurnState.QUEUED))
"""States of a turn that will be attempted again."""
