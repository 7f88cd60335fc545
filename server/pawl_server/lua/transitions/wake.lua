--- wake: ends the delay of a head that waits without running; a sleep stays.
-- @keyspace meta i e feed type l x dead failed damaged ready types due busy waiting ch parked
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  BACKOFF, DEFERRED
-- @to    QUEUED
-- @reply OK(woken bool) | BODY_CONFLICT | NOT_FOUND
-- @emits TURN_WOKEN, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-WAKE-2, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
if not reply then
  local woken = u.r[STATE] == BACKOFF or u.r[STATE] == DEFERRED
  if woken then
    make_unready(u)
    u.r[DEADLINE] = 0
    transition(u, QUEUED)
    ledger_add(u, TURN_WOKEN, now, u.r[HEAD], QUEUED, comment)
    make_ready(u, now, server)
  end
  reply = control_answer(u, request_id, digest, { 'OK', woken and 1 or 0 })
end
return { now, { reply }, unit_commit(server) }
