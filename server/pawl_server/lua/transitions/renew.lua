--- renew: extends leases; accepts what was delivered under them. Detached ones belong to no stream and are as good as
-- orphaned from then on, but for the next sign of life.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms     int  engine time in virtual-time namespaces
-- @arg   server     str  run id of the caller
-- @arg   detach_ms  int  above 0: part the leases from their stream; time left for another one to adopt them
-- @item  id         str  instance id
-- @item  inc        int  incarnation
-- @item  turn       int  turn number
-- @item  fence      int  fence of the lease
-- @item  ordinal    int  detach only from streams and adoptions up to this ordinal; 0 means from any
-- @from  RUNNING
-- @to    RUNNING
-- @from  CANCELLING
-- @to    CANCELLING
-- @reply OK(remaining_ms int, cancel_ms int) | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str)
-- @emits ATTEMPT_STARTED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-LEASE-3, R-LEASE-4, R-LEASE-6, R-LEASE-10, R-CANCEL-6
--!include orphan commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    lease_alive(u, now)
    if detach_ms > 0 and (ordinal == 0 or lease_ordinal(u.r[CONN]) <= ordinal) then
      u.r[CONN] = 0
      orphan_lease(u, now, detach_ms)
    end
    reply = { 'OK', math.max(0, u.r[DEADLINE] - now), lease_grace(u, now) }
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
