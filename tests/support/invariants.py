"""What must hold for all keys of a partition between any two scripts.

`violations` lists what does not. It trusts nothing that a counter or an index says: it recounts from the
fields. Positions inside packed records are those of the constants in lua/lib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgpack

from pawl.v1.step_pb2 import WaitOutcome
from pawl_server.domain.states import TurnState
from pawl_server.store.bundle import load_libs
from pawl_server.store.keys import KEYS
from tests.support.ledgers import check_feed, check_fold
from tests.support.lua_harness import read_keys
from tests.support.redis_server import Store, call_all

_LEDGER_STEP = 64
"""lib/ledger.lua trims at every 64th event."""
_CLOCK_STEPS_MS = 86_400_000
"""Time may have been later before than it is now, in tests that set the clock back."""
_PAUSED, _DELETING, _AWAITED, _OWN_SETTINGS = 1, 2, 8, 16
"""Bits of FLAGS."""
_IDLE, _ACTIVE, _BLOCKED, _STOPPED, _DELETED = 1, 2, 3, 4, 5
"""Instance status, as in lib/ledger.lua and pawl.v1.InstanceStatus."""
_TAG = re.compile(r"\{[^{}]+\.\d+\.[0-9a-f]+\}")
"""A partition's prefix, as store/keys.py makes it."""
_ENTRY_KINDS = {
    TurnState.RUNNING: "lease",
    TurnState.CANCELLING: "lease",
    TurnState.BACKOFF: "backoff",
    TurnState.SLEEPING: "sleep",
    TurnState.WAITING: "wait",
    TurnState.DEFERRED: "defer",
}
"""Kinds of due entry that are the one reason to wake of a head."""
_LEASED = (TurnState.RUNNING, TurnState.CANCELLING)
_PARK = 2
"""As in pawl.v1.OnRestart."""
_BLOCKING = (TurnState.FAILED, TurnState.UNCERTAIN)
"""States of a head that somebody has to decide about."""
_SECONDARY_KINDS = ("gc", "delayed", "expiry", "settle", "cancel", "total", "delete", "operation")
"""Kinds of due entry beside that."""


@cache
def constants(lib: str) -> dict[str, int]:
    """The number constants of one lua/lib file."""
    return {one.name: int(one.number) for one in load_libs()[lib].definitions if one.number}


class Packed:
    """A packed record whose elements are named by the constants of a lib; elements not stored are 0."""

    def __init__(self, raw: bytes, lib: str) -> None:
        self.values: list[Any] = unpack(raw)
        self.layout = constants(lib)

    def __getitem__(self, name: str) -> Any:
        at = self.layout[name] - 1
        return self.values[at] if at < len(self.values) else 0


def unpack(raw: bytes) -> list[Any]:
    """The elements of a packed record; text stays bytes."""
    return msgpack.unpackb(raw, raw=True)


def violations(redis: Store, tag: str, now_ms: int = 0) -> list[str]:
    """Returns one line per broken rule in the partition of `tag`, [] if all hold.

    `now_ms` is engine time, if the partition may not know it.
    """
    pattern = re.sub(r"([\[\]*?\\])", r"\\\1", tag) + "*"
    names = sorted(key.decode().removeprefix(tag) for key in redis.call("KEYS", pattern))
    keys = [tag + name for name in names]
    kinds = call_all(redis, [("TYPE", key) for key in keys])
    ttls = call_all(redis, [("PTTL", key) for key in keys])
    found = [
        text
        for name, kind, ttl in zip(names, kinds, ttls, strict=True)
        for text in _check_key(name, kind.decode(), ttl)
    ]
    partition = Partition(dict(zip(names, read_keys(redis, keys), strict=True)), now_ms)
    return found + [text for check in _CHECKS for text in check(partition)]


