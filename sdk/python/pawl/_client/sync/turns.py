# Generated from ../aio/turns.py by tools/gen.py; do not edit.
"""Turns."""

from __future__ import annotations

from collections.abc import Iterator

from pawl._client.sync_connection import Connection, each
from pawl._convert import turn_of
from pawl.models import Page, Turn
from pawl.v1 import turn_service_pb2 as turns


class TurnCalls(Connection):
    """Calls of TurnService."""

    def get_turn(
        self, instance_id: str, turn: int, *, incarnation: int = 0, timeout: float | None = None
    ) -> Turn:
        """Reads a turn with message, steps and reply. Raises NotFound, Pruned."""
        request = turns.GetTurnRequest(instance_id=instance_id, turn=turn, incarnation=incarnation)
        return turn_of((self._call(self._stubs.turns.GetTurn, request, timeout)).turn)

    def list_turns_page(
        self,
        instance_id: str,
        *,
        page_size: int = 0,
        page_token: str = "",
        include_payloads: bool = False,
        timeout: float | None = None,
    ) -> Page[Turn]:
        """Reads one page of an instance's kept turns, newest first; see `list_page`. Raises NotFound."""
        request = turns.ListTurnsRequest(
            instance_id=instance_id,
            page_size=page_size,
            page_token=page_token,
            include_payloads=include_payloads,
        )
        answer = self._call(self._stubs.turns.ListTurns, request, timeout)
        return Page([turn_of(item) for item in answer.turns], answer.next_page_token)

    def list_turns(
        self, instance_id: str, *, page_size: int = 0, include_payloads: bool = False
    ) -> Iterator[Turn]:
        """Iterates over an instance's kept turns, newest first."""
        return each(
            lambda token: self.list_turns_page(
                instance_id, page_size=page_size, page_token=token, include_payloads=include_payloads
            )
        )
