--- park: sets a failed turn aside: its inbox goes on, its message is kept until it is redriven.
-- @keyspace meta i e feed type l x dead parked failed damaged ready types due busy waiting ch
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
-- @to    PARKED
-- @reply OK(finished_ms int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int) | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits TURN_PARKED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-PARK-1, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control limits commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
reply = reply or control_failed(u, turn, attempt)
if not reply and u.r[PARKED_TURNS] >= MAX_PARKED then
  reply = over('parked_turns', u.r[PARKED_TURNS] + 1, MAX_PARKED)
end
if not reply then
  park_message(u, now)
  head_end(u, now, server, PARKED, TURN_PARKED, comment)
  reply = control_answer(u, request_id, digest, { 'OK', now })
end
return { now, { reply }, unit_commit(server) }