def violations_everywhere(redis: Store) -> list[str]:
    """Returns the broken rules of all partitions of all namespaces on `redis`, and keys outside of any."""
    names = [key.decode() for key in redis.call("KEYS", "*")]
    tags = {match[0] for match in map(_TAG.match, names) if match}
    strays = [f"{name}: outside of every namespace" for name in names if not name.startswith("{")]
    return strays + [f"{tag} {text}" for tag in sorted(tags) for text in violations(redis, tag)]


@dataclass(frozen=True)
class Instance:
    """One `i:` hash, decoded."""

    id: str
    fields: Mapping[str, bytes]

    @cached_property
    def r(self) -> Packed:
        """The record."""
        return Packed(self.fields["r"], "record")

    @cached_property
    def tv(self) -> str:
        """type:version."""
        return self.fields["y"].decode()

    @cached_property
    def birth(self) -> list[Any]:
        """What creation fixed, as lib/unit.lua says; what was not stored is filled in."""
        stored = unpack(self.fields["o"])
        return stored + [0, 0, b"", 0, 0, b"", b"", 1, 1][len(stored) :]

    @property
    def type(self) -> str:
        """The workflow type."""
        return self.tv.partition(":")[0]

    @property
    def deleting(self) -> bool:
        """Whether its deletion goes on in the background."""
        return bool(self.r["FLAGS"] & _DELETING)

    @property
    def stopped(self) -> bool:
        """Paused or being deleted: no wake-ups."""
        return bool(self.r["FLAGS"] & (_PAUSED | _DELETING))

    @property
    def behind(self) -> bool:
        """Whether the head has still to pass turns that have ended."""
        return self.r["STATE"] >= TurnState.COMPLETED

    @property
    def status(self) -> int:
        """What the ledger must say about the instance now."""
        flags = self.r["FLAGS"]
        if flags & (_DELETING | _PAUSED):
            return _DELETED if flags & _DELETING else _STOPPED
        if self.r["STATE"] in _BLOCKING:
            return _BLOCKED
        return _ACTIVE if self.r["PENDING"] else _IDLE

    @property
    def member(self) -> str:
        """How sets of instances by type and version name it."""
        return f"{self.tv}:{self.id}"

    @cached_property
    def tombstones(self) -> list[int]:
        """Turns behind the head that have ended."""
        turns = range(self.r["HEAD"], self.r["TAIL"] + 1)
        return [turn for turn in turns if f"{turn}.h" in self.fields]

    @cached_property
    def parked(self) -> list[int]:
        """Turns whose message is kept for a redrive."""
        return sorted(
            int(name[:-2]) for name, raw in self.fields.items() if raw and re.fullmatch(r"\d+\.p", name)
        )

    @cached_property
    def delayed(self) -> dict[str, list[Any]]:
        """Delayed messages by id."""
        return {name[2:]: unpack(raw) for name, raw in self.fields.items() if raw and name.startswith("q:")}

    @cached_property
    def expiring(self) -> dict[str, float]:
        """Turns no attempt of which has begun, with the time at which they expire, if they do."""
        found: dict[str, float] = {}
        for turn in range(self.r["HEAD"], self.r["TAIL"] + 1):
            message = unpack(self.fields.get(f"{turn}.m", b"\x90"))
            begun = turn == self.r["HEAD"] and self.r["ATTEMPT"] > 0
            if len(message) > 9 and message[9] and not begun:
                found[str(turn)] = message[9]
        return found

    @cached_property
    def signals(self) -> dict[int, list[list[Any]]]:
        """What turns have received, as lib/signal.lua says."""
        names = (name for name in self.fields if re.fullmatch(r"\d+\.g", name))
        return {int(name[:-2]): unpack(self.fields[name])[1:] for name in names}

    def buffered(self, turn: int) -> list[str]:
        """Fields of the values that a turn has received and not consumed."""
        entries = enumerate(self.signals.get(turn, []), 1)
        return [f"{turn}.g.{number}" for number, entry in entries if not entry[5]]

    def receipt(self, turn: int) -> Packed | None:
        """The receipt of a finished turn, if kept."""
        raw = self.fields.get(f"{turn}.h")
        return Packed(raw, "receipt") if raw is not None else None

    def message_id(self, turn: int) -> bytes | None:
        """The message id of a turn, from its message or else its receipt."""
        raw, receipt = self.fields.get(f"{turn}.m"), self.receipt(turn)
        if raw is not None:
            return unpack(raw)[1]
        return (receipt["R_MESSAGE_ID"] or None) if receipt else None

    @property
    def operation(self) -> Packed | None:
        """The registered step of the head."""
        raw = self.fields.get(f"{self.r['HEAD']}.o")
        return Packed(raw, "operation") if raw is not None else None

    def steps(self, turn: int) -> list[list[Any]]:
        """The saved steps of a turn, up to the first gap, the one inside the receipt last."""
        found: list[list[Any]] = []
        while (raw := self.fields.get(f"{turn}.{len(found) + 1}")) is not None:
            found.append(unpack(raw))
        receipt = self.receipt(turn)
        return found + ([receipt["R_LAST_STEP"]] if receipt and receipt["R_LAST_STEP"] else [])

    def payload_bytes(self, turn: int) -> int:
        """Recount of a turn's message, steps, signals, reply, and what a finished one had registered."""
        receipt = self.receipt(turn)
        reply = receipt["R_REPLY"] if receipt else 0
        size = len(self.fields.get(f"{turn}.m", b"")) + (len(reply) if reply else 0)
        kept = len(self.fields.get(f"{turn}.o", b"")) if receipt else 0
        kept += sum(len(self.fields.get(field, b"")) for field in self.buffered(turn))
        return size + kept + sum(len(step[3]) for step in self.steps(turn))


