--- claim: leases ready heads to streams, oldest first.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms       int  engine time in virtual-time namespaces
-- @arg   server       str  run id of the caller
-- @arg   delivery_ms  int  time until the delivery must be received
-- @arg   max_bytes    int  stop handing out once this many stored bytes are read
-- @item  tv           str  type:version
-- @item  limit        int  turns wanted, 0 to 256; 0 passes a hint on that the caller has no use for
-- @item  conn         str  stream that gets them; empty for a call that polls
-- @from  QUEUED
-- @to    RUNNING
-- @reply OK(more bool, turns list)
-- @emits TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-LEASE-1, R-LEASE-2, R-DELIVER-1, R-TTL-1
--!include claim commit

local now = meta_load(now_ms)
local replies, bytes = {}, 0
for at = FIRST, LAST, STRIDE do
  --!item
  local turns = {}
  while #turns < limit and bytes < max_bytes do
    local view = claim_next(tv, now, server, conn, delivery_ms)
    if not view then
      break
    end
    bytes = bytes + claim_bytes(view)
    turns[#turns + 1] = view
  end
  local more = ready_close(tv, now)
  if #turns < limit and not more then
    WAITERS[tv] = now + WAIT_MS
  elseif WAITERS[tv] == nil then
    WAITERS[tv] = false
  end
  if more and #turns == limit then
    ready_tell(tv, now, server, true)
  end
  replies[#replies + 1] = { 'OK', more and 1 or 0, turns }
end
return { now, replies, unit_commit(server) }
