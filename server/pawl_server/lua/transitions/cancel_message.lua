--- cancel_message: takes back a message that has not started.
-- @keyspace meta i e feed l x failed damaged ready types due busy waiting ch
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   message_id  str    idempotency id of the message
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  QUEUED, RUNNING
-- @to    CANCELLED
-- @reply OK(turn int) | BODY_CONFLICT | NOT_FOUND | WRONG_STATE(state int)
-- @emits TURN_CANCELLED, MESSAGE_CANCELLED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY
-- @oom   allow
-- @spec  R-CANCEL-3, R-CONTROL-1
--!include control commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, 0, request_id, digest)
local known = 'd:' .. message_id

-- Forgets a delayed message: nothing of it stays but the event.
local function unschedule(q)
  local r = u.r
  unit_set(u, known, false)
  unit_set(u, 'q:' .. message_id, false)
  unit_mark('l:' .. id, q[8] .. message_id, false)
  r[DELAYED] = r[DELAYED] - 1
  local first = redis.call('ZRANGE', T .. 'l:' .. id, 0, 1, 'WITHSCORES')
  local at = tonumber(first[1] ~= q[8] .. message_id and first[2] or first[4])
  r[DELAYED_AT] = at or 0
  DUE['delayed:' .. id] = at or false
  ledger_add(u, MESSAGE_CANCELLED, now, 0, 0, { message_id, 0 })
end

if not reply then
  local found = unit_get(u, known)
  local turn = tonumber(found)
  local state = turn and (turn == u.r[HEAD] and u.r[STATE] or (receipt_get(u, turn) or {})[R_STATE] or QUEUED)
  if found == 'q' then
    local q = unit_table(u, 'q:' .. message_id)
    if q then
      unschedule(q)
      reply = control_answer(u, request_id, digest, { 'OK', 0 })
    else
      reply = { 'DAMAGED' }
    end
  elseif not state then
    reply = { 'NOT_FOUND' }
  elseif state ~= QUEUED and state ~= RUNNING or turn == u.r[HEAD] and u.r[ATTEMPT] > 0 then
    reply = { 'WRONG_STATE', state }
  else
    if turn == u.r[HEAD] then
      if state == RUNNING then
        tell_holder(u, u.r[CONN], turn, u.r[FENCE], 'cancelled', '')
      end
      head_end(u, now, server, CANCELLED, TURN_CANCELLED, comment)
    else
      queued_end(u, now, server, turn, CANCELLED, TURN_CANCELLED, comment)
    end
    reply = control_answer(u, request_id, digest, { 'OK', turn })
  end
end
return { now, { reply }, unit_commit(server) }
