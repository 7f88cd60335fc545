--- sleep: saves a sleep as a step and gives the turn back until it is over; uses no attempt.
-- @keyspace meta i e feed type l x failed damaged ready types due busy waiting ch parked
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
-- @item  ms         int    how long, 1 ms to 365 days
-- @from  RUNNING
-- @to    SLEEPING
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK(position int, wake_ms int) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | LIMIT_EXCEEDED(limit str, value int, max int) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, STEP_SAVED, TURN_SLEEPING, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, TURN_CANCELLED
-- @oom   allow
-- @spec  R-SLEEP-1, R-SLEEP-2, R-CMD-1, R-CANCEL-7
--!include command step retry commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'k')
  local reply, keys = command_begin(u, inc, turn, fence, n, digest, now), nil
  reply = reply or command_cancel(u, now, server)
  if not reply then
    lease_alive(u, now)
    if u.r[OP] > OP_LEFT then
      reply = { 'WRONG_STATE', 'operation' }
    else
      reply, keys = step_check(u, key, '', max_steps, 0, max_turn)
    end
    if not reply then
      local step = step_add(u, key, 'sleep', '', digest, now)
      local position = u.r[STEPS]
      unit_set(u, turn .. '.' .. position, cmsgpack.pack(step))
      unit_set(u, 'k', keys)
      command_applied(u, n, digest, WORD_SLEEP, position, now + ms)
      command_end(u, HOW_SLEEPING, server)
      transition(u, SLEEPING)
      u.r[DEADLINE] = now + ms
      ledger_add(u, TURN_SLEEPING, now, turn, SLEEPING, { key, ms })
      make_ready(u, now, server)
      reply = { 'OK', position, now + ms }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
