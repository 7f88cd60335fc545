--- skip: ends a failed turn so that its inbox goes on.
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
-- @to    SKIPPED
-- @reply OK(finished_ms int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int)
-- @emits TURN_SKIPPED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-SKIP-1, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
reply = reply or control_failed(u, turn, attempt)
if not reply then
  head_end(u, now, server, SKIPPED, TURN_SKIPPED, comment)
  reply = control_answer(u, request_id, digest, { 'OK', now })
end
return { now, { reply }, unit_commit(server) }
