"""One leased turn as the server sees it: numbered commands, one unanswered at a time.

A checkpoint whose step has just returned is held back for the rest of the event-loop step. If the handler
returns in it, the checkpoint travels inside the finish; if it does anything else, the checkpoint is sent at
once. Either way the next step's function starts only after the checkpoint was acknowledged.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from pawl._reasons import refusal_error
from pawl._runtime.failures import refused_failure
from pawl._runtime.operation import Operation
from pawl._runtime.seldom import Seldom
from pawl._transport import Backoff, is_retryable
from pawl.errors import AttemptEnded, CommandGap, InternalError, LeaseEnded, NotFound, ServerError, StaleFence
from pawl.v1.worker_service_pb2 import (
    Checkpoint,
    Command,
    CommandResult,
    Defer,
    Fail,
    Finish,
    LeasedTurn,
    Release,
    Sleep,
    WaitSignal,
    WaitSignalResult,
)
from pawl.workflow import Workflow

if TYPE_CHECKING:
    from pawl._runtime.options import Options
    from pawl._runtime.stream import WorkStream
    from pawl.models import RetryPolicy

log = logging.getLogger("pawl.worker")
_repeating = Seldom(log)

_making = threading.Lock()

Waiter = asyncio.Future[None] | concurrent.futures.Future[None]

_MAX_INTERNAL = 5
"""Times that a command is repeated after INTERNAL before the attempt is given up."""


class Host(Protocol):
    """What an attempt needs of the worker that runs it."""

    loop: asyncio.AbstractEventLoop
    thread: int
    """Of the event loop."""

    def transmit(self, attempt: Attempt) -> None:
        """Sends the attempt's command on the current stream, or with the next one."""

    def transmit_early(self, operation: Operation) -> None:
        """Sends the unanswered command of a step that runs, ahead of what the attempt will send."""

    def superseded(self, stream: WorkStream | None) -> bool:
        """Whether the worker has a newer stream than this one."""
        ...

    def free(self, attempt: Attempt) -> None:
        """Takes back the attempt's slot, once; called when its handler is done."""

    def forget(self, attempt: Attempt) -> None:
        """Drops the attempt: nothing more will happen to its lease here."""

    def abandoned(self, attempt: Attempt) -> None:
        """The attempt's lease is over while its handler may still run."""


