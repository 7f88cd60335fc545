"""Commands that come by calls of their own, for a lease that was handed out on any server and stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pawl_server.delivery.actions import ACTIONS, command_n
from pawl_server.engine.refusals import refused

if TYPE_CHECKING:
    from pawl_server.delivery import Delivery


async def apply(delivery: Delivery, name: str, key: bytes, n: int, body: Any) -> Any:
    """Applies one command: what the store answered, or None if it was applied earlier and no more is known.

    `name` is that of the command's field in `Command`, `n` is 0 for those that have no number. Nothing is
    claimed with a finish. A caller that gives up does not stop the command. Raises Refused.
    """
    leases = delivery.engine.leases
    kind = ACTIONS[name]
    lease = leases.decode(key)
    item = kind.build(lease, command_n(name, n), body)
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(_: None, reply: Any, __: int) -> None:
        if kind.how and not isinstance(reply, Exception) and reply.word == "OK" and kind.ends(reply):
            delivery.ended(key, kind.how)
        if not answer.done():
            answer.set_result(reply)

    kind.send(leases, lease.partition, item, done, None)
    reply = await answer
    if isinstance(reply, Exception) or reply.word not in ("OK", "ALREADY"):
        raise refused(lease, reply)
    return reply if reply.word == "OK" else None
