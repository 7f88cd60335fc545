"""Lanes and stores on a real server. Every test of this folder runs under asyncio's loop and under uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from pawl_server.store.client import Store, StoreSettings
from pawl_server.store.connection import Endpoint, Preparation
from pawl_server.store.lane import Lane, LaneOptions, Link
from pawl_server.store.script_call import Script
from pawl_server.store.wire import Wire
from tests.store import scripts
from tests.support.redis_cluster import cluster, cluster_of_three
from tests.support.redis_server import redis_server, redis_url

__all__ = ["cluster", "cluster_of_three", "redis_server", "redis_url"]

Connect = Callable[..., Awaitable[Lane]]
Open = Callable[..., Awaitable[Store]]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that the tests run under."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def open_store() -> AsyncIterator[Open]:
    """Opens stores; keyword arguments are those of StoreSettings."""
    opened: list[Store] = []

    async def open_(url: str, **settings: Any) -> Store:
        opened.append(await Store.open(StoreSettings(url=url, **settings)))
        return opened[-1]

    yield open_
    for store in opened:
        await store.close()


@pytest.fixture
async def make_lane() -> AsyncIterator[Callable[..., Lane]]:
    """Makes lanes that are not started; they are closed after the test."""
    made: list[Lane] = []

    async def hello(_: Wire) -> None:
        pass

    def make(url: str, *, known: list[Script[Any]] | None = None, **options: Any) -> Lane:
        known = scripts.ALL if known is None else known
        endpoint = Endpoint.parse(url)
        link = Link(endpoint.dial, Preparation(endpoint, "pawl-test", known, hello), known)
        made.append(Lane("test", link, LaneOptions(**options)))
        return made[-1]

    yield make
    for lane in made:
        await lane.close()


@pytest.fixture
async def connect(make_lane: Callable[..., Lane]) -> Connect:
    """Makes a lane that is ready. Keyword arguments are those of LaneOptions, and `known` scripts."""

    async def start(url: str, **options: Any) -> Lane:
        lane = make_lane(url, **options)
        await lane.start(10)
        return lane

    return start
