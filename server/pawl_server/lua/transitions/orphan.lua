--- orphan: shortens the leases of a stream that closed. Does nothing where another stream has taken over meanwhile.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms    int   engine time in virtual-time namespaces
-- @arg   server    str   run id of the caller
-- @arg   grace_ms  int   time left for somebody to take over
-- @item  id        str   instance id
-- @item  inc       int   incarnation
-- @item  turn      int   turn number
-- @item  fence     int   fence of the lease
-- @item  conn      str   stream that closed
-- @item  accepted  bool  whether the stream had received the turn
-- @from  RUNNING
-- @to    RUNNING
-- @from  CANCELLING
-- @to    CANCELLING
-- @reply OK(deadline_ms int) | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | SUPERSEDED
-- @emits ATTEMPT_STARTED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-LEASE-8
--!include orphan commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = lease_check(u, inc, turn, fence)
  if not reply then
    if u.r[CONN] ~= conn then
      reply = { 'SUPERSEDED' }
    else
      if accepted then
        lease_alive(u, now)
      end
      orphan_lease(u, now, grace_ms)
      reply = { 'OK', u.r[DEADLINE] }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
