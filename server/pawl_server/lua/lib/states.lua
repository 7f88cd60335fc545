-- Turn states, as stored and as numbered in pawl.v1.TurnState, and the moves between them. domain/states.py is generated from this file.

local QUEUED = 1
local RUNNING = 2
local SLEEPING = 3
local WAITING = 4
local BACKOFF = 5
local DEFERRED = 6
local CANCELLING = 7
local UNCERTAIN = 8
local GATED = 9
local FAILED = 10
local COMPLETED = 11
local CANCELLED = 12
local SKIPPED = 13
local PARKED = 14
local EXPIRED = 15

-- MOVES[from * 16 + to]: the moves that exist so far.
local MOVES = {
  [1 * 16 + 2] = true, -- QUEUED -> RUNNING: claim
  [2 * 16 + 1] = true, -- RUNNING -> QUEUED: release, return of an unreceived turn, expiry with attempts left
  [2 * 16 + 5] = true, -- RUNNING -> BACKOFF: fail with attempts left
  [2 * 16 + 10] = true, -- RUNNING -> FAILED: last attempt failed
  [2 * 16 + 11] = true, -- RUNNING -> COMPLETED: finish
  [5 * 16 + 1] = true, -- BACKOFF -> QUEUED: the delay is over
}
