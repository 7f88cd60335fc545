"""A small tree of Lua sources to bundle, check and generate from."""

from __future__ import annotations

from pathlib import Path

PROBE = """\
--- probe: counts things.
-- It has a second line of prose.
-- @keyspace meta i
-- @arg   now_ms int   engine time
-- @arg   server str   run id
-- @arg   dry    bool  whether to write nothing
-- @item  id     str   instance
-- @item  turn   int   turn number
-- @item  blob   bytes opaque
-- @from  QUEUED
-- @to    RUNNING
-- @reply OK(turn int, note str?, more bool) | NOT_FOUND
--        | GAP(last int)
-- @emits STARTED
-- @oom   allow
-- @spec  R-LEASE-1, R-LEASE-2
--!include base

local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local reply = find(id) -- a comment: BIG
  if reply then
    ledger_add(reply, STARTED, BIG, 'BIG')
  end
  replies[#replies + 1] = reply or { 'NOT_FOUND' }
end
return { now_ms, replies, commit(server) }
"""

BASE = """\
--!include commit
-- Things that probe needs.

local STARTED = 3

local function unused(id)
  return helper_of_unused(id)
end

local function find(id)
  if redis.call('HGET', T .. 'i:' .. id, 'r') then
    return { 'OK', 1, 'x', 0 }
  end
  return { 'GAP', SMALL }
end

local function ledger_add(u, event, now)
  return { u, event, now }
end
"""

UNIT = """\
local BIG = 9000000000
local SMALL = -5 -- negative numbers keep their meaning
local TABLE = {
  one = 1,
  two = 2,
}

local function helper_of_unused(id)
  return TABLE[id]
end

local function commit(server)
  redis.call('HSET', T .. 'meta', 'by', server)
  return {}
end
"""

STATES = """\
local QUEUED = 1
local RUNNING = 2
local MOVES = {
  [1 * 16 + 2] = true, -- QUEUED -> RUNNING: probe
}
"""

READ = """\
--- read: reads one value.
-- @keyspace meta
-- @reply OK(value str) | NOT_FOUND
-- @oom   reads
local value = redis.call('HGET', T .. 'meta', 'by')
return { 0, { value and { 'OK', value } or { 'NOT_FOUND' } }, {} }
"""

FILES = {
    "transitions/probe.lua": PROBE,
    "queries/read.lua": READ,
    "lib/base.lua": BASE,
    "lib/commit.lua": UNIT,
    "lib/states.lua": STATES,
}


def write(folder: Path, changes: dict[str, str] | None = None) -> Path:
    """Writes the tree into `folder`; `changes` replaces or adds files. Returns the folder."""
    for name, text in {**FILES, **(changes or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
