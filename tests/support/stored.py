"""What the store says about an instance, for tests that look behind the API."""

from __future__ import annotations

from pawl_server.app import Handle
from pawl_server.store import records
from tests.support.api import TV
from tests.support.invariants import constants
from tests.support.redis_server import RedisServer

_EVENTS = {number: name for name, number in constants("ledger").items()}


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

    def ready(self, instance_id: str, tv: str = TV) -> bool:
        """Whether the instance is among the ready ones, and its type among those that have some."""
        tag = self.tag(instance_id)
        entry = self.redis.call("ZSCORE", f"{tag}ready:{tv}:0", instance_id)
        return entry is not None and self.redis.call("ZSCORE", f"{tag}types", tv) is not None

    def events(self, instance_id: str) -> list[str]:
        """The names of the instance's ledger events."""
        raw = self.redis.call("LRANGE", f"{self.tag(instance_id)}e:{instance_id}", 0, -1)
        return [_EVENTS[records.ledger_event(event).type] for event in raw]
