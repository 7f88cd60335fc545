"""Reads the counters of a running server. Nothing here asks anybody, waits or changes anything."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pawl_server.domain.states import TurnState
from pawl_server.domain.tally import Histogram
from pawl_server.observe import catalogue as c
from pawl_server.store.tally import ScriptTally
from pawl_server.version import VERSION

if TYPE_CHECKING:
    from pawl_server.background import Background
    from pawl_server.delivery import Delivery
    from pawl_server.engine import Engine
    from pawl_server.observe.lag import LoopLag
    from pawl_server.observe.waiting import Waiting
    from pawl_server.rpc.call import Gate

    Value = float | Histogram
    Samples = Mapping[tuple[str, ...], Value]

_FINISHED = {
    TurnState.COMPLETED: "completed",
    TurnState.FAILED: "failed",
    TurnState.SKIPPED: "skipped",
    TurnState.PARKED: "parked",
    TurnState.CANCELLED: "cancelled",
    TurnState.EXPIRED: "expired",
}
_CONTROLS = {"skip": "skipped", "park": "parked", "cancel_message": "cancelled"}
"""Scripts that end a turn when they answer OK, and how."""


class Readiness(Protocol):
    """Whether a server is ready for calls."""

    @property
    def ready(self) -> bool: ...


class Sources(NamedTuple):
    """Whatever counts something."""

    engine: Engine
    delivery: Delivery
    background: Background
    gate: Gate
    health: Readiness
    lag: LoopLag
    waiting: Waiting


class Family(NamedTuple):
    """A metric and its values by labels, in the order of the metric's label names."""

    metric: c.Metric
    samples: Samples


def collect(sources: Sources) -> Iterator[Family]:
    """All metrics, one after the other."""
    yield from _server(sources)
    yield from _waiting(sources)
    yield from _turns(sources)
    yield from _streams(sources)
    yield from _calls(sources.gate)
    yield from _connections(sources.engine)
    yield from _scripts(sources)


def _one(metric: c.Metric, value: Value, *labels: str) -> Family:
    return Family(metric, {labels: value})


def _server(sources: Sources) -> Iterator[Family]:
    engine, background = sources.engine, sources.background
    store = engine.store
    partitions = str(len(store.partitions))
    who = (engine.server_name, engine.server_run, engine.namespace, partitions, store.store_name)
    yield _one(c.BUILD_INFO, 1, VERSION, platform.python_version())
    yield _one(c.SERVER_INFO, 1, *who)
    yield _one(c.DURABILITY_INFO, 1, str(store.durability), str(store.durability_assumed).lower())
    yield _one(c.READY, sources.health.ready)
    yield _one(c.DRAINING, sources.delivery.draining)
    yield _one(c.LOOP_LAG, sources.lag.seconds)
    errors = {
        ("poll",): sources.delivery.wakeups.errors,
        ("beats",): background.beats.errors,
        ("timers",): background.timers.errors,
        ("sweep",): background.sweeper.errors,
        ("trim",): background.trimmer.errors,
    }
    yield Family(c.LOOP_ERRORS, errors)


def _waiting(sources: Sources) -> Iterator[Family]:
    numbers = sources.waiting.numbers
    if numbers is None:
        return
    since_s = asyncio.get_running_loop().time() - numbers.read_at
    grown_s = 0.0 if sources.engine.store.settings.virtual_time else since_s
    types = numbers.types
    yield Family(c.READY_TURNS, {labels: each.ready for labels, each in types.items()})
    ages = {labels: each.oldest_age_s + grown_s if each.ready else 0.0 for labels, each in types.items()}
    yield Family(c.READY_AGE, ages)
    yield Family(c.UNFINISHED, {labels: each.unfinished for labels, each in types.items()})
    yield Family(c.BLOCKED, {labels: each.blocked for labels, each in types.items()})
    yield Family(c.PAUSED, {labels: each.paused for labels, each in types.items()})
    yield _one(c.PARKED, numbers.parked)
    yield _one(c.DAMAGED, numbers.damaged)
    yield _one(c.TIMERS, numbers.timers)
    yield _one(c.TIMERS_LATE, numbers.late)
    yield _one(c.STATS_AGE, since_s)
    yield _one(c.REDIS_CALLS, numbers.redis_calls)
    yield _one(c.REDIS_SECONDS, numbers.redis_seconds)


