"""The parent of several server processes: keeps the port and the store, and N processes running.

It never loads gRPC: it stays small, and may start a process at any time without a thought for threads. A
process that ends is started again with growing pauses; the others have orphaned its leases by then, or its
successor does so with its first beat, which bears the same name.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from pawl_server import log_lines as lines
from pawl_server import logs, ports
from pawl_server.embedded import EmbeddedError, EmbeddedServer, EmbeddedSettings, Folder
from pawl_server.fleet.orders import Order, Ready, Refusal, news, read_report
from pawl_server.settings import Settings

log = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 10.0
STEADY_S = 20.0
"""A process that lived longer is started again after the shortest pause."""
START_MARGIN_S = 20.0
"""How long a process may take to start beyond its wait for the store."""
STOP_MARGIN_S = 5.0
"""How long it may take to stop beyond the grace; then it is killed."""
DISK_S = 1.0
STOPS = (signal.SIGINT, signal.SIGTERM)


class CannotStart(Exception):
    """The processes can't be started as they are set up."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class Child:
    """One place for a process, and whoever is in it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.killed = False
        self.process: asyncio.subprocess.Process | None = None

    @property
    def number(self) -> int:
        """Which of the processes it is."""
        return self.order.number

    @property
    def running(self) -> bool:
        """Whether a process is there."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> Ready | Refusal:
        """Starts a process and returns once it serves, or can't."""
        try:
            self.process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a module of the working folder must not stand in for one of ours
                "-m",
                "pawl_server.fleet.child",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the parent alone
            )
        except OSError as error:
            return Refusal("CANNOT_START", f"process {self.number} can't be started: {error}", 1)
        assert process.stdout is not None
        self.tell(self.order.line())
        patience_s = self.order.settings.start_timeout_ms / 1000 + START_MARGIN_S
        said = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                said = read_report(await process.stdout.readline())
        if said is None:
            self.signal(signal.SIGKILL)
            code = await process.wait()
            said = Refusal("CANNOT_START", f"process {self.number} ended with code {code} as it started", 1)
        return said

    def log_start(self, ready: Ready) -> None:
        """Logs that the process serves."""
        pid = 0 if self.process is None else self.process.pid
        lines.PROCESS_STARTED(log, number=self.number, pid=pid, run=ready.run, reached=ready.reached)

    async def ended(self) -> int:
        """Waits for the end of the process; its exit code, negative for a signal."""
        return 0 if self.process is None else await self.process.wait()

    def tell(self, line: bytes) -> None:
        """Sends a line to the process, if there is one to hear it."""
        if self.process is not None and self.process.stdin is not None and self.running:
            self.process.stdin.write(line)

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if there is one."""
        if self.process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once."""
        self.killed = True
        self.signal(signal.SIGKILL)


