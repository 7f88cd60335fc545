"""Every metric of a server: the source of docs/reference/metrics.md.

Names follow Prometheus: base units, counters end in `_total`. Counters begin at 0 with the process and count
what this server did; what is read from the store is the same on every server of a namespace: take the
maximum, not the sum.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric: its name, what it is, what it means, and the names of its labels."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


# The server

BUILD_INFO = Metric(
    "pawl_build_info",
    "gauge",
    "1; what runs.",
    ("version", "python"),
)
SERVER_INFO = Metric(
    "pawl_server_info",
    "gauge",
    "1; who this is and what it works on. `run` is new with every start.",
    ("server", "run", "namespace", "partitions", "store"),
)
DURABILITY_INFO = Metric(
    "pawl_durability_info",
    "gauge",
    "1; what an acknowledged write survives: `fsync`, `everysec` or `memory`; `assumed` is `true`"
    " where the operator said so.",
    ("level", "assumed"),
)
READY = Metric(
    "pawl_ready",
    "gauge",
    "1 while readiness is green, else 0.",
)
DRAINING = Metric(
    "pawl_draining",
    "gauge",
    "1 while the server stops, else 0.",
)
LOOP_LAG = Metric(
    "pawl_loop_lag_seconds",
    "histogram",
    "How late a timer of the event loop was, looked at four times a second.",
)
LOOP_ERRORS = Metric(
    "pawl_loop_errors_total",
    "counter",
    "Steps of background loops that failed: `poll`, `beats`, `timers`, `sweep`, `trim`.",
    ("loop",),
)

# What waits, from the store

READY_TURNS = Metric(
    "pawl_ready_turns",
    "gauge",
    "Turns that wait for a worker.",
    ("workflow_type", "version"),
)
READY_AGE = Metric(
    "pawl_ready_oldest_age_seconds",
    "gauge",
    "How long the oldest of them has waited; 0 if there is none.",
    ("workflow_type", "version"),
)
UNFINISHED = Metric(
    "pawl_unfinished_instances",
    "gauge",
    "Instances with unfinished turns, whatever these wait for.",
    ("workflow_type", "version"),
)
BLOCKED = Metric(
    "pawl_blocked_instances",
    "gauge",
    "Instances whose head failed for good; somebody has to retry or skip it.",
    ("workflow_type", "version"),
)
PAUSED = Metric(
    "pawl_paused_instances",
    "gauge",
    "Instances that somebody has paused.",
    ("workflow_type", "version"),
)
PARKED = Metric(
    "pawl_parked_turns",
    "gauge",
    "Turns that were put aside.",
)
DAMAGED = Metric(
    "pawl_damaged_records",
    "gauge",
    "Records that can't be read.",
)
TIMERS = Metric(
    "pawl_timers",
    "gauge",
    "Times that something waits for: leases, backoffs, sleeps, delayed messages, trimming.",
)
TIMERS_LATE = Metric(
    "pawl_timers_late",
    "gauge",
    "Those that have been due for more than a second.",
)
STATS_AGE = Metric(
    "pawl_stats_age_seconds",
    "gauge",
    "How old the numbers read from the store are; they are read again when asked for, at most once a second.",
)

# Turns and leases

TURNS_FINISHED = Metric(
    "pawl_turns_finished_total",
    "counter",
    "Turns by how they ended: `completed`, `failed` (for good, and still the head), `cancelled`,"
    " `skipped`, `parked`, `expired`. Answers to repeats count again; what a timer of another"
    " server ended counts there.",
    ("outcome",),
)
ATTEMPTS_RETRIED = Metric(
    "pawl_attempts_retried_total",
    "counter",
    "Attempts that a worker gave up and that will be repeated.",
)
CLAIMS = Metric(
    "pawl_claims_total",
    "counter",
    "Scripts that claimed turns for streams.",
)
CLAIMED = Metric(
    "pawl_turns_claimed_total",
    "counter",
    "Turns that these scripts brought; a finish may bring the next one by itself.",
)
DELIVERIES = Metric(
    "pawl_deliveries_total",
    "counter",
    "Turns that were put into a frame for a worker.",
)
RETURNED = Metric(
    "pawl_deliveries_returned_total",
    "counter",
    "Claimed turns that were given back unsent, because the stream ended or had no more room.",
)
LEASES_EXPIRED = Metric(
    "pawl_leases_expired_total",
    "counter",
    "Leases that ran out: `expired` and `lost` (a failed attempt; lost with its worker),"
    " `returned` (never received), `failed` (the last attempt), `cancelled` (its turn was to be cancelled).",
    ("outcome",),
)
LEASES_ORPHANED = Metric(
    "pawl_leases_orphaned_total",
    "counter",
    "Leases shortened because their holder is gone: its `stream` closed, or its `server` died.",
    ("cause",),
)
TIMERS_FIRED = Metric(
    "pawl_timers_fired_total",
    "counter",
    "Times that came and were acted on, by kind.",
    ("kind",),
)
TIMERS_STALE = Metric(
    "pawl_timers_stale_total",
    "counter",
    "Times that came when there was nothing left to do; often, because another server was faster.",
)
TIMERS_HELD = Metric(
    "pawl_timers_held_total",
    "counter",
    "Leases that were due but held back, after a gap in watching the clock.",
)
SWEEP_SCANNED = Metric(
    "pawl_sweep_scanned_total",
    "counter",
    "Unfinished instances that the sweep looked at.",
)
SWEEP_REPAIRED = Metric(
    "pawl_sweep_repaired_total",
    "counter",
    "Lost wake-ups that it gave back. Stays 0 in good health.",
)
CLOCK_STEPS = Metric(
    "pawl_clock_steps_total",
    "counter",
    "Steps of Redis' clock that were found and taken out.",
)

# Streams

STREAMS_OPEN = Metric(
    "pawl_streams_open",
    "gauge",
    "Open streams.",
    ("method",),
)
STREAMS_OPENED = Metric(
    "pawl_streams_opened_total",
    "counter",
    "Streams that were opened; much more than are open means that workers reconnect.",
    ("method",),
)
STREAMS_ENDED = Metric(
    "pawl_streams_ended_total",
    "counter",
    "Streams by the gRPC code that they ended with; CANCELLED is also a connection that broke.",
    ("method", "code"),
)
CREDITS = Metric(
    "pawl_credits_idle",
    "gauge",
    "Turns that the workers of this server could take right now.",
)
LEASES_HELD = Metric(
    "pawl_leases_held",
    "gauge",
    "Leases of the streams of this server.",
)
COMMANDS_PENDING = Metric(
    "pawl_commands_pending",
    "gauge",
    "Commands of workers that are not answered yet.",
)
HINTS = Metric(
    "pawl_hints_total",
    "counter",
    "Messages of other servers and scripts on the private channel.",
)
POLLS = Metric(
    "pawl_polls_total",
    "counter",
    "Looks for what no hint told of.",
)

# Calls

RPC_CALLS = Metric(
    "pawl_rpc_calls_total",
    "counter",
    "Unary calls that ended, by gRPC code. CANCELLED: the caller went away.",
    ("method", "code"),
)
RPC_SECONDS = Metric(
    "pawl_rpc_seconds",
    "histogram",
    "How long they took in this server, the time that a caller waits for a turn included.",
    ("method",),
)
RPC_IN_FLIGHT = Metric(
    "pawl_rpc_in_flight",
    "gauge",
    "Unary calls at this moment; above `max_calls_in_flight` more are refused.",
)
RPC_WAITING = Metric(
    "pawl_rpc_waiting",
    "gauge",
    "Unary calls that only wait for a turn.",
)

# The store

STORE_UP = Metric(
    "pawl_store_connected",
    "gauge",
    "1 while the connection can be used: `hot` (transitions), `bulk` (large reads), `listener`"
    " (private channels).",
    ("connection",),
)
STORE_CONNECTS = Metric(
    "pawl_store_connects_total",
    "counter",
    "Connections that became usable: 1, and 1 more for each reconnect.",
    ("connection",),
)
STORE_RESETS = Metric(
    "pawl_store_connection_resets_total",
    "counter",
    "Connections that ended, whoever ended them. For `listener`: a subscription that heard"
    " nothing was replaced.",
    ("connection",),
)
STORE_TIMEOUTS = Metric(
    "pawl_store_timeouts_total",
    "counter",
    "Those of them that were given up because Redis owed an answer for too long.",
    ("connection",),
)
STORE_RETRIED = Metric(
    "pawl_store_calls_retried_total",
    "counter",
    "Calls that were unanswered when a connection ended and were sent again.",
    ("connection",),
)
STORE_NOSCRIPT = Metric(
    "pawl_store_noscript_total",
    "counter",
    "Answers that Redis does not know a script; it is loaded again.",
    ("connection",),
)
STORE_QUEUE = Metric(
    "pawl_store_calls_waiting",
    "gauge",
    "Calls that are queued or unanswered.",
    ("connection",),
)
STORE_FLUSH = Metric(
    "pawl_store_flush_calls",
    "histogram",
    "How many calls left together, for each flush.",
    ("connection",),
)
STORE_OUTAGES = Metric(
    "pawl_store_outages_total",
    "counter",
    "Times that the store was away.",
)
STORE_OUTAGE = Metric(
    "pawl_store_outage_seconds",
    "gauge",
    "How long it has been away; 0 while it is not.",
)
SCRIPT_CALLS = Metric(
    "pawl_script_calls_total",
    "counter",
    "Answered calls of each script. Divided by flushes and items it says how well calls batch.",
    ("script",),
)
SCRIPT_ITEMS = Metric(
    "pawl_script_items_total",
    "counter",
    "Items of these calls: instances, messages or turns.",
    ("script",),
)
SCRIPT_SECONDS = Metric(
    "pawl_script_wait_seconds_total",
    "counter",
    "Time from sending to the answer, summed over calls; what leaves in one flush waits together.",
    ("script",),
)
SCRIPT_REPLIES = Metric(
    "pawl_script_replies_total",
    "counter",
    "Items by the word that answered them.",
    ("script", "reply"),
)
REDIS_CALLS = Metric(
    "pawl_redis_script_calls_total",
    "counter",
    "Scripts that Redis ran, for all of its clients.",
)
REDIS_SECONDS = Metric(
    "pawl_redis_script_seconds_total",
    "counter",
    "Time that Redis spent in them: how busy its one thread is.",
)
MEMORY_USED = Metric(
    "pawl_store_memory_used_bytes",
    "gauge",
    "Memory of Redis.",
)
MEMORY_LIMIT = Metric(
    "pawl_store_memory_limit_bytes",
    "gauge",
    "Its limit; 0 for none. From 90 % on new messages are refused.",
)

ALL = tuple(value for value in vars().values() if isinstance(value, Metric))
