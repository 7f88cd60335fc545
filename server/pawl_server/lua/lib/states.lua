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
  [1 * 16 + 10] = true, -- QUEUED -> FAILED: the total deadline
  [1 * 16 + 12] = true, -- QUEUED -> CANCELLED: cancel
  [1 * 16 + 15] = true, -- QUEUED -> EXPIRED: its time to live is over before an attempt began
  [2 * 16 + 1] = true, -- RUNNING -> QUEUED: release, return of an unreceived turn, expiry with attempts left
  [2 * 16 + 3] = true, -- RUNNING -> SLEEPING: sleep
  [2 * 16 + 4] = true, -- RUNNING -> WAITING: wait_signal with nothing to consume yet
  [2 * 16 + 5] = true, -- RUNNING -> BACKOFF: fail with attempts left
  [2 * 16 + 6] = true, -- RUNNING -> DEFERRED: defer
  [2 * 16 + 8] = true, -- RUNNING -> UNCERTAIN: the attempt ended in a step that must not be repeated unseen
  [2 * 16 + 10] = true, -- RUNNING -> FAILED: last attempt failed
  [2 * 16 + 11] = true, -- RUNNING -> COMPLETED: finish
  [2 * 16 + 7] = true, -- RUNNING -> CANCELLING: cancel
  [2 * 16 + 12] = true, -- RUNNING -> CANCELLED: cancel with force
  [3 * 16 + 1] = true, -- SLEEPING -> QUEUED: the sleep is over
  [3 * 16 + 10] = true, -- SLEEPING -> FAILED: the total deadline
  [3 * 16 + 12] = true, -- SLEEPING -> CANCELLED: cancel
  [4 * 16 + 1] = true, -- WAITING -> QUEUED: what it waits for has come, or its time is over
  [4 * 16 + 10] = true, -- WAITING -> FAILED: the total deadline
  [4 * 16 + 12] = true, -- WAITING -> CANCELLED: cancel
  [5 * 16 + 1] = true, -- BACKOFF -> QUEUED: the delay is over, or wake
  [5 * 16 + 10] = true, -- BACKOFF -> FAILED: the total deadline
  [5 * 16 + 12] = true, -- BACKOFF -> CANCELLED: cancel
  [6 * 16 + 1] = true, -- DEFERRED -> QUEUED: the delay is over, or wake
  [6 * 16 + 10] = true, -- DEFERRED -> FAILED: the total deadline
  [6 * 16 + 12] = true, -- DEFERRED -> CANCELLED: cancel
  [7 * 16 + 12] = true, -- CANCELLING -> CANCELLED: given up, the grace or the lease is over, cancel with force
  [8 * 16 + 1] = true, -- UNCERTAIN -> QUEUED: the step is resolved
  [8 * 16 + 10] = true, -- UNCERTAIN -> FAILED: the step is resolved, as failed
  [8 * 16 + 12] = true, -- UNCERTAIN -> CANCELLED: cancel
  [10 * 16 + 1] = true, -- FAILED -> QUEUED: retry
  [10 * 16 + 12] = true, -- FAILED -> CANCELLED: cancel
  [10 * 16 + 13] = true, -- FAILED -> SKIPPED: skip
  [10 * 16 + 14] = true, -- FAILED -> PARKED: park
}
