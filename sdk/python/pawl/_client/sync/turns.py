# Generated from ../aio/turns.py by tools/gen.py; do not edit.
"""Turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from pawl._client.sync_connection import Connection, each
from pawl._convert import cancellation_of, redriven_of, turn_of
from pawl._requests import new_id, type_name
from pawl._running import RedriveProgress
from pawl._transport.retry import Reopening
from pawl.errors import ServerError
from pawl.models import Cancellation, Page, Turn
from pawl.v1 import turn_service_pb2 as turns
from pawl.workflow import Workflow


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

    def retry_turn(
        self,
        instance_id: str,
        turn: int,
        *,
        attempt: int = 0,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Gives a FAILED turn another round of attempts; how many it may have in all now.

        `attempt` above 0 guards against deciding about a failure that was not seen. `comment` goes into the
        ledger. Raises NotFound, Pruned, WrongState if the turn is not FAILED or is at another attempt.
        """
        request = turns.RetryTurnRequest(
            instance_id=instance_id,
            turn=turn,
            attempt=attempt,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        answer = self._call(self._stubs.turns.RetryTurn, request, timeout)
        return answer.max_attempts

    def skip_turn(
        self,
        instance_id: str,
        turn: int,
        *,
        attempt: int = 0,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Ends a FAILED turn as SKIPPED, so that its inbox goes on. Parameters and errors as `retry_turn`."""
        request = turns.SkipTurnRequest(
            instance_id=instance_id,
            turn=turn,
            attempt=attempt,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        self._call(self._stubs.turns.SkipTurn, request, timeout)

    def park_turn(
        self,
        instance_id: str,
        turn: int,
        *,
        attempt: int = 0,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Ends a FAILED turn as PARKED: its inbox goes on, its message is kept for `redrive_parked`.

        Parameters and errors as `retry_turn`; LimitExceeded if 1,000 turns of the instance are parked.
        """
        request = turns.ParkTurnRequest(
            instance_id=instance_id,
            turn=turn,
            attempt=attempt,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        self._call(self._stubs.turns.ParkTurn, request, timeout)

    def cancel_turn(
        self,
        instance_id: str,
        turn: int,
        *,
        force: bool = False,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Cancellation:
        """Ends an unfinished turn as CANCELLED, at once unless it runs. The instance keeps its state.

        A turn that runs becomes CANCELLING: its worker is told at once, may finish the step that runs within
        ten seconds and starts no other. After that, or at once with `force`, the lease ends without it; what
        its code does outside then can overlap with the next turn.
        Raises NotFound, Pruned, WrongState if it is finished.
        """
        request = turns.CancelTurnRequest(
            instance_id=instance_id,
            turn=turn,
            force=force,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        return cancellation_of(self._call(self._stubs.turns.CancelTurn, request, timeout))

    def redrive_parked(
        self,
        instance_id: str,
        turn: int,
        *,
        discard: bool = False,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Sends the message of a parked turn again, as a new turn whose number this is.

        With `discard` the kept message is dropped instead; gives 0. Raises NotFound, Pruned, WrongState if
        the turn is not parked or was redriven before, LimitExceeded.
        """
        request = turns.RedriveParkedRequest(
            instance_id=instance_id,
            turn=turn,
            discard=discard,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        return (self._call(self._stubs.turns.RedriveParked, request, timeout)).turn

    def list_parked_page(
        self,
        workflow: Workflow | str,
        *,
        instance_id: str = "",
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> Page[Turn]:
        """Reads one page of the parked turns of a type, or of one instance, with their messages."""
        request = turns.ListParkedRequest(
            workflow_type=type_name(workflow),
            instance_id=instance_id,
            page_size=page_size,
            page_token=page_token,
        )
        answer = self._call(self._stubs.turns.ListParked, request, timeout)
        return Page([turn_of(item) for item in answer.turns], answer.next_page_token)

    def list_parked(
        self, workflow: Workflow | str, *, instance_id: str = "", page_size: int = 0
    ) -> Iterator[Turn]:
        """Iterates over the parked turns of a type, or of one instance, with their messages."""
        return each(
            lambda token: self.list_parked_page(
                workflow, instance_id=instance_id, page_size=page_size, page_token=token
            )
        )

    def redrive_all_parked(
        self,
        workflow: Workflow | str,
        *,
        instance_id: str = "",
        reason: str = "",
        discard: bool = False,
        comment: str = "",
        timeout: float | None = None,
    ) -> Iterator[RedriveProgress]:
        """Redrives, or discards, all parked turns of a type, and says after every part how far it is.

        Goes on through reconnections and stopping servers; leaving the iterator ends it, and what was done
        stays done. A turn that can't be redriven now is counted as refused, and stays parked.

        Args:
            workflow: the type.
            instance_id: only turns of this instance; empty for all.
            reason: only turns whose last failure has this reason; empty for any.
            discard: drop the kept messages instead of sending them again.
            comment: for the ledger, at most 256 bytes.
            timeout: seconds without any answer after which it is given up.

        Raises InvalidField.
        """
        request = turns.RedriveAllParkedRequest(
            workflow_type=type_name(workflow),
            instance_id=instance_id,
            reason=reason,
            discard=discard,
            comment=comment,
        )
        before = now = 0
        again = Reopening(timeout or self.timeout)
        while True:
            try:
                redrive = self._stubs.turns.RedriveAllParked
                with closing(self._stream(redrive, request)) as frames:
                    for frame in frames:
                        again = Reopening(timeout or self.timeout)
                        now = before + frame.redriven
                        yield redriven_of(frame, before)
                        if frame.done:
                            return
            except ServerError as problem:
                again.failed(problem)
            before = now
            self._sleep(again.pause())
