--!include unit type states
-- Finished turns stay where they are. Trimming removes payloads first (`<turn>.m`, `.r`, steps), then, later, the receipt
-- (`<turn>.h`, a msgpack array: version, state, message id, digest, admitted, finished, attempts, steps, bytes, fence, n,
-- command digest, continuation turn, claimed instance, incarnation, turn, fence) and its dedup entry.

local RECEIPT_MS = 900000
local GC_ARMED = 4

local function history_due(r, h, settings, now)
  local kept = r[HEAD] - r[KEPT]
  if kept <= settings[MIN_TURNS] then
    return false
  end
  return now - h[6] >= settings[MAX_AGE_MS] or kept > settings[MAX_TURNS] or r[KBYTES] > settings[MAX_BYTES]
end

local function history_drop_payload(u, turn, h)
  unit_set(u, turn .. '.m', false)
  unit_set(u, turn .. '.r', false)
  for position = 1, h[8] do
    unit_set(u, turn .. '.' .. position, false)
  end
  u.r[KBYTES] = u.r[KBYTES] - h[9]
  u.r[KEPT] = turn + 1
end

-- Trims at most `limit` turns of each tier; the answer is how many were trimmed.
local function history_trim(u, now, limit)
  local r = u.r
  local settings = type_load(u.y[2])
  local trimmed = 0
  for _ = 1, limit do
    if r[HEAD] - r[KEPT] <= settings[MIN_TURNS] then
      break
    end
    local h = cmsgpack.unpack(unit_get(u, r[KEPT] .. '.h'))
    if not history_due(r, h, settings, now) then
      break
    end
    history_drop_payload(u, r[KEPT], h)
    trimmed = trimmed + 1
  end
  for _ = 1, limit do
    if r[OLDEST] >= r[KEPT] then
      break
    end
    local h = cmsgpack.unpack(unit_get(u, r[OLDEST] .. '.h'))
    if now - h[6] < RECEIPT_MS then
      break
    end
    unit_set(u, r[OLDEST] .. '.h', false)
    unit_set(u, 'd:' .. h[3], false)
    r[OLDEST] = r[OLDEST] + 1
    trimmed = trimmed + 1
  end
  if trimmed > 0 then
    unit_touch(u)
  end
  return trimmed
end

-- Engine time at which trimming has something to do again; nil if it never has as things stand.
local function history_next(u, now)
  local r = u.r
  local settings = type_load(u.y[2])
  local at
  if r[OLDEST] < r[KEPT] then
    at = cmsgpack.unpack(unit_get(u, r[OLDEST] .. '.h'))[6] + RECEIPT_MS
  end
  if r[HEAD] - r[KEPT] > settings[MIN_TURNS] then
    local finished = cmsgpack.unpack(unit_get(u, r[KEPT] .. '.h'))[6]
    local payload_at = finished + settings[MAX_AGE_MS]
    at = at and math.min(at, payload_at) or payload_at
  end
  return at and math.max(at, now)
end

-- Keeps one `gc` entry while there is something left to trim.
local function history_arm(u, now)
  local armed = has_bit(u.r[FLAGS], GC_ARMED)
  local at = history_next(u, now)
  if at then
    DUE['gc:' .. u.id] = at
    if not armed then
      u.r[FLAGS] = u.r[FLAGS] + GC_ARMED
      unit_touch(u)
    end
  elseif armed then
    DUE['gc:' .. u.id] = false
    u.r[FLAGS] = u.r[FLAGS] - GC_ARMED
    unit_touch(u)
  end
end

-- After a finish: a little trimming now and then, so that steady work needs no background.
local function history_finish(u, now)
  local r = u.r
  local settings = type_load(u.y[2])
  if r[HEAD] - r[KEPT] > settings[MIN_TURNS] or r[OLDEST] < r[KEPT] then
    if r[HEAD] % 4 == 0 or settings[MIN_TURNS] < 4 then
      history_trim(u, now, 8)
    end
    if not has_bit(r[FLAGS], GC_ARMED) then
      history_arm(u, now)
    end
  end
end
