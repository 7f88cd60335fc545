"""Handlers run for one turn, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pawl._convert import failure_of
from pawl._requests import UNSET
from pawl._runtime.attempt import Attempt
from pawl._runtime.executor import Executor
from pawl.errors import PayloadError
from pawl.models import Failure
from pawl.payloads import Payload, decode, encode
from pawl.v1.step_pb2 import Step
from pawl.v1.turn_pb2 import Origin as OriginMessage
from pawl.v1.worker_service_pb2 import CommandResult, LeasedTurn
from pawl.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Ran:
    """What a handler did with one turn."""

    state: Any
    """New state, the object that the handler gave; the old one, decoded as the handler got it, if the attempt
    failed."""
    result: Any
    """Reply of the turn, the object that the handler gave; None if there is none."""
    continues: bool
    """True if the handler continued with a message."""
    continuation: Any
    """That message, the object that the handler gave."""
    steps: dict[str, Any]
    """Values of the steps that ran, by key, decoded without annotation; not those given as saved."""
    failure: Failure | None
    """Why the attempt failed, if it did."""
    state_payload: Payload
    """The state as it is stored; `pawl.payloads.decode` shows what a reader without annotations sees."""
    result_payload: Payload | None = None
    """The reply as it is stored."""
    continuation_payload: Payload | None = None
    """The message that the handler continued with, as it is stored."""


class _Host:
    """Acknowledges every command at once."""

    def __init__(self, turn: LeasedTurn, workflow: Workflow) -> None:
        self.loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self.steps: dict[str, Any] = {}
        self.outcome: Any = None
        """What the handler returned."""
        self.ran = Ran(_old_state(turn, workflow), None, False, None, self.steps, None, turn.state)
        self.workflow = dataclasses.replace(workflow, handler=self._listening(workflow))

    def _listening(self, workflow: Workflow) -> Callable[..., Any]:
        """The handler, with its outcome kept."""

        async def run_async(*given: Any) -> Any:
            self.outcome = await workflow.handler(*given)
            return self.outcome

        def run_sync(*given: Any) -> Any:
            self.outcome = workflow.handler(*given)
            return self.outcome

        return run_async if workflow.is_async else run_sync

    def transmit(self, attempt: Attempt) -> None:
        command = attempt.command
        assert command is not None
        action = command.WhichOneof("action")
        if action == "checkpoint":
            self.steps[command.checkpoint.key] = decode(command.checkpoint.output)
        elif action == "fail":
            self.ran = dataclasses.replace(self.ran, failure=failure_of(command.fail.failure))
        elif action == "finish":
            finish = command.finish
            if finish.HasField("last_step"):
                self.steps[finish.last_step.key] = decode(finish.last_step.output)
            outcome = self.outcome
            self.ran = Ran(
                outcome.state,
                outcome.result,
                outcome.continues,
                outcome.continuation,
                self.steps,
                None,
                finish.state if finish.HasField("state") else self.ran.state_payload,
                finish.reply if finish.HasField("reply") else None,
                finish.continuation if finish.HasField("continuation") else None,
            )
        answer = CommandResult(lease=attempt.lease, n=command.n)
        self.loop.call_soon(attempt.answered, answer, None)

    def superseded(self, stream: Any) -> bool:
        return False

    def free(self, attempt: Attempt) -> None:
        pass

    def forget(self, attempt: Attempt) -> None:
        self.over.set()


def _old_state(turn: LeasedTurn, workflow: Workflow) -> Any:
    try:
        return workflow.decode_state(turn.state)
    except PayloadError:
        return decode(turn.state)


async def run(
    workflow: Workflow,
    message: Any,
    *,
    state: Any = UNSET,
    steps: Mapping[str, Any] | None = None,
    instance_id: str = "test",
    message_id: str = "m-1",
    turn: int = 1,
    attempt: int = 1,
    origin: bytes = b"",
    last_failure: Failure | None = None,
) -> Ran:
    """Runs a handler for one turn without a server. `Ran` has the objects that it gave.

    Args:
        workflow: what to run.
        message: the message.
        state: state before the turn; default is the workflow's initial state.
        steps: values saved by an earlier attempt, by key, in order: these are replayed.
        instance_id, message_id, turn, attempt, origin, last_failure: as the handler shall see them.
    """
    leased = LeasedTurn(
        lease=b"test",
        fence=1,
        instance_id=instance_id,
        incarnation=1,
        workflow_type=workflow.name,
        version=workflow.version,
        turn=turn,
        message_id=message_id,
        message=encode(message),
        origin=OriginMessage(client=origin),
        state=workflow.initial_state if state is UNSET else encode(state),
        steps=[
            Step(position=at, key=key, output=encode(value), attempt=1)
            for at, (key, value) in enumerate((steps or {}).items(), 1)
        ],
        attempt=attempt,
        max_attempts=max(3, attempt),
        namespace="test",
    )
    leased.admit_time.FromSeconds(1_800_000_000)
    if last_failure is not None:
        leased.last_failure.reason = last_failure.reason
        leased.last_failure.message = last_failure.message
        leased.last_failure.attempt = last_failure.attempt
        leased.last_failure.non_retryable = last_failure.non_retryable
    host = _Host(leased, workflow)
    executor = Executor(host.loop, threads=1)
    running = Attempt(leased, host.workflow, host, None, float("inf"))
    executor.start(running)
    try:
        await host.over.wait()
    finally:
        if running.task is not None and not running.task.done():
            running.task.cancel()
        executor.close()
    return host.ran
