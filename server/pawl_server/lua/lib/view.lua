--!include settle receipt
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

-- One turn: number, message, receipt, failure, steps, registered step; empty strings for what is not there. nil if nothing
-- is kept.
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
  return { turn, v[1] or '', v[2] or '', v[3] or '', steps, v[4] or '' }
end

local function view_bytes(turn)
  local bytes = #turn[2] + #turn[3] + #turn[4] + #turn[6]
  for i = 1, #turn[5] do
    bytes = bytes + #(turn[5][i] or '')
  end
  return bytes
end
