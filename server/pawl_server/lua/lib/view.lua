--!include settle receipt signal
-- What reads show.

-- What settling would record is not there yet: nobody could go on from it.
local function view_unrecorded(u)
  if u.events then
    u.r[SEQ] = u.r[SEQ] - #u.events
    u.events = nil
  end
end

-- One of many instances: its head as it stands, but no message admitted or expired since.
local function view_load(now, id, ...)
  local u = unit_load(id, ...)
  if not u and MISSING.deleting then
    u = UNITS[id]
  end
  if u and not u.deleting then
    settle_head(u, now, '')
    view_unrecorded(u)
  end
  return u
end

-- Fields as this script sees them.
local function view_fields(u, fields)
  local v = redis.call('HMGET', u.key, unpack(fields))
  for i = 1, #fields do
    if u.set[fields[i]] ~= nil then
      v[i] = u.set[fields[i]]
    end
  end
  return v
end

-- What the turn waits for, if it is the head and does.
local function view_wait(u, turn)
  return turn == u.r[HEAD] and u.r[STATE] == WAITING and unit_get(u, 'w') or ''
end

-- What a turn has received, and the values that nothing has consumed: `''` in the place of others.
local function view_signals(u, turn)
  local g, fields = signals_of(u, turn), {}
  for at = 2, g and #g or 0 do
    fields[at - 1] = signal_field(turn, at)
  end
  if #fields == 0 then
    return '', {}
  end
  local values = view_fields(u, fields)
  for i = 1, #fields do
    values[i] = values[i] or ''
  end
  return unit_get(u, turn .. '.g'), values
end

-- One turn: number, message, receipt, failure, steps, registered step, signals, their values, wait; empty strings for what is
-- not there. nil if nothing is kept.
local function view_turn(u, turn, payloads)
  local v = view_fields(u, { turn .. '.m', turn .. '.h', turn .. '.f', turn .. '.o' })
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
      steps = view_fields(u, fields)
    end
  end
  local g, values = '', {}
  if payloads and v[1] then
    g, values = view_signals(u, turn)
  end
  return { turn, v[1] or '', v[2] or '', v[3] or '', steps, v[4] or '', g, values, view_wait(u, turn) }
end

local function view_bytes(turn)
  local bytes = #turn[2] + #turn[3] + #turn[4] + #turn[6] + #turn[7]
  for i = 1, #turn[5] do
    bytes = bytes + #(turn[5][i] or '')
  end
  for i = 1, #turn[8] do
    bytes = bytes + #turn[8][i]
  end
  return bytes
end
