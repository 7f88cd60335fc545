--- get_leases: reads how leases stand, and on which streams: for servers that hold them.
-- @keyspace meta i
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @item  id      str  instance id
-- @item  inc     int  incarnation
-- @item  turn    int  turn number
-- @item  fence   int  fence of the lease
-- @reply OK(accepted bool, conn str, cancel_ms int) | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str)
-- @oom   reads
-- @lane  bulk
-- @spec  R-CLAIM-3
--!include lease

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = unit_load(id)
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    local conn = u.r[CONN]
    reply = { 'OK', has_bit(u.r[BITS], 1) and 1 or 0, conn == 0 and '' or conn, lease_grace(u, now) }
  end
  replies[#replies + 1] = reply
end
return { now, replies, {} }