class Parent:
    """Runs all processes. `on_ready` hears once when all of them serve, with what the first one said."""

    def __init__(self, settings: Settings, on_ready: Callable[[Ready], None]) -> None:
        self.children: list[Child] = []
        self._settings = settings
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._embedded: EmbeddedServer | None = None

    def stop(self) -> None:
        """Has all processes end in good order; the second time, at once, and this one with them."""
        if not self._stop.is_set():
            self._stop.set()
            return
        for child in self.children:
            child.kill()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    async def run(self) -> int:
        """Runs until it is told to stop; the exit code: 1 if a process had to be killed.

        Raises CannotStart; then nothing is left running.
        """
        async with AsyncExitStack() as stack:
            settings = await self._prepare(stack)
            self.children = [
                Child(Order(_of_process(settings, number), number)) for number in range(settings.processes)
            ]
            stack.push_async_callback(self._end)
            await self._begin()
            keepers = [asyncio.create_task(self._keep(child)) for child in self.children]
            keepers.append(asyncio.create_task(self._watch_disk()))
            await self._stop.wait()
            lines.SERVER_STOPPING(log)
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)
            await self._end()
        lines.SERVER_STOPPED(log)
        return int(any(child.killed for child in self.children))

    # Before and after

    async def _prepare(self, stack: AsyncExitStack) -> Settings:
        """Takes the folder, the port and the store, in this order; the settings that all processes share."""
        settings = self._settings
        try:
            # First the folder: who starts a second server on it is told so, not that its port is taken.
            folder = Folder(settings.data_dir) if settings.redis_url is None else None
            if folder is not None:
                stack.callback(folder.close)
            reservation = ports.Reservation(settings.host, settings.port)
            stack.callback(reservation.close)
            settings = dataclasses.replace(settings, port=reservation.port)
            if folder is not None:
                self._embedded = await EmbeddedServer.start(
                    EmbeddedSettings(folder=settings.data_dir, virtual_time=settings.virtual_time), folder
                )
                stack.push_async_callback(self._embedded.stop)
                settings = dataclasses.replace(settings, redis_url=self._embedded.url)
        except (EmbeddedError, ports.AddressInUse) as error:
            raise CannotStart(Refusal("CANNOT_START", str(error), 1)) from None
        return settings

    async def _begin(self) -> None:
        """Starts all processes at once. Raises CannotStart if one of them can't, unless told to stop."""
        starts = [asyncio.create_task(self._start(child)) for child in self.children]
        stop = asyncio.create_task(self._stop.wait())
        try:
            waiting = {stop, *starts}
            while not stop.done() and len(waiting) > 1:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done - {stop}:
                    each.result()
        finally:
            for each in (stop, *starts):
                each.cancel()
            await asyncio.wait((stop, *starts))
        if not self._stop.is_set():
            first = starts[0].result()
            lines.FLEET_READY(log, processes=len(starts), address=first.address)
            self._on_ready(first)

    @staticmethod
    async def _start(child: Child) -> Ready:
        said = await child.start()
        if isinstance(said, Refusal):
            raise CannotStart(said)
        child.log_start(said)
        return said

    async def _end(self) -> None:
        """Ends all processes: in good order, and those that take too long at once."""
        for child in self.children:
            child.signal(signal.SIGTERM)
        ends = [asyncio.create_task(child.ended()) for child in self.children if child.running]
        if ends:
            await asyncio.wait(ends, timeout=self._settings.stop_grace_ms / 1000 + STOP_MARGIN_S)
            for child in self.children:
                if child.running:
                    lines.PROCESS_KILLED(log, number=child.number)
                    child.kill()
            await asyncio.wait(ends)

    # Meanwhile

    async def _keep(self, child: Child) -> None:
        """Starts the process again whenever it ends."""
        pause_s = BACKOFF_MIN_S
        while True:
            began = time.monotonic()
            code = await child.ended()
            if time.monotonic() - began > STEADY_S:
                pause_s = BACKOFF_MIN_S
            wait_s = pause_s * random.uniform(0.5, 1.0)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)
            lines.PROCESS_ENDED(log, number=child.number, code=code, seconds=wait_s)
            await asyncio.sleep(wait_s)
            said = await child.start()
            child.tell(news(low_disk=self._low_disk))
            if isinstance(said, Refusal):
                lines.PROCESS_REFUSED(log, number=child.number, why=said.text)
            else:
                child.log_start(said)

    @property
    def _low_disk(self) -> bool:
        return self._embedded is not None and self._embedded.low_disk

    async def _watch_disk(self) -> None:
        """Tells the processes when the disk of the embedded store is nearly full, and no longer."""
        told = False
        while True:
            if self._low_disk != told:
                told = self._low_disk
                for child in self.children:
                    child.tell(news(low_disk=told))
            await asyncio.sleep(DISK_S)


def _of_process(settings: Settings, number: int) -> Settings:
    """The settings of one process: a name of its own, which its successor has too."""
    suffix = f"-{number}"
    name = settings.stable_name[: 128 - len(suffix)] + suffix
    return dataclasses.replace(settings, processes=1, server_name=name)


def _nothing() -> None:
    """Nobody has anything to say at first."""


def supervise(
    settings: Settings,
    begun: Callable[[], None] = _nothing,
    *,
    on_ready: Callable[[Ready], None] = lambda _: None,
    on_refusal: Callable[[Refusal], None] | None = None,
    until_input_ends: bool = False,
) -> int:
    """Runs the processes of `settings` until SIGINT or SIGTERM; the exit code: 0, or 1 if not in good order.

    `begun` is called once the log can be written, `on_ready` once all processes serve, `on_refusal` if they
    can't; without it the log says why.
    """
    logs.set_up(settings.log_level, settings.log_format, proc="parent")
    begun()
    try:
        return asyncio.run(_run(settings, on_ready, until_input_ends))
    except CannotStart as error:
        if on_refusal is None:
            lines.SERVER_REFUSED(log, why=error.refusal.text)
        else:
            on_refusal(error.refusal)
        return 1


async def _run(settings: Settings, on_ready: Callable[[Ready], None], until_input_ends: bool) -> int:
    parent = Parent(settings, on_ready)
    loop = asyncio.get_running_loop()
    for number in STOPS:
        loop.add_signal_handler(number, parent.stop)
    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), _on_input, parent)
    return await parent.run()


def _on_input(parent: Parent) -> None:
    """Stops once standard input is closed; what comes before is passed over."""
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        parent.stop()