@dataclass(frozen=True)
class Partition:
    """All keys of a partition by name."""

    keys: Mapping[str, Any]
    now_ms: int = 0
    """Engine time, if it is known from elsewhere."""

    @cached_property
    def latest(self) -> int:
        """The latest engine time known."""
        meta = self.keys.get("meta") or {}
        ledgers = self.space("e")
        events = [unpack(ledgers[one.id][-1])[3] for one in self.live if ledgers.get(one.id)]
        return max(self.now_ms, int(meta.get("now", 0)), int(meta.get("seen", 0)), *events)

    @cached_property
    def instances(self) -> dict[str, Instance]:
        names = (name for name in self.keys if name.startswith("i:"))
        return {name[2:]: Instance(name[2:], self.keys[name]) for name in names if "r" in self.keys[name]}

    @cached_property
    def live(self) -> list[Instance]:
        """Instances that are not being deleted."""
        return [one for one in self.instances.values() if not one.deleting]

    def space(self, name: str) -> dict[str, Any]:
        """The keys of one keyspace by the rest of their names."""
        return {
            key.partition(":")[2]: value for key, value in self.keys.items() if key.partition(":")[0] == name
        }

    @cached_property
    def ready(self) -> set[tuple[str, str]]:
        """(type:version, instance) of every ready entry."""
        return {
            (key.rpartition(":")[0], member) for key, zset in self.space("ready").items() for member in zset
        }

    @cached_property
    def due(self) -> dict[tuple[str, str], float]:
        """Due time of (kind, instance)."""
        entries = (self.keys.get("due") or {}).items()
        return {(member.partition(":")[0], member.partition(":")[2]): score for member, score in entries}


def _check_key(name: str, kind: str, ttl: int) -> Iterator[str]:
    """Every key is in the catalogue, has its type, and never expires by Redis."""
    spec = KEYS.get(name.partition(":")[0])
    if spec is None:
        yield f"{name}: not in the key catalogue"
        return
    if kind != spec.type:
        yield f"{name}: is a {kind}, the catalogue says {spec.type}"
    if (":" in name) != (":" in spec.pattern):
        yield f"{name}: does not look like {spec.pattern}"
    if ttl != -1 and spec.name != "waiting":
        yield f"{name}: has a time to live"


