"""Whole servers, clients and workers on a Redis Cluster. The tests run under uvloop, as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.support.redis_cluster import cluster, cluster_of_three

__all__ = ["cluster", "cluster_of_three"]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the tests run under."""
    return {"uvloop": uvloop.new_event_loop}
