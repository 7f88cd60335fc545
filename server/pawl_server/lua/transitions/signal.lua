--- signal: gives signals and results of callbacks to turns: at once where the turn waits for them, else they are kept for it.
-- @keyspace meta i e feed type l x failed damaged ready types due busy waiting ch
-- @arg   now_ms       int    engine time in virtual-time namespaces
-- @arg   server       str    run id of the caller
-- @arg   max_signals  int    signals and results allowed per turn
-- @arg   max_signal   int    bytes of data allowed per value
-- @arg   max_turn     int    stored bytes allowed per turn
-- @arg   reserve      int    bytes kept free for the message of a turn that has none yet
-- @item  id           str    instance id
-- @item  inc          int    incarnation; 0 for any
-- @item  turn         int    turn number; 0 for the head or, if the inbox is empty, the next one
-- @item  signal_id    str    idempotency id; empty for a callback
-- @item  name         str    what the turn waits for; empty for a callback
-- @item  callback     str    key of the callback; empty for a signal
-- @item  digest       bytes  digest of name and value
-- @item  rejected     bool   whether the value is the failure of a callback
-- @item  value        bytes  value blob
-- @item  sender       str    name of who sends it, as stated
-- @item  principal    int    what kind of caller that is, as stated
-- @from  WAITING
-- @to    QUEUED
-- @reply OK(turn int, received_ms int, position int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int) | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits SIGNAL_RECEIVED, STEP_SAVED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, TURN_CANCELLED
-- @oom   deny
-- @spec  R-SIGNAL-1, R-SIGNAL-2, R-SIGNAL-3, R-SIGNAL-4, R-SIGNAL-5, R-SIGNAL-6, R-SIGNAL-7, R-CALLBACK-2
--!include control wait limits commit

local now = meta_load(now_ms)

-- The turn that a signal to the instance is for: where the first of that id went, else the one at the head once all that
-- have ended are passed, however many there are.
local function target(u, signal_id)
  local r = u.r
  local known = r[SIGNALLED] > 0 and unit_get(u, 'g:' .. signal_id)
  if known then
    return tonumber(known)
  end
  for _ = r[HEAD], r[TAIL] do
    settle_before_claim(u, now, server)
    if r[STATE] ~= BEHIND then
      break
    end
    settle_late(u, now, server)
  end
  return r[HEAD]
end

-- What the turn has received under the same id, or for the same callback.
local function received(g, entry)
  for at = 2, #g do
    local one = g[at]
    if one[G_CALLBACK] == entry[G_CALLBACK] and one[G_ID] == entry[G_ID] then
      return one
    end
  end
  return nil
end

-- Stored bytes of an unfinished turn, or what they will be once it has a message and is claimed.
local function turn_bytes(u, turn)
  if turn == u.r[HEAD] and u.r[BYTES] > 0 then
    return u.r[BYTES]
  end
  local field = turn .. '.m'
  local message = turn > u.r[TAIL] and reserve or u.set[field] and #u.set[field] or redis.call('HSTRLEN', u.key, field)
  return message + signals_bytes(u, turn)
end

local function too_much(u, turn, g, value)
  local bytes = turn_bytes(u, turn) + #value
  if data_bytes(value) > max_signal then
    return over('signal_bytes', data_bytes(value), max_signal)
  elseif #g > max_signals then
    return over('signals_per_turn', #g, max_signals)
  elseif bytes > max_turn then
    return over('turn_bytes', bytes, max_turn)
  end
  return nil
end

-- The answer that the first of that id got. One that named the turn is from now on known to the instance, too.
local function repeated(u, turn, g, one, entry)
  if one[G_DIGEST] ~= entry[G_DIGEST] then
    return { 'BODY_CONFLICT' }
  end
  if has_bit(entry[G_BITS], 1) and not has_bit(one[G_BITS], 1) then
    one[G_BITS] = one[G_BITS] + 1
    unit_set(u, turn .. '.g', cmsgpack.pack(g))
    unit_set(u, 'g:' .. one[G_ID], string.format('%.0f', turn))
  end
  return { 'OK', turn, one[G_AT], has_bit(one[G_BITS], 2) and one[G_POSITION] or 0 }
end

-- The state of a turn as the ledger tells it: that it was handed out is no event until somebody has received it.
local function told(u, state)
  return state == RUNNING and not has_bit(u.r[BITS], 1) and QUEUED or state
end

local function receive(u, turn, g, state, entry, value)
  local r = u.r
  if #g == 1 then
    r[SIGNALLED] = r[SIGNALLED] + 1
  end
  g[#g + 1] = entry
  local detail = { entry[G_ID], entry[G_NAME], entry[G_CALLBACK], entry[G_SENDER], entry[G_CLASS] }
  ledger_add(u, SIGNAL_RECEIVED, now, state > 0 and turn or 0, told(u, state), detail)
  if turn ~= r[HEAD] or not wait_receive(u, now, server, entry, value) then
    unit_set(u, signal_field(turn, #g), value)
    if turn == r[HEAD] and r[BYTES] > 0 then
      r[BYTES] = r[BYTES] + #value
    end
  end
  unit_set(u, turn .. '.g', cmsgpack.pack(g))
  if has_bit(entry[G_BITS], 1) then
    unit_set(u, 'g:' .. entry[G_ID], string.format('%.0f', turn))
  end
  return { 'OK', turn, now, entry[G_POSITION] }
end

local function decide(u, turn, entry, value)
  local at = turn > 0 and turn or target(u, entry[G_ID])
  local state, refusal = control_turn(u, at)
  if turn == 0 and at > u.r[TAIL] then
    state = 0
  end
  if not state then
    return refusal
  end
  local g = signals_of(u, at)
  if not g and u.r[SIGNALLED] > 0 and unit_get(u, at .. '.g') then
    return { 'DAMAGED' }
  end
  g = g or { 1 }
  local one = received(g, entry)
  if one then
    return repeated(u, at, g, one, entry)
  elseif state >= COMPLETED then
    return { 'WRONG_STATE', state }
  end
  return too_much(u, at, g, value) or receive(u, at, g, state, entry, value)
end

local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'w', 'k')
  local reply
  if not u then
    reply = unit_absent()
  elseif inc > 0 and inc ~= u.r[INC] then
    reply = { 'NOT_FOUND' }
  else
    local bits = turn == 0 and 1 or 0
    local entry = { signal_id, name, callback, digest, now, 0, rejected and 1 or 0, sender, principal, #value, bits }
    reply = decide(u, turn, entry, value)
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
