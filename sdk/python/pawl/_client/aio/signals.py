"""Signals, callbacks, and decisions about steps that may have happened."""

from __future__ import annotations

from typing import Any

from pawl._client.aio_connection import Connection
from pawl._convert import time_of, turn_state_of
from pawl._requests import UNSET, failure_message, new_id, sender_message
from pawl._running import CallbackAnswer, Principal, Signalled
from pawl.errors import WorkflowError
from pawl.payloads import encode
from pawl.v1 import turn_service_pb2 as turns


class SignalCalls(Connection):
    """Calls of TurnService that reach into a turn."""

    async def signal(
        self,
        instance_id: str,
        name: str,
        value: Any = None,
        *,
        turn: int | None = None,
        id: str | None = None,  # noqa: A002 - the word of the API
        incarnation: int = 0,
        sender: Principal | None = None,
        timeout: float | None = None,
    ) -> Signalled:
        """Sends a signal to a turn, which gets it when its code waits for the name.

        An early one is buffered. It never goes to another turn.

        Args:
            instance_id: instance of the turn.
            name: `[A-Za-z0-9_.-]{1,128}`.
            value: at most 32 KiB encoded; None is a value.
            turn: number of the turn; None means the unfinished turn at the head of the inbox, or the next one
                that is admitted if there is none.
            id: idempotency id, unique in the turn; default is a new UUID. Signalling the same again gives the
                first answer; give an id of your own if the sender may itself be restarted.
            incarnation: raises NotFound unless the instance id still has this life.
            sender: who signals, for those who look at the turn; default is a SERVICE without a name.
            timeout: seconds that the call may take.

        Raises NotFound, Pruned, WrongState if the turn is finished, BodyConflict if the id was used with
        another name or value, LimitExceeded, InvalidField, PayloadError.
        """
        signal_id, payload, who = id if id is not None else new_id(), encode(value), sender_message(sender)
        if turn is None:
            request = turns.SignalInstanceRequest(
                instance_id=instance_id,
                signal_id=signal_id,
                name=name,
                value=payload,
                incarnation=incarnation,
                sender=who,
            )
            answer = await self._call(self._stubs.turns.SignalInstance, request, timeout)
            turn, taken = answer.turn, answer
        else:
            aimed = turns.SignalTurnRequest(
                instance_id=instance_id,
                turn=turn,
                signal_id=signal_id,
                name=name,
                value=payload,
                incarnation=incarnation,
                sender=who,
            )
            taken = await self._call(self._stubs.turns.SignalTurn, aimed, timeout)
        return Signalled(instance_id, turn, signal_id, time_of(taken.receive_time), taken.consumed_position)

    async def resolve_callback(
        self,
        token: str,
        value: Any = None,
        *,
        sender: Principal | None = None,
        timeout: float | None = None,
    ) -> CallbackAnswer:
        """Gives a callback its result, by the token that the turn's code handed out.

        Only the first result counts: repeating it gives the first answer, another one raises BodyConflict.
        `value` takes at most 32 KiB encoded; `sender` as in `signal`. Raises InvalidField for what is no
        token, NotFound, Pruned, WrongState if the turn is finished, LimitExceeded, PayloadError.
        """
        request = turns.ResolveCallbackRequest(
            token=token, value=encode(value), sender=sender_message(sender)
        )
        return await self._answer(request, timeout)

    async def reject_callback(
        self,
        token: str,
        message: str = "",
        *,
        reason: str = "REJECTED",
        details: Any = None,
        sender: Principal | None = None,
        timeout: float | None = None,
    ) -> CallbackAnswer:
        """Says that a callback gives no value: its wait raises CallbackRejected.

        Args:
            token: as the turn's code handed it out.
            message: text for people, at most 2,048 bytes; longer text is cut.
            reason: short machine-readable cause, `[A-Za-z0-9_.-]{1,128}`.
            details: optional value; all together take at most 8 KiB encoded.
            sender: as in `signal`.
            timeout: seconds that the call may take.

        Counts as a result, and raises as `resolve_callback`.
        """
        request = turns.ResolveCallbackRequest(
            token=token, failure=failure_message(reason, message, details), sender=sender_message(sender)
        )
        return await self._answer(request, timeout)

    async def _answer(self, request: turns.ResolveCallbackRequest, timeout: float | None) -> CallbackAnswer:
        answer = await self._call(self._stubs.turns.ResolveCallback, request, timeout)
        return CallbackAnswer(answer.instance_id, answer.turn, time_of(answer.receive_time))

    async def resolve_step(
        self,
        instance_id: str,
        turn: int,
        key: str,
        *,
        output: Any = UNSET,
        retry: bool = False,
        failure: WorkflowError | None = None,
        attempt: int = 0,
        incarnation: int = 0,
        comment: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Decides about the step of an UNCERTAIN turn, which may or may not have happened; its state then.

        Takes one of three decisions.

        Args:
            instance_id, turn: the turn.
            key: of the step, which guards against deciding about another one.
            output: it happened: this is saved as what it returned, at most 64 KiB encoded.
            retry: it did not happen, or may happen again: the next attempt runs it.
            failure: the turn fails for good, as if its code had raised this.
            attempt: above 0, the attempt that the decision is about.
            incarnation: raises NotFound unless the instance id still has this life.
            comment: for the ledger, at most 256 bytes.
            request_id: idempotency id; default is a new UUID.
            timeout: seconds that the call may take.

        Raises ValueError unless there is one decision, NotFound, Pruned, WrongState if the turn is not
        UNCERTAIN, or is at another step or attempt, LimitExceeded, PayloadError.
        """
        if (output is not UNSET) + retry + (failure is not None) != 1:
            raise ValueError("give one of output, retry and failure")
        request = turns.ResolveStepRequest(
            instance_id=instance_id,
            turn=turn,
            key=key,
            attempt=attempt,
            incarnation=incarnation,
            comment=comment,
            request_id=request_id or new_id(),
        )
        if failure is not None:
            request.failure.CopyFrom(failure_message(failure.reason, str(failure), failure.details))
        elif retry:
            request.retry = True
        else:
            request.output.CopyFrom(encode(output))
        return turn_state_of((await self._call(self._stubs.turns.ResolveStep, request, timeout)).state)
