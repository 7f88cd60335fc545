"""What each kind of command asks of the store, and what its answer says.

One table for the commands of streams and for unary calls: they differ in how they travel, in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pawl_server.delivery import commands
from pawl_server.delivery.frames import RESULT_BYTES, fill_ms, fill_payload
from pawl_server.domain.errors import InvalidField, Reason, Refused
from pawl_server.domain.lease import Lease
from pawl_server.engine.collector import Done
from pawl_server.engine.leases import Leases
from pawl_server.store.scripts_gen import (
    CheckpointOk,
    DeferOk,
    FailOk,
    FinishOk,
    ReportProgressOk,
    SleepOk,
    StartOperationOk,
    WaitSignalOk,
)


class Action(NamedTuple):
    """One kind of command.

    `build` checks its body and makes the item of a script call, `send` queues that for the end of the tick.
    `fill` puts what the store answered into the message of that kind's results; None if they have none. `how`
    says how the lease ends by it, in the words of the store; empty if it goes on. `name` is set for kinds
    without a number: it copies what tells such commands apart from the body into the message of the results.
    `goes_on` says of an answer
    whether it does so after all, `size` how many bytes its result has at most; None where all are alike.
    """

    build: Callable[[Lease, int, Any], Any]
    send: Callable[[Leases, int, Any, Done, Any], None]
    fill: Callable[[Any, Any], None] | None
    how: str = ""
    name: Callable[[Any, Any], None] | None = None
    goes_on: Callable[[Any], bool] | None = None
    size: Callable[[Any], int] | None = None

    def ends(self, reply: Any) -> str:
        """How the lease has ended by a command that was answered OK; empty if it goes on."""
        return "" if self.goes_on is not None and self.goes_on(reply) else self.how

    def bytes_of(self, reply: Any) -> int:
        """About how many bytes the result has."""
        return RESULT_BYTES if self.size is None else self.size(reply)


def _send_finish(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.finish(partition, item, done, context, None, commands.finish_bytes(item))


def _send_checkpoint(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.checkpoint(partition, item, done, context, len(item.output))


def _send_fail(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    size = len(item.details) + len(item.op_details) + len(item.op_resume)
    leases.fail(partition, item, done, context, size)


def _send_release(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.release(partition, item, done, context)


def _send_sleep(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.sleep(partition, item, done, context)


def _send_defer(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.defer(partition, item, done, context)


def _send_start_operation(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.start_operation(partition, item, done, context)


def _send_report_progress(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.report_progress(partition, item, done, context, len(item.details) + len(item.resume))


def _send_wait_signal(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.wait_signal(partition, item, done, context)


def fill_finish(detail: Any, reply: FinishOk) -> None:
    """What a finish answers."""
    fill_ms(detail.finish_time, reply.finished_ms)
    if reply.continuation:
        detail.continuation_turn = reply.continuation


def _fill_checkpoint(detail: Any, reply: CheckpointOk) -> None:
    detail.position = reply.position


def _fill_fail(detail: Any, reply: FailOk) -> None:
    detail.state = reply.state
    if reply.delay_ms:
        fill_ms(detail.retry_delay, reply.delay_ms)


def _fill_sleep(detail: Any, reply: SleepOk) -> None:
    detail.position = reply.position
    fill_ms(detail.wake_time, reply.wake_ms)


def _fill_defer(detail: Any, reply: DeferOk) -> None:
    fill_ms(detail.due_time, reply.due_ms)


def _fill_start_operation(detail: Any, reply: StartOperationOk) -> None:
    fill_ms(detail.remaining, reply.remaining_ms)


def _fill_report_progress(detail: Any, reply: ReportProgressOk) -> None:
    if reply.heartbeat_ms >= 0:
        fill_ms(detail.heartbeat_remaining, reply.heartbeat_ms)


def _name_start_operation(detail: Any, body: Any) -> None:
    detail.position = body.position


def _name_report_progress(detail: Any, body: Any) -> None:
    detail.position = body.position
    detail.sequence = body.sequence


def _fill_wait_signal(detail: Any, reply: WaitSignalOk) -> None:
    detail.position = reply.position
    if reply.suspended:
        detail.suspended = True
        if reply.deadline_ms:
            fill_ms(detail.deadline, reply.deadline_ms)
    else:
        detail.outcome = reply.outcome
        detail.value.SetInParent()
        fill_payload(detail.value, reply.value)


def _wait_goes_on(reply: WaitSignalOk) -> bool:
    return not reply.suspended


def _wait_bytes(reply: WaitSignalOk) -> int:
    return RESULT_BYTES + len(reply.value)


ACTIONS: dict[str, Action] = {
    "finish": Action(commands.finish, _send_finish, fill_finish, "completed"),
    "checkpoint": Action(commands.checkpoint, _send_checkpoint, _fill_checkpoint),
    "fail": Action(commands.fail, _send_fail, _fill_fail, "failed"),
    "release": Action(lambda lease, n, _: commands.release(lease, n), _send_release, None, "released"),
    "sleep": Action(commands.sleep, _send_sleep, _fill_sleep, "sleeping"),
    "defer": Action(commands.defer, _send_defer, _fill_defer, "deferred"),
    "start_operation": Action(
        commands.start_operation, _send_start_operation, _fill_start_operation, name=_name_start_operation
    ),
    "report_progress": Action(
        commands.report_progress, _send_report_progress, _fill_report_progress, name=_name_report_progress
    ),
    "wait_signal": Action(
        commands.wait_signal,
        _send_wait_signal,
        _fill_wait_signal,
        "waiting",
        goes_on=_wait_goes_on,
        size=_wait_bytes,
    ),
}
"""By the name of their field in `Command` and `CommandResult`."""

ENDINGS = frozenset(action.how for action in ACTIONS.values() if action.how)
"""How leases end by commands."""


UNNUMBERED = frozenset(name for name, action in ACTIONS.items() if action.name)
"""Kinds of command that have no number."""


def command_n(name: str | None, n: int) -> int:
    """The number of a command of that kind, checked; 0 for kinds that have none."""
    if name not in UNNUMBERED:
        return commands.check_n(n)
    if n:
        raise InvalidField("n", f"is {n}: a {name} has no number")
    return 0


def unknown() -> Refused:
    """Why a command without an action of the table is refused."""
    return Refused(Reason.UNIMPLEMENTED, "no action, or one that this server does not know")
