"""Running workflows."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from pawl._convert import set_span
from pawl._runtime.runtime import Runtime
from pawl._transport import MAX_MESSAGE_BYTES, SyncRenewer, Transport, WorkCall, resolve_address
from pawl.client import Client
from pawl.v1.worker_service_pb2 import WorkflowRef, WorkHello
from pawl.workflow import Workflow, check_id

log = logging.getLogger("pawl.worker")

MAX_CONCURRENCY = 10_000


class Worker:
    """Runs the turns of workflows.

    ```python
    worker = Worker(workflows=[counter])
    await worker.run()  # or worker.run_forever() outside an event loop
    ```

    The worker never ends by itself: it reconnects for ever, and an attempt that lost its lease is cancelled.

    Args:
        client: server to work for, as a client or an address; default as for `Client`.
        workflows: what to run, at least one. A workflow that names settings stores them if its type has none
            yet.
        concurrency: turns that run at the same time, 1 to 10,000. Also the number of threads for sync
            handlers.
        session: id of this worker process, `[A-Za-z0-9_.-]{1,128}`; default is made of host, process and
            chance. Two processes must not share one.
        labels: free labels for operators, at most 16 with keys and values of at most 128 bytes.
        grace: seconds that running turns get when the worker stops.

    Raises ValueError for what is out of range.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        *,
        workflows: Sequence[Workflow],
        concurrency: int = 64,
        session: str | None = None,
        labels: Mapping[str, str] | None = None,
        grace: float = 30.0,
    ) -> None:
        if not workflows:
            raise ValueError("a worker needs at least one workflow")
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency must be 1 to {MAX_CONCURRENCY}")
        self._workflows = {(item.name, item.version): item for item in workflows}
        if len(self._workflows) != len(workflows):
            raise ValueError("two workflows have the same name and version")
        self.address = client.address if isinstance(client, Client) else resolve_address(client)
        self.session = check_id(session, "session") if session else _new_session()
        self.concurrency = concurrency
        self.grace = grace
        self._labels = dict(labels or {})
        self._runtime: Runtime | None = None
        self._stopped = False

    async def run(self) -> None:
        """Works until `stop` is called.

        Raises InvalidField or Unimplemented if the server refuses what the worker says about itself at first;
        a server that can't be reached is no reason to end. Cancelling the call drops running turns; their
        leases run out.
        """
        if self._runtime is not None:
            raise RuntimeError("the worker runs already")
        if self._stopped:
            return
        address, transport = self.address, Transport(self.address, own=True)
        self._runtime = Runtime(
            transport=transport,
            dial=WorkCall,
            renewer=SyncRenewer(address),
            workflows=self._workflows,
            hello=self._hello(),
            concurrency=self.concurrency,
        )
        try:
            await self._runtime.run()
            log.info("worker %s has stopped", self.session)
        finally:
            self._runtime = None
            await transport.close()

    @property
    def zombies(self) -> int:
        """Handlers that run on although their lease is over. They take no slot."""
        return self._runtime.zombies if self._runtime is not None else 0

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more turns, gives those that run `grace` seconds, then ends `run`.

        Async handlers that are still running then are cancelled and their turns given back, which uses no
        attempt; turns of sync handlers are left to their leases.
        """
        self._stopped = True
        if self._runtime is not None:
            await self._runtime.stop(self.grace if grace is None else grace)

    def run_forever(self) -> None:
        """Runs an event loop (uvloop if installed) until SIGTERM or SIGINT, then stops gracefully.

        A second signal stops without grace.
        """
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._run_with_signals())

    async def _run_with_signals(self) -> None:
        loop = asyncio.get_running_loop()
        stops: set[asyncio.Task[None]] = set()

        def stop() -> None:
            stops.add(loop.create_task(self.stop(0.0 if stops else self.grace)))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            await self.run()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for task in stops:
                task.cancel()

    def _hello(self) -> WorkHello:
        return WorkHello(
            session=self.session,
            sdk="pawl-python",
            sdk_version=_sdk_version(),
            workflows=[_ref(item) for item in self._workflows.values()],
            labels=self._labels,
            max_frame_bytes=MAX_MESSAGE_BYTES // 2,
        )


def _ref(item: Workflow) -> WorkflowRef:
    ref = WorkflowRef(workflow_type=item.name, version=item.version)
    if item.lease_timeout is not None or item.max_attempts is not None:
        ref.settings.name = item.name
        ref.settings.max_attempts = item.max_attempts or 0
        set_span(ref.settings.lease_timeout, item.lease_timeout)
    return ref


def _new_session() -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "worker"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _sdk_version() -> str:
    try:
        return version("pawl-workflows")
    except PackageNotFoundError:
        return "0"


def _loop_factory():
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