def _check_wakeups(p: Partition) -> Iterator[str]:
    """G4: each unfinished, unblocked head has exactly one primary reason to wake; nobody else has one."""
    reasons: dict[str, list[str]] = {}
    for tv, instance_id in p.ready:
        reasons.setdefault(instance_id, []).append(f"ready {tv}")
    for kind, instance_id in p.due:
        if kind in _ENTRY_KINDS.values():
            reasons.setdefault(instance_id, []).append(kind)
        elif kind not in _SECONDARY_KINDS:
            yield f"due: unknown kind {kind}"
    for instance_id in sorted(reasons.keys() | p.instances.keys()):
        instance = p.instances.get(instance_id)
        found, wanted = sorted(reasons.get(instance_id, [])), [] if instance is None else _wanted(instance)
        if found != wanted:
            yield f"{instance_id}: reasons to wake are {found}, wanted {wanted}"
    for instance_id, instance in p.instances.items():
        kind = _ENTRY_KINDS.get(instance.r["STATE"])
        at = p.due.get((kind, instance_id)) if kind else None
        if at is not None and at < instance.r["DEADLINE"]:
            yield f"{instance_id}: {kind} is due at {at}, before its deadline {instance.r['DEADLINE']}"


def _wanted(instance: Instance) -> list[str]:
    state = instance.r["STATE"]
    if state in _LEASED and not instance.deleting:
        return ["lease"]
    if instance.r["PENDING"] == 0 or state in _BLOCKING or instance.behind or instance.stopped:
        return []
    if state == TurnState.WAITING and not instance.r["DEADLINE"]:
        return []  # only a signal ends it
    return [_ENTRY_KINDS.get(state, f"ready {instance.tv}")]


def _check_indexes(p: Partition) -> Iterator[str]:
    """Sets by type and version, `types`, and the indexes by creation say what the instances say."""
    later = {f"~{one.member}" for one in p.instances.values() if one.deleting or one.r["DELAYED"]}
    wanted_sets = {
        "busy": {one.member for one in p.live if one.r["PENDING"]} | later,
        "failed": {one.member for one in p.live if one.r["STATE"] in _BLOCKING},
        "paused": {one.member for one in p.live if one.r["FLAGS"] & _PAUSED},
        "parked": {f"{one.member}:{turn:016d}" for one in p.live for turn in one.parked},
    }
    for name, members in wanted_sets.items():
        stored = set(p.keys.get(name) or ())
        yield from (f"{name}: lacks {member}" for member in sorted(members - stored))
        yield from (f"{name}: has {member}" for member in sorted(stored - members))
    for tv in sorted({tv for tv, _ in p.ready} - set(p.keys.get("types") or {})):
        yield f"types: lacks {tv}, which has ready heads"
    for tv in sorted(set(p.keys.get("types") or {}) - {tv for tv, _ in p.ready}):
        yield f"types: has {tv}, which has no ready heads"
    wanted: dict[str, dict[str, float]] = {}
    for name in sorted({one.type for one in p.live} - set(p.keys.get("typeindex") or {})):
        yield f"typeindex: lacks {name}, which has instances"
    for one in p.live:
        for name in _index_names(one):
            wanted.setdefault(name, {})[one.id] = one.birth[1]
    by_creation = {name: p.keys[name] for name in p.keys if name.partition(":")[0] in ("ids", "tag", "key")}
    for name in sorted(by_creation.keys() | wanted.keys()):
        if by_creation.get(name) != wanted.get(name):
            yield f"{name}: {by_creation.get(name)}, wanted {wanted.get(name)}"
    if set(p.keys.get("dead") or ()) != set(p.keys.get("deadtime") or ()):
        yield f"dead: {p.keys.get('dead')}, by time {p.keys.get('deadtime')}"


