"""Control calls: what operators do to instances and turns.

Each is one script call, repeated exactly by its request id while the store keeps the answer. Streams that
hold a lease and callers that wait for a turn hear of it through the private channels of their servers.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pawl.v1.step_pb2 import StepDecision
from pawl_server.domain import limits as bounds
from pawl_server.domain.errors import BodyConflict, LimitExceeded, NotFound, Reason, Refused
from pawl_server.domain.payload import digest_of
from pawl_server.domain.states import TurnState
from pawl_server.engine.failures import NO_FAILURE, StatedFailure
from pawl_server.store import scripts_gen
from pawl_server.store.script_call import Result

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

R = TypeVar("R")


class Target(NamedTuple):
    """What a control call is about, and who repeats it."""

    instance_id: str
    request_id: str = ""
    """Idempotency id; empty for none."""
    comment: str = ""
    """Text for the ledger."""
    turn: int = 0
    incarnation: int = 0
    """0: any life of the id."""
    attempt: int = 0
    """Attempt that the caller saw; 0: any."""


class Decision(NamedTuple):
    """What somebody decided about a step that may have happened."""

    key: str
    kind: StepDecision.ValueType
    digest: bytes
    output: bytes = b""
    """Blob, to be saved."""
    failure: StatedFailure = NO_FAILURE


class Control:
    """Control calls of all instances. Each may raise Refused or a StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def pause(self, target: Target) -> bool:
        """Stops dispatch; False if it was stopped before."""
        return (await self._call(scripts_gen.pause, "pause", target)).changed

    async def resume(self, target: Target) -> bool:
        """Starts dispatch again; False if it was not stopped."""
        return (await self._call(scripts_gen.resume, "resume", target)).changed

    async def wake(self, target: Target) -> bool:
        """Ends the delay of a head in BACKOFF or DEFERRED; False if there was none."""
        return (await self._call(scripts_gen.wake, "wake", target)).woken

    async def retry(self, target: Target) -> scripts_gen.RetryOk:
        """Gives a failed turn another round of attempts."""
        return await self._call(scripts_gen.retry, "retry", target, **_seen(target))

    async def skip(self, target: Target) -> int:
        """Ends a failed turn as skipped; engine ms of that."""
        return (await self._call(scripts_gen.skip, "skip", target, **_seen(target))).finished_ms

    async def park(self, target: Target) -> int:
        """Sets a failed turn aside; engine ms of that."""
        return (await self._call(scripts_gen.park, "park", target, **_seen(target))).finished_ms

    async def resolve_step(self, target: Target, decision: Decision) -> int:
        """Decides about the step of an uncertain turn; the state of the turn after that."""
        limits, failure = self._engine.limits, decision.failure
        call = self._call(
            scripts_gen.resolve_step,
            f"resolve_step {decision.key} {decision.kind} {decision.digest.hex()}",
            target,
            **_seen(target),
            max_steps=limits.steps_per_turn,
            max_step=limits.step_output_bytes,
            max_turn=limits.turn_bytes,
            key=decision.key,
            decision=decision.kind,
            output=decision.output,
            reason=failure.reason,
            message=failure.message,
            truncated=failure.truncated,
            details=failure.details,
            final=failure.final,
            cause=failure.cause,
        )
        return (await call).state

    async def cancel(self, target: Target, *, force: bool) -> scripts_gen.CancelOk:
        """Ends an unfinished turn; one that is leased is asked to end first, unless by force."""
        reply: scripts_gen.CancelOk = await self._call(
            scripts_gen.cancel,
            "cancel force" if force else "cancel",
            target,
            turn=target.turn,
            force=force,
            grace_ms=bounds.CANCEL_GRACE_MS,
        )
        if reply.former != TurnState.CANCELLING:
            self._engine.counts.turn_ended(TurnState.CANCELLED)
        return reply

    async def cancel_message(self, target: Target, message_id: str) -> int:
        """Takes back a message that has not started; the turn that it was or became by that."""
        call = self._call(
            scripts_gen.cancel_message, f"cancel_message {message_id}", target, message_id=message_id
        )
        try:
            return (await call).turn
        except NotFound as missing:
            if "incarnation" in missing.metadata:
                raise
            await self._engine.instances.get(target.instance_id)
            raise NotFound("message", f"{target.instance_id}/{message_id}") from None

    async def redrive(self, target: Target, *, discard: bool) -> int:
        """Sends the message of a parked turn again, or drops it; the new turn, or 0."""
        self._engine.admit()
        call = self._call(
            scripts_gen.redrive,
            f"redrive {discard}",
            target,
            turn=target.turn,
            discard=discard,
            max_pending=bounds.INTERNAL_PENDING * self._engine.limits.pending_messages,
        )
        return (await call).turn

    async def delete(self, target: Target) -> scripts_gen.DeleteOk:
        """Deletes an instance; of an absent one it says so."""
        engine = self._engine
        partition = engine.store.partition_of(target.instance_id)
        result = await scripts_gen.delete(
            partition,
            now_ms=engine.now_ms,
            server=engine.server_run,
            id=target.instance_id,
            inc=target.incarnation,
            max_turns=bounds.DELETE_AT_ONCE,
            request_id=target.request_id,
        )
        return await self._answer(partition, result, target)

    async def _call(self, script: Any, what: str, target: Target, **args: Any) -> Any:
        engine = self._engine
        partition = engine.store.partition_of(target.instance_id)
        call: Awaitable[Result[Any]] = script(
            partition,
            now_ms=engine.now_ms,
            server=engine.server_run,
            id=target.instance_id,
            request_id=target.request_id,
            inc=target.incarnation,
            digest=digest_of(what.encode(), b"%d %d %d" % (target.turn, target.attempt, target.incarnation)),
            comment=target.comment,
            **args,
        )
        return await self._answer(partition, await call, target)

    async def _answer(self, partition: PartitionHandle, result: Result[Any], target: Target) -> Any:
        self._engine.ready(partition, result.ready)
        reply = result.replies[0]
        if reply.word == "NOT_FOUND":
            raise await self._not_found(target)
        if reply.word != "OK":
            raise _refusal(target, reply)
        if isinstance(reply, scripts_gen.CancelOk) and reply.cancel_ms:
            self._engine.leases.on_due(partition, reply.cancel_ms, result.now_ms)
        return reply

    async def _not_found(self, target: Target) -> NotFound:
        """The refusal, which says what life of the id there is if the call named another one."""
        current = 0
        if target.incarnation:
            try:
                current = (await self._engine.instances.get(target.instance_id)).incarnation
            except NotFound:
                pass
        other = current if current != target.incarnation else 0
        return NotFound("turn" if target.turn else "instance", _name(target), target.incarnation, other)


