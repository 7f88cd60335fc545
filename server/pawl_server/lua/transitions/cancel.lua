--- cancel: ends an unfinished turn. One that is leased becomes CANCELLING: its worker is told, may finish the step that runs
-- and gives the turn up, or loses it when the grace is over.
-- @keyspace meta i e feed type l x failed damaged ready types due busy waiting ch dead
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   turn        int    turn number
-- @arg   force       bool   ends the lease at once
-- @arg   grace_ms    int    time that the worker has otherwise
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  QUEUED, RUNNING, SLEEPING, WAITING, BACKOFF, DEFERRED, CANCELLING, UNCERTAIN, FAILED
-- @to    CANCELLED, CANCELLING
-- @reply OK(finished_ms int, former int, state int, cancel_ms int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int)
-- @emits TURN_CANCELLED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLING
-- @oom   allow
-- @spec  R-CANCEL-1, R-CANCEL-2, R-CANCEL-5, R-CANCEL-6, R-CANCEL-9, R-CONTROL-1, R-CONTROL-2
--!include control lease commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
local state
if not reply then
  state, reply = control_turn(u, turn)
end
if not reply and state >= COMPLETED then
  reply = { 'WRONG_STATE', state, 0 }
end

-- Asks the worker of the head to give it up; the lease lasts no longer than the grace.
local function ask_worker()
  local r = u.r
  r[CANCEL_AT] = now + grace_ms
  DUE['cancel:' .. id] = r[CANCEL_AT]
  transition(u, CANCELLING)
  if r[DEADLINE] > r[CANCEL_AT] then
    lease_deadline(u, r[CANCEL_AT])
  end
  ledger_add(u, TURN_CANCELLING, now, turn, CANCELLING, comment)
  tell_cancelling(u, grace_ms)
end

if not reply then
  reply = { 'OK', now, state, CANCELLED, 0 }
  if turn ~= u.r[HEAD] then
    queued_end(u, now, server, turn, CANCELLED, TURN_CANCELLED, comment)
  elseif HELD[state] and not force then
    if state == RUNNING then
      ask_worker()
    end
    reply = { 'OK', 0, state, CANCELLING, u.r[CANCEL_AT] }
  else
    head_cancel(u, now, server, comment)
  end
  control_answer(u, request_id, digest, reply)
end
return { now, { reply }, unit_commit(server) }