def _index_names(one: Instance) -> Iterator[str]:
    """The indexes by creation that the instance is in."""
    yield f"ids:{one.type}"
    key, *tags = one.birth[5].decode().split("\0")[:-1] or [""]
    if key:
        yield f"key:{one.type}:{key}"
    yield from (f"tag:{one.type}:{tag}" for tag in tags)


def _check_timers(p: Partition) -> Iterator[str]:
    """Secondary timers: one entry per kind and instance, where the instance has such a thing."""
    entries: dict[str, set[str]] = {kind: set() for kind in _SECONDARY_KINDS}
    for kind, instance_id in p.due:
        if kind in entries:
            entries[kind].add(instance_id)
    wanted = {
        "gc": {one.id for one in p.live if one.r["GC_AT"]},
        "delayed": {one.id for one in p.live if one.r["DELAYED_AT"]},
        "expiry": {one.id for one in p.live if one.r["EXPIRES_AT"]},
        "settle": {one.id for one in p.live if one.behind},
        "cancel": {one.id for one in p.live if one.r["CANCEL_AT"]},
        "total": {one.id for one in p.live if one.r["TOTAL_AT"]},
        "delete": {one.id for one in p.instances.values() if one.deleting},
        "operation": {one.id for one in p.live if one.r["OP_AT"]},
    }
    for kind, found in entries.items():
        if found != wanted[kind]:
            yield f"due: {kind} entries of {sorted(found)}, wanted of {sorted(wanted[kind])}"
    for one in p.live:
        at = p.due.get(("gc", one.id), one.r["GC_AT"])
        if at != one.r["GC_AT"]:
            yield f"due: gc of {one.id} at {at}, its record says {one.r['GC_AT']}"


def _check_operations(p: Partition) -> Iterator[str]:
    """A registered step that runs has a lease, the next place, and is due at the earlier of its times."""
    layout = constants("operation")
    for one in p.live:
        op, at, step = one.r["OP"], one.r["OP_AT"], one.operation
        if op and (step is None or step["O_POSITION"] != one.r["STEPS"] + 1):
            yield f"{one.id}: its registered step has position {step and step['O_POSITION']}"
        if op <= layout["OP_LEFT"]:
            if at:
                yield f"{one.id}: a step is due at {at} that does not run"
            continue
        if one.r["STATE"] not in _LEASED or step is None:
            yield f"{one.id}: a step runs in state {one.r['STATE']}"
            continue
        times = [time for time in (step["O_DEADLINE"], step["O_HEARTBEAT_AT"]) if time]
        if at != min(times) or p.due.get(("operation", one.id), at) > at:
            yield f"{one.id}: its step is due at {at}, or later in due, its times are {times}"
        if (op == layout["OP_UNSEEN"]) != (step["O_ON_RESTART"] == _PARK):
            yield f"{one.id}: its step is {op}, with {step['O_ON_RESTART']} for its restart"


def _check_later(p: Partition) -> Iterator[str]:
    """Delayed, expiring and parked messages are counted and listed."""
    lists, expiring = p.space("l"), p.space("x")
    for instance_id in sorted((lists.keys() | expiring.keys()) - {one.id for one in p.live}):
        yield f"l: or x:{instance_id} without an instance"
    for one in p.live:
        listed = {member[16:]: score for member, score in lists.get(one.id, {}).items()}
        if listed != {message_id: q[6] for message_id, q in one.delayed.items()}:
            yield f"l:{one.id}: {listed}, wanted {one.delayed}"
        counts = (one.r["DELAYED"], one.r["DELAYED_AT"], one.r["PARKED_TURNS"])
        recount = (len(listed), min(listed.values(), default=0), len(one.parked))
        if counts != recount:
            yield f"{one.id}: delayed, the first of them and parked are {counts}, a recount gives {recount}"
        yield from _check_expiring(p, one, expiring.get(one.id, {}))
        yield from _check_signals(one)


