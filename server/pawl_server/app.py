"""The composition root, the only file that knows every layer: starts a server and stops it cleanly.

`running` is for whoever has an event loop (the command line, tests), `serve` for a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from pawl.testing.v1 import clock_service_pb2
from pawl.v1 import worker_service_pb2
from pawl_server import log_lines as lines
from pawl_server import logs, ports
from pawl_server.background import Background
from pawl_server.delivery import LAST_FRAMES_S, Delivery
from pawl_server.delivery.rest import Floor
from pawl_server.embedded import EmbeddedError, EmbeddedServer, EmbeddedSettings, Folder
from pawl_server.engine import Engine, new_server_run
from pawl_server.engine.clock import Clock
from pawl_server.ports import AddressInUse
from pawl_server.rpc.call import Gate
from pawl_server.rpc.clock_service import ClockService
from pawl_server.rpc.server import Extra, RpcServer, service
from pawl_server.rpc.worker_service import WorkerService
from pawl_server.settings import BadSetting, Settings, host_and_port
from pawl_server.store.checks import Durability
from pawl_server.store.client import Store, StoreSettings
from pawl_server.store.errors import StoreError, StoreRefused, StoreUnavailable
from pawl_server.version import VERSION

if TYPE_CHECKING:
    from pawl_server.observe.metrics import Metrics

__all__ = ["CANNOT_START", "Handle", "Place", "Settings", "loop_factory", "running", "serve"]

log = logging.getLogger(__name__)

CANNOT_START = (AddressInUse, BadSetting, EmbeddedError, StoreRefused, StoreUnavailable)
"""What `running` raises when the server can't be started as it is set up; the text names what to change."""

TYPE_SYNC_S = 60.0


