--!include step signal wake
-- Waits for signals and callbacks. Field `w` of a WAITING head is a msgpack array (version, step key, name, callback key, engine
-- ms of the begin, engine ms of the end or 0). Steps and bytes were checked when the wait began, so that its end can't fail.

local W_KEY = 2
local W_NAME = 3
local W_CALLBACK = 4

-- Numbers of pawl.v1.WaitOutcome.
local RECEIVED = 1
local TIMED_OUT = 2
local REJECTED = 3

local function wait_matches(name, callback, entry)
  return entry[G_NAME] == name and entry[G_CALLBACK] == callback
end

local function wait_outcome(entry)
  return entry[G_REJECTED] == 1 and REJECTED or RECEIVED
end

-- Saves a wait that is over as a step of the head, two elements longer than others: outcome, and 0. `at` is when it was over.
local function wait_save(u, now, key, callback, value, digest, at, outcome)
  local r = u.r
  local keys = r[STEPS] > 0 and unit_get(u, 'k') or '\0'
  local step = step_add(u, key, callback == '' and 'signal' or 'callback', value, digest, now, r[STATE])
  step[6], step[8], step[9] = at, outcome, 0
  unit_set(u, r[HEAD] .. '.' .. r[STEPS], cmsgpack.pack(step))
  unit_set(u, 'k', keys .. key .. '\0')
end

-- The end of the head's wait has come. If it can't be read, the handler waits anew.
--!rare
local function wait_timed_out(u, now)
  local w = unit_table(u, 'w')
  if w then
    wait_save(u, now, w[W_KEY], w[W_CALLBACK], '', '', u.r[DEADLINE], TIMED_OUT)
  end
end

-- Gives an entry to the head if that waits for it; true if it did.
local function wait_receive(u, now, server, entry, value)
  local r = u.r
  local w = r[STATE] == WAITING and unit_table(u, 'w')
  if not w or not wait_matches(w[W_NAME], w[W_CALLBACK], entry) then
    return false
  end
  if r[DEADLINE] > 0 then
    DUE['wait:' .. u.id] = false
    r[DEADLINE] = 0
  end
  wait_save(u, now, w[W_KEY], w[W_CALLBACK], value, entry[G_DIGEST], now, wait_outcome(entry))
  entry[G_POSITION], entry[G_BITS] = r[STEPS], entry[G_BITS] + 2
  transition(u, QUEUED)
  ledger_add(u, TURN_READY, now, r[HEAD], QUEUED)
  make_ready(u, now, server)
  return true
end