class Attempt:
    """One attempt at one turn, from delivery to the answer of its last command."""

    __slots__ = (
        "_backoff",
        "_internal",
        "_n",
        "_pending",
        "_waiter",
        "answer",
        "came_on",
        "cancelling",
        "closing",
        "command",
        "deadline",
        "ended",
        "failing",
        "holds_slot",
        "host",
        "in_thread",
        "lease",
        "operation",
        "refused",
        "releasing",
        "sent_on",
        "stream",
        "task",
        "thread_step",
        "turn",
        "waiting",
        "workflow",
    )

    operations: ClassVar[type[Operation]] = Operation

    def __init__(
        self,
        turn: LeasedTurn,
        workflow: Workflow | None,
        host: Host,
        stream: WorkStream | None,
        deadline: float,
    ) -> None:
        self.turn = turn
        self.lease = turn.lease
        self.workflow = workflow
        self.host = host
        self.stream = stream
        """Stream that the lease belongs to, or is on its way to."""
        self.came_on = stream
        """Stream that delivered the turn."""
        self.deadline = deadline
        """End of the attempt timeout, in the loop's time."""
        self.task: asyncio.Task[None] | None = None
        self.command: Command | None = None
        """The unanswered command."""
        self.sent_on: WorkStream | None = None
        """Stream that carries the command."""
        self.closing = False
        """True once the last command was given: finish, fail, release, sleep or defer."""
        self.ended: str | None = None
        """Why the attempt must stop, if it must."""
        self.releasing = False
        """True if the turn is to be given back once the handler has stopped."""
        self.refused: ServerError | None = None
        """Lasting refusal of a checkpoint, which fails the turn."""
        self.cancelling = False
        """True once the turn is to be cancelled: no step may start."""
        self.operation: Operation | None = None
        """The step that runs."""
        self.waiting = False
        """True while a wait is unanswered, which may end the lease."""
        self.answer: CommandResult | None = None
        """Answer to the last command that succeeded."""
        self.failing: tuple[str, RetryPolicy | None] | None = None
        """Step whose function raised last, with its retry policy."""
        self.thread_step: tuple[str, int, Options, float] | None = None
        """Step whose function runs in a thread, or in the loop without awaiting, and since when."""
        self.in_thread = False
        """True while a thread runs the handler."""
        self.holds_slot = True
        self._n = 0
        self._pending: Checkpoint | None = None
        self._waiter: Waiter | None = None
        self._backoff: Backoff | None = None
        self._internal = 0

    @property
    def unsettled(self) -> bool:
        """True while a checkpoint is held back or unanswered."""
        return self._pending is not None or self.command is not None

    def check(self) -> None:
        """Raises AttemptEnded if the attempt must stop."""
        if self.ended is not None:
            raise AttemptEnded(f"turn {self.turn.turn} of {self.turn.instance_id}: {self.ended}")

    def check_start(self) -> None:
        """Raises AttemptEnded if no step may start."""
        self.check()
        if self.cancelling:
            raise AttemptEnded(f"turn {self.turn.turn} of {self.turn.instance_id} is being cancelled")

    def cancel(self) -> None:
        """The turn is to be cancelled: the step that runs may end, the next one does not start."""
        if not self.cancelling and self.ended is None:
            self.cancelling = True
            log.info("turn %d of %s is being cancelled", self.turn.turn, self.turn.instance_id)

    @property
    def may_end(self) -> bool:
        """True while an unanswered command may end the lease."""
        return (self.closing or self.waiting) and self.command is not None

    # Steps of async handlers.

    def hold(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint whose step has just returned. Raises AttemptEnded."""
        self.check()
        if self.closing:
            raise AttemptEnded("the turn has ended already")
        self._pending = checkpoint
        self.host.loop.call_soon(self._flush)

    def _flush(self) -> None:
        checkpoint = self._pending
        if checkpoint is None or self.ended is not None or self.closing:
            return
        self._pending = None
        self._give(Command(lease=self.lease, checkpoint=checkpoint))

    async def settle(self) -> None:
        """Waits until the checkpoint, if there is one, was acknowledged.

        Raises the ServerError of its refusal, AttemptEnded.
        """
        self._flush()
        await self.drained()
        self.check()
        if self.refused is not None:
            raise self.refused

    async def saved(self) -> None:
        """Waits until the checkpoint, if there is one, was answered, however it comes out."""
        self._flush()
        await self.drained()

    async def drained(self) -> None:
        """Waits until no command is unanswered, however it comes out."""
        while self.command is not None:
            waiter = self._waiter = self.host.loop.create_future()
            await waiter

    # Steps of sync handlers, called from their thread.

    def save_from_thread(self, checkpoint: Checkpoint) -> None:
        """Saves a checkpoint and waits for the answer. Raises ServerError, AttemptEnded."""
        self.check()
        waiter: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.host.loop.call_soon_threadsafe(self._save, checkpoint, waiter)
        waiter.result()
        self.check()
        if self.refused is not None:
            raise self.refused

    def _save(self, checkpoint: Checkpoint, waiter: concurrent.futures.Future[None]) -> None:
        if self.ended is not None or self.closing:
            waiter.set_result(None)
            return
        self._waiter = waiter
        self._give(Command(lease=self.lease, checkpoint=checkpoint))

    # Waits.

    async def wait_signal(self, wait: WaitSignal) -> WaitSignalResult:
        """Waits for a signal; the lease has ended if the answer says `suspended`.

        Raises the ServerError of its refusal, AttemptEnded.
        """
        self.waiting = True
        try:
            self._give(Command(lease=self.lease, wait_signal=wait))
            await self.drained()
        finally:
            self.waiting = False
        self.check()
        if self.refused is not None:
            raise self.refused
        assert self.answer is not None
        result = self.answer.wait_signal
        if result.suspended or self.answer.already:
            self.closing = True
            self.host.free(self)
            self.host.forget(self)
        return result

    # Ends.

    def finish(self, finish: Finish) -> None:
        """Completes the turn; a checkpoint that is held back travels along."""
        if self._pending is not None:
            finish.last_step.CopyFrom(self._pending)
            self._pending = None
        self._close(Command(lease=self.lease, finish=finish))

    def fail(self, fail: Fail) -> None:
        """Reports that the attempt failed, with the last that its step reported."""
        self._pending = None
        last = self.operation.last() if self.operation is not None else None
        if last is not None:
            fail.last_progress.CopyFrom(last)
        self.stop_step()
        self._close(Command(lease=self.lease, fail=fail))

    def sleep(self, sleep: Sleep) -> None:
        """Saves a sleep and gives the turn back until it is over."""
        self._close(Command(lease=self.lease, sleep=sleep))

    def defer(self, defer: Defer) -> None:
        """Puts the turn off."""
        self._pending = None
        self._close(Command(lease=self.lease, defer=defer))

    def release(self) -> None:
        """Gives the turn back."""
        self._pending = None
        self._close(Command(lease=self.lease, release=Release()))

    def begin_step(self, key: str, position: int, options: Options) -> Operation:
        """The step that runs, as the server is to know it."""
        operation = self.operation
        if operation is None or operation.position != position:
            with _making:  # by the handler's thread, or by the loop
                operation = self.operation
                if operation is None or operation.position != position:
                    operation = self.operation = self.operations(self, key, position, options)
        return operation

    def long_step(self) -> Operation | None:
        """The step that runs, if it has reported something or has run for long."""
        step = self.thread_step
        if step is not None and time.monotonic() - step[3] >= step[2].register_after:
            return self.begin_step(*step[:3])
        return self.operation

    def stop_step(self) -> None:
        """The step that runs, if there is one, is over."""
        if self.operation is not None:
            self.operation.close()
            self.operation = None

    def abandon(self, why: str) -> None:
        """Stops the attempt without a word to the server: the lease is over."""
        if self.ended is None:
            self.ended = why
        self.stop_step()
        self._pending = self.command = None
        self.host.free(self)
        self.host.forget(self)
        self.host.abandoned(self)
        if self.task is not None and not self.task.done():
            self.task.cancel(why)
        self._wake()

    def _close(self, command: Command) -> None:
        if self.ended is not None and not self.releasing:
            return
        self.closing = True
        self._give(command)
        self.host.free(self)

    def _give(self, command: Command) -> None:
        self._n += 1
        command.n = self._n
        self.command = command
        self.host.transmit(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Answers.

    def answered(self, result: CommandResult, stream: WorkStream | None) -> None:
        """Takes the answer to a command. Answers to others than the current one are passed over."""
        if not result.n:
            if self.operation is not None:
                self.operation.answered(result)
            return
        if self.command is None or result.n != self.command.n:
            return
        if result.HasField("refusal"):
            self._refused(refusal_error(result.refusal), stream)
        else:
            self.answer = result
            self._done()

    def refuse(self, error: ServerError) -> None:
        """Takes a refusal that the SDK itself decided on."""
        self._lasting(error)

    def _done(self) -> None:
        self.command = self.sent_on = self._backoff = None
        if self.closing:
            self.host.forget(self)
        if self._waiter is not None:
            self._wake()

    def _refused(self, error: ServerError, stream: WorkStream | None) -> None:
        if error.reason == "SUPERSEDED" and self.host.superseded(stream):
            self._again(error)
        elif isinstance(error, CommandGap) and error.last >= 0:
            # A refused command does not use its number, and the answer to one may be lost with a stream.
            self._n = error.last + 1
            self._again(error, lambda command: setattr(command, "n", self._n))
        elif isinstance(error, LeaseEnded) and error.how == "cancelled":
            self.abandon("the turn was cancelled")
        elif isinstance(error, StaleFence | LeaseEnded | NotFound):
            self.abandon(f"the lease is over: {error}")
        elif is_retryable(error):
            self._again(error)
        elif isinstance(error, InternalError) and self._internal < _MAX_INTERNAL:
            self._internal += 1
            self._again(error)
        else:
            self._lasting(error)

    def _again(self, error: ServerError, change: Callable[[Command], None] | None = None) -> None:
        assert self.command is not None
        if change is not None:
            change(self.command)
        self.sent_on = None
        self._backoff = self._backoff or Backoff(0.02, 5.0)
        delay = self._backoff.next(error.retry_after)
        _repeating(
            logging.INFO, "repeating a command of %s in %.2f s: %s", self.turn.instance_id, delay, error
        )
        self.host.loop.call_later(delay, self._retransmit, self.command)

    def _retransmit(self, command: Command) -> None:
        if self.command is command and self.sent_on is None:
            self.host.transmit(self)

    def _lasting(self, error: ServerError) -> None:
        """A command that can't succeed: the turn fails for good, if that can still be said."""
        command, self.command, self.sent_on = self.command, None, None
        self._n -= 1
        if command is not None and command.WhichOneof("action") in ("fail", "release"):
            log.error("can't end turn %d of %s: %s", self.turn.turn, self.turn.instance_id, error)
            self.abandon(str(error))
        elif self.closing:
            log.error("turn %d of %s can't be finished: %s", self.turn.turn, self.turn.instance_id, error)
            self._give(Command(lease=self.lease, fail=Fail(failure=refused_failure(error))))
        else:
            self.refused = error
            self._wake()
