--!include wake ledger
-- The inbox of an instance. `<turn>.m` is a msgpack array (version, message id, digest, blob, origin, engine ms,
-- continued turn, its message id); `d:<message id>` is the turn number.

local function inbox_admit(u, now, server, message_id, digest, blob, origin, from_turn, from_id)
  local r = u.r
  local turn = r[TAIL] + 1
  r[TAIL] = turn
  r[PENDING] = r[PENDING] + 1
  unit_set(u, turn .. '.m', cmsgpack.pack({ 1, message_id, digest, blob, origin, now, from_turn, from_id }))
  unit_set(u, 'd:' .. message_id, tostring(turn))
  if turn == r[HEAD] then
    r[STATE] = QUEUED
    BUSY[u.id] = true
    make_ready(u, now, server)
  end
  ledger_add(u, TURN_ADMITTED, now, turn, QUEUED)
  return turn
end

-- Moves the head past a finished turn.
local function inbox_advance(u, now, server)
  local r = u.r
  r[HEAD] = r[HEAD] + 1
  r[PENDING] = r[PENDING] - 1
  for i = STATE, LAST_FIELD do
    r[i] = 0
  end
  if r[PENDING] > 0 then
    r[STATE] = QUEUED
  end
  make_ready(u, now, server)
end