def _turns(sources: Sources) -> Iterator[Family]:
    counts, background, delivery = sources.engine.counts, sources.background, sources.delivery
    timers, sweeper, dispatcher = background.timers, background.sweeper, delivery.dispatcher
    ended = {(name,): counts.turns.get(state, 0) for state, name in _FINISHED.items()}
    ended["failed",] += counts.leases.get("failed", 0)
    ended["expired",] += timers.fired.get("expiry", 0)
    scripts = tallies(sources.engine)
    for script, outcome in _CONTROLS.items():
        if script in scripts:
            ended[outcome,] += scripts[script].replies.get(b"OK", 0)
    yield Family(c.TURNS_FINISHED, ended)
    yield _one(c.ATTEMPTS_RETRIED, counts.retries)
    yield _one(c.CLAIMS, dispatcher.claims)
    yield _one(c.CLAIMED, dispatcher.claimed)
    yield _one(c.DELIVERIES, delivery.delivered)
    yield _one(c.RETURNED, delivery.returned)
    outcomes = dict.fromkeys(("expired", "lost", "returned", "failed", "cancelled"), 0) | counts.leases
    yield Family(c.LEASES_EXPIRED, {(outcome,): count for outcome, count in outcomes.items()})
    yield Family(c.LEASES_ORPHANED, {(cause,): count for cause, count in counts.orphaned.items()})
    yield Family(c.TIMERS_FIRED, {(kind,): count for kind, count in timers.fired.items()})
    yield _one(c.TIMERS_STALE, timers.stale)
    yield _one(c.TIMERS_HELD, timers.held)
    yield _one(c.SWEEP_SCANNED, sweeper.scanned)
    yield _one(c.SWEEP_REPAIRED, sweeper.repaired)
    yield _one(c.CLOCK_STEPS, background.beats.stepped)


def _streams(sources: Sources) -> Iterator[Family]:
    streams, sessions = sources.gate.streams, list(sources.delivery.sessions.values())
    yield Family(c.STREAMS_OPEN, {(method,): each.open for method, each in streams.items()})
    yield Family(c.STREAMS_OPENED, {(method,): each.opened for method, each in streams.items()})
    ended = {(method, code): n for method, each in streams.items() for code, n in each.codes.items()}
    yield Family(c.STREAMS_ENDED, ended)
    idle = sum(max(0, each.credits_total - each.delivered - each.reserved) for each in sessions)
    yield _one(c.CREDITS, idle)
    yield _one(c.LEASES_HELD, sum(len(each.held.states) for each in sessions))
    yield _one(c.COMMANDS_PENDING, sum(each.commands.pending for each in sessions))
    yield _one(c.HINTS, sources.delivery.wakeups.hints)
    yield _one(c.POLLS, sources.delivery.wakeups.polls)


def _calls(gate: Gate) -> Iterator[Family]:
    codes = {(method, code): n for method, each in gate.calls.items() for code, n in each.codes.items()}
    yield Family(c.RPC_CALLS, codes)
    yield Family(c.RPC_SECONDS, {(method,): each.seconds for method, each in gate.calls.items()})
    yield _one(c.RPC_IN_FLIGHT, gate.in_flight)
    yield _one(c.RPC_WAITING, gate.waiting)


def _connections(engine: Engine) -> Iterator[Family]:
    store = engine.store
    lanes, listeners = {name: lane.metrics for name, lane in store.lanes.items()}, store.listeners
    heard = ("listener",)
    yield Family(
        c.STORE_UP,
        {(name,): lane.ready for name, lane in store.lanes.items()}
        | {heard: bool(listeners) and all(each.ready for each in listeners)},
    )
    connects = {(name,): lane.connects for name, lane in lanes.items()}
    yield Family(c.STORE_CONNECTS, connects | {heard: sum(each.metrics.connects for each in listeners)})
    resets = {(name,): lane.resets for name, lane in lanes.items()}
    yield Family(c.STORE_RESETS, resets | {heard: sum(each.metrics.resets for each in listeners)})
    yield Family(c.STORE_TIMEOUTS, {(name,): lane.timeouts for name, lane in lanes.items()})
    yield Family(c.STORE_RETRIED, {(name,): lane.retries for name, lane in lanes.items()})
    yield Family(c.STORE_NOSCRIPT, {(name,): lane.noscript for name, lane in lanes.items()})
    yield Family(c.STORE_QUEUE, {(name,): lane.waiting for name, lane in store.lanes.items()})
    yield Family(c.STORE_FLUSH, {(name,): lane.flush_sizes for name, lane in lanes.items()})
    yield _one(c.STORE_OUTAGES, store.outage.count)
    yield _one(c.STORE_OUTAGE, store.outage.seconds)
    used, limit = store.memory_bytes
    yield _one(c.MEMORY_USED, used)
    yield _one(c.MEMORY_LIMIT, limit)


def _scripts(sources: Sources) -> Iterator[Family]:
    scripts = tallies(sources.engine)
    yield Family(c.SCRIPT_CALLS, {(name,): each.calls for name, each in scripts.items()})
    yield Family(c.SCRIPT_ITEMS, {(name,): each.items for name, each in scripts.items()})
    yield Family(c.SCRIPT_SECONDS, {(name,): each.seconds for name, each in scripts.items()})
    words = {
        (name, word.decode(errors="replace")): count
        for name, each in scripts.items()
        for word, count in each.replies.items()
    }
    yield Family(c.SCRIPT_REPLIES, words)


def tallies(engine: Engine) -> dict[str, ScriptTally]:
    """The scripts of all lanes, by name."""
    found: dict[str, ScriptTally] = {}
    for lane in engine.store.lanes.values():
        for name, tally in lane.metrics.scripts.items():
            found.setdefault(name, ScriptTally()).include(tally)
    return found
