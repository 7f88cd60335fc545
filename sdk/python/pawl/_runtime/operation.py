"""The step that runs, as far as the server knows of it: registration, reports, and what was not sent yet.

A step is registered when it reports something or runs for a while; a short one never is. Reports are made
from any thread; the newest replaces those that were not sent. One command is unanswered at a time. It is sent
on a stream, or by the watchdog's own connection while the event loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from pawl._reasons import refusal_error
from pawl._runtime.seldom import Seldom
from pawl._transport import Backoff, is_retryable
from pawl._unset import UNSET
from pawl.errors import (
    CommandGap,
    LeaseEnded,
    NotFound,
    PayloadError,
    ServerError,
    StaleFence,
    StepError,
    WrongState,
)
from pawl.payloads import Payload, decode, encode
from pawl.v1.operation_pb2 import OnRestart, Progress
from pawl.v1.worker_service_pb2 import Command, CommandResult, ReportProgress, StartOperation

if TYPE_CHECKING:
    from pawl._runtime.attempt import Attempt
    from pawl._runtime.options import Options
    from pawl._runtime.stream import WorkStream

log = logging.getLogger("pawl.worker")
_repeating = Seldom(log)

HEARTBEAT_EVERY = 1.0
PROGRESS_EVERY = 3.0
"""Seconds between two reports, unless the phase changes; half the heartbeat timeout if that is less."""
MAX_DETAILS_BYTES = 8 * 1024
MAX_RESUME_BYTES = 32 * 1024
MAX_PHASE = 80
_UNIT = re.compile(r"[A-Za-z0-9 _-]{0,32}", re.ASCII).fullmatch

_NEW, _ASKED, _KNOWN, _OFF = range(4)


class Operation:
    """One run of a step's function."""

    def __init__(self, attempt: Attempt, key: str, position: int, options: Options) -> None:
        self.attempt = attempt
        self.key = key
        self.position = position
        self.options = options
        self.command: Command | None = None
        """The unanswered command."""
        self.sent_on: WorkStream | None = None
        """Stream that carries it; None while none does."""
        self.error: StepError | None = None
        """What makes the step fail for good."""
        self._lock = threading.Lock()
        self._state = _NEW
        self._began = time.monotonic()
        self._report: ReportProgress | None = None
        """The newest report, until it is answered."""
        self._resume: Payload | None = None
        self._sequence = 0
        self._phase: str | None = None
        self._sent_at = float("-inf")
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._known: asyncio.Future[None] | None = None
        self._backoff: Backoff | None = None
        self._closed = False
        last = attempt.turn.operation
        if last.key == key and last.HasField("resume"):
            self._resume = last.resume

    # What the step asks for, from any thread.

    @property
    def checkpoint(self) -> Any:
        """What the newest report, of this attempt or an earlier one, gave. Raises PayloadError."""
        return None if self._resume is None else decode(self._resume)

    def heartbeat(self, details: Any, checkpoint: Any) -> None:
        """Takes a report. Raises StepError."""
        report = ReportProgress()
        if details is not None:
            report.details.CopyFrom(self._encoded("details", details, MAX_DETAILS_BYTES))
        if checkpoint is not UNSET:
            self._resume = self._encoded("checkpoint", checkpoint, MAX_RESUME_BYTES)
        self._take(report, HEARTBEAT_EVERY, at_once=False)

    def progress(self, phase: Any, done: Any, total: Any, unit: Any) -> None:
        """Takes a report in the form that clients draw. Raises StepError."""
        if not isinstance(phase, str) or not 1 <= len(phase) <= MAX_PHASE:
            raise self._bad(f"phase must be text of 1 to {MAX_PHASE} characters, not {phase!r}")
        for name, value in (("done", done), ("total", 0 if total is None else total)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
                raise self._bad(f"{name} must be a whole number of at least 0, not {value!r}")
        if not isinstance(unit, str) or not _UNIT(unit):
            raise self._bad(f"unit must be at most 32 letters, digits, spaces, - or _, not {unit!r}")
        report = ReportProgress(progress=Progress(phase=phase, done=done, total=total, unit=unit))
        changed, self._phase = phase != self._phase, phase
        self._take(report, PROGRESS_EVERY, at_once=changed)

    def _encoded(self, what: str, value: Any, limit: int) -> Payload:
        try:
            payload = encode(value)
        except PayloadError as error:
            raise self._bad(f"{what}: {error}") from error
        if len(payload.data) > limit:
            raise self._bad(f"{what} takes {len(payload.data)} bytes, at most {limit} are allowed")
        return payload

    def _bad(self, why: str) -> StepError:
        self.error = self.error or StepError(f"report of step {self.key!r}: {why}")
        return self.error

    def _take(self, report: ReportProgress, every: float, *, at_once: bool) -> None:
        if self.error is not None:
            raise self.error
        with self._lock:
            self._sequence += 1
            report.position, report.key, report.sequence = self.position, self.key, self._sequence
            before = self._report
            if before is not None:
                # What it does not say again has not been sent yet.
                for part in ("progress", "details"):
                    if before.HasField(part) and not report.HasField(part):
                        getattr(report, part).CopyFrom(getattr(before, part))
            if self._resume is not None:
                report.resume.CopyFrom(self._resume)
            self._report = report
        if self.options.heartbeat_timeout is not None:
            every = min(every, self.options.heartbeat_timeout / 2)
        pause = 0.0 if at_once else self._sent_at + every - time.monotonic()
        loop = self.attempt.host.loop
        if threading.get_ident() == self.attempt.host.thread:
            self._plan(pause)
        else:
            loop.call_soon_threadsafe(self._plan, pause)

    # What is sent, in the loop.

    def register(self) -> None:
        """Has the server know of the step."""
        self._send()

    async def registered(self) -> None:
        """Registers, and waits until the server knows or the attempt ends. Raises StepError."""
        self._known = self.attempt.host.loop.create_future()
        self._send()
        await self._known
        if self.error is not None:
            raise self.error

    def _plan(self, pause: float) -> None:
        if pause <= 0:
            self._due = True
            self._send()
        elif self._timer is None and not self._closed:
            self._timer = self.attempt.host.loop.call_later(pause, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._due = True
        self._send()

    def _send(self) -> None:
        if not self._closed and self._next() is not None:
            self.attempt.host.transmit_early(self)

    def _next(self) -> Command | None:
        """The next command, if there is one and none is unanswered."""
        with self._lock:
            if self.command is not None or self._state == _OFF:
                return None
            command = Command(lease=self.attempt.lease)
            if self._state == _NEW:
                self._state = _ASKED
                command.start_operation.CopyFrom(self._start())
            elif self._report is not None and self._due and self._state == _KNOWN:
                self._due = False
                self._sent_at = time.monotonic()
                command.report_progress.CopyFrom(self._report)
            else:
                return None
            self.command, self.sent_on = command, None
            return command

    def _start(self) -> StartOperation:
        options = self.options
        start = StartOperation(position=self.position, key=self.key, kind=options.wire_kind)
        # What is left: the step began before it is registered.
        left = max(0.1, options.timeout - (time.monotonic() - self._began))
        start.timeout.FromMilliseconds(round(left * 1000))
        if options.heartbeat_timeout is not None:
            start.heartbeat_timeout.FromMilliseconds(round(min(options.heartbeat_timeout, left) * 1000))
        if options.on_restart == "park":
            start.on_restart = OnRestart.ON_RESTART_PARK
        return start

    def blocked(self) -> Command | None:
        """For the watchdog, while the loop is blocked: the command to send in its place, if one is due.

        It may wait in the queue of a stream; a repeat changes nothing.
        """
        if self._closed:
            return None
        if self.command is None:
            if self._state == _NEW and time.monotonic() - self._began < self.options.register_after:
                return None
            self._due = self._due or self._report is not None
            self._next()
        return self.command

    def nudge(self) -> None:
        """Now and then: registers a step that runs for long, and sends what the watchdog could not."""
        if self.command is None:
            if self._state == _NEW and time.monotonic() - self._began >= self.options.register_after:
                self._send()
        elif self.sent_on is None and self._backoff is None and not self._closed:
            self.attempt.host.transmit_early(self)

    # Answers.

    def confirmed(self, command: Command) -> None:
        """The watchdog's call has succeeded."""
        with self._lock:
            if self.command is command:
                self._done(command)

    def answered(self, result: CommandResult) -> None:
        """Takes the answer to a command. Answers to others than the current one are passed over."""
        command = self.command
        if command is None:
            return
        kind = command.WhichOneof("action")
        if kind != result.WhichOneof("detail") and result.WhichOneof("detail") is not None:
            return
        if kind == "report_progress" and result.report_progress.sequence != command.report_progress.sequence:
            return
        if result.HasField("refusal"):
            self._refused(command, refusal_error(result.refusal))
            return
        with self._lock:
            self._done(command)
        self._wake()
        self._send()

    def _done(self, command: Command) -> None:
        self.command = self.sent_on = self._backoff = None
        if self._state == _ASKED:
            self._state = _KNOWN
            self._due = self._due or self._report is not None
        elif self._report is not None and self._report.sequence == command.report_progress.sequence:
            self._report = None

    def _refused(self, command: Command, error: ServerError) -> None:
        if isinstance(error, StaleFence | LeaseEnded | NotFound):
            self.attempt.abandon(f"the lease is over: {error}")
        elif is_retryable(error) or isinstance(error, CommandGap):
            self.sent_on = None
            self._backoff = self._backoff or Backoff(0.02, 5.0)
            delay = self._backoff.next(error.retry_after)
            _repeating(logging.INFO, "repeating a report of %s in %.2f s: %s", self.key, delay, error)
            self.attempt.host.loop.call_later(delay, self._again, command)
            return
        elif isinstance(error, WrongState) and error.metadata.get("state") == "cancelling":
            self.attempt.cancel()
        elif error.reason in ("INVALID_FIELD", "LIMIT_EXCEEDED", "BODY_CONFLICT"):
            self._bad(str(error))
        with self._lock:
            self.command = self.sent_on = None
            self._state = _OFF
        self._wake()

    def _again(self, command: Command) -> None:
        if self.command is command and self.sent_on is None and not self._closed:
            self.attempt.host.transmit_early(self)

    def refuse(self, error: ServerError) -> None:
        """Takes a refusal that the SDK itself decided on."""
        if self.command is not None:
            self._refused(self.command, error)

    def _wake(self) -> None:
        if self._known is not None and not self._known.done():
            self._known.set_result(None)

    # Ends.

    def last(self) -> ReportProgress | None:
        """The newest report that the server has not confirmed."""
        return self._report

    def finish(self) -> None:
        """The step is to be saved: sends the last value first, if the server knows of the step."""
        if self._state == _KNOWN and self._report is not None:
            with self._lock:
                self.command = None
            self._due = True
            self._send()
        self.close()

    def close(self) -> None:
        """The step is over."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()
