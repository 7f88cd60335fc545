--- cancel: ends an unfinished turn; the lease of one that runs ends at once.
-- @keyspace meta i e feed type l x dead failed damaged ready types due busy waiting ch parked
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   turn        int    turn number
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  QUEUED, RUNNING, SLEEPING, WAITING, BACKOFF, DEFERRED, UNCERTAIN, FAILED
-- @to    CANCELLED
-- @reply OK(finished_ms int, former int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int)
-- @emits TURN_CANCELLED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED
-- @oom   allow
-- @spec  R-CANCEL-1, R-CANCEL-2, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
local state
if not reply then
  state, reply = control_turn(u, turn)
end
if not reply and state >= COMPLETED then
  reply = { 'WRONG_STATE', state, 0 }
end
if not reply then
  local r = u.r
  if turn ~= r[HEAD] then
    queued_end(u, now, server, turn, CANCELLED, TURN_CANCELLED, comment)
  else
    if state == RUNNING then
      tell_holder(u, r[CONN], turn, r[FENCE], 'cancelled', '')
    end
    head_end(u, now, server, CANCELLED, TURN_CANCELLED, comment)
  end
  reply = control_answer(u, request_id, digest, { 'OK', now, state })
end
return { now, { reply }, unit_commit(server) }
