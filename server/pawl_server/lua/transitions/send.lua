--- send: admits messages to inboxes, creating absent instances where asked.
-- @keyspace meta i e ids ready types due busy waiting ch
-- @arg   now_ms        int    engine time in virtual-time namespaces
-- @arg   server        str    run id of the caller
-- @arg   max_pending   int    unfinished turns allowed per instance
-- @arg   max_message   int    bytes of message data allowed
-- @arg   max_state     int    bytes of state data allowed
-- @item  id            str    instance id
-- @item  message_id    str    idempotency id of the message
-- @item  digest        bytes  digest of the message
-- @item  message       bytes  message blob
-- @item  origin        bytes  free bytes about the sender
-- @item  create        bool   whether to create an absent instance
-- @item  type          str    workflow type, if creating
-- @item  version       str    code version, if creating
-- @item  create_digest bytes  digest of the creation, if creating
-- @item  state         bytes  initial state blob, if creating
-- @item  lease_ms      int    lease override; 0 for the type's
-- @item  max_attempts  int    attempts override; 0 for the type's
-- @item  waits         bool   whether the caller waits for the turn that the message becomes
-- @to    QUEUED
-- @reply OK(turn int, incarnation int, admitted_ms int, noted bool) | NOT_FOUND | BODY_CONFLICT(what str, tv str) | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits CREATED, TURN_ADMITTED
-- @oom   deny
-- @spec  R-SEND-1, R-SEND-2, R-SEND-3, R-SEND-4
--!include born inbox limits settle receipt notes commit

local now = meta_load(now_ms)

-- The answer that an earlier identical send got; who waits for it has to ask how the turn stands.
local function repeated(u, turn, digest)
  local m = unit_table(u, turn .. '.m')
  if not m then
    local h = receipt_get(u, turn)
    if not h or not tonumber(turn) then
      return { 'DAMAGED' }
    end
    m = { 1, h[R_MESSAGE_ID], h[R_MESSAGE_DIGEST], '', '', h[R_ADMITTED] }
  end
  if m[3] ~= digest then
    return { 'BODY_CONFLICT', 'message', u.tv }
  end
  return { 'OK', tonumber(turn), u.r[INC], m[6], 0 }
end

local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local known = 'd:' .. message_id
  local u = settled_load(now, server, id, known)
  local turn = u and unit_get(u, known)
  local reply
  if turn then
    reply = repeated(u, turn, digest)
  elseif not u and (MISSING.damaged or not create) then
    reply = unit_absent()
  elseif u and create and (u.tv ~= type .. ':' .. version) then
    reply = { 'BODY_CONFLICT', 'create_if_absent', u.tv }
  elseif data_bytes(message) > max_message then
    reply = over('message_bytes', data_bytes(message), max_message)
  elseif u and u.r[PENDING] >= max_pending then
    reply = over('pending_messages', u.r[PENDING] + 1, max_pending)
  elseif not u and data_bytes(state) > max_state then
    reply = over('state_bytes', data_bytes(state), max_state)
  else
    if not u then
      u = born(id, now, type, version, create_digest, state, lease_ms, max_attempts)
      u.cache[known] = false
    end
    local admitted = inbox_admit(u, now, server, message_id, digest, message, origin, 0, '')
    if waits then
      note_waiting(u, server)
    end
    reply = { 'OK', admitted, u.r[INC], now, waits and 1 or 0 }
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
