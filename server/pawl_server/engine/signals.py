"""Signals and results of callbacks: given to turns from outside."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from pawl_server.domain.errors import BodyConflict, LimitExceeded, NotFound, Reason, Refused
from pawl_server.domain.states import TurnState
from pawl_server.engine.coalesce import Coalescer
from pawl_server.store import scripts_gen
from pawl_server.store.scripts_gen import SignalItem, SignalOk, SignalReply

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine
    from pawl_server.store.client import PartitionHandle

__all__ = ["SignalItem", "SignalOk", "Signals"]

RECORD_BYTES = 512
"""Most bytes of a message record beyond its message and origin."""


class Signals:
    """Gives signals; all that arrive in one event-loop tick become one list per partition."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._signals: Coalescer[SignalItem, SignalReply] = Coalescer(
            self._start,
            scripts_gen.signal_decode,
            lambda partition, result: engine.ready(partition, result.ready),
        )

    async def give(self, item: SignalItem) -> SignalOk:
        """Gives one signal, or the result of a callback; the first answer if that was done before.

        Raises NotFound, BodyConflict, LimitExceeded, Refused(PRUNED, WRONG_STATE), Refused(OVERLOADED) near
        the store's memory limit, or a StoreError: then it may or may not have been received, and giving it
        again is safe.
        """
        self._engine.admit()
        partition = self._engine.store.partition_of(item.id)
        reply = await self._signals.submit(partition, item, len(item.value))
        if type(reply) is SignalOk:
            return reply
        raise _refusal(item, reply)

    def _start(self, partition: PartitionHandle, items: list[SignalItem]) -> Awaitable[Any]:
        engine, limits = self._engine, self._engine.limits
        argv = scripts_gen.signal_args(
            now_ms=engine.now_ms,
            server=engine.server_run,
            max_signals=limits.signals_per_turn,
            max_signal=limits.signal_bytes,
            max_turn=limits.turn_bytes,
            reserve=limits.message_bytes + limits.origin_bytes + RECORD_BYTES,
            items=items,
        )
        return partition.call(scripts_gen.SIGNAL, argv)


def _refusal(item: SignalItem, reply: SignalReply) -> Refused:
    name = f"{item.id}/{item.turn}" if item.turn else item.id
    match reply:
        case scripts_gen.SignalNotFound():
            return NotFound("turn" if item.turn else "instance", name)
        case scripts_gen.SignalPruned():
            return Refused(Reason.PRUNED, f"turn {name} was trimmed", {"resource": "turn", "name": name})
        case scripts_gen.SignalWrongState(state=state):
            found = TurnState(state).name
            return Refused(Reason.WRONG_STATE, f"turn {name} is {found}", {"state": found})
        case scripts_gen.SignalBodyConflict():
            if item.callback:
                return BodyConflict("callback", item.callback, "has another result")
            return BodyConflict("signal", item.signal_id)
        case scripts_gen.SignalLimitExceeded(limit=limit, value=value, max=maximum):
            return LimitExceeded(limit, value, maximum)
        case _:
            return Refused(Reason.INTERNAL, f"unexpected reply {reply.word}")
