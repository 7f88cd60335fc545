--- adopt: moves leases to another stream of their session and renews them. A lower stream ordinal changes nothing.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   server  str  run id of the caller
-- @item  id      str  instance id
-- @item  inc     int  incarnation
-- @item  turn    int  turn number
-- @item  fence   int  fence of the lease
-- @item  conn    str  stream that takes the lease over: run.ordinal.number, the ordinal being that of this decision
-- @from  RUNNING
-- @to    RUNNING
-- @from  CANCELLING
-- @to    CANCELLING
-- @reply OK(remaining_ms int, cancel_ms int) | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | SUPERSEDED
-- @emits ATTEMPT_STARTED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-LEASE-7, R-WORK-5, R-CANCEL-6
--!include lease notes commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    if lease_ordinal(u.r[CONN]) > lease_ordinal(conn) then
      reply = { 'SUPERSEDED' }
    else
      lease_alive(u, now)
      if u.r[CONN] ~= conn then
        tell_holder(u, u.r[CONN], turn, fence, 'superseded', server)
      end
      u.r[CONN] = conn
      unit_touch(u)
      reply = { 'OK', math.max(0, u.r[DEADLINE] - now), lease_grace(u, now) }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
