"""Waiting for something that another task, thread or process does. The only waiting that tests do."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
HANG_S = 30.0
"""What never comes is waited for this long, unless a test says otherwise."""


async def wait_until(predicate: Callable[[], T | Awaitable[T]], timeout: float = HANG_S, what: str = "") -> T:
    """Returns the first true value of `predicate` (a function or a coroutine function).

    Raises AssertionError after `timeout` seconds, naming `what` or the predicate.
    """
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value  # pyright: ignore[reportReturnType]
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or inspect.getsource(predicate).strip()}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def wait_until_sync(predicate: Callable[[], T], timeout: float = HANG_S, what: str = "") -> T:
    """`wait_until` for tests without an event loop."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or inspect.getsource(predicate).strip()}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return value
