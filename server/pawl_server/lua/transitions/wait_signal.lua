--- wait_signal: consumes the oldest signal of a name, or the result of a callback, and saves it as a step; if there is none yet,
-- gives the turn back until there is, or the time is over. Uses no attempt.
-- @keyspace meta i e feed type l x failed damaged ready types due busy waiting ch
-- @arg   now_ms     int    engine time in virtual-time namespaces
-- @arg   server     str    run id of the caller
-- @arg   max_steps  int    steps allowed per turn
-- @arg   max_turn   int    stored bytes allowed per turn
-- @item  id         str    instance id
-- @item  inc        int    incarnation
-- @item  turn       int    turn number
-- @item  fence      int    fence of the lease
-- @item  n          int    command number
-- @item  digest     bytes  digest of the command
-- @item  key        str    step key
-- @item  name       str    name of the signal; empty for a callback
-- @item  callback   str    key of the callback; empty for a signal
-- @item  ms         int    how long, 1 ms to 365 days; 0 for ever
-- @from  RUNNING
-- @to    RUNNING, WAITING
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK(position int, suspended bool, deadline_ms int, outcome int, value bytes) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | LIMIT_EXCEEDED(limit str, value int, max int) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, STEP_SAVED, TURN_WAITING, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, TURN_CANCELLED
-- @oom   allow
-- @spec  R-WAIT-1, R-WAIT-2, R-WAIT-4, R-SIGNAL-2, R-CALLBACK-1, R-CMD-1, R-CANCEL-7
--!include command wait retry commit

local now = meta_load(now_ms)

-- The oldest of what the head waits for, with all it has received; nil if there is nothing.
local function oldest(u, name, callback)
  local g = signals_of(u, u.r[HEAD])
  for at = 2, g and #g or 0 do
    if g[at][G_POSITION] == 0 and wait_matches(name, callback, g[at]) then
      return g, at
    end
  end
  return nil
end

-- Moves the value of an entry into a step.
local function consume(u, g, at, key, n, digest)
  local r, entry = u.r, g[at]
  local value = unit_get(u, signal_field(r[HEAD], at))
  if not value then
    return { 'DAMAGED' }
  end
  r[BYTES] = r[BYTES] - #value
  wait_save(u, now, key, entry[G_CALLBACK], value, entry[G_DIGEST], now, wait_outcome(entry))
  entry[G_POSITION] = r[STEPS]
  unit_set(u, signal_field(r[HEAD], at), false)
  unit_set(u, r[HEAD] .. '.g', cmsgpack.pack(g))
  command_applied(u, n, digest, WORD_SIGNAL, r[STEPS], wait_outcome(entry))
  return { 'OK', r[STEPS], 0, 0, wait_outcome(entry), value }
end

local function suspend(u, key, name, callback, ms, n, digest)
  local r = u.r
  local deadline = ms > 0 and now + ms or 0
  unit_set(u, 'w', cmsgpack.pack({ 1, key, name, callback, now, deadline }))
  command_applied(u, n, digest, WORD_WAIT, r[STEPS] + 1, deadline)
  command_end(u, HOW_WAITING, server)
  transition(u, WAITING)
  r[DEADLINE] = deadline
  ledger_add(u, TURN_WAITING, now, r[HEAD], WAITING, { key, name, ms })
  make_ready(u, now, server)
  return { 'OK', r[STEPS] + 1, 1, deadline, 0, '' }
end

local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'k')
  local reply = command_begin(u, inc, turn, fence, n, digest, now)
  reply = reply or command_cancel(u, now, server)
  if not reply then
    lease_alive(u, now)
    if u.r[OP] > OP_LEFT then
      reply = { 'WRONG_STATE', 'operation' }
    else
      reply = step_check(u, key, '', max_steps, 0, max_turn)
    end
  end
  if not reply then
    local g, nth = oldest(u, name, callback)
    reply = g and consume(u, g, nth, key, n, digest) or suspend(u, key, name, callback, ms, n, digest)
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