def _check_signals(one: Instance) -> Iterator[str]:
    """Received signals are counted, each id once in its turn; a consumed one is a step of the turn, once."""
    if one.r["SIGNALLED"] != len(one.signals):
        yield f"{one.id}: {one.r['SIGNALLED']} turns have signals, a recount gives {len(one.signals)}"
    for turn, entries in one.signals.items():
        ids = [(entry[0], entry[2]) for entry in entries]
        used = [entry[5] for entry in entries if entry[5]]
        if not ids or len(set(ids)) < len(ids) or len(set(used)) < len(used):
            yield f"{one.id}: turn {turn} received {ids}, consumed by the steps {used}"
        for position, kind in ((step + 1, kind) for step, kind in enumerate(_kinds(one, turn))):
            if kind in (b"signal", b"callback") and _received(one, turn, position) != (position in used):
                yield f"{one.id}: step {position} of turn {turn} and what it consumed disagree"
    for name, turn in one.fields.items():
        if name.startswith("g:") and not any(
            entry[0] == name[2:].encode() and entry[10] & 1 for entry in one.signals.get(int(turn), [])
        ):
            yield f"{one.id}: {name} leads to turn {turn}, which has no such signal"


def _kinds(one: Instance, turn: int) -> list[bytes]:
    return [step[2] for step in one.steps(turn)]


def _received(one: Instance, turn: int, position: int) -> bool:
    return one.steps(turn)[position - 1][7] != WaitOutcome.WAIT_OUTCOME_TIMED_OUT


def _check_expiring(p: Partition, one: Instance, stored: Mapping[str, float]) -> Iterator[str]:
    """What may expire is in `x`; beside it at most the turn at the head, whose attempt has begun since."""
    left_over = {turn: at for turn, at in stored.items() if turn == str(one.r["HEAD"]) and one.r["ATTEMPT"]}
    if stored != one.expiring | left_over:
        yield f"x:{one.id}: {stored}, wanted {one.expiring}"
    if stored and not 0 < one.r["EXPIRES_AT"] <= min(stored.values()):
        yield f"{one.id}: something expires at {one.r['EXPIRES_AT']}, in x:{one.id} is {stored}"
    if one.r["EXPIRES_AT"] > p.due.get(("expiry", one.id), one.r["EXPIRES_AT"]):
        yield f"{one.id}: expiry is due before {one.r['EXPIRES_AT']}"


def _check_counters(p: Partition) -> Iterator[str]:
    """G1, G12: counters equal a recount; fences and incarnations are unique and below the partition's."""
    meta = p.keys.get("meta") or {}
    fences = [one.r[name] for one in p.live for name in ("FENCE", "PFENCE") if one.r[name]]
    incarnations = [one.r["INC"] for one in p.instances.values()]
    for name, used in (("fence", fences), ("incarnation", incarnations)):
        if len(set(used)) < len(used):
            yield f"meta: {name} given out twice, in use are {sorted(used)}"
        if max(used, default=0) > int(meta.get(name, 0)):
            yield f"meta: {name} {meta.get(name)} is below {max(used)}, which is in use"
    for one in p.live:
        checks = (_check_positions(one), _check_bytes(one), _check_flags(one))
        yield from (f"{one.id}: {text}" for check in checks for text in check)


def _check_positions(one: Instance) -> Iterator[str]:
    r = one.r
    if not 1 <= r["OLDEST"] <= r["KEPT"] <= r["HEAD"] <= r["TAIL"] + 1:
        yield f"oldest {r['OLDEST']}, kept {r['KEPT']}, head {r['HEAD']}, tail {r['TAIL']} are out of order"
    unfinished = r["TAIL"] - r["HEAD"] + 1 - len(one.tombstones)
    if r["PENDING"] != unfinished:
        yield f"pending is {r['PENDING']}, a recount gives {unfinished}"
    if (r["STATE"] == 0) != (r["PENDING"] == 0):
        yield f"state {r['STATE']} with {r['PENDING']} pending turns"
    if (r["STATE"] >= TurnState.COMPLETED) != (r["HEAD"] in one.tombstones):
        yield f"the head has state {r['STATE']}, tombstones are {one.tombstones}"
    if r["STATE"] in _LEASED and (r["FENCE"] == 0 or r["HOW"]):
        yield f"running with fence {r['FENCE']}, whose lease ended ({r['HOW']})"
    if (r["STATE"] == TurnState.CANCELLING) != (r["CANCEL_AT"] > 0) or 0 < r["CANCEL_AT"] < r["DEADLINE"]:
        yield f"state {r['STATE']}, lease until {r['DEADLINE']}, grace until {r['CANCEL_AT']}"
    if r["TOTAL_AT"] and (r["STATE"] in _BLOCKING or r["STATE"] in (0, TurnState.CANCELLING)):
        yield f"state {r['STATE']} with a total deadline"


