"""What Pawl needs from a Redis, checked once at start. Each refusal names the setting to change and how.

INFO is asked first because managed services allow it; CONFIG GET only for what INFO does not say. What
neither shows must be vouched for by the operator (`durability_assume`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pawl_server.log_lines import NODE_RISK, STORE_ADVICE
from pawl_server.store.connection import forgiving, parse_info
from pawl_server.store.errors import StoreRefused
from pawl_server.store.wire import Wire

log = logging.getLogger(__name__)

OLDEST = (7, 0)
"""Oldest version of the Redis protocol and commands that works; Valkey reports the one it is compatible
with."""

CONFIG_NAMES = ("appendfsync", "min-replicas-to-write", "hash-max-listpack-value", "aof-use-rdb-preamble")


class Durability(StrEnum):
    """What an acknowledged write survives."""

    FSYNC = "fsync"
    """Crash and restart of the primary, power loss included."""
    EVERYSEC = "everysec"
    """The same, but for the last two seconds."""
    MEMORY = "memory"
    """Nothing that ends Redis."""

    @property
    def risk(self) -> str:
        """What can be lost, and what to set; empty for `fsync`."""
        if self is Durability.FSYNC:
            return ""
        if self is Durability.EVERYSEC:
            why, what = "a crash of Redis can lose the last two seconds", "appendfsync always"
        else:
            why, what = "a restart of Redis loses everything", "appendonly yes and appendfsync always"
        return f"durability {self}: {why}; set {what}"


_LEVELS = (Durability.MEMORY, Durability.EVERYSEC, Durability.FSYNC)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks found. `assumed` says that `durability` is the operator's word, not Redis'."""

    name: str
    version: str
    durability: Durability
    assumed: bool
    replicas: int
    maxmemory: int

    @property
    def store_name(self) -> str:
        """Such as `valkey 9.1.2`."""
        return f"{self.name} {self.version}"


def weakest(facts: Iterable[Facts]) -> Facts:
    """What holds on every node of a cluster: the facts of the one that promises least."""
    return min(facts, key=lambda one: (_LEVELS.index(one.durability), not one.assumed, one.store_name))


def is_cluster(info: Mapping[str, str]) -> bool:
    """Whether INFO is that of a node in cluster mode."""
    return "cluster" in (info.get("redis_mode"), info.get("server_mode"))


async def inspect(wire: Wire, assume: Durability | None = None, *, strict: bool = True) -> Facts:
    """Reads what is needed and judges it.

    Raises StoreRefused for settings that would lose data, hiredis.ReplyError and StoreUnavailable if Redis
    cannot be asked. Without `strict`, for nodes that a running server meets, only what loses data while
    nothing fails is refused; the rest is logged.
    """
    info = parse_info(await wire.execute("INFO"))
    config: dict[str, str] | None = {}
    for name in CONFIG_NAMES:
        pair = await forgiving(wire.execute("CONFIG", "GET", name))
        if pair is None:
            config = None
            break
        config.update({name: pair[1].decode()} if pair else {})
    return judge(info, config, assume, strict=strict)


def judge(
    info: Mapping[str, str],
    config: Mapping[str, str] | None,
    assume: Durability | None,
    *,
    strict: bool = True,
) -> Facts:
    """Judges INFO fields and CONFIG values; `config` is None where CONFIG is not allowed."""
    check_version(info)
    check_eviction(info)
    try:
        replicas = check_replicas(info, config)
        durability, assumed = check_durability(info, config, assume)
    except StoreRefused as risk:
        if strict:
            raise
        NODE_RISK(log, why=str(risk))
        replicas, durability, assumed = int(info.get("connected_slaves", 0)), Durability.MEMORY, False
    advise(config)
    valkey = info.get("valkey_version", "")
    return Facts(
        name="valkey" if valkey else info.get("server_name", "redis"),
        version=valkey or info["redis_version"],
        durability=durability,
        assumed=assumed,
        replicas=replicas,
        maxmemory=int(info.get("maxmemory", 0)),
    )


def check_version(info: Mapping[str, str]) -> None:
    """Refuses what lacks sharded pub/sub and script flags."""
    version = info.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreRefused("redis_version", f"Redis is {version}; use Redis 7.0 or Valkey 7.2 or newer")


def check_eviction(info: Mapping[str, str]) -> None:
    """Refuses a server that may remove keys by itself."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            "maxmemory-policy",
            f"is {policy}, which lets Redis remove inboxes when memory is short; set it to noeviction "
            "(CONFIG SET maxmemory-policy noeviction, and in the configuration file)",
        )


def check_replicas(info: Mapping[str, str], config: Mapping[str, str] | None) -> int:
    """Refuses a primary that goes on alone when it is cut off from its replicas; the number of replicas."""
    replicas = int(info.get("connected_slaves", 0))
    # INFO shows this field only where min-replicas-to-write is in force.
    in_force = "min_slaves_good_slaves" in info or int((config or {}).get("min-replicas-to-write", 0)) > 0
    if replicas and not in_force:
        raise StoreRefused(
            "min-replicas-to-write",
            f"is 0 although {replicas} replicas are connected: a primary that is cut off would take writes "
            "that a failover loses; set it to 1 or more (and min-replicas-max-lag above 0)",
        )
    return replicas


def check_durability(
    info: Mapping[str, str], config: Mapping[str, str] | None, assume: Durability | None
) -> tuple[Durability, bool]:
    """The level, and whether it is assumed. What can be verified is never assumed."""
    if config is None:
        if assume is not None:
            return assume, True
        raise StoreRefused(
            "durability_assume",
            "this Redis does not allow CONFIG GET appendfsync, so what survives a crash cannot be verified; "
            "set durability_assume to fsync, everysec or memory, as its provider promises",
        )
    if info.get("aof_enabled") != "1":
        return Durability.MEMORY, False
    level = {"always": Durability.FSYNC, "everysec": Durability.EVERYSEC}
    return level.get(config.get("appendfsync", ""), Durability.MEMORY), False


def advise(config: Mapping[str, str] | None) -> None:
    """Logs settings that would save memory; none of them is required."""
    value = (config or {}).get("hash-max-listpack-value", "1024")
    if value.isdigit() and int(value) < 1024:
        name, why = "hash-max-listpack-value", "idle instances take less memory"
        STORE_ADVICE(log, setting=name, value=value, better="1024", why=why)
