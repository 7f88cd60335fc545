"""What the store says about an instance, for tests that look behind the API."""

from __future__ import annotations

from pawl_server.app import Handle
from pawl_server.store import records
from tests.support.redis_server import RedisServer


class Stored:
    """Reads records of `handle`'s namespace."""

    def __init__(self, handle: Handle, redis: RedisServer) -> None:
        self.handle = handle
        self.redis = redis

    def tag(self, instance_id: str) -> str:
        """Prefix of the keys of the instance's partition."""
        return self.handle.engine.store.partition_of(instance_id).tag

    def record(self, instance_id: str) -> records.InstanceRecord:
        """The packed record of an instance."""
        raw = self.redis.call("HGET", f"{self.tag(instance_id)}i:{instance_id}", "r")
        return records.instance_record(raw)

    def due(self, member: str, instance_id: str) -> int:
        """Engine ms of a timer of an instance; 0 if there is none."""
        at = self.redis.call("ZSCORE", f"{self.tag(instance_id)}due", f"{member}:{instance_id}")
        return int(float(at)) if at else 0

    def accepted(self, instance_id: str) -> bool:
        """Whether the store knows that the lease was received."""
        return self.record(instance_id).accepted

    def orphaned(self, instance_id: str) -> bool:
        """Whether the lease lost its stream."""
        return self.record(instance_id).orphaned
