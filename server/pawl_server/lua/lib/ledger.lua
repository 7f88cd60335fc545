--!include unit states
-- Ledger events: list `e:<id>`, index = seq - base. Each is a msgpack array (version, type, gen, engine ms, turn, attempt,
-- turn state after, instance status after, seq, and detail if any), so that folding any suffix gives the current status.
-- Numbers are those of pawl.v1.EventType; a detail is text unless said otherwise.

local CREATED = 1
local TURN_ADMITTED = 2 -- detail: continuation or redrive, unless it was sent
local ATTEMPT_STARTED = 3
local TURN_COMPLETED = 4
local ATTEMPT_FAILED = 5
local ATTEMPT_EXPIRED = 6
local ATTEMPT_LOST = 7
local TURN_RELEASED = 8
local TURN_FAILED = 9
local STEP_SAVED = 10 -- detail: key, position
local TURN_SLEEPING = 11 -- detail: key, ms
local TURN_DEFERRED = 12 -- detail: reason, ms
local TURN_READY = 13
local PAUSED = 14 -- detail of this and all control events: the comment
local RESUMED = 15
local TURN_RETRIED = 16
local TURN_SKIPPED = 17
local TURN_PARKED = 18
local TURN_CANCELLED = 19
local TURN_EXPIRED = 20
local MESSAGE_SCHEDULED = 21 -- detail: message id, ms
local MESSAGE_CANCELLED = 22 -- detail: message id, comment; of a turn without TURN_ADMITTED
local TURN_REDRIVEN = 23 -- detail: the new turn, or 0
local TURN_WOKEN = 24
local DELETED = 25
local TURN_WAITING = 26 -- detail: key, name (empty for a callback), ms (0 for any)
local SIGNAL_RECEIVED = 27 -- detail: signal id, name, callback key, sender's name, sender's class
local OPERATION_STARTED = 28 -- detail: key, kind
local TURN_CANCELLING = 29 -- detail: the comment
local TURN_UNCERTAIN = 30 -- detail: key
local STEP_RESOLVED = 31 -- detail: key, decision, comment

local LEDGER_MS = 604800000

local function instance_status(r)
  if has_bit(r[FLAGS], 2) then
    return 5
  elseif has_bit(r[FLAGS], 1) then
    return 4
  elseif r[STATE] == FAILED or r[STATE] == UNCERTAIN then
    return 3
  elseif r[PENDING] > 0 then
    return 2
  end
  return 1
end

-- `attempt` is only needed for a turn that has left the head.
local function ledger_add(u, event, now, turn, state, detail, attempt)
  local r = u.r
  r[SEQ] = r[SEQ] + 1
  if r[SEQ] % 64 == 0 then
    u.trim_ledger = true
  end
  attempt = attempt or turn == r[HEAD] and r[ATTEMPT] or 0
  local events = u.events or {}
  u.events = events
  events[#events + 1] = cmsgpack.pack({ 1, event, META.gen, now, turn, attempt, state, instance_status(r), r[SEQ], detail })
  unit_touch(u)
end

-- Whether a packed event is old enough to go. One that can't be read is not, and keeps those behind it.
local function ledger_old(raw, now)
  local ok, event = pcall(cmsgpack.unpack, raw)
  return ok and type(event) == 'table' and type(event[4]) == 'number' and now - event[4] >= LEDGER_MS
end

-- Has old events go, but never the newest: it says how the instance stands.
local function ledger_trim(u, now)
  local key = T .. 'e:' .. u.id
  local oldest = redis.call('LINDEX', key, 0)
  if not ledger_old(oldest, now) then
    return
  end
  local events = redis.call('LRANGE', key, 0, -1)
  local old = 1
  while old < #events - 1 and ledger_old(events[old + 1], now) do
    old = old + 1
  end
  if old < #events then
    u.old_events = old
  end
end
