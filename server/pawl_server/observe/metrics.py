"""The metrics of one server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pawl_server.log_lines import METRICS_LISTENING
from pawl_server.observe.collect import Readiness, Sources, collect
from pawl_server.observe.endpoint import Endpoint
from pawl_server.observe.exposition import Exposition
from pawl_server.observe.lag import LoopLag
from pawl_server.observe.waiting import Waiting

if TYPE_CHECKING:
    from pawl_server.background import Background
    from pawl_server.delivery import Delivery
    from pawl_server.engine import Engine
    from pawl_server.rpc.call import Gate

log = logging.getLogger(__name__)

PATH = "/metrics"


class Metrics:
    """The metrics of one server. `address` is where they can be read, once `start` has returned."""

    def __init__(
        self, engine: Engine, delivery: Delivery, background: Background, gate: Gate, health: Readiness
    ) -> None:
        self._lag = LoopLag()
        self._waiting = Waiting(engine, engine.settings.metrics_types)
        self._sources = Sources(engine, delivery, background, gate, health, self._lag, self._waiting)
        self._exposition = Exposition()
        self._endpoint = Endpoint(PATH, self.page)

    @property
    def address(self) -> str:
        """`host:port`, without the path."""
        return self._endpoint.address

    async def start(self, host: str, port: int) -> None:
        """Serves them. Raises AddressInUse."""
        await self._endpoint.start(host, port)
        METRICS_LISTENING(log, address=self.address)

    async def stop(self) -> None:
        """Ends everything."""
        await self._endpoint.stop()
        await self._waiting.stop()
        self._lag.stop()

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page as it is now, and its content type."""
        await self._waiting.refresh()
        return await self._exposition.render(collect(self._sources), accept)
