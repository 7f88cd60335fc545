"""The first look at a store: is it fit, is it a cluster, and how was the namespace made?"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import hiredis

from pawl_server.store import scripts_gen
from pawl_server.store.checks import Durability, Facts, inspect, is_cluster
from pawl_server.store.connection import Endpoint, parse_info, require_primary, session
from pawl_server.store.errors import StoreRefused, StoreUnavailable
from pawl_server.store.keys import CLUSTER_PARTITIONS, DEFAULT_PARTITIONS, namespace_tag, partition_tag
from pawl_server.store.lane import LaneOptions
from pawl_server.store.outage import reason
from pawl_server.store.partition import declared
from pawl_server.store.slots import Directory, SlotMap, slot_of
from pawl_server.store.wire import Wire

MAX_PARTITIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a store is opened with. Times are seconds.

    `url` is a `redis://`, `rediss://` or `unix://` address; of a cluster any node will do, or several hosts
    with commas between them. `partitions` None takes what the namespace was made with, or 2, or 64 on a
    cluster. `virtual_time` makes a namespace whose clock only moves when told. `durability_assume` is
    believed only where Redis cannot be asked. `open_timeout` bounds `Store.open`; for the others see
    LaneOptions. `memory_limit` is the share of maxmemory from which admissions are refused.
    """

    url: str
    namespace: str = "default"
    partitions: int | None = None
    virtual_time: bool = False
    durability_assume: Durability | None = None
    open_timeout: float = 10.0
    call_timeout: float = 10.0
    reply_timeout: float = 5.0
    connect_timeout: float = 5.0
    retry_unanswered: bool = True
    memory_limit: float = 0.9
    memory_interval: float = 1.0

    def lane_options(self) -> LaneOptions:
        """The part that concerns lanes."""
        return LaneOptions(
            call_timeout=self.call_timeout,
            reply_timeout=self.reply_timeout,
            connect_timeout=self.connect_timeout,
            retry_unanswered=self.retry_unanswered,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What a first look found. `slots` is None where there is no cluster; `facts` are by node address."""

    tags: list[str]
    facts: dict[str, Facts]
    endpoint: Endpoint
    slots: SlotMap | None


async def first_look(settings: StoreSettings, directory: Directory, deadline: float) -> Found:
    """Checks Redis and opens the namespace, as soon as all primaries that it needs are there.

    Raises StoreRefused at once, StoreUnavailable at `deadline`.
    """
    loop = asyncio.get_running_loop()
    why = ""
    seeds = list(directory.seeds)
    while (left := deadline - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(left, settings.connect_timeout)):
                return await _look(settings, directory, seeds[0])
        except (OSError, StoreUnavailable, hiredis.ReplyError) as error:
            if not (why and isinstance(error, TimeoutError)):
                why = reason(error)  # and not only that the last attempt had little time left
            if isinstance(error, hiredis.ReplyError):
                _refuse_address(seeds[0], str(error))
        seeds.append(seeds.pop(0))
        await asyncio.sleep(random.uniform(0.05, 0.2))
    shown = ", ".join(seed.shown for seed in directory.seeds)
    raise StoreUnavailable(
        f"no usable Redis at {shown} in {settings.open_timeout:g} s: {why}", maybe_applied=False
    )


def _refuse_address(endpoint: Endpoint, error: str) -> None:
    """Raises StoreRefused for an error that no waiting will change."""
    if error.startswith(("WRONGPASS", "NOAUTH")):
        raise StoreRefused("redis_url", f"{endpoint.shown} does not accept the password: {error}") from None
    if error.startswith(("ERR DB index", "ERR SELECT is not allowed")):
        why = f"{endpoint.shown} has no database {endpoint.db}: {error}; a cluster has only database 0"
        raise StoreRefused("redis_url", why) from None


async def _look(settings: StoreSettings, directory: Directory, endpoint: Endpoint) -> Found:
    async with session(endpoint, "pawl-start") as wire:
        if is_cluster(parse_info(await wire.execute("INFO", "server"))):
            return await _look_at_cluster(settings, directory, wire, endpoint)
        if len(directory.seeds) > 1:
            why = f"names several hosts, but {endpoint.shown} is not part of a cluster: name one primary"
            raise StoreRefused("redis_url", why)
        await require_primary(wire)
        facts = await inspect(wire, settings.durability_assume)
        partitions = await _open_namespace(settings, wire, cluster=False)
        return Found(_tags(settings, partitions), {"": facts}, endpoint, None)


async def _look_at_cluster(
    settings: StoreSettings, directory: Directory, wire: Wire, endpoint: Endpoint
) -> Found:
    if endpoint.db:
        why = (
            f"names database {endpoint.db}, but {endpoint.shown} is part of a cluster: there, use database 0"
        )
        raise StoreRefused("redis_url", why)
    slots = await directory.ask(wire, endpoint)
    home = _owner(slots, namespace_tag(settings.namespace))
    async with session(directory.endpoint(home), "pawl-start") as wire:
        await require_primary(wire)
        partitions = await _open_namespace(settings, wire, cluster=True)
    tags = _tags(settings, partitions)
    owners = sorted({_owner(slots, tag) for tag in tags})
    looks = (check_node(directory.endpoint(owner), settings.durability_assume) for owner in owners)
    return Found(tags, dict(zip(owners, await asyncio.gather(*looks), strict=True)), endpoint, slots)


async def check_node(endpoint: Endpoint, assume: Durability | None, *, strict: bool = True) -> Facts:
    """Judges one node, as `inspect`. Raises OSError, hiredis.ReplyError, StoreUnavailable, StoreRefused."""
    async with session(endpoint, "pawl-start") as wire:
        await require_primary(wire)
        return await inspect(wire, assume, strict=strict)


def _owner(slots: SlotMap, tag: str) -> str:
    address = slots.owner(slot_of(tag))
    if not address:
        raise StoreUnavailable(f"no node of the cluster has slot {slot_of(tag)}", maybe_applied=False)
    return address


def _tags(settings: StoreSettings, partitions: int) -> list[str]:
    return [partition_tag(settings.namespace, at, partitions) for at in range(partitions)]


async def _open_namespace(settings: StoreSettings, wire: Wire, *, cluster: bool) -> int:
    """Fixes the namespace's form, or compares it with what was fixed; the number of partitions."""
    wanted = settings.partitions
    if wanted is None:
        wanted = CLUSTER_PARTITIONS if cluster else DEFAULT_PARTITIONS
    if not 1 <= wanted <= MAX_PARTITIONS:
        raise StoreRefused("partitions", f"is {wanted}; it must be 1 to {MAX_PARTITIONS}")
    script = scripts_gen.OPEN_NAMESPACE
    argv = scripts_gen.open_namespace_args(partitions=wanted, virtual=settings.virtual_time)
    keys = declared(namespace_tag(settings.namespace), cluster=cluster)
    raw = await wire.execute("EVAL", script.text, *keys, *argv)
    reply = scripts_gen.open_namespace_decode(raw).replies[0]
    if settings.partitions is not None and reply.partitions != settings.partitions:
        raise wrong_partitions(settings.namespace, reply.partitions, settings.partitions)
    if reply.virtual != settings.virtual_time:
        made, now = ("virtual", "real") if reply.virtual else ("real", "virtual")
        raise StoreRefused(
            "virtual_time",
            f"namespace {settings.namespace} was made with {made} time, this server wants {now} time; "
            "use another namespace",
        )
    return reply.partitions


def wrong_partitions(namespace: str, stored: int, wanted: int) -> StoreRefused:
    """Why a server configured with another number of partitions can't start."""
    return StoreRefused(
        "partitions",
        f"namespace {namespace} was made with {stored} partitions, this server wants {wanted}; the number "
        f"cannot be changed by a start: set it to {stored} or leave it out",
    )
