--- start_operation: registers the steps that run, so that their deadlines are kept. A repeat extends nothing.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms        int  engine time in virtual-time namespaces
-- @arg   server        str  run id of the caller
-- @item  id            str  instance id
-- @item  inc           int  incarnation
-- @item  turn          int  turn number
-- @item  fence         int  fence of the lease
-- @item  position      int  place that the step will have
-- @item  key           str  step key
-- @item  kind          str  step kind
-- @item  timeout_ms    int  time that it has
-- @item  heartbeat_ms  int  longest time without a report; 0 for any
-- @item  on_restart    int  1 to run it again, 2 to ask first; as in pawl.v1.OnRestart
-- @from  RUNNING
-- @to    RUNNING
-- @reply OK(remaining_ms int) | GAP(last int) | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, OPERATION_STARTED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-OP-1, R-OP-2, R-OP-3, R-CANCEL-7
--!include lease overtime commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'k')
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    local r = u.r
    lease_alive(u, now)
    local o = r[OP] > OP_LEFT and operation_get(u)
    local keys = r[STEPS] > 0 and unit_get(u, 'k') or ''
    if position <= r[STEPS] or string.find(keys, '\0' .. key .. '\0', 1, true) then
      reply = { 'WRONG_STATE', 'step_saved' }
    elseif position > r[STEPS] + 1 then
      reply = { 'GAP', r[STEPS] }
    elseif o and o[O_KEY] ~= key then
      reply = { 'WRONG_STATE', 'operation' }
    elseif not o and r[STATE] == CANCELLING then
      reply = { 'WRONG_STATE', 'cancelling' }
    else
      o = o or operation_start(u, now, position, key, kind, timeout_ms, heartbeat_ms, on_restart)
      reply = { 'OK', o[O_DEADLINE] - now }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
