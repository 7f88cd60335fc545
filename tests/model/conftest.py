"""The session's Valkey for the model tests."""

from __future__ import annotations

from tests.support.redis_server import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]
