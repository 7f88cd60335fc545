"""Running workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pawl.client import Client
from pawl.workflow import Workflow


class Worker:
    """Runs the turns of workflows. Under construction: the interface stands, the work does not."""

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
        raise NotImplementedError

    async def run(self) -> None:
        """Works until `stop`."""
        raise NotImplementedError

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more turns, gives those that run `grace` seconds, then ends."""
        raise NotImplementedError

    def run_forever(self) -> None:
        """Runs an event loop until SIGTERM or SIGINT, then stops gracefully."""
        raise NotImplementedError
