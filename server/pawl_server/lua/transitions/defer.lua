--- defer: puts turns off without using an attempt.
-- @keyspace meta i e feed type l x failed damaged ready types due busy waiting ch parked
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   max_defers  int    times that a turn may be put off
-- @item  id         str    instance id
-- @item  inc        int    incarnation
-- @item  turn       int    turn number
-- @item  fence      int    fence of the lease
-- @item  n          int    command number
-- @item  digest     bytes  digest of the command
-- @item  ms         int    until when it waits, 1 ms to 365 days
-- @item  reason     str    machine-readable cause; may be empty
-- @from  RUNNING
-- @to    DEFERRED
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK(due_ms int) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | LIMIT_EXCEEDED(limit str, value int, max int) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, TURN_DEFERRED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-DEFER-1, R-DEFER-2, R-CMD-1, R-CANCEL-7
--!include command limits retry commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = command_begin(u, inc, turn, fence, n, digest, now)
  reply = reply or command_cancel(u, now, server)
  if not reply then
    lease_alive(u, now)
    if u.r[OP] > OP_LEFT then
      reply = { 'WRONG_STATE', 'operation' }
    elseif u.r[DEFERS] >= max_defers then
      reply = over('defers_per_turn', u.r[DEFERS] + 1, max_defers)
    else
      u.r[DEFERS] = u.r[DEFERS] + 1
      command_applied(u, n, digest, WORD_DEFER, now + ms, reason ~= '' and reason or 0)
      command_end(u, HOW_DEFERRED, server)
      transition(u, DEFERRED)
      u.r[DEADLINE] = now + ms
      ledger_add(u, TURN_DEFERRED, now, turn, DEFERRED, { reason, ms })
      make_ready(u, now, server)
      reply = { 'OK', now + ms }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
