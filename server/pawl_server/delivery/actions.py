"""What each kind of command asks of the store, and what its answer says.

One table for the commands of streams and for unary calls: they differ in how they travel, in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pawl_server.delivery import commands
from pawl_server.delivery.frames import fill_ms
from pawl_server.domain.errors import Reason, Refused
from pawl_server.domain.lease import Lease
from pawl_server.engine.collector import Done
from pawl_server.engine.leases import Leases
from pawl_server.store.scripts_gen import CheckpointOk, DeferOk, FailOk, FinishOk, SleepOk


class Action(NamedTuple):
    """One kind of command.

    `build` checks its body and makes the item of a script call, `send` queues that for the end of the tick.
    `fill` puts what the store answered into the message of that kind's results; None if they have none. `how`
    says how the lease ends by it, in the words of the store; empty if it goes on.
    """

    build: Callable[[Lease, int, Any], Any]
    send: Callable[[Leases, int, Any, Done, Any], None]
    fill: Callable[[Any, Any], None] | None
    how: str = ""


def _send_finish(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.finish(partition, item, done, context, None, commands.finish_bytes(item))


def _send_checkpoint(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.checkpoint(partition, item, done, context, len(item.output))


def _send_fail(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.fail(partition, item, done, context, len(item.details))


def _send_release(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.release(partition, item, done, context)


def _send_sleep(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.sleep(partition, item, done, context)


def _send_defer(leases: Leases, partition: int, item: Any, done: Done, context: Any) -> None:
    leases.defer(partition, item, done, context)


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


ACTIONS: dict[str, Action] = {
    "finish": Action(commands.finish, _send_finish, fill_finish, "completed"),
    "checkpoint": Action(commands.checkpoint, _send_checkpoint, _fill_checkpoint),
    "fail": Action(commands.fail, _send_fail, _fill_fail, "failed"),
    "release": Action(lambda lease, n, _: commands.release(lease, n), _send_release, None, "released"),
    "sleep": Action(commands.sleep, _send_sleep, _fill_sleep, "sleeping"),
    "defer": Action(commands.defer, _send_defer, _fill_defer, "deferred"),
}
"""By the name of their field in `Command` and `CommandResult`."""

ENDINGS = frozenset(action.how for action in ACTIONS.values() if action.how)
"""How leases end by commands."""


def unknown() -> Refused:
    """Why a command without an action of the table is refused."""
    return Refused(Reason.UNIMPLEMENTED, "no action, or one that this server does not know")
