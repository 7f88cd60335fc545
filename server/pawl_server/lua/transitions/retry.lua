--- retry: gives a failed turn another round of attempts.
-- @keyspace meta i e feed type l x dead failed damaged ready types due busy waiting ch parked
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   turn        int    turn number
-- @arg   attempt     int    attempt that the caller saw; 0 for any
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  FAILED
-- @to    QUEUED
-- @reply OK(state int, max_attempts int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int)
-- @emits TURN_RETRIED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-RETRY-1, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control retry commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
reply = reply or control_failed(u, turn, attempt)
if not reply then
  local r = u.r
  make_unready(u)
  attempt_round(u)
  transition(u, QUEUED)
  inbox_total(u, now)
  if r[FAILURES] + r[LOST] == 0 then
    unit_set(u, turn .. '.f', false) -- The turn was out of time, no attempt of it has failed.
  end
  ledger_add(u, TURN_RETRIED, now, turn, QUEUED, comment)
  make_ready(u, now, server)
  reply = control_answer(u, request_id, digest, { 'OK', QUEUED, max_attempts(u) })
end
return { now, { reply }, unit_commit(server) }
