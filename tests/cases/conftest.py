"""Faults that real systems of this field had, each replayed from end to end over a real server.

A file is named after its case and begins with what is given, done and expected. The tests run under uvloop,
as servers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from pawl_server.app import Handle
from tests.support.redis_server import RedisServer, redis_server, redis_url
from tests.support.server import api, quick_api, quick_server, server
from tests.support.stored import Stored
from tests.support.workers import client, proxy, start_worker

__all__ = [
    "api", "client", "proxy", "quick_api", "quick_server", "redis_server", "redis_url", "server",
    "start_worker",
]  # fmt: skip


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
