"""The Lua scripts on a real server. The invariants hold after every test that has a `harness`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.invariants import violations
from tests.support.lua_harness import Harness
from tests.support.redis_server import RedisServer, redis_server, redis_url

__all__ = ["redis_server", "redis_url"]


@pytest.fixture
def harness(redis_server: RedisServer, redis_url: str) -> Iterator[Harness]:
    """A fresh partition in virtual time; the invariants are checked after the test."""
    harness = Harness(redis_server)
    yield harness
    assert violations(redis_server, harness.tag) == []
