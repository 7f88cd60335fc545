"""What the server says about itself."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pawl.v1.admin_service_pb2 import Durability, GetServerInfoResponse
from pawl.v1.fleet_pb2 import Fleet, Server
from pawl_server.domain.times import duration, timestamp
from pawl_server.store import scripts_gen
from pawl_server.store.errors import StoreError
from pawl_server.version import VERSION

if TYPE_CHECKING:
    from pawl_server.engine.core import Engine

CAPABILITIES = (
    "work-stream", "claim-stream", "poll-turn", "unary-commands", "sleep", "defer", "renew-detach",
    "adopt-leases", "send-and-wait", "signals",
)  # fmt: skip


class Info:
    """Facts for GetServerInfo, and the engine's clock as this server last saw it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen_ms = 0
        self._seen_at = time.monotonic()
        self._start_ms = 0

    async def refresh(self) -> None:
        """Reads the engine's clock. Raises a StoreError."""
        result = await scripts_gen.get_instance(
            self._engine.store.partitions[0], now_ms=self._engine.now_ms, items=()
        )
        self._seen_ms, self._seen_at = result.now_ms, time.monotonic()
        self._start_ms = self._start_ms or result.now_ms

    async def get(self, patience_s: float) -> GetServerInfoResponse:
        """The facts, within `patience_s`; without the store its clock is carried on from the last answer."""
        engine, store = self._engine, self._engine.store
        reachable = store.connected
        if reachable:
            try:
                async with asyncio.timeout(patience_s):
                    await self.refresh()
            except (StoreError, TimeoutError):
                reachable = False
        now_ms = self._seen_ms
        if not store.settings.virtual_time:
            now_ms += int((time.monotonic() - self._seen_at) * 1000)
        level = f"DURABILITY_{'ASSUMED' if store.durability_assumed else store.durability.upper()}"
        return GetServerInfoResponse(
            version=VERSION,
            server_name=engine.server_name,
            server_run=engine.server_run,
            namespace=engine.namespace,
            partitions=len(store.partitions),
            durability=Durability.Value(level),
            durability_assumed=store.durability if store.durability_assumed else "",
            store=store.store_name,
            limits=engine.limits.as_map(),
            beat_interval=duration(engine.settings.beat_interval_ms),
            capabilities=CAPABILITIES,
            engine_time=timestamp(now_ms),
            start_time=timestamp(self._start_ms),
            virtual_time=store.settings.virtual_time,
            store_reachable=reachable,
            address=engine.peers.address,
            fleet=Fleet(servers=[Server(server_run=run, address=at) for run, at in engine.peers.servers]),
        )
