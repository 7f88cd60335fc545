"""The real server in the test's event loop, on the session's Valkey, and an engine alone in virtual time.

Fixtures (imported by conftest.py files): `server` and `api` for calls over gRPC, `quick_server` and
`quick_api` for those that wait for beats, `engine` for what is below.
The invariants hold after every test that uses one of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pawl_server.app import Handle, running
from pawl_server.engine import Engine, new_server_run
from pawl_server.settings import Settings
from pawl_server.store.client import Store, StoreSettings
from pawl_server.store.waiting import LaneMetrics
from tests.support.api import Api
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.topology import PARTITIONS

NEVER_MS = 60_000
"""A poll interval that no test lives to see: what comes, came as a hint."""
START_MS = 1_800_000_000_000


def settings_for(url: str, **fields: Any) -> Settings:
    """Settings of a server for tests: any free port, a short stop."""
    usual = {
        "port": 0,
        "redis_url": url,
        "partitions": PARTITIONS,
        "stop_grace_ms": 500,
        "log_level": "warning",
    }
    return Settings(**{**usual, **fields})


def lanes(store: Store, kind: str) -> list[LaneMetrics]:
    """Counters of the `hot` or `bulk` lanes of all nodes."""
    return [metrics for name, metrics in store.metrics.items() if name.partition(" ")[0] == kind]


@pytest.fixture
async def server(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Handle]:
    """A running server."""
    async with running(settings_for(redis_url)) as handle:
        yield handle
    assert violations_everywhere(redis_server) == []


@pytest.fixture
async def api(server: Handle) -> AsyncIterator[Api]:
    """A client of `server`."""
    async with Api(server.address) as api:
        yield api


@pytest.fixture
async def quick_server(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Handle]:
    """A server whose beats and delivery timeout are short, for tests that wait for them."""
    settings = settings_for(redis_url, beat_interval_ms=200, delivery_timeout_ms=300, server_name="quick")
    async with running(settings) as handle:
        yield handle
    assert violations_everywhere(redis_server) == []


@pytest.fixture
async def quick_api(quick_server: Handle) -> AsyncIterator[Api]:
    """A client of `quick_server`."""
    async with Api(quick_server.address) as api:
        yield api


@asynccontextmanager
async def open_engine(
    url: str, *, partitions: int | None = PARTITIONS, **fields: Any
) -> AsyncIterator[Engine]:
    """An engine without the layers above, in virtual time: `engine.now_ms` is the clock."""
    store = await Store.open(
        StoreSettings(url=url, namespace="virtual", partitions=partitions, virtual_time=True)
    )
    try:
        settings = settings_for(url, namespace="virtual", poll_interval_ms=NEVER_MS, **fields)
        engine = Engine(store, settings, new_server_run())
        engine.now_ms = START_MS
        yield engine
        engine.awaits.close()
        await engine.events.close()
    finally:
        await store.close()


@pytest.fixture
async def engine(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Engine]:
    """An engine in virtual time with two partitions."""
    async with open_engine(redis_url) as engine:
        yield engine
    assert violations_everywhere(redis_server) == []
