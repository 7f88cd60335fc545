"""Embedded servers in folders of their own. Every async test runs under asyncio's loop and under uvloop."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pawl_server.embedded import EmbeddedServer, EmbeddedSettings
from tests.support.redis_server import Control

Start = Callable[..., Awaitable[EmbeddedServer]]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that the tests run under."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder that does not exist yet, with a short path: pytest's own are too long for sockets."""
    parent = Path(tempfile.mkdtemp(prefix="pawle-"))
    yield parent / "data"
    shutil.rmtree(parent)


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    """Starts servers, by default in `folder`; they are stopped after the test."""
    started: list[EmbeddedServer] = []

    async def run(**settings: Any) -> EmbeddedServer:
        started.append(await EmbeddedServer.start(EmbeddedSettings(**{"folder": folder, **settings})))
        return started[-1]

    yield run
    for server in started:
        await server.stop()


@pytest.fixture
def call() -> Callable[..., Any]:
    """Sends one command to a server and returns the reply."""

    def send(server: EmbeddedServer, *args: str | int) -> Any:
        control = Control(server.socket)
        try:
            return control.call(*args)
        finally:
            control.close()

    return send
