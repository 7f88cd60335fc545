"""Leases: claiming, keeping, moving and ending them, and the commands under them.

Everything here is a list by nature: see collector.py. Answers go to callbacks; `renew_all` and `adopt_all`
are for unary calls that await theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pawl_server.domain.lease import Lease
from pawl_server.domain.states import TurnState
from pawl_server.engine.collector import Collector, Done, Kind, Tick, call
from pawl_server.store import scripts_gen as scripts
from pawl_server.store.errors import StoreDamaged
from pawl_server.store.script_call import Result

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

COMMANDS_PER_CALL = 64
RENEWALS_PER_CALL = 256
CLAIM_BYTES = 1 << 20
DETACHED_MS = 10_000
"""How long a lease lasts that belongs to no stream: the worker renews it until a stream has adopted it."""

OnDue = Callable[["PartitionHandle", int, int], None]
"""Gets a partition, an engine time at which something there is due, and the engine time now; both in ms."""

Ride = Callable[[Any], str]
"""Gets the context of a finish that leaves; answers the type:version to claim with it, or nothing."""


def _ignore(*_: object) -> None:
    """Nobody listens yet."""


class OrphanedLease(NamedTuple):
    """A lease whose stream is gone."""

    lease: Lease
    conn: str
    """The stream, and the decision by which it had the lease."""
    accepted: bool
    """Whether the stream had received the turn."""


class Leases:
    """The leases of all partitions. Use it from the event loop.

    `on_due` hears of timers that a reply has set; background sets it. `on_lost` hears that a lease ended by
    time: conn, lease, how. Delivery sets it.
    """

    def __init__(self, engine: Engine) -> None:
        self.tick = Tick()
        self.on_due: OnDue = _ignore
        self.on_lost: Callable[[str, Lease, str], None] = _ignore
        self._engine = engine
        self._counts = engine.counts
        self._partitions = engine.store.partitions
        self._finish = self._collectors(
            scripts.FINISH, self._finish_args, scripts.finish_decode, _ridden, self._finished
        )
        self._checkpoint = self._collectors(
            scripts.CHECKPOINT, self._checkpoint_args, scripts.checkpoint_decode
        )
        self._fail = self._collectors(scripts.FAIL, self._fail_args, scripts.fail_decode, None, self._failed)
        self._release = self._collectors(scripts.RELEASE, self._release_args, scripts.release_decode)
        self._sleep = self._collectors(
            scripts.SLEEP, self._sleep_args, scripts.sleep_decode, None, self._slept
        )
        self._defer = self._collectors(
            scripts.DEFER, self._defer_args, scripts.defer_decode, None, self._deferred
        )
        self._start_operation = self._collectors(
            scripts.START_OPERATION,
            self._start_operation_args,
            scripts.start_operation_decode,
            None,
            self._operating,
        )
        self._report_progress = self._collectors(
            scripts.REPORT_PROGRESS,
            self._report_progress_args,
            scripts.report_progress_decode,
            None,
            self._reported,
        )
        self._wait_signal = self._collectors(
            scripts.WAIT_SIGNAL, self._wait_signal_args, scripts.wait_signal_decode, None, self._waited
        )
        self._renew = self._collectors(scripts.RENEW, partial(self._renew_args, 0), scripts.renew_decode)
        self._detach = self._collectors(
            scripts.RENEW, partial(self._renew_args, DETACHED_MS), scripts.renew_decode
        )
        self._adopt = self._collectors(scripts.ADOPT, self._adopt_args, scripts.adopt_decode)

    def _collectors(
        self,
        script: Any,
        args: Callable[[list[Any]], list[Any]],
        decode: Callable[[Sequence[Any]], Result[Any]],
        complete: Callable[[Any, Any], Any] | None = None,
        observe: Callable[..., None] | None = None,
    ) -> list[Collector]:
        cut = RENEWALS_PER_CALL if script in (scripts.RENEW, scripts.ADOPT) else COMMANDS_PER_CALL
        kind = Kind(script, args, decode, cut, complete, observe)
        return [Collector(self.tick, partition, kind, self._engine.ready) for partition in self._partitions]

    def decode(self, raw: bytes) -> Lease:
        """Reads a lease that a worker named. Raises InvalidField("lease")."""
        return Lease.decode(raw, len(self._partitions))

    async def time_ms(self) -> int:
        """Engine time of the first partition, the same for all servers. Raises what the store raises."""
        result = await scripts.poll(self._partitions[0], now_ms=self._engine.now_ms)
        return result.now_ms

    # Commands of workers

    def finish(
        self, partition: int, item: scripts.FinishItem, done: Done, context: Any, ride: Ride | None, size: int
    ) -> None:
        """Completes a turn. `ride` decides, when the item leaves, what to claim with it; see FinishItem."""
        self._finish[partition].add((item, ride), done, context, size)

    def checkpoint(
        self, partition: int, item: scripts.CheckpointItem, done: Done, context: Any, size: int
    ) -> None:
        """Saves a step."""
        self._checkpoint[partition].add(item, done, context, size)

    def fail(self, partition: int, item: scripts.FailItem, done: Done, context: Any, size: int = 0) -> None:
        """Ends an attempt."""
        self._fail[partition].add(item, done, context, size)

    def release(self, partition: int, item: scripts.ReleaseItem, done: Done, context: Any) -> None:
        """Gives a turn back."""
        self._release[partition].add(item, done, context)

    def sleep(self, partition: int, item: scripts.SleepItem, done: Done, context: Any) -> None:
        """Saves a sleep and gives the turn back until it is over."""
        self._sleep[partition].add(item, done, context)

    def defer(self, partition: int, item: scripts.DeferItem, done: Done, context: Any) -> None:
        """Puts a turn off."""
        self._defer[partition].add(item, done, context)

    def start_operation(
        self, partition: int, item: scripts.StartOperationItem, done: Done, context: Any
    ) -> None:
        """Registers the step that runs."""
        self._start_operation[partition].add(item, done, context)

    def report_progress(
        self, partition: int, item: scripts.ReportProgressItem, done: Done, context: Any, size: int
    ) -> None:
        """Takes in how far the registered step has come."""
        self._report_progress[partition].add(item, done, context, size)

    def wait_signal(self, partition: int, item: scripts.WaitSignalItem, done: Done, context: Any) -> None:
        """Waits for a signal or a callback."""
        self._wait_signal[partition].add(item, done, context)

    # Holding

    def renew(self, lease: Lease, done: Done, context: Any) -> None:
        """Extends a lease and accepts its delivery."""
        self._renew[lease.partition].add(scripts.RenewItem._make((*lease[1:], 0)), done, context)

    def detach(self, lease: Lease, ordinal: int, done: Done, context: Any) -> None:
        """Parts a lease from its stream, unless a higher ordinal has taken it; it lasts DETACHED_MS then."""
        self._detach[lease.partition].add(scripts.RenewItem._make((*lease[1:], ordinal)), done, context)

    def adopt(self, lease: Lease, conn: str, done: Done, context: Any) -> None:
        """Moves a lease to a stream and renews it."""
        self._adopt[lease.partition].add(scripts.AdoptItem._make((*lease[1:], conn)), done, context)

    def orphan(self, leases: Sequence[OrphanedLease], grace_ms: int) -> None:
        """Shortens leases whose stream is gone to the grace.

        Nobody waits for the answer: if the call fails, the leases run out by themselves.
        """
        by_partition: dict[int, list[scripts.OrphanItem]] = {}
        for lease, conn, accepted in leases:
            item = scripts.OrphanItem._make((*lease[1:], conn, accepted))
            by_partition.setdefault(lease.partition, []).append(item)
        for at, items in by_partition.items():
            partition = self._partitions[at]
            for first in range(0, len(items), RENEWALS_PER_CALL):
                argv = scripts.orphan_args(
                    now_ms=self._engine.now_ms,
                    server=self._engine.server_run,
                    grace_ms=grace_ms,
                    items=items[first : first + RENEWALS_PER_CALL],
                )
                answered = partial(self._orphaned, partition)
                call(partition, scripts.ORPHAN, argv, scripts.orphan_decode, answered)

    def look(
        self,
        partition: int,
        leases: Sequence[Lease],
        answered: Callable[[Result[scripts.GetLeasesReply] | Exception], None],
    ) -> None:
        """Reads how leases of a partition stand, and changes nothing."""
        items = [scripts.GetLeasesItem._make(lease[1:]) for lease in leases]
        argv = scripts.get_leases_args(now_ms=self._engine.now_ms, items=items)
        call(self._partitions[partition], scripts.GET_LEASES, argv, scripts.get_leases_decode, answered)

    async def renew_all(self, leases: Sequence[Lease]) -> list[Any]:
        """Renews each on its own; the replies of `renew`, or StoreDamaged. Raises what the store raises."""
        return await self._gathered(leases, self.renew)

    async def detach_all(self, leases: Sequence[Lease], ordinal: int) -> list[Any]:
        """Detaches each on its own; answers and raises as `renew_all`."""
        return await self._gathered(leases, lambda lease, done, at: self.detach(lease, ordinal, done, at))

    async def adopt_all(self, leases: Sequence[Lease], conn: str) -> list[Any]:
        """Adopts each on its own; the replies of `adopt` in order. Raises what the store raises."""
        return await self._gathered(leases, lambda lease, done, at: self.adopt(lease, conn, done, at))

    async def _gathered(
        self, leases: Sequence[Lease], start: Callable[[Lease, Done, int], None]
    ) -> list[Any]:
        if not leases:
            return []
        replies: list[Any] = [None] * len(leases)
        missing = len(leases)
        complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(at: int, reply: Any, _: int) -> None:
            nonlocal missing
            replies[at] = reply
            missing -= 1
            if not missing and not complete.done():
                complete.set_result(None)

        for at, lease in enumerate(leases):
            start(lease, done, at)
        await complete
        for reply in replies:
            if isinstance(reply, Exception) and not isinstance(reply, StoreDamaged):
                raise reply
        return replies

    # Claims

    def claim(
        self,
        partition: PartitionHandle,
        items: list[scripts.ClaimItem],
        answered: Callable[[Result[scripts.ClaimReply] | Exception], None],
    ) -> None:
        """Claims for streams, in one script. Turns are claimed_turn views of store/records.py."""
        argv = scripts.claim_args(
            now_ms=self._engine.now_ms,
            server=self._engine.server_run,
            delivery_ms=self._engine.settings.delivery_timeout_ms,
            max_bytes=CLAIM_BYTES,
            items=items,
        )
        call(partition, scripts.CLAIM, argv, scripts.claim_decode, answered)

    # What the scripts need

    def _finish_args(self, items: list[scripts.FinishItem]) -> list[Any]:
        limits = self._engine.limits
        return scripts.finish_args(
            now_ms=self._engine.now_ms,
            server=self._engine.server_run,
            max_steps=limits.steps_per_turn,
            max_step=limits.step_output_bytes,
            max_turn=limits.turn_bytes,
            max_state=limits.state_bytes,
            max_reply=limits.reply_bytes,
            max_message=limits.message_bytes,
            delivery_ms=self._engine.settings.delivery_timeout_ms,
            items=items,
        )

    def _checkpoint_args(self, items: list[scripts.CheckpointItem]) -> list[Any]:
        limits = self._engine.limits
        return scripts.checkpoint_args(
            now_ms=self._engine.now_ms,
            server=self._engine.server_run,
            max_steps=limits.steps_per_turn,
            max_step=limits.step_output_bytes,
            max_turn=limits.turn_bytes,
            items=items,
        )

    def _fail_args(self, items: list[scripts.FailItem]) -> list[Any]:
        return scripts.fail_args(now_ms=self._engine.now_ms, server=self._engine.server_run, items=items)

    def _release_args(self, items: list[scripts.ReleaseItem]) -> list[Any]:
        return scripts.release_args(now_ms=self._engine.now_ms, server=self._engine.server_run, items=items)

    def _sleep_args(self, items: list[scripts.SleepItem]) -> list[Any]:
        limits = self._engine.limits
        return scripts.sleep_args(
            now_ms=self._engine.now_ms,
            server=self._engine.server_run,
            max_steps=limits.steps_per_turn,
            max_turn=limits.turn_bytes,
            items=items,
        )

    def _defer_args(self, items: list[scripts.DeferItem]) -> list[Any]:
        return scripts.defer_args(
            now_ms=self._engine.now_ms,
            server=self._engine.server_run,
            max_defers=self._engine.limits.defers_per_turn,
            items=items,
        )

    def _start_operation_args(self, items: list[scripts.StartOperationItem]) -> list[Any]:
        return scripts.start_operation_args(
            now_ms=self._engine.now_ms, server=self._engine.server_run, items=items
        )

    def _report_progress_args(self, items: list[scripts.ReportProgressItem]) -> list[Any]:
        return scripts.report_progress_args(
            now_ms=self._engine.now_ms, server=self._engine.server_run, items=items
        )

    def _wait_signal_args(self, items: list[scripts.WaitSignalItem]) -> list[Any]:
        limits = self._engine.limits
        return scripts.wait_signal_args(
            now_ms=self._engine.now_ms,
            server=self._engine.server_run,
            max_steps=limits.steps_per_turn,
            max_turn=limits.turn_bytes,
            items=items,
        )

    def _renew_args(self, detach_ms: int, items: list[scripts.RenewItem]) -> list[Any]:
        return scripts.renew_args(
            now_ms=self._engine.now_ms, server=self._engine.server_run, detach_ms=detach_ms, items=items
        )

    def _adopt_args(self, items: list[scripts.AdoptItem]) -> list[Any]:
        return scripts.adopt_args(now_ms=self._engine.now_ms, server=self._engine.server_run, items=items)

    # What replies mean to others

    def _finished(
        self, _: PartitionHandle, item: tuple[scripts.FinishItem, Any], reply: Any, now_ms: int
    ) -> None:
        if reply.__class__ is scripts.FinishOk:
            self._counts.turn_ended(TurnState.COMPLETED)
            self._engine.awaits.notify(item[0].id, item[0].turn)

    def _failed(self, partition: PartitionHandle, item: scripts.FailItem, reply: Any, now_ms: int) -> None:
        if isinstance(reply, scripts.FailOk) and reply.state != TurnState.CANCELLED:
            self._counts.attempt_failed(reply.state)
            if reply.state == TurnState.FAILED:
                self._engine.awaits.notify(item.id, item.turn)
            elif reply.delay_ms > 0:
                self.on_due(partition, now_ms + reply.delay_ms, now_ms)

    def _slept(self, partition: PartitionHandle, item: scripts.SleepItem, reply: Any, now_ms: int) -> None:
        if isinstance(reply, scripts.SleepOk):
            self.on_due(partition, reply.wake_ms, now_ms)

    def _deferred(self, partition: PartitionHandle, item: scripts.DeferItem, reply: Any, now_ms: int) -> None:
        if isinstance(reply, scripts.DeferOk):
            self.on_due(partition, reply.due_ms, now_ms)

    def _operating(
        self, partition: PartitionHandle, item: scripts.StartOperationItem, reply: Any, now_ms: int
    ) -> None:
        if isinstance(reply, scripts.StartOperationOk):
            left_ms = min(reply.remaining_ms, item.heartbeat_ms or reply.remaining_ms)
            self.on_due(partition, now_ms + left_ms, now_ms)

    def _reported(
        self, partition: PartitionHandle, item: scripts.ReportProgressItem, reply: Any, now_ms: int
    ) -> None:
        if isinstance(reply, scripts.ReportProgressOk) and reply.heartbeat_ms >= 0:
            self.on_due(partition, now_ms + reply.heartbeat_ms, now_ms)

    def _waited(
        self, partition: PartitionHandle, item: scripts.WaitSignalItem, reply: Any, now_ms: int
    ) -> None:
        if isinstance(reply, scripts.WaitSignalOk) and reply.deadline_ms:
            self.on_due(partition, reply.deadline_ms, now_ms)

    def _orphaned(self, partition: PartitionHandle, result: Result[scripts.OrphanReply] | Exception) -> None:
        if isinstance(result, Exception):
            return
        ends = [reply.deadline_ms for reply in result.replies if isinstance(reply, scripts.OrphanOk)]
        if ends:
            self._counts.orphaned["stream"] += len(ends)
            self.on_due(partition, min(ends), result.now_ms)
        self._engine.ready(partition, result.ready)


def _ridden(entry: tuple[scripts.FinishItem, Ride | None], context: Any) -> scripts.FinishItem:
    item, ride = entry
    if ride is None:
        return item
    tv = ride(context)
    return scripts.FinishItem._make((*item[:18], tv, item[19])) if tv else item
