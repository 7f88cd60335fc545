"""Fixtures of this folder; its tests run under uvloop, as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from pawl_server.app import Handle
from tests.support.redis_server import RedisServer, redis_server, redis_url
from tests.support.server import api, quick_api, quick_server, server
from tests.support.stored import Stored

__all__ = ["api", "quick_api", "quick_server", "redis_server", "redis_url", "server"]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the tests run under."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def stored(server: Handle, redis_server: RedisServer) -> Stored:
    """What the store says about the instances of `server`."""
    return Stored(server, redis_server)


@pytest.fixture
def quick_stored(quick_server: Handle, redis_server: RedisServer) -> Stored:
    """What the store says about the instances of `quick_server`."""
    return Stored(quick_server, redis_server)