def _name(target: Target) -> str:
    return f"{target.instance_id}/{target.turn}" if target.turn else target.instance_id


def _seen(target: Target) -> dict[str, int]:
    return {"turn": target.turn, "attempt": target.attempt}


def _refusal(target: Target, reply: Any) -> Refused:
    match reply.word:
        case "PRUNED":
            name = _name(target)
            return Refused(Reason.PRUNED, f"turn {name} was trimmed", {"resource": "turn", "name": name})
        case "BODY_CONFLICT":
            return BodyConflict("request", target.request_id)
        case "LIMIT_EXCEEDED":
            return LimitExceeded(reply.limit, reply.value, reply.max)
        case "WRONG_STATE":
            return _wrong_state(target, reply)
    raise AssertionError(f"unexpected reply {reply.word}")


def _wrong_state(target: Target, reply: Any) -> Refused:
    state = TurnState(reply.state).name
    attempt = getattr(reply, "attempt", 0)
    metadata = {"state": state}
    if key := getattr(reply, "key", ""):
        metadata["key"] = key
        text = f"the step is {key}"
    elif attempt:
        metadata["attempt"] = str(attempt)
        text = f"turn {target.turn} is at attempt {attempt}, not {target.attempt}"
    else:
        text = f"the turn is {state}"
    return Refused(Reason.WRONG_STATE, text, metadata)
