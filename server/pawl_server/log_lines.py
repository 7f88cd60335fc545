"""Every line that the server logs: the source of docs/reference/logs.md.

Names are what happened, levels never change: errors are for people, warnings for people when they come often,
info tells the life of the server, debug what each part of it does.
"""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO, WARNING

from pawl_server.logs import Line

# Life of the server

SERVER_LISTENING = Line(
    "server_listening",
    INFO,
    "listening on %(address)s",
    more=(
        "version", "server", "run", "reached", "store", "at", "folder", "durability", "namespace",
        "partitions",
    ),
)  # fmt: skip
"""The server can be used. `reached` is the address of this very process, `at` is where its store is, `folder`
that of an embedded one."""
SERVER_STOPPING = Line("server_stopping", INFO, "stopping")
"""It was told to stop: no new calls, workers are asked to move."""
SERVER_STOPPED = Line("server_stopped", INFO, "stopped")
"""Everything that ran has ended, or the grace is over."""
SERVER_REFUSED = Line("server_refused", ERROR, "can't start: %(why)s")
"""It can't run as it is set up."""
FLEET_READY = Line("fleet_ready", INFO, "%(processes)d processes listen on %(address)s")
"""All processes of one port serve. Lines of several processes have a field `proc`: a number, or `parent`."""
PROCESS_STARTED = Line(
    "process_started", INFO, "process %(number)d serves", more=("pid", "run", "reached"), burst=None
)
"""One of several processes serves; `reached` is its own address."""
PROCESS_ENDED = Line(
    "process_ended",
    WARNING,
    "process %(number)d ended with code %(code)d, it is started again in %(seconds).1f s",
)
"""One of several processes ended by itself; the code is negative for a signal."""
PROCESS_REFUSED = Line("process_refused", ERROR, "process %(number)d can't start: %(why)s")
"""A process that was started again can't serve; another try follows."""
PROCESS_KILLED = Line("process_killed", ERROR, "process %(number)d did not stop in time and was killed")
"""It had the grace and five seconds more. Its turns go on under their leases."""
SETTINGS_UNKNOWN = Line("settings_unknown", WARNING, "no setting has the variables %(names)s")
"""PAWL_* variables that mean nothing; perhaps misspelled."""
METRICS_LISTENING = Line("metrics_listening", INFO, "metrics on http://%(address)s/metrics")
"""Metrics can be read there."""
READY = Line("ready", INFO, "ready")
"""Readiness turned green."""
NOT_READY = Line("not_ready", WARNING, "not ready: %(why)s")
"""Readiness turned red: the store does not answer, or this process is too slow."""

# The store

STORE_OPEN = Line("store_open", INFO, "store open: %(store)s at %(at)s, durability %(durability)s")
"""Connected, and the namespace is open."""
STORE_AWAY = Line("store_away", WARNING, "the store is away for %(part)s: %(why)s")
"""An outage began; `part`, a connection or a loop, noticed it first. What others notice later is at debug."""
STORE_BACK = Line(
    "store_back",
    WARNING,
    "the store is back after %(seconds).1f s",
    more=("part", "errors"),
)
"""The outage is over: all parts work again, `part` as the last one. `errors` counts what failed meanwhile."""
STORE_STILL_AWAY = Line("store_still_away", DEBUG, "%(part)s: %(why)s")
"""Another part noticed the outage, or the same one again."""
STORE_NOT_CONNECTED = Line("store_not_connected", INFO, "not connected yet: %(why)s", more=("part",), burst=1)
"""The start waits for a usable Redis."""
STORE_MEMORY = Line("store_memory", WARNING, "Redis uses %(percent)d %% of maxmemory; %(what)s")
"""New messages are refused, or no longer refused, because of Redis' memory."""
STORE_MEMORY_UNKNOWN = Line("store_memory_unknown", DEBUG, "memory of Redis unknown: %(why)s")
"""INFO memory failed."""
STORE_ADVICE = Line("store_advice", INFO, "%(setting)s is %(value)s; with %(better)s %(why)s")
"""A setting of Redis would be better otherwise."""
NODE_JOINED = Line("node_joined", INFO, "the cluster's node %(node)s has partitions now")
"""Slots moved to it, or it was promoted."""
NODE_REFUSED = Line("node_refused", ERROR, "the cluster's node %(node)s can't be used: %(why)s", burst=1)
"""It would lose data as it is set up; partitions that moved to it are not served until that is changed."""
NODE_RISK = Line(
    "node_risk", WARNING, "a node of the cluster has another setting than the first ones: %(why)s"
)
"""A server would not start on it; it is used all the same, because its partitions have nowhere else to be."""
PARTITION_AWAY = Line(
    "partition_away", INFO, "partition %(partition)d is not served: %(why)s", more=("node",), burst=200
)
"""Its slot moves, or its node is away; its calls wait."""
PARTITION_PLACED = Line(
    "partition_placed",
    INFO,
    "partition %(partition)d is served by %(node)s after %(seconds).2f s",
    more=("calls",),
    burst=200,
)
"""It can be used again; `calls` had waited."""
SLOTS_UNKNOWN = Line("slots_unknown", DEBUG, "no node told the slots of the cluster: %(why)s")
"""Asked again soon."""
DURABILITY_RISK = Line("durability_risk", WARNING, "%(risk)s")
"""What the store promises is less than it could be."""
TYPES_REPAIRED = Line("types_repaired", WARNING, "%(copies)d copies of type settings were behind")
"""A crash had left partitions with old settings of a type; they have the new ones now."""
TYPES_UNKNOWN = Line("types_unknown", DEBUG, "type settings not compared: %(why)s")
"""The comparison failed; it is repeated."""

