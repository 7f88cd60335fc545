--- fail: records why an attempt failed and decides what comes next.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms     int    engine time in virtual-time namespaces
-- @arg   server     str    run id of the caller
-- @item  id         str    instance id
-- @item  inc        int    incarnation
-- @item  turn       int    turn number
-- @item  fence      int    fence of the lease
-- @item  n          int    command number
-- @item  digest     bytes  digest of the command
-- @item  reason     str    machine-readable cause
-- @item  message    str    human-readable text
-- @item  truncated  bool   whether the text was cut
-- @item  details    bytes  details blob; empty for none
-- @item  final      bool   whether trying again is useless
-- @item  delay_ms   int    delay before the next attempt; -1 for the retry policy
-- @item  cause      bytes  what caused it; empty for nothing
-- @item  step_key   str    step that failed; empty for none
-- @item  step_policy bytes  retry policy of the step, see lib/policy.lua; empty for none
-- @item  op_position int   place of the registered step, whose last report comes with it; 0 for none
-- @item  op_key     str    its key
-- @item  op_sequence int   number of the report
-- @item  op_digest  bytes  digest of the report
-- @item  op_progress bytes packed progress; empty for none
-- @item  op_details bytes  details blob; empty for none
-- @item  op_resume  bytes  blob of the point to go on from; empty keeps the last one
-- @from  RUNNING, FAILED
-- @to    BACKOFF, QUEUED, FAILED, SKIPPED, PARKED
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK(state int, delay_ms int) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, OPERATION_STARTED, ATTEMPT_FAILED, TURN_FAILED, TURN_ADMITTED, TURN_EXPIRED, TURN_PARKED, TURN_READY, TURN_SKIPPED, ATTEMPT_EXPIRED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-FAIL-1, R-FAIL-2, R-FAIL-3, R-CMD-1, R-POLICY-1, R-RETRY-2, R-CANCEL-7
--!include command retry overtime commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply = command_begin(u, inc, turn, fence, n, digest, now)
  if not reply then
    lease_accept(u, now)
    if op_position > 0 then
      reply =
        operation_last(u, now, op_position, op_key, op_sequence, op_digest, op_progress, op_details, op_resume)
    end
    if reply then
      lease_alive(u, now)
    end
  end
  if not reply and u.r[STATE] == CANCELLING then
    -- What the worker says stays readable; the turn is given up all the same.
    failure_save(u, now, reason, message, details, final and 1 or 0, truncated and 1 or 0, cause, step_key)
    command_applied(u, n, digest, WORD_FAIL, CANCELLED, 0)
    head_cancel(u, now, server)
    reply = { 'OK', CANCELLED, 0 }
  elseif not reply then
    local exhausted, delay, row
    if step_policy ~= '' then
      exhausted, delay, row = attempt_step_failed(u, now, reason, delay_ms, step_key, step_policy)
    else
      exhausted, delay = attempt_failed(u, now, reason, delay_ms)
    end
    exhausted = exhausted or final
    failure_save(u, now, reason, message, details, final and 1 or 0, truncated and 1 or 0, cause, step_key, row)
    command_end(u, HOW_FAILED, server)
    local after = exhausted and exhausted_state(u) or delay > 0 and BACKOFF or QUEUED
    delay = exhausted and 0 or delay
    ledger_add(u, ATTEMPT_FAILED, now, turn, exhausted and FAILED or after, reason)
    command_applied(u, n, digest, WORD_FAIL, after, delay)
    if exhausted then
      attempt_exhausted(u, now, server, reason)
    else
      attempt_again(u, now, server, delay)
    end
    reply = { 'OK', after, delay }
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
