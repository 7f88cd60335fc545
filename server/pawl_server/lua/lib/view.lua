--!include unit states receipt
-- What reads show: the settled view, computed without writing.

local function view_load(now, id, ...)
  local u = unit_load(id, ...)
  if not u and MISSING.deleting then
    u = UNITS[id]
  end
  if u then
    local state = u.r[STATE]
    if (state == SLEEPING or state == BACKOFF or state == DEFERRED) and u.r[DEADLINE] <= now then
      u.r[STATE] = QUEUED
      u.r[DEADLINE] = 0
    end
  end
  return u
end

-- One turn: number, message, receipt, failure, steps; empty strings for what is not there. nil if nothing is kept.
local function view_turn(u, turn, payloads)
  local v = redis.call('HMGET', u.key, turn .. '.m', turn .. '.h', turn .. '.f')
  if not v[1] and not v[2] then
    return nil
  end
  local steps = {}
  if payloads then
    local count = turn == u.r[HEAD] and u.r[STEPS] or 0
    if v[1] and v[2] then
      local h = cmsgpack.unpack(v[2])
      count = h[R_LAST_STEP] ~= 0 and h[R_STEPS] - 1 or h[R_STEPS]
    end
    local fields = {}
    for position = 1, count do
      fields[position] = turn .. '.' .. position
    end
    if count > 0 then
      steps = redis.call('HMGET', u.key, unpack(fields))
    end
  end
  return { turn, v[1] or '', v[2] or '', v[3] or '', steps }
end

local function view_bytes(turn)
  local bytes = #turn[2] + #turn[3] + #turn[4]
  for i = 1, #turn[5] do
    bytes = bytes + #(turn[5][i] or '')
  end
  return bytes
end
