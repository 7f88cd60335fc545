"""The server that the examples of the pages talk to."""

from tests.support.redis_server import redis_server, redis_url
from tests.support.server import server

__all__ = ["redis_server", "redis_url", "server"]