class Handle:
    """A running server. `settings` has the port that was taken, `address` is what clients connect to.

    `engine.peers.address` reaches this very server, `address` perhaps another one of several processes.
    """

    def __init__(
        self,
        settings: Settings,
        address: str,
        engine: Engine,
        delivery: Delivery,
        background: Background,
        gate: Gate,
        metrics: Metrics | None,
        stack: AsyncExitStack,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.delivery = delivery
        self.background = background
        self.gate = gate
        self.metrics = metrics
        self.address = address
        self._stack = stack

    async def stop(self) -> None:
        """Stops in good order, within the grace of the settings; once, however often it is called."""
        await self._stack.aclose()


class Place(NamedTuple):
    """What sets one of several processes apart from a server of its own."""

    low_disk: Callable[[], bool]
    """Whether the disk of the embedded server is nearly full: their parent knows."""
    number: int = 0
    """Which of them it is, from 0 on. Its metrics are on the port of the setting plus that."""


@asynccontextmanager
async def running(settings: Settings, place: Place | None = None) -> AsyncIterator[Handle]:
    """Runs one server in the caller's event loop until the block ends.

    With a `place` it shares its port with others, and listens on a port of its own as well. Raises one of
    CANNOT_START, which names what to change; then nothing is left running.
    """
    async with AsyncExitStack() as stack:
        yield await _start(settings, place, stack)


async def _start(settings: Settings, place: Place | None, stack: AsyncExitStack) -> Handle:
    # First the folder: who starts a second server on it is told so, not that its port is taken.
    folder = Folder(settings.data_dir) if settings.redis_url is None else None
    if folder is not None:
        stack.callback(folder.close)
    rpc = RpcServer(shared=place is not None)
    stack.push_async_callback(rpc.stop, 0.0)
    address = rpc.bind(settings.host, settings.port)
    if not settings.host.startswith("unix:"):
        settings = dataclasses.replace(settings, port=int(address.rpartition(":")[2]))
    own_address = address if place is None else rpc.bind(settings.host, 0)
    embedded, url = None, settings.redis_url
    if url is None:
        chosen = EmbeddedSettings(folder=settings.data_dir, virtual_time=settings.virtual_time)
        embedded = await EmbeddedServer.start(chosen, folder)
        stack.push_async_callback(embedded.stop)
        url = embedded.url
    store = await Store.open(_store_settings(settings, url))
    stack.push_async_callback(store.close)
    engine = Engine(store, settings, new_server_run())
    stack.push_async_callback(engine.events.close)
    engine.peers.address = _reachable(settings, own_address)
    if place is not None:
        engine.low_disk = place.low_disk
    elif embedded is not None:
        low = embedded
        engine.low_disk = lambda: low.low_disk
    await engine.types.sync()
    await engine.info.refresh()
    delivery = Delivery(engine, settings)
    await delivery.start()
    stack.push_async_callback(delivery.stop)
    background = Background(engine, delivery)
    await background.start()
    stack.push_async_callback(background.stop)
    sync = asyncio.get_running_loop().create_task(_keep_types(engine), name="type sync")
    stack.push_async_callback(_cancel, sync)
    gate = Gate(settings.max_calls_in_flight, store.durability.value)
    metrics = None
    if settings.metrics_address:
        from pawl_server.observe.metrics import Metrics  # with a library that takes a while to import

        metrics = Metrics(engine, delivery, background, gate, rpc)
        stack.push_async_callback(metrics.stop)
        await metrics.start(*_metrics_address(settings, place))
    services: list[Extra] = [
        (service(worker_service_pb2, "WorkerService"), WorkerService(delivery, gate)),
    ]
    if settings.virtual_time:
        clock = Clock(engine, background.timers, Floor(delivery))
        services.append((service(clock_service_pb2, "ClockService"), ClockService(clock, gate)))
    await rpc.start(engine, gate, services)
    stack.push_async_callback(_drain, settings, rpc, engine, delivery, background)
    _announce(engine, address, embedded)
    return Handle(settings, address, engine, delivery, background, gate, metrics, stack)


def _metrics_address(settings: Settings, place: Place | None) -> tuple[str, int]:
    host, port = host_and_port("PAWL_METRICS_ADDRESS", settings.metrics_address)
    return host, port + (place.number if place is not None and port else 0)


async def _drain(
    settings: Settings, rpc: RpcServer, engine: Engine, delivery: Delivery, background: Background
) -> None:
    """No new calls, then the workers move away, then what is left of the calls ends."""
    lines.SERVER_STOPPING(log)
    grace_s = settings.stop_grace_ms / 1000
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    delivery.leave()
    background.beats.now()
    await rpc.drain(grace_s + LAST_FRAMES_S)
    engine.awaits.close()
    await asyncio.gather(delivery.drain(grace_s), engine.events.drain(grace_s))
    await rpc.stop(max(0.0, deadline - loop.time()))
    lines.SERVER_STOPPED(log)


def _store_settings(settings: Settings, url: str) -> StoreSettings:
    silence_s = settings.store_timeout_ms / 1000
    assume = settings.durability_assume
    return StoreSettings(
        url=url,
        namespace=settings.namespace,
        partitions=settings.partitions,
        virtual_time=settings.virtual_time,
        durability_assume=Durability(assume) if assume else None,
        open_timeout=settings.start_timeout_ms / 1000,
        call_timeout=2 * silence_s,
        reply_timeout=silence_s,
        connect_timeout=silence_s,
    )


async def _keep_types(engine: Engine) -> None:
    """Repairs, now and then, copies of type settings that a crash has left behind."""
    while True:
        # One server does it for all; the others only now and then.
        await asyncio.sleep(TYPE_SYNC_S * (1 + 10 * engine.peers.rank(0)) * random.uniform(0.8, 1.2))
        try:
            copies = await engine.types.sync()
        except StoreError as error:
            lines.TYPES_UNKNOWN(log, why=str(error))
        else:
            if copies:
                lines.TYPES_REPAIRED(log, copies=copies)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _reachable(settings: Settings, bound: str) -> str:
    """The address under which others reach what listens on `bound`; empty if there is none."""
    if bound.startswith("unix:"):
        return bound
    host = settings.advertise_host or ports.reachable(settings.host)
    return host and ports.join(host, int(bound.rpartition(":")[2]))


def _announce(engine: Engine, address: str, embedded: EmbeddedServer | None) -> None:
    store = engine.store
    lines.SERVER_LISTENING(
        log,
        address=address,
        version=VERSION,
        server=engine.server_name,
        run=engine.server_run,
        reached=engine.peers.address,
        store=store.store_name,
        at="embedded" if embedded else store.address,
        folder=str(embedded.folder) if embedded else None,
        durability=f"{store.durability}{' (assumed)' if store.durability_assumed else ''}",
        namespace=engine.namespace,
        partitions=len(store.partitions),
    )
    if store.durability.risk:
        lines.DURABILITY_RISK(log, risk=store.durability.risk)


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running(settings):
            await stop.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal ends the process at once
    except CANNOT_START as error:
        lines.SERVER_REFUSED(log, why=str(error))
        return 1
    return 0


def serve(settings: Settings, begun: Callable[[], None] = lambda: None) -> int:
    """Runs a server in this process until SIGINT or SIGTERM; the exit code: 0, or 1 if it can't start.

    `begun` is called once the log can be written.
    """
    logs.set_up(settings.log_level, settings.log_format)
    begun()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is uvloop: a stream round trip takes a third less."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
