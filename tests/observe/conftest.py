"""Fixtures of this folder; its tests run under uvloop, as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from pawl_server.observe import waiting
from tests.support.metrics import watched
from tests.support.redis_server import redis_server, redis_url
from tests.support.server import api, quick_api, quick_server, server

__all__ = ["api", "quick_api", "quick_server", "redis_server", "redis_url", "server", "watched"]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the tests run under."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked for each reading."""
    monkeypatch.setattr(waiting, "FRESH_S", 0.0)
