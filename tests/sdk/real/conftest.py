"""The SDK against the real server: one with short beats, and a proxy on the way to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pawl_server.app import Handle, running
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer, redis_server, redis_url
from tests.support.server import settings_for
from tests.support.workers import client, proxy, start_worker

__all__ = ["client", "proxy", "redis_server", "redis_url", "start_worker"]

QUICK: dict[str, Any] = {"beat_interval_ms": 200, "delivery_timeout_ms": 500}


@pytest.fixture
async def server(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Handle]:
    async with running(settings_for(redis_url, **QUICK)) as handle:
        yield handle
    assert violations_everywhere(redis_server) == []
