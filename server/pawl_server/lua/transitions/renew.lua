--- renew: extends leases; accepts what was delivered under them.
-- @keyspace meta i e type ready types due busy waiting ch
-- @arg   now_ms  int   engine time in virtual-time namespaces
-- @arg   server  str   run id of the caller
-- @arg   detach  bool  part the leases from their stream
-- @item  id      str   instance id
-- @item  inc     int   incarnation
-- @item  turn    int   turn number
-- @item  fence   int   fence of the lease
-- @from  RUNNING
-- @to    RUNNING
-- @reply OK(remaining_ms int) | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str)
-- @emits ATTEMPT_STARTED
-- @oom   allow
-- @spec  R-LEASE-3, R-LEASE-4, R-LEASE-6
--!include lease commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    lease_alive(u, now)
    if detach and u.r[CONN] ~= 0 then
      u.r[CONN] = 0
      unit_touch(u)
    end
    reply = { 'OK', math.max(0, u.r[DEADLINE] - now) }
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
