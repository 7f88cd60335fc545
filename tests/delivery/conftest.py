"""Fixtures of this folder; its tests run under uvloop, as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from pawl_server.app import Handle, running
from tests.support.api import Api
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer, redis_server, redis_url
from tests.support.server import api, server, settings_for

__all__ = ["api", "quick_api", "quick_server", "redis_server", "redis_url", "server"]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the tests run under."""
    return {"uvloop": uvloop.new_event_loop}


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
