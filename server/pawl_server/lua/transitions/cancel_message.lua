--- cancel_message: takes back a message that has not started.
-- @keyspace meta i e feed type l x dead failed damaged ready types due busy waiting ch parked
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   message_id  str    idempotency id of the message
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  QUEUED, RUNNING, BACKOFF
-- @to    CANCELLED
-- @reply OK(turn int) | BODY_CONFLICT | NOT_FOUND | WRONG_STATE(state int)
-- @emits TURN_CANCELLED, MESSAGE_CANCELLED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED
-- @oom   allow
-- @spec  R-CANCEL-3, R-CONTROL-1, R-CANCEL-2, R-CONTROL-2, R-CONTROL-3
--!include control commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
local known = 'd:' .. message_id

-- Cancels a delayed message; the turn whose receipt stays.
local function cancel_delayed(q)
  local r = u.r
  local member = q[8] .. message_id
  unit_clear(u, 'q:' .. message_id)
  unit_mark('l:' .. id, member, false)
  r[DELAYED] = r[DELAYED] - 1
  if r[DELAYED] == 0 then
    unit_mark('busy', unit_later(u), false)
  end
  -- What is due has been admitted, so that the first of the rest is the next one.
  local rest = redis.call('ZRANGEBYSCORE', T .. 'l:' .. id, '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  r[DELAYED_AT] = tonumber(rest[1] ~= member and rest[2] or rest[4]) or 0
  DUE['delayed:' .. id] = r[DELAYED_AT] > 0 and r[DELAYED_AT]
  local turn = unsent_end(u, now, message_id, q[3], CANCELLED)
  ledger_add(u, MESSAGE_CANCELLED, now, turn, CANCELLED, { message_id, comment }, 0)
  return turn
end

-- Cancels a turn that has not started; the reply.
local function cancel_queued(turn)
  local r = u.r
  local h = receipt_get(u, turn)
  local state = h and h[R_STATE] or turn == r[HEAD] and r[STATE] or QUEUED
  if not h and turn < r[HEAD] then
    return { 'DAMAGED' }
  elseif state >= COMPLETED or turn == r[HEAD] and r[ATTEMPT] > 0 then
    return { 'WRONG_STATE', state }
  elseif turn == r[HEAD] then
    head_cancel(u, now, server, comment)
  else
    queued_end(u, now, server, turn, CANCELLED, TURN_CANCELLED, comment)
  end
  return control_answer(u, request_id, digest, { 'OK', turn })
end

if not reply then
  settle_before_admission(u, now, server)
  local found = unit_get(u, known)
  if found == 'q' then
    local q = unit_table(u, 'q:' .. message_id)
    if q then
      reply = control_answer(u, request_id, digest, { 'OK', cancel_delayed(q) })
    else
      reply = { 'DAMAGED' }
    end
  elseif tonumber(found) then
    reply = cancel_queued(tonumber(found))
  else
    reply = { 'NOT_FOUND' }
  end
end
return { now, { reply }, unit_commit(server) }
