--!include retry ends notes
-- Steps that run out of their time, and steps that nobody knows the outcome of.

-- Registers the step that runs. What an earlier attempt reported as the point to go on from stays.
local function operation_start(u, now, position, key, kind, timeout_ms, heartbeat_ms, on_restart)
  local r = u.r
  local before = r[OP] > 0 and operation_get(u)
  local resume = before and before[O_KEY] == key and before[O_RESUME] or ''
  local heartbeat_at = heartbeat_ms > 0 and now + heartbeat_ms or 0
  local o = { 1, key, kind, position, r[ATTEMPT], now, now + timeout_ms, heartbeat_ms, heartbeat_at, 0, '', 0 }
  o[O_PROGRESS], o[O_DETAILS], o[O_RESUME], o[O_ON_RESTART] = '', '', resume, on_restart
  r[OP] = on_restart == 2 and OP_UNSEEN or OP_RUNS
  operation_keep(u, o)
  ledger_add(u, OPERATION_STARTED, now, r[HEAD], r[STATE], { key, kind })
  return o
end

-- Takes in the report that came with a failure, of a step that may not have been registered yet; nil, or the refusal.
local function operation_last(u, now, position, key, sequence, digest, progress, details, resume)
  local r = u.r
  local o = r[OP] > OP_LEFT and operation_get(u) or nil
  if position ~= r[STEPS] + 1 or o and o[O_KEY] ~= key then
    return { 'WRONG_STATE', 'operation' }
  end
  o = o or operation_start(u, now, position, key, 'step', 0, 0, 1)
  if sequence > o[O_SEQUENCE] then
    operation_report(u, now, o, sequence, digest, progress, details, resume)
  end
  return nil
end

-- The attempt ended in a step that must not be repeated unseen: the turn waits until somebody has decided.
local function attempt_uncertain(u, now)
  local r = u.r
  local o = operation_get(u)
  transition(u, UNCERTAIN)
  unit_mark('failed', unit_member(u), 0)
  notify_awaiting(u, r[HEAD], '')
  ledger_add(u, TURN_UNCERTAIN, now, r[HEAD], UNCERTAIN, o and o[O_KEY] or '')
  make_ready(u, now, '')
end

-- The step that runs is out of time: the attempt fails, whoever is still at work on it.
--!rare
local function operation_over(u, now, server)
  local r = u.r
  local turn, fence, conn = r[HEAD], r[FENCE], r[CONN]
  local o = operation_get(u) or { 1, '', '', 0, 0, r[LEASED], r[OP_AT] }
  local reason, message = 'OPERATION_TIMEOUT', string.format('step %s ran for %.0f ms', o[O_KEY], o[O_DEADLINE] - o[O_START])
  if r[OP_AT] < o[O_DEADLINE] then
    reason = 'HEARTBEAT_TIMEOUT'
    message = string.format('step %s reported nothing for %.0f ms', o[O_KEY], o[O_HEARTBEAT_MS])
  end
  local unseen = r[OP] == OP_UNSEEN
  local exhausted, delay = attempt_failed(u, now, reason, -1)
  failure_save(u, now, reason, message, '', 0, 0)
  lease_end(u, HOW_EXPIRED)
  tell_holder(u, conn, turn, fence, ENDINGS[HOW_EXPIRED], '')
  ledger_add(u, ATTEMPT_EXPIRED, now, turn, unseen and UNCERTAIN or exhausted and FAILED or BACKOFF, reason)
  if unseen then
    attempt_uncertain(u, now)
  elseif exhausted then
    attempt_exhausted(u, now, '', reason)
  else
    attempt_again(u, now, server, delay)
  end
end

-- The turn is out of time: it fails for good whatever it does, and so does the attempt that runs.
--!rare
local function total_over(u, now)
  local r = u.r
  local reason, message = 'TOTAL_DEADLINE', 'the turn had not finished in its time'
  if r[STATE] == RUNNING then
    local turn, fence, conn, unseen = r[HEAD], r[FENCE], r[CONN], r[OP] == OP_UNSEEN
    local received = has_bit(r[BITS], 1)
    if received then
      attempt_count(u)
    end
    failure_save(u, now, reason, message, '', 0, 0)
    lease_end(u, received and HOW_EXPIRED or HOW_RETURNED)
    tell_holder(u, conn, turn, fence, ENDINGS[r[HOW]], '')
    if received then
      ledger_add(u, ATTEMPT_EXPIRED, now, turn, unseen and UNCERTAIN or FAILED, reason)
    end
    if unseen then
      attempt_uncertain(u, now)
      return
    end
  else
    failure_save(u, now, reason, message, '', 0, 0)
    make_unready(u)
    r[DEADLINE] = 0
  end
  attempt_exhausted(u, now, '', reason)
end
