--- report_progress: takes in how far registered steps have come. Only a new report counts as a heartbeat.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms    int    engine time in virtual-time namespaces
-- @arg   server    str    run id of the caller
-- @item  id        str    instance id
-- @item  inc       int    incarnation
-- @item  turn      int    turn number
-- @item  fence     int    fence of the lease
-- @item  position  int    place of the step
-- @item  key       str    step key
-- @item  sequence  int    number of the report, from 1
-- @item  digest    bytes  digest of the report
-- @item  progress  bytes  packed progress; empty for none
-- @item  details   bytes  details blob; empty for none
-- @item  resume    bytes  blob of the point to go on from; empty keeps the last one
-- @from  RUNNING
-- @to    RUNNING
-- @reply OK(heartbeat_ms int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-PROGRESS-1, R-PROGRESS-2
--!include lease commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    lease_alive(u, now)
    local o = u.r[OP] > OP_LEFT and operation_get(u)
    if not o or o[O_POSITION] ~= position or o[O_KEY] ~= key then
      reply = { 'WRONG_STATE', 'operation' }
    else
      reply = operation_report(u, now, o, sequence, digest, progress, details, resume)
        or { 'OK', o[O_HEARTBEAT_AT] > 0 and o[O_HEARTBEAT_AT] - now or -1 }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
