--- checkpoint: saves the outputs of steps.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms     int    engine time in virtual-time namespaces
-- @arg   server     str    run id of the caller
-- @arg   max_steps  int    steps allowed per turn
-- @arg   max_step   int    bytes of data allowed per step output
-- @arg   max_turn   int    stored bytes allowed per turn
-- @item  id         str    instance id
-- @item  inc        int    incarnation
-- @item  turn       int    turn number
-- @item  fence      int    fence of the lease
-- @item  n          int    command number
-- @item  digest     bytes  digest of the command
-- @item  key        str    step key
-- @item  kind       str    step kind
-- @item  output     bytes  output blob
-- @from  RUNNING
-- @to    RUNNING
-- @from  CANCELLING
-- @to    CANCELLING
-- @reply OK(position int) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | LIMIT_EXCEEDED(limit str, value int, max int) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, STEP_SAVED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, TURN_CANCELLED
-- @oom   allow
-- @spec  R-STEP-1, R-STEP-2, R-STEP-3, R-CMD-1, R-CANCEL-7
--!include command step commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'k')
  local reply, keys = command_begin(u, inc, turn, fence, n, digest, now), nil
  if not reply then
    lease_alive(u, now)
    reply, keys = step_check(u, key, output, max_steps, max_step, max_turn)
    if not reply then
      local step = step_add(u, key, kind, output, digest, now)
      local position = u.r[STEPS]
      unit_set(u, turn .. '.' .. position, cmsgpack.pack(step))
      unit_set(u, 'k', keys)
      command_applied(u, n, digest, WORD_CHECKPOINT, position)
      reply = { 'OK', position }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
