--!include unit type states receipt
-- Finished turns stay where they are. Trimming removes payloads first (message, steps, reply), then, later, the receipt
-- and its dedup entry. A receipt that can't be read ends the trimming of its instance.

local RECEIPT_MS = 900000
local GC_ARMED = 4

-- Whether more is kept than count or bytes allow.
local function history_over(r, settings)
  local kept = r[HEAD] - r[KEPT]
  return kept > settings[MIN_TURNS] and (kept > settings[MAX_TURNS] or r[KBYTES] > settings[MAX_BYTES])
end

-- Whether the payloads of turn KEPT, which has more than MIN_TURNS turns above it, are to go.
local function history_due(r, h, settings, now)
  return now - h[R_FINISHED] >= settings[MAX_AGE_MS] or history_over(r, settings)
end

local function history_drop_payload(u, turn, h)
  u.r[KEPT] = turn + 1
  if (h[R_MESSAGE_ID] or 0) ~= 0 then
    return -- A tombstone, which never had more than its receipt since it ended.
  end
  local m = unit_table(u, turn .. '.m') or { 1, '', '', '', '', 0 }
  unit_set(u, turn .. '.m', false)
  if h[R_STATE] ~= COMPLETED then
    unit_set(u, turn .. '.f', false)
  end
  for position = 1, h[R_LAST_STEP] ~= 0 and h[R_STEPS] - 1 or h[R_STEPS] do
    unit_set(u, turn .. '.' .. position, false)
  end
  h[R_REPLY], h[R_LAST_STEP] = 0, 0
  h[R_MESSAGE_ID], h[R_MESSAGE_DIGEST], h[R_ADMITTED] = m[2], m[3], m[6]
  unit_set(u, turn .. '.h', cmsgpack.pack(h))
  u.r[KBYTES] = u.r[KBYTES] - h[R_BYTES]
end

-- Trims at most `limit` turns of each tier; the answer is how many were trimmed.
local function history_trim(u, now, limit)
  local r = u.r
  local settings = type_load(unit_type(u))
  local trimmed = 0
  for _ = 1, limit do
    if r[HEAD] - r[KEPT] <= settings[MIN_TURNS] then
      break
    end
    local h = receipt_get(u, r[KEPT])
    if not h or not history_due(r, h, settings, now) then
      break
    end
    history_drop_payload(u, r[KEPT], h)
    trimmed = trimmed + 1
  end
  for _ = 1, limit do
    if r[OLDEST] >= r[KEPT] then
      break
    end
    local h = receipt_get(u, r[OLDEST])
    if not h or now - h[R_FINISHED] < RECEIPT_MS then
      break
    end
    unit_set(u, r[OLDEST] .. '.h', false)
    unit_set(u, 'd:' .. h[R_MESSAGE_ID], false)
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
  local settings = type_load(unit_type(u))
  local at
  local oldest = r[OLDEST] < r[KEPT] and receipt_get(u, r[OLDEST])
  if oldest then
    at = oldest[R_FINISHED] + RECEIPT_MS
  end
  local h = r[HEAD] - r[KEPT] > settings[MIN_TURNS] and receipt_get(u, r[KEPT])
  if h then
    local payload_at = history_due(r, h, settings, now) and now or h[R_FINISHED] + settings[MAX_AGE_MS]
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

-- After the head has moved: a little trimming now and then, so that steady work needs no background. The entry moves when a
-- first payload waits, and with the trimming.
local function history_moved(u, now)
  local r = u.r
  local settings = type_load(unit_type(u))
  local kept = r[HEAD] - r[KEPT]
  if kept > settings[MIN_TURNS] or r[OLDEST] < r[KEPT] then
    local trims = r[HEAD] % 4 == 0 or settings[MIN_TURNS] < 4 or history_over(r, settings)
    if trims then
      history_trim(u, now, 8)
    end
    if trims or u.passed or not has_bit(r[FLAGS], GC_ARMED) or kept == settings[MIN_TURNS] + 1 then
      history_arm(u, now)
    end
  end
end