# Loops and servers

LOOP_FAILS = Line("loop_fails", WARNING, "%(part)s: %(why)s")
"""A loop of the server fails, for another reason than an outage; it tries on. Told once until it works."""
LOOP_WORKS = Line("loop_works", WARNING, "%(part)s works again after %(seconds).1f s", more=("errors",))
"""The loop works again."""
LOOP_BROKE = Line("loop_broke", ERROR, "%(part)s broke", incident=True)
"""A bug in a loop of the server; it goes on."""
CLOCK_STEPPED = Line("clock_stepped", WARNING, "Redis' clock stepped by %(ms)d ms", more=("partition",))
"""Engine time takes the step out again."""
SERVER_MARKED_DEAD = Line(
    "server_marked_dead", WARNING, "others believed this server dead", more=("partition",)
)
"""Its beats were late; the leases of its streams are renewed at once."""
SERVERS_GONE = Line(
    "servers_gone", INFO, "servers %(runs)s are gone: %(orphaned)d leases orphaned", more=("partition",)
)
"""Other servers of the namespace ended without a farewell."""
SWEEP_REPAIRED = Line(
    "sweep_repaired", WARNING, "the sweep gave back %(wakeups)d wake-ups", more=("partition",)
)
"""Index entries had been lost, and their turns would have waited for ever. In good health it never comes."""
LEASE_ENDED = Line(
    "lease_ended", INFO, "lease of %(instance)s turn %(turn)d ended: %(outcome)s", more=("conn",)
)
"""A lease ran out; `outcome` is what became of the turn, `conn` the stream that had it."""

# Streams

STREAM_SILENT = Line("stream_silent", INFO, "stream %(conn)s said nothing for %(seconds).1f s")
"""The worker is gone or hangs; the stream is ended."""
STREAM_DEAF = Line("stream_deaf", INFO, "stream %(conn)s does not read")
"""The worker takes nothing in; the stream is ended."""
STREAM_BROKEN = Line("stream_broken", INFO, "stream %(conn)s ended: %(why)s")
"""A frame could not be written: the connection is gone."""
STREAM_FORGOT = Line("stream_forgot", INFO, "stream %(conn)s: %(leases)d leases missing from three beats")
"""The worker no longer names turns that it was given; they go to others."""
STREAM_FAILED = Line("stream_failed", ERROR, "looking after stream %(conn)s failed", incident=True)
"""A bug; the stream goes on."""
CLAIM_FAILED = Line("claim_failed", WARNING, "claim in partition %(partition)d: %(why)s", burst=1)
"""Redis refused a claim; it is repeated."""
TURN_NOT_SENT = Line(
    "turn_not_sent", ERROR, "a claimed turn of partition %(partition)d can't be sent", incident=True
)
"""A bug, or a damaged record; the turn comes back by itself."""

# Events

FEED_FAILS = Line("feed_fails", INFO, "the feed of partition %(partition)d can't be read: %(why)s", burst=1)
"""Watchers hear nothing of the partition until it can; it is tried again."""
FEED_BROKEN = Line("feed_broken", INFO, "the feed of partition %(partition)d has a gap: %(why)s")
"""Watchers read what they missed from the ledgers."""
WATCHERS_BEHIND = Line(
    "watchers_behind", INFO, "watchers of partition %(partition)d read their ledgers again"
)
"""After a gap of the feed, or a change of the store."""

WATCHER_GONE = Line("watcher_gone", DEBUG, "%(method)s: the watcher is gone: %(why)s")
"""A frame could not be written: the connection is gone."""

# Requests

REQUEST_FAILED = Line("request_failed", ERROR, "%(where)s failed", incident=True)
"""What the answer INTERNAL with the same `incident` is about."""
CALLBACK_FAILED = Line("callback_failed", ERROR, "%(what)s failed", incident=True)
"""A bug in what follows a reply of the store."""
HINT_LOST = Line("hint_lost", ERROR, "a hint was lost: %(hint)s", incident=True)
"""A bug; polls repair it within a second."""

# The embedded store

EMBEDDED_STARTED = Line("embedded_started", INFO, "embedded: %(what)s")
"""The private Valkey answers."""
EMBEDDED_WAITS = Line(
    "embedded_waits", WARNING, "embedded: a former server still holds %(folder)s; it is asked to end"
)
"""The start waits for the end of a process that a crash has left behind."""
EMBEDDED_FORMER = Line("embedded_former", INFO, "embedded: the folder was last used by %(store)s")
"""Another version of the store wrote the folder."""
EMBEDDED_ENDED = Line(
    "embedded_ended", ERROR, "embedded: %(binary)s ended with code %(code)s; it is started again"
)
"""The private Valkey died."""
EMBEDDED_FAILED = Line("embedded_failed", ERROR, "embedded: %(why)s")
"""It could not be started again; the next attempt follows."""
DISK_UNKNOWN = Line(
    "disk_unknown", WARNING, "embedded: free space of %(folder)s is unknown: %(why)s", burst=1
)
"""The disk could not be asked."""
DISK_LOW = Line("disk_low", WARNING, "embedded: %(mib)d MiB left in %(folder)s; %(what)s")
"""New messages are refused, or no longer refused, because of the disk of the data folder."""
