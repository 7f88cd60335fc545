--- trim: removes finished turns that the retention no longer asks for, and events that are old.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   server  str  run id of the caller
-- @arg   limit   int  turns of each tier to look at per instance, 1 to 256
-- @item  id      str  instance id
-- @reply OK(trimmed int, next_ms int) | NOT_FOUND
-- @emits TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-TRIM-1, R-TRIM-2, R-TRIM-3, R-TRIM-6, R-EVENT-6
--!include history settle mend commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  if u then
    local trimmed = history_trim(u, now, limit)
    history_arm(u, now)
    ledger_trim(u, now)
    mend_entry('gc:' .. id, u.r[GC_AT])
    replies[#replies + 1] = { 'OK', trimmed, history_next(u, now) or 0 }
  else
    replies[#replies + 1] = unit_absent()
  end
end
return { now, replies, unit_commit(server) }
