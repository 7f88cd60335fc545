--- send: admits messages to inboxes now or later, creating absent instances where asked.
-- @keyspace meta i e feed type ids tag key dead l x ready types due busy waiting ch damaged parked failed typeindex
-- @arg   now_ms        int    engine time in virtual-time namespaces
-- @arg   server        str    run id of the caller
-- @arg   max_pending   int    unfinished turns and delayed messages allowed per instance
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
-- @item  retry         bytes  retry policy, see lib/policy.lua; empty for the type's
-- @item  words         bytes  correlation key and tags, if creating, each followed by a zero byte; empty for none
-- @item  waits         bool   whether the caller waits for the turn that the message becomes
-- @item  delay_ms      int    time until it is admitted; 0 for now
-- @item  ttl_ms        int    time from admission to the begin of an attempt; 0 for any
-- @to    QUEUED
-- @reply OK(turn int, incarnation int, admitted_ms int, noted bool, due_ms int) | NOT_FOUND | INSTANCE_DELETED | BODY_CONFLICT(what str, tv str) | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits CREATED, TURN_ADMITTED, MESSAGE_SCHEDULED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   deny
-- @spec  R-SEND-1, R-SEND-2, R-SEND-3, R-SEND-4, R-DELAY-1, R-DELAY-2, R-TTL-1, R-DELETE-3
--!include born inbox limits settle receipt notes commit

-- Tombstones and queued turns together may be so many times the limit of pending turns.
local TOMBSTONES = 8

local now = meta_load(now_ms)

-- The answer that an earlier identical send got; who waits for it has to ask how the turn stands.
local function repeated(u, turn, message_id, digest)
  if turn == 'q' then
    local q = unit_table(u, 'q:' .. message_id)
    if not q then
      return { 'DAMAGED' }
    elseif q[3] ~= digest then
      return { 'BODY_CONFLICT', 'message', u.tv }
    end
    return { 'OK', 0, u.r[INC], 0, 0, q[7] }
  end
  local m = unit_table(u, turn .. '.m')
  if not m then
    local h = receipt_get(u, turn)
    if not h then
      return { 'DAMAGED' }
    end
    m = { 1, h[R_MESSAGE_ID], h[R_MESSAGE_DIGEST], '', '', h[R_ADMITTED] }
  end
  if m[3] ~= digest then
    return { 'BODY_CONFLICT', 'message', u.tv }
  end
  return { 'OK', tonumber(turn), u.r[INC], m[6], 0, 0 }
end

-- Puts a message off: it has no turn until it is due.
local function schedule(u, message_id, digest, message, origin, delay_ms, ttl_ms)
  local r = u.r
  ledger_add(u, MESSAGE_SCHEDULED, now, 0, 0, { message_id, delay_ms })
  local arrival = string.format('%016.0f', r[SEQ])
  local due = now + delay_ms
  unit_set(u, 'q:' .. message_id, cmsgpack.pack({ 1, message_id, digest, message, origin, now, due, arrival, ttl_ms }))
  unit_set(u, 'd:' .. message_id, 'q')
  unit_mark('l:' .. u.id, arrival .. message_id, due)
  unit_mark('busy', unit_later(u), 0)
  r[DELAYED] = r[DELAYED] + 1
  if r[DELAYED_AT] == 0 or due < r[DELAYED_AT] then
    r[DELAYED_AT] = due
    DUE['delayed:' .. u.id] = due
  end
  return { 'OK', 0, r[INC], 0, 0, due }
end

-- Whether the message belonged to the life of the id that was deleted last.
local function buried(dead, message_id)
  return dead and string.find(dead[D_IDS], dead_id(message_id), 1, true)
end

local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local known = 'd:' .. message_id
  local u = settled_load(now, server, id, known)
  if u then
    settle_before_admission(u, now, server)
  end
  local turn = u and unit_get(u, known)
  local reply
  local dead = not u and not MISSING.damaged and not MISSING.deleting and dead_get(id, now) or nil
  if turn and turn ~= '' then
    reply = repeated(u, turn, message_id, digest)
  elseif buried(dead, message_id) then
    reply = { 'INSTANCE_DELETED' }
  elseif not u and (MISSING.damaged or MISSING.deleting or not create) then
    reply = unit_absent()
  elseif u and create and (u.tv ~= type .. ':' .. version) then
    reply = { 'BODY_CONFLICT', 'create_if_absent', u.tv }
  elseif data_bytes(message) > max_message then
    reply = over('message_bytes', data_bytes(message), max_message)
  elseif u and u.r[PENDING] + u.r[DELAYED] >= max_pending then
    reply = over('pending_messages', u.r[PENDING] + u.r[DELAYED] + 1, max_pending)
  elseif u and u.r[TAIL] - u.r[HEAD] + 1 >= TOMBSTONES * max_pending then
    reply = over('pending_messages', u.r[TAIL] - u.r[HEAD] + 2, TOMBSTONES * max_pending)
  elseif not u and data_bytes(state) > max_state then
    reply = over('state_bytes', data_bytes(state), max_state)
  else
    if not u then
      u = born(id, now, type, version, create_digest, state, lease_ms, max_attempts, retry, words, '', dead)
    end
    if delay_ms > 0 then
      reply = schedule(u, message_id, digest, message, origin, delay_ms, ttl_ms)
    else
      local admitted = inbox_admit(u, now, server, message_id, digest, message, origin, 0, '', false, ttl_ms)
      if waits then
        note_waiting(u, server)
      end
      reply = { 'OK', admitted, u.r[INC], now, waits and 1 or 0, 0 }
    end
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
