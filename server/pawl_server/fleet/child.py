"""`python -m pawl_server.fleet.child`: one of several processes. Its order comes over standard input.

It stops in good order on SIGTERM, and when its input closes, because then its parent is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence

from pawl_server import logs
from pawl_server.app import CANNOT_START, Handle, Place, loop_factory, running
from pawl_server.fleet.orders import Lines, Order, Ready, Refusal, report
from pawl_server.store.errors import StoreUnavailable

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2
FAILED, UNAVAILABLE = 1, 3
"""Exit codes of the command line."""


class _Child:
    """What the parent has said, and whether to stop."""

    def __init__(self, order: Order, lines: Lines) -> None:
        self.order = order
        self.low_disk = False
        self.stop = asyncio.Event()
        self._lines = lines

    def hear(self) -> None:
        """News from the parent, or its end."""
        self.take_in(self._lines.read())
        if self._lines.ended:
            asyncio.get_running_loop().remove_reader(_INPUT)
            self.stop.set()

    def take_in(self, lines: Sequence[bytes]) -> None:
        """Lines of news."""
        for line in lines:
            self.low_disk = json.loads(line).get("low_disk", self.low_disk)


def _ready(handle: Handle) -> Ready:
    engine = handle.engine
    metrics = f"http://{handle.metrics.address}/metrics" if handle.metrics else ""
    return Ready(
        handle.address,
        engine.peers.address,
        engine.server_run,
        metrics,
        engine.store.durability.risk,
    )


async def _serve(order: Order, lines: Lines, rest: Sequence[bytes]) -> int:
    child = _Child(order, lines)
    child.take_in(rest)
    loop = asyncio.get_running_loop()
    loop.add_reader(_INPUT, child.hear)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, child.stop.set)
    try:
        async with running(order.settings, Place(lambda: child.low_disk, order.number)) as handle:
            os.write(_OUTPUT, report(_ready(handle)))
            os.dup2(_ERRORS, _OUTPUT)  # nobody reads on
            await child.stop.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal ends the process at once
    except CANNOT_START as error:
        away = isinstance(error, StoreUnavailable)
        reason, code = ("STORE_UNAVAILABLE", UNAVAILABLE) if away else ("CANNOT_START", FAILED)
        os.write(_OUTPUT, report(Refusal(reason, str(error), code)))
        return code
    return 0


def main() -> int:
    """Runs the process; its exit code."""
    lines = Lines(_INPUT)
    while not (given := lines.read()):
        if lines.ended:
            return FAILED
    order = Order.read(given[0])
    logs.set_up(order.settings.log_level, order.settings.log_format, proc=str(order.number))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(order, lines, given[1:]))


if __name__ == "__main__":
    sys.exit(main())
