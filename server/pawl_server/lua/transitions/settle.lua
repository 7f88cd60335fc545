--- settle: applies to instances what time has decided already.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   server  str  run id of the caller
-- @item  id      str  instance id
-- @from  BACKOFF, SLEEPING, WAITING, DEFERRED, QUEUED
-- @to    QUEUED, EXPIRED
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK(state int) | NOT_FOUND
-- @emits TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-SETTLE-1, R-DELAY-1, R-TTL-1, R-CANCEL-2, R-CANCEL-8
--!include settle commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  replies[#replies + 1] = u and { 'OK', u.r[STATE] } or unit_absent()
end
return { now, replies, unit_commit(server) }