def _check_bytes(one: Instance) -> Iterator[str]:
    r = one.r
    kept = sum(one.payload_bytes(turn) for turn in range(r["KEPT"], r["HEAD"]))
    if r["KBYTES"] != kept:
        yield f"kept bytes are {r['KBYTES']}, a recount gives {kept}"
    for turn in range(r["KEPT"], r["HEAD"]):
        receipt, recount = one.receipt(turn), (one.payload_bytes(turn), len(one.steps(turn)))
        said = (receipt["R_BYTES"], receipt["R_STEPS"]) if receipt else recount
        if said != recount:
            yield f"turn {turn}: the receipt says {said} bytes and steps, a recount gives {recount}"
    steps, size = one.steps(r["HEAD"]), one.payload_bytes(r["HEAD"])
    if r["PENDING"] and r["BYTES"] != size and (r["BYTES"] or r["FENCE"]):
        yield f"the head has {size} bytes, the record says {r['BYTES']}"
    if r["STEPS"] != len(steps):
        yield f"the head has {len(steps)} steps, the record says {r['STEPS']}"
    keys = b"\0" + b"".join(step[1] + b"\0" for step in steps)
    if one.fields.get("k") != (keys if steps else None):
        yield f"step keys are {one.fields.get('k')!r}, the steps say {keys!r}"


def _check_flags(one: Instance) -> Iterator[str]:
    flags, settings = one.r["FLAGS"], [*one.birth[3:5], *one.birth[9:10]]
    if bool(flags & _AWAITED) != ("a" in one.fields):
        yield f"flags {flags}, servers that await a turn are {one.fields.get('a')!r}"
    if bool(flags & _OWN_SETTINGS) != any(settings):
        yield f"flags {flags}, settings of its own are {settings}"


def _check_fields(p: Partition) -> Iterator[str]:
    """No field is left of a trimmed turn, none is missing of a kept one; message ids lead to their turns."""
    for one in p.live:
        wanted = _wanted_fields(one)
        for field in sorted(wanted - set(one.fields)):
            yield f"{one.id}: field {field} is missing"
        for field in sorted(set(one.fields) - wanted - {"s", "k", "a", "c"}):
            yield f"{one.id}: field {field} should not be there"
    for key in p.keys:
        if key.startswith("i:") and key[2:] not in p.instances:
            yield f"{key}: has no record"


def _wanted_fields(one: Instance) -> set[str]:
    """The fields an instance must have, besides those that depend on what was sent."""
    r = one.r
    wanted = {"r", "y", "o", *(f"{turn}.p" for turn in one.parked)}
    for message_id in one.delayed:
        wanted |= {f"q:{message_id}", _wanted_id(one, message_id, "q")}
    wanted |= _wanted_signals(one)
    for turn in range(r["OLDEST"], r["TAIL"] + 1):
        receipt, message_id = one.receipt(turn), one.message_id(turn)
        if message_id is not None:
            wanted.add(_wanted_id(one, message_id.decode(), str(turn)))
        if turn < r["HEAD"] or receipt:
            wanted.add(f"{turn}.h")
        wanted |= _wanted_payload(one, turn, receipt)
    if r["PENDING"] and (r["FAILURES"] + r["LOST"] or r["STATE"] == TurnState.FAILED):
        wanted.add(f"{r['HEAD']}.f")
    if r["PENDING"] and r["OP"]:
        wanted.add(f"{r['HEAD']}.o")
    return wanted


