--- resolve_step: decides about the step that a turn may or may not have done.
-- @keyspace meta i e feed type l x dead parked failed damaged ready types due busy waiting ch
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   max_steps   int    steps allowed per turn
-- @arg   max_step    int    bytes of data allowed per step output
-- @arg   max_turn    int    stored bytes allowed per turn
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   turn        int    turn number
-- @arg   attempt     int    attempt that the caller saw; 0 for any
-- @arg   key         str    step key
-- @arg   decision    int    1 to save, 2 to run it again, 3 to fail; as in pawl.v1.StepDecision
-- @arg   output      bytes  output blob, to save
-- @arg   reason      str    machine-readable cause, to fail; as the next five
-- @arg   message     str    human-readable text
-- @arg   truncated   bool   whether the text was cut
-- @arg   details     bytes  details blob; empty for none
-- @arg   final       bool   whether trying again is useless
-- @arg   cause       bytes  what caused it; empty for nothing
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  UNCERTAIN, FAILED
-- @to    QUEUED, FAILED, SKIPPED, PARKED
-- @reply OK(state int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int, key str) | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits STEP_RESOLVED, STEP_SAVED, TURN_FAILED, TURN_SKIPPED, TURN_PARKED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_UNCERTAIN, TURN_CANCELLED
-- @oom   allow
-- @spec  R-UNCERTAIN-2, R-UNCERTAIN-3, R-CONTROL-1, R-CONTROL-2
--!include control step retry overtime commit

local SAVE = 1
local FAIL = 3

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
local state, o, keys
if not reply then
  state, reply = control_turn(u, turn)
end
if not reply then
  o = state == UNCERTAIN and operation_get(u)
  if state ~= UNCERTAIN then
    reply = { 'WRONG_STATE', state, 0, '' }
  elseif attempt > 0 and attempt ~= u.r[ATTEMPT] then
    reply = { 'WRONG_STATE', state, u.r[ATTEMPT], '' }
  elseif not o then
    reply = { 'DAMAGED' }
  elseif o[O_KEY] ~= key then
    reply = { 'WRONG_STATE', state, 0, o[O_KEY] }
  elseif decision == SAVE then
    reply, keys = step_check(u, key, output, max_steps, max_step, max_turn)
  end
end
if not reply then
  local resolved = { key, decision, comment }
  local after = QUEUED
  if decision == FAIL then
    after = exhausted_state(u)
    if u.r[ATTEMPT] > u.r[FAILURES] + u.r[LOST] then
      attempt_count(u) -- One that was given back has not counted so far.
    end
    failure_save(u, now, reason, message, details, final and 1 or 0, truncated and 1 or 0, cause, key)
    ledger_add(u, STEP_RESOLVED, now, turn, FAILED, resolved)
    attempt_exhausted(u, now, '', reason)
  else
    make_unready(u)
    transition(u, QUEUED)
    inbox_total(u, now)
    if attempt_none(u, now) then
      attempt_round(u)
    end
    if decision == SAVE then
      local step = step_add(u, key, o[O_KIND], output, digest, now, QUEUED)
      step[8], step[9] = 0, 1
      unit_set(u, turn .. '.' .. u.r[STEPS], cmsgpack.pack(step))
      unit_set(u, 'k', keys)
    end
    ledger_add(u, STEP_RESOLVED, now, turn, QUEUED, resolved)
    make_ready(u, now, server)
  end
  reply = control_answer(u, request_id, digest, { 'OK', after })
end
return { now, { reply }, unit_commit(server) }
