--!include inbox notes receipt history signal
-- Turns that end without completing: at the head, or in the queue, where they stay as tombstones until the head gets there.

local HOW_CANCELLED = 9

-- Ends the head. Its message, steps and last failure stay readable; the instance keeps its state.
--!rare
local function head_end(u, now, server, state, event, detail)
  local r = u.r
  local turn = r[HEAD]
  local bytes = r[BYTES] > 0 and r[BYTES] or #(unit_get(u, turn .. '.m') or '') + signals_bytes(u, turn)
  local h = { 1, state, now, r[ATTEMPT], r[STEPS], bytes, r[FENCE], r[N], r[DIGEST], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  h[R_WORD], h[R_ANSWER1], h[R_ANSWER2] = r[WORD], r[ANSWER1], r[ANSWER2]
  h[R_HOW] = HELD[r[STATE]] and HOW_CANCELLED or r[HOW]
  local attempt = r[ATTEMPT]
  if r[OP] > 0 then
    bytes = bytes + #(unit_get(u, turn .. '.o') or '')
    h[R_BYTES] = bytes
  end
  unit_set(u, turn .. '.h', cmsgpack.pack(h))
  if r[STEPS] > 0 then
    unit_set(u, 'k', false)
  end
  r[KBYTES] = r[KBYTES] + bytes
  make_unready(u)
  transition(u, state)
  notify_awaiting(u, turn, '')
  inbox_advance(u, now, server)
  ledger_add(u, event, now, turn, state, detail, attempt)
  history_moved(u, now)
end

-- The receipt of a turn that ends without its message being kept.
local function tombstone(u, turn, now, state, message_id, digest, admitted)
  local h = { 1, state, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, message_id, digest, admitted, 0, 0, 0 }
  unit_set(u, turn .. '.h', cmsgpack.pack(h))
end

-- Ends the head as CANCELLED at once. Who holds it is told, also if that is the caller.
--!rare
local function head_cancel(u, now, server, comment)
  local r = u.r
  if HELD[r[STATE]] then
    tell_holder(u, r[CONN], r[HEAD], r[FENCE], ENDINGS[HOW_CANCELLED], '')
  end
  head_end(u, now, server, CANCELLED, TURN_CANCELLED, comment)
end

-- Ends a queued turn behind the head: only a receipt stays.
--!rare
local function queued_end(u, now, server, turn, state, event, detail)
  local r = u.r
  local m = unit_table(u, turn .. '.m') or { 1, '', '', '', '', 0 }
  tombstone(u, turn, now, state, m[2], m[3], m[6])
  unit_set(u, turn .. '.m', false)
  signals_drop(u, turn)
  r[PENDING] = r[PENDING] - 1
  inbox_unexpire(u, turn)
  notify_awaiting(u, turn, '')
  if r[STATE] == BEHIND then
    inbox_pass(u, now)
    make_ready(u, now, server)
    history_moved(u, now)
  end
  ledger_add(u, event, now, turn, state, detail, 0)
end

-- Ends a message that never was in the inbox, as a turn whose receipt answers late repeats; its number.
local function unsent_end(u, now, message_id, digest, state)
  local r = u.r
  local turn = r[TAIL] + 1
  r[TAIL] = turn
  tombstone(u, turn, now, state, message_id, digest, now)
  unit_set(u, 'd:' .. message_id, tostring(turn))
  if r[HEAD] == turn then
    signals_move(u, turn, turn + 1)
    r[HEAD] = turn + 1
    history_moved(u, now)
  end
  return turn
end

local MAX_PARKED = 1000

-- Keeps the message and the failure of the head, which is about to end PARKED. `<turn>.p` is a msgpack array (version, message
-- record, failure record, engine ms).
local function park_message(u, now)
  local r = u.r
  local turn = r[HEAD]
  local kept = { 1, unit_get(u, turn .. '.m') or '', unit_get(u, turn .. '.f') or '', now }
  unit_set(u, turn .. '.p', cmsgpack.pack(kept))
  unit_mark('parked', string.format('%s:%016.0f', unit_member(u), turn), 0)
  r[PARKED_TURNS] = r[PARKED_TURNS] + 1
end
