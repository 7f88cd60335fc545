"""Runs the handler of an attempt and says how it ended."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pawl._convert import set_policy
from pawl._runtime.attempt import Attempt
from pawl._runtime.failures import defer_of, fail_of, refused_failure
from pawl._runtime.suspend import Suspended
from pawl._runtime.turn_context import SyncTurnContext, TurnContext
from pawl.context import Outcome
from pawl.errors import AttemptEnded, Defer, PayloadError, ServerError, WorkflowError
from pawl.payloads import Decoder, Payload, encode, is_unset
from pawl.v1.failure_pb2 import Failure
from pawl.v1.worker_service_pb2 import Fail, Finish

log = logging.getLogger("pawl.worker")


class Executor:
    """Runs attempts, each in a task of its own; sync handlers in threads, at most `threads` at a time."""

    async_context: type[TurnContext] = TurnContext
    sync_context: type[SyncTurnContext] = SyncTurnContext
    """What handlers are given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def start(self, attempt: Attempt) -> None:
        """Starts an attempt."""
        attempt.task = self._loop.create_task(self._run(attempt))

    def close(self) -> None:
        """Lets go of the threads; those that still run a handler end with it."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, attempt: Attempt) -> None:
        try:
            try:
                finish = await self._finish(attempt)
                if attempt.command is not None or attempt.refused is not None:
                    await attempt.settle()
                if attempt.cancelling:
                    raise AttemptEnded("the turn is being cancelled")
                attempt.finish(finish)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except Suspended as suspended:
                attempt.check()
                if suspended.sleep is not None:
                    attempt.sleep(suspended.sleep)
            except BaseException as error:
                await self._failed(attempt, error)
        except (AttemptEnded, asyncio.CancelledError):
            if attempt.releasing:
                await attempt.drained()
                attempt.release()
            elif attempt.cancelling and attempt.ended is None:
                await attempt.saved()
                attempt.release()

    async def _finish(self, attempt: Attempt) -> Finish:
        """Runs the handler; gives the finish, or raises what fails the attempt."""
        workflow, turn = attempt.workflow, attempt.turn
        assert workflow is not None
        stored = workflow.initial_state if is_unset(turn.state) else turn.state
        state = _read(attempt, "state before", workflow.decode_state, stored)
        message = _read(attempt, "message of", workflow.decode_message, turn.message)
        if workflow.is_async:
            context = self.async_context(attempt)
            try:
                outcome = context.close(await workflow.handler(context, state, message))
            finally:
                context.discard()
        else:
            thread_context = self.sync_context(attempt)
            variables = contextvars.copy_context()
            handler = partial(workflow.handler, thread_context, state, message)
            call = partial(variables.run, partial(self._in_thread, attempt, handler))
            outcome = thread_context.close(await self._loop.run_in_executor(self._threads_pool(), call))
        attempt.check()
        return _finish_of(attempt, outcome)

    def _in_thread(self, attempt: Attempt, handler: Callable[[], object]) -> object:
        attempt.in_thread = True
        try:
            return handler()
        finally:
            attempt.in_thread = False

    def replace_threads(self) -> None:
        """Gives up a thread that a handler does not leave: the next ones run in others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    async def _failed(self, attempt: Attempt, error: BaseException) -> None:
        task = attempt.task
        if attempt.cancelling and attempt.ended is None and isinstance(error, AttemptEnded):
            raise error
        if attempt.ended is None and isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            # Somebody else cancels this task, for example because the event loop ends: no fault of the
            # handler.
            attempt.abandon("its task was cancelled")
        if attempt.ended is not None:
            # Fenced, or asked to stop: whatever the handler says about it goes nowhere.
            raise AttemptEnded(attempt.ended) from error
        fail = fail_of(error)
        if attempt.failing is not None:
            fail.step_key, retry = attempt.failing
            if retry is not None:
                set_policy(fail.step_retry, retry)
        try:
            # What was done is kept for the next attempt.
            await attempt.settle()
        except ServerError as problem:
            fail = Fail(failure=refused_failure(problem))
        else:
            if isinstance(error, Defer):
                attempt.defer(defer_of(error))
                return
        _report(attempt, fail.failure, error)
        attempt.fail(fail)

    def _threads_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pawl-handler")
        return self._pool


def _report(attempt: Attempt, failure: Failure, error: BaseException) -> None:
    """Logs a failure; with a traceback only where it tells more than the text, and only the first time."""
    turn = attempt.turn
    known = (turn.last_failure.reason, turn.last_failure.message) == (failure.reason, failure.message)
    explained = known or isinstance(error, WorkflowError | PayloadError)
    final = failure.non_retryable or 0 < turn.max_attempts <= turn.attempt
    log.log(
        logging.ERROR if final else logging.WARNING,
        "turn %d of %s failed for good in attempt %d, the instance is blocked: %s: %s"
        if final
        else "turn %d of %s failed in attempt %d and is tried again: %s: %s",
        turn.turn,
        turn.instance_id,
        turn.attempt,
        failure.reason,
        failure.message,
        exc_info=None if explained else error,
    )


def _read(attempt: Attempt, what: str, decoder: Decoder, payload: Payload) -> object:
    try:
        return decoder(payload)
    except PayloadError as error:
        error.where = f"{what} turn {attempt.turn.turn} of {attempt.turn.instance_id}"
        raise


def _finish_of(attempt: Attempt, outcome: Outcome) -> Finish:
    what = "state"
    try:
        state = encode(outcome.state)
        finish = Finish()
        if state != attempt.turn.state:
            finish.state.CopyFrom(state)
        if outcome.result is not None:
            what = "result"
            finish.reply.CopyFrom(encode(outcome.result))
        if outcome.continues:
            what = "continuation"
            finish.continuation.CopyFrom(encode(outcome.continuation))
    except PayloadError as error:
        error.where = f"{what} of turn {attempt.turn.turn} of {attempt.turn.instance_id}"
        raise
    return finish
