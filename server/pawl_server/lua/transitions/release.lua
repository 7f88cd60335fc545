--- release: gives turns back; costs no attempt. From the eleventh time on, a turn waits a second before it is ready again.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms  int    engine time in virtual-time namespaces
-- @arg   server  str    run id of the caller
-- @item  id      str    instance id
-- @item  inc     int    incarnation
-- @item  turn    int    turn number
-- @item  fence   int    fence of the lease
-- @item  n       int    command number
-- @item  digest  bytes  digest of the command
-- @from  RUNNING
-- @to    QUEUED, BACKOFF, UNCERTAIN
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str)
-- @emits ATTEMPT_STARTED, TURN_RELEASED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-LEASE-9, R-CMD-1, R-CANCEL-7
--!include command retry overtime commit

local FREE_RELEASES = 10
local RELEASE_DELAY_MS = 1000

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = command_begin(u, inc, turn, fence, n, digest, now)
  if not reply and u.r[STATE] == CANCELLING then
    command_applied(u, n, digest, WORD_RELEASE)
    head_cancel(u, now, server)
    reply = { 'OK' }
  elseif not reply then
    local unseen = u.r[OP] == OP_UNSEEN
    command_end(u, HOW_RELEASED, server)
    command_applied(u, n, digest, WORD_RELEASE)
    u.r[RELEASES] = u.r[RELEASES] + 1
    if unseen then
      ledger_add(u, TURN_RELEASED, now, turn, UNCERTAIN)
      attempt_uncertain(u, now)
    else
      attempt_again(u, now, server, u.r[RELEASES] > FREE_RELEASES and RELEASE_DELAY_MS or 0)
      ledger_add(u, TURN_RELEASED, now, turn, u.r[STATE])
    end
    reply = { 'OK' }
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
