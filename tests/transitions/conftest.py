"""Table tests of the transitions on a real server. The invariants hold after every test with a `driver`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.driver import Driver
from tests.support.redis_server import RedisServer, redis_server

__all__ = ["redis_server"]


@pytest.fixture
def driver(redis_server: RedisServer) -> Iterator[Driver]:
    """A fresh partition in virtual time; the invariants are checked after the test.

    Redis keeps the scripts: to load them anew takes longer than most tests.
    """
    redis_server.call("FLUSHALL")
    driver = Driver(redis_server)
    yield driver
    assert driver.violations() == []
