"""Callers that wait for a turn to finish or to fail for good.

A waiter is entered here first, and only then does the `await` script look at the turn and note that this
server wants to hear of it, so that no end falls between the two. The end arrives as a reply on this server or
as a hint from another one; while anybody waits, every instance waited for is looked at again each poll
interval, so that a lost hint costs a second, never the answer.

The note is one per instance and server, and any end uses it up: waiters for other turns renew it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from pawl_server.domain.errors import NotFound, Reason, Refused
from pawl_server.engine.coalesce import Coalescer
from pawl_server.store import scripts_gen
from pawl_server.store.errors import StoreError
from pawl_server.store.scripts_gen import AwaitDone, AwaitItem, AwaitNotFound, AwaitReply

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine

_Waiters = dict[int, set["asyncio.Future[None]"]]
"""Of one instance: turn -> futures of its waiters."""


class Awaits:
    """Waiting callers of this server, by instance and turn."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, _Waiters] = {}
        self._looks: dict[str, bool] = {}
        """Instances that are looked at now, and whether something happened to them since."""
        self._poll: asyncio.TimerHandle | None = None
        self._closed = False
        self._checks: Coalescer[AwaitItem, AwaitReply] = Coalescer(
            lambda partition, items: partition.call(
                scripts_gen.AWAIT,
                scripts_gen.await_args(now_ms=engine.now_ms, server=engine.server_run, items=items),
            ),
            scripts_gen.await_decode,
            lambda partition, result: engine.ready(partition, result.ready),
        )

    @property
    def count(self) -> int:
        """Callers that wait now."""
        return sum(len(futures) for turns in self._waiting.values() for futures in turns.values())

    async def wait(self, instance_id: str, turn: int, seconds: float, *, noted: bool = False) -> bool:
        """Waits until the turn is finished or failed for good; False if `seconds` passed before.

        With `noted` the store knows already that this server waits: that saves the first look.

        Raises NotFound for a turn that was never admitted, Refused(DRAINING) when the server stops, or a
        StoreError if the turn could not be looked at even once.
        """
        if self._closed:
            raise _draining()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns = self._waiting.setdefault(instance_id, {})
        turns.setdefault(turn, set()).add(future)
        self._arm_poll()
        try:
            async with asyncio.timeout(seconds):
                if not noted:
                    reply = await self._check(instance_id, turn)
                    if isinstance(reply, AwaitNotFound):
                        raise NotFound("turn", f"{instance_id}/{turn}")
                    if isinstance(reply, AwaitDone):
                        return True
                await future
                return True
        except TimeoutError:
            return False
        finally:
            self._leave(instance_id, turn, future)

    def notify(self, instance_id: str, turn: int) -> None:
        """Says that a turn finished or failed for good. Never raises; cheap when nobody waits."""
        turns = self._waiting.get(instance_id)
        if turns is not None:
            self._ended(turns, turn)
            self._look_again(instance_id)

    def close(self) -> None:
        """Ends all waiting with DRAINING."""
        self._closed = True
        if self._poll is not None:
            self._poll.cancel()
        for turns in self._waiting.values():
            for futures in turns.values():
                for future in futures:
                    if not future.done():
                        future.set_exception(_draining())

    def _check(self, instance_id: str, turn: int) -> asyncio.Future[AwaitReply]:
        partition = self._engine.store.partition_of(instance_id)
        return self._checks.submit(partition, AwaitItem(instance_id, turn))

    @staticmethod
    def _ended(turns: _Waiters, turn: int) -> None:
        """A turn may end before others that were admitted earlier: one that is cancelled, for example."""
        for future in turns.get(turn, ()):
            if not future.done():
                future.set_result(None)

    def _look_again(self, instance_id: str) -> None:
        """Looks at the oldest turn that is waited for, and so renews the note for all of the instance.

        If turns behind it have ended, it looks at all the others as well: the first end uses up the note, so
        that nobody may have said anything about the next one. What has ended lets its waiters read the turn,
        and the next oldest one is due.
        """
        if instance_id in self._looks:
            self._looks[instance_id] = True
        elif turns := self._open_turns(instance_id):
            self._looks[instance_id] = False
            self._look(instance_id, [min(turns)], oldest=True)

    def _open_turns(self, instance_id: str) -> list[int]:
        turns = self._waiting.get(instance_id, {})
        return [turn for turn, futures in turns.items() if any(not each.done() for each in futures)]

    def _look(self, instance_id: str, turns: list[int], *, oldest: bool) -> None:
        def answered(looks: asyncio.Future[list[AwaitReply | BaseException]]) -> None:
            again = self._looks.pop(instance_id)
            passed = False
            for turn, reply in zip(turns, [] if looks.cancelled() else looks.result(), strict=False):
                if isinstance(reply, scripts_gen.AwaitPending):
                    passed = passed or reply.passed
                elif not isinstance(reply, StoreError | asyncio.CancelledError):  # the next poll asks again
                    self._ended(self._waiting.get(instance_id, {}), turn)
                    again = True
            others = self._open_turns(instance_id) if oldest and passed else []
            if len(others) > 1:
                self._looks[instance_id] = again
                self._look(instance_id, sorted(others)[1:], oldest=False)
            elif again:
                self._look_again(instance_id)

        looks = asyncio.gather(*(self._check(instance_id, turn) for turn in turns), return_exceptions=True)
        looks.add_done_callback(answered)

    def _leave(self, instance_id: str, turn: int, future: asyncio.Future[None]) -> None:
        if future.done() and not future.cancelled():
            future.exception()  # seen, whoever left first
        turns = self._waiting[instance_id]
        futures = turns[turn]
        futures.discard(future)
        if not futures:
            del turns[turn]
            if not turns:
                del self._waiting[instance_id]

    def _arm_poll(self) -> None:
        if self._poll is None:
            seconds = self._engine.settings.poll_interval_ms / 1000 * random.uniform(0.8, 1.2)
            self._poll = asyncio.get_running_loop().call_later(seconds, self._poll_all)

    def _poll_all(self) -> None:
        self._poll = None
        if not self._waiting or self._closed:
            return
        for instance_id in self._waiting:
            self._look_again(instance_id)
        self._arm_poll()


def _draining() -> Refused:
    return Refused(Reason.DRAINING, "the server is stopping")
