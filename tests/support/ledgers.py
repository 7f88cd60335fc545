"""What ledgers and the feed of a partition must tell, for invariants.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from pawl.v1.event_pb2 import EventType
from pawl_server.domain.states import TurnState

if TYPE_CHECKING:
    from tests.support.invariants import Instance, Partition

_DELETED = EventType.EVENT_TYPE_DELETED


class Fold(NamedTuple):
    """What a part of a ledger tells: the status of the instance and the state of each turn it speaks of."""

    status: int
    turns: dict[int, int]


def fold(events: Iterable[bytes]) -> Fold:
    """Folds events of one instance, oldest first."""
    status, turns = 0, dict[int, int]()
    for event in events:
        _, _, _, _, turn, _, state, status, *_ = _unpack(event)
        if turn:
            turns[turn] = state
    return Fold(status, turns)


def check_fold(p: Partition) -> Iterator[str]:
    """G10: folding the ledger gives the present status of the instance and states of its turns."""
    for instance_id, events in p.space("e").items():
        one = p.instances.get(instance_id)
        if one is None or not events:
            continue
        told = fold(events)
        if told.status != one.status:
            yield f"e:{one.id}: folding tells status {told.status}, it is {one.status}"
        for turn, state in told.turns.items():
            if state not in (found := _states(one, turn)):
                yield f"e:{one.id}: folding tells state {state} of turn {turn}, it is {found[0]}"


def _states(one: Instance, turn: int) -> tuple[int, ...]:
    """States that the ledger may tell of a turn, the real one first: a claim is not on record."""
    receipt, state = one.receipt(turn), one.r["STATE"]
    if receipt is not None:
        return (receipt["R_STATE"],)
    if turn < one.r["OLDEST"]:
        return tuple(each for each in TurnState if each.finished)
    if turn != one.r["HEAD"]:
        return (TurnState.QUEUED,)
    return (state, TurnState.QUEUED) if state == TurnState.RUNNING else (state,)


def check_feed(p: Partition) -> Iterator[str]:
    """The feed is there while it is watched, has no holes, and brings what the ledgers hold."""
    meta, feed = p.keys.get("meta") or {}, p.keys.get("feed")
    if int(meta.get("watch", 0)) == 0:
        if feed is not None:
            yield "feed: nobody watches"
        return
    newest = meta["feed"].decode()
    if not feed or feed[-1][0] != newest:
        yield f"feed: ends at {feed[-1][0] if feed else None}, not at {newest}"
        return
    seen: dict[tuple[str, int], list[bytes]] = {}
    before = None
    for id_, fields in feed:
        _, previous, own, items = _unpack(fields[b"e"])
        if own.decode() != id_ or before not in (None, previous.decode()):
            yield f"feed: {id_} says it is {own.decode()} behind {previous.decode()}, it is behind {before}"
        before = id_
        for at in range(0, len(items), 4):
            seen.setdefault((items[at].decode(), items[at + 2]), []).extend(items[at + 3])
    newest_lives = dict(sorted(seen))
    for (instance_id, life), events in seen.items():
        yield from _check_feed_of(p, instance_id, events, newest=life == newest_lives[instance_id])


def _check_feed_of(p: Partition, instance_id: str, events: list[bytes], *, newest: bool) -> Iterator[str]:
    numbers = [_unpack(event)[8] for event in events]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        yield f"feed: {instance_id} has events {numbers[:3]}…{numbers[-3:]}, which are not dense"
    if not newest:
        return
    ledger = p.keys.get(f"e:{instance_id}")
    if ledger is None:
        if _unpack(events[-1])[1] != _DELETED:
            yield f"feed: {instance_id} is gone, and its newest event is another"
        return
    kept = min(len(ledger), len(events))
    if ledger[-kept:] != events[-kept:]:
        yield f"feed: the newest events of {instance_id} differ from those of its ledger"


def _unpack(raw: bytes) -> list[Any]:
    return msgpack.unpackb(raw, raw=True)
