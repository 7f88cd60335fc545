"""The key catalogue: every key that Pawl keeps in Redis, and where its partition lives.

All keys of a partition begin with the partition's tag, `{<namespace>.<partition>.<salt>}`, so that every
transition touches one hash slot. The salt is searched so that partitions spread evenly over the slots of a
cluster. The namespace itself has one key outside the partitions, `{<namespace>}meta`, which fixes the number
of partitions. Nothing is ever found or deleted by pattern.
"""

from __future__ import annotations

import functools
from binascii import crc_hqx
from dataclasses import dataclass

SLOTS = 16384
DEFAULT_PARTITIONS = 2
CLUSTER_PARTITIONS = 64
"""Default on a cluster, where partitions are what spreads the load over nodes."""


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One kind of key under a partition's tag."""

    name: str
    """Keyspace name: the part of the key before the first colon."""
    pattern: str
    """Full name under the tag, with placeholders."""
    type: str
    """Redis type."""
    members: str
    """What its fields, members or elements mean."""
    lifetime: str
    """When it comes and goes."""


_CATALOGUE = (
    KeySpec(
        "meta",
        "meta",
        "hash",
        "run_id, gen, fence, incarnation, outbox (counters), shift, seen, hold (clock), now (virtual clock), "
        "watch (engine ms until which the feed is written), feed (id of its newest entry), virtual, "
        "partitions, min_reader, min_writer (schema)",
        "as long as the namespace",
    ),
    KeySpec(
        "i",
        "i:<id>",
        "hash",
        "r (packed record), y (type:version), o (what creation fixed), s (state), k (step keys of the head), "
        "a (servers awaiting a turn), c (answers to control calls), w (what the head waits for), "
        "d:<message id> (turn), g:<signal id> (turn that a signal to the instance went to), "
        "q:<message id> (delayed message), <turn>.m (message), <turn>.<position> (step), "
        "<turn>.f (last failure), <turn>.h (receipt, last step, reply), <turn>.p (parked message), "
        "<turn>.g (signals received), <turn>.g.<number> (value of one that is not consumed)",
        "as long as the instance; fields of a turn until trimmed",
    ),
    KeySpec(
        "e",
        "e:<id>",
        "list",
        "ledger events; index = seq - base",
        "as long as the instance; newest 200 of seven days",
    ),
    KeySpec(
        "feed",
        "feed",
        "stream",
        "<bytes written so far>-<gen> -> e (packed: ledger events of one script)",
        "while somebody watches and 15 minutes more; newest 8 MiB",
    ),
    KeySpec(
        "ready",
        "ready:<type>:<version>:<lane>",
        "zset",
        "instance -> engine ms since its head is ready",
        "while not empty",
    ),
    KeySpec(
        "types",
        "types",
        "zset",
        "type:version -> engine ms of its oldest ready head",
        "while anything is ready",
    ),
    KeySpec(
        "due",
        "due",
        "zset",
        "lease:, backoff:, sleep:, wait:, defer:, delayed:, expiry:, settle:, gc:, delete:<id> -> engine ms",
        "one entry per kind and instance",
    ),
    KeySpec(
        "busy",
        "busy",
        "zset",
        "type:version:instance of instances with unfinished turns, and with ~ in front of those with delayed "
        "messages or a deletion under way; all 0",
        "while not empty",
    ),
    KeySpec("failed", "failed", "zset", "type:version:instance of blocked ones, all 0", "while not empty"),
    KeySpec("paused", "paused", "zset", "type:version:instance of paused ones, all 0", "while not empty"),
    KeySpec(
        "parked",
        "parked",
        "zset",
        "type:version:instance:turn (16 digits) of parked turns, all 0",
        "until redriven, discarded or deleted",
    ),
    KeySpec(
        "damaged",
        "damaged",
        "zset",
        "i:<id>, q:<id>:<message id>: records that can't be read -> engine ms when found",
        "until repaired or deleted",
    ),
    KeySpec("ids", "ids:<type>", "zset", "instance -> engine ms of creation", "as long as the instances"),
    KeySpec("tag", "tag:<type>:<tag>", "zset", "instance -> engine ms of creation", "as long as they"),
    KeySpec(
        "key",
        "key:<type>:<correlation key>",
        "zset",
        "instance -> engine ms of creation",
        "as long as the instances",
    ),
    KeySpec(
        "l", "l:<id>", "zset", "arrival (16 digits) and id of delayed messages -> due", "while there are any"
    ),
    KeySpec("x", "x:<id>", "zset", "turn -> engine ms at which it expires", "until they have passed"),
    KeySpec("dead", "dead", "hash", "deleted instance -> packed last numbers", "24 hours after the deletion"),
    KeySpec("deadtime", "deadtime", "zset", "deleted instance -> engine ms", "24 hours after the deletion"),
    KeySpec(
        "waiting",
        "waiting:<type>:<version>",
        "zset",
        "server run with idle credits -> expiry, engine ms",
        "10 s after the last claim that came back short",
    ),
    KeySpec(
        "type",
        "type:<type>",
        "hash",
        "v (revision), p (settings), q (answers of the last requests)",
        "as long as the namespace",
    ),
    KeySpec(
        "typeindex",
        "typeindex",
        "zset",
        "names of workflow types: stored ones, those of instances created here, and at home those of workers",
        "as long as the namespace",
    ),
    KeySpec(
        "servers",
        "servers",
        "hash",
        "server run -> packed (name, address, build, beat, draining, orphaned)",
        "an hour after its end",
    ),
    KeySpec(
        "ch",
        "ch:<server run>",
        "channel",
        "hints for one server: 'ready <type>:<version>', 'done <turn> <id>', "
        "'ended <conn> <incarnation> <turn> <fence> <how> <id>'; ch:feed has the entries of feed",
        "not stored",
    ),
)

KEYS: dict[str, KeySpec] = {spec.name: spec for spec in _CATALOGUE}


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, the checksum of Redis Cluster; 0 to 65,535."""
    return crc_hqx(data, 0)


def partition_of(instance_id: str, partitions: int) -> int:
    """Partition of an instance, 0 to `partitions` - 1."""
    return crc16(instance_id.encode()) % partitions


def namespace_tag(namespace: str) -> str:
    """Prefix of the namespace's own key."""
    return "{" + namespace + "}"


@functools.cache
def partition_tag(namespace: str, partition: int, partitions: int) -> str:
    """Prefix of all keys of a partition; its slot is near (partition + 0.5) x 16384 / partitions."""
    share = SLOTS / partitions
    centre = (partition + 0.5) * share
    best, best_distance = "", float(SLOTS)
    for salt in range(4096):
        name = f"{namespace}.{partition:02d}.{salt:x}"
        distance = abs(crc16(name.encode()) % SLOTS - centre)
        if distance < best_distance:
            best, best_distance = name, distance
            if distance <= share / 8:
                break
    return "{" + best + "}"
