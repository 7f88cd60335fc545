"""Fixtures of this folder; its tests run under uvloop, as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.support.redis_server import redis_server, redis_url
from tests.support.server import engine

__all__ = ["engine", "redis_server", "redis_url"]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the tests run under."""
    return {"uvloop": uvloop.new_event_loop}
