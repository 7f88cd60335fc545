"""Table tests of the transitions on a real server. The invariants hold after every test with a `driver`."""

from tests.support.driver import driver
from tests.support.redis_server import redis_server

__all__ = ["driver", "redis_server"]