def _wanted_signals(one: Instance) -> set[str]:
    """What the head waits for; signals of turns with a receipt to come or kept, values with the payloads."""
    wanted = {"w"} if one.r["STATE"] == TurnState.WAITING else set()
    for turn, entries in one.signals.items():
        if one.r["OLDEST"] <= turn <= one.r["TAIL"] + 1:
            wanted |= {f"{turn}.g", *(f"g:{entry[0].decode()}" for entry in entries if entry[10] & 1)}
        receipt = one.receipt(turn)
        if turn >= one.r["KEPT"] and not (receipt and receipt["R_MESSAGE_ID"]):
            wanted |= set(one.buffered(turn))
    return wanted


def _wanted_id(one: Instance, message_id: str, leads_to: str) -> str:
    known = f"d:{message_id}"
    return known if one.fields.get(known) == leads_to.encode() else f"{known} = {leads_to}"


def _wanted_payload(one: Instance, turn: int, receipt: Packed | None) -> set[str]:
    """Message, steps and last failure of a turn, unless they were trimmed or it ended in the queue."""
    if receipt and receipt["R_MESSAGE_ID"]:
        return {f"{turn}.h without payloads"} if receipt["R_REPLY"] or receipt["R_LAST_STEP"] else set()
    if turn < one.r["KEPT"]:
        return {f"{turn}.h without payloads"}
    steps = one.r["STEPS"] if turn == one.r["HEAD"] else 0
    if receipt:
        steps = receipt["R_STEPS"] - bool(receipt["R_LAST_STEP"])
    wanted = {f"{turn}.m", *(f"{turn}.{position}" for position in range(1, steps + 1))}
    if receipt and receipt["R_STATE"] != TurnState.COMPLETED and f"{turn}.f" in one.fields:
        wanted.add(f"{turn}.f")
    if receipt and receipt["R_STATE"] != TurnState.COMPLETED and f"{turn}.o" in one.fields:
        wanted.add(f"{turn}.o")
    return wanted


def _check_ledger(p: Partition) -> Iterator[str]:
    """G10: seq is dense, and the newest event carries the present status."""
    names = {number: name for name, number in constants("ledger").items()}
    keep = constants("commit")["LEDGER_KEEP"]
    for one in p.live:
        events, seq = p.keys.get(f"e:{one.id}") or [], one.r["SEQ"]
        written = seq - one.birth[8] + 1
        young = one.birth[1] > p.latest - constants("ledger")["LEDGER_MS"] + _CLOCK_STEPS_MS
        least = min(written, keep) if young else 1
        if not least <= len(events) <= min(written, keep + _LEDGER_STEP - 1):
            yield f"e:{one.id}: {len(events)} events kept of {written}"
        numbers = [unpack(event)[8] for event in events]
        if numbers != list(range(seq - len(events) + 1, seq + 1)):
            yield f"e:{one.id}: seq is {numbers[:3]}…{numbers[-3:]}, not dense up to {seq}"
        newest = unpack(events[-1]) if events else None
        if newest and newest[7] != one.status:
            name = names.get(newest[1], newest[1])
            yield f"e:{one.id}: newest event {name} says status {newest[7]}, it is {one.status}"
    for instance_id in sorted(p.space("e").keys() - {one.id for one in p.live}):
        yield f"e:{instance_id}: ledger without an instance"


_CHECKS: Iterable[Callable[[Partition], Iterator[str]]] = (
    _check_wakeups,
    _check_indexes,
    _check_timers,
    _check_operations,
    _check_later,
    _check_counters,
    _check_fields,
    _check_ledger,
    check_fold,
    check_feed,
)
