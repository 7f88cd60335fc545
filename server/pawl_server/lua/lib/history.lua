--!include unit type states receipt signal
-- Finished turns stay where they are. Trimming removes payloads first (message, steps, reply), then, later, the receipt
-- and its dedup entry. A receipt that can't be read ends the trimming of its instance.
-- What is old is trimmed by the entry `gc` of `due`, whose time the record has: a turn that finishes within the limits reads
-- nothing of those before it. What is above a limit is trimmed by the turns that finish, several at a time.

local RECEIPT_MS = 900000
local SPARE_TURNS = 16 -- turns above a limit wait for each other, at most so many and an eighth of the limit
local SPARE_BYTES = 16 -- bytes above the limit may be this part of it
local MOVED_LIMIT = 32 -- turns that one move of the head trims
local GC_LIMIT = 64 -- turns of each tier that one firing of the entry trims
local GC_PAUSE_MS = 30000 -- at most so long what is due waits for more of its kind
local GC_LATE_MS = 60000 -- an entry so late is no longer waited for

-- How long the payloads of a turn that finished then may be kept: the least of what was set since.
local function history_age(settings, finished)
  local caps = settings[CAPS]
  for i = 1, caps and #caps or 0, 2 do
    if finished < caps[i] then
      return math.min(caps[i + 1], settings[MAX_AGE_MS])
    end
  end
  return settings[MAX_AGE_MS]
end

-- Turns and bytes that may be kept, and how many turns whatever their bytes; `spare` with what may wait.
local function history_limits(settings, spare)
  local least, bytes = settings[MIN_TURNS], settings[MAX_BYTES]
  local most = settings[MAX_AGE_MS] == 0 and least or math.max(least, settings[MAX_TURNS])
  if spare then
    most = most + math.min(SPARE_TURNS, math.floor(most / 8))
    least = least + math.min(SPARE_TURNS, math.floor(least / 8))
    bytes = bytes + math.floor(bytes / SPARE_BYTES)
  end
  return most, bytes, least
end

-- Whether more is kept than the limits allow.
local function history_over(r, settings, spare)
  local most, bytes, least = history_limits(settings, spare)
  local kept = r[HEAD] - r[KEPT]
  return kept > most or kept > least and r[KBYTES] > bytes
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
    unit_set(u, turn .. '.o', false)
  end
  for position = 1, h[R_LAST_STEP] ~= 0 and h[R_STEPS] - 1 or h[R_STEPS] do
    unit_set(u, turn .. '.' .. position, false)
  end
  signals_drop(u, turn)
  h[R_REPLY], h[R_LAST_STEP] = 0, 0
  h[R_MESSAGE_ID], h[R_MESSAGE_DIGEST], h[R_ADMITTED] = m[2], m[3], m[6]
  unit_set(u, turn .. '.h', cmsgpack.pack(h))
  u.r[KBYTES] = u.r[KBYTES] - h[R_BYTES]
end

-- Reads a field of a turn, and with it that of turns up to `last`: of more with each time, from `u.ahead` on.
local function history_read(u, turn, last, part)
  if u.set[turn .. part] ~= nil or u.cache[turn .. part] ~= nil then
    return
  end
  local fields = {}
  for at = turn, math.min(turn + u.ahead - 1, last) do
    fields[#fields + 1] = at .. part
  end
  u.ahead = math.min(2 * u.ahead, SPARE_TURNS)
  local v = redis.call('HMGET', u.key, unpack(fields))
  for i = 1, #fields do
    u.cache[fields[i]] = v[i]
  end
end

-- With `above` only what is above the limits, whatever its age.
--!rare
local function history_trim_payloads(u, now, limit, above)
  local r = u.r
  local settings = type_load(unit_type(u))
  local first, last = r[KEPT], math.min(r[KEPT] + limit, r[HEAD] - settings[MIN_TURNS]) - 1
  u.ahead = math.max(1, math.min(r[HEAD] - r[KEPT] - history_limits(settings), SPARE_TURNS))
  for turn = first, last do
    if above and not history_over(r, settings) then
      break
    end
    history_read(u, turn, last, '.h')
    local h = receipt_get(u, turn)
    if not h or now - h[R_FINISHED] < history_age(settings, h[R_FINISHED]) and not history_over(r, settings) then
      break
    end
    history_read(u, turn, last, '.m')
    history_drop_payload(u, turn, h)
  end
  return r[KEPT] - first
end

local function history_trim_receipts(u, now, limit)
  local r = u.r
  local first, last = r[OLDEST], math.min(r[OLDEST] + limit, r[KEPT]) - 1
  u.ahead = 1
  for turn = first, last do
    history_read(u, turn, last, '.h')
    local h = receipt_get(u, turn)
    if not h or now - h[R_FINISHED] < RECEIPT_MS then
      break
    end
    signals_forget(u, turn)
    unit_set(u, turn .. '.h', false)
    unit_set(u, 'd:' .. h[R_MESSAGE_ID], false)
    r[OLDEST] = turn + 1
  end
  return r[OLDEST] - first
end

-- Trims at most `limit` turns of each tier; the answer is how many were trimmed.
--!rare
local function history_trim(u, now, limit)
  local trimmed = history_trim_payloads(u, now, limit)
  trimmed = trimmed + history_trim_receipts(u, now, limit)
  if trimmed > 0 then
    unit_touch(u)
  end
  return trimmed
end

-- Engine time at which the entry is to trim again; nil if never as things stand. `pause`: what is not yet due waits a while
-- for more of its kind.
local function history_next(u, now, pause)
  local r = u.r
  local settings = type_load(unit_type(u))
  local at
  local oldest = r[OLDEST] < r[KEPT] and receipt_get(u, r[OLDEST])
  if oldest then
    at = oldest[R_FINISHED] + RECEIPT_MS
    at = pause and at > now and math.max(at, now + GC_PAUSE_MS) or at
  end
  local h = r[HEAD] - r[KEPT] > settings[MIN_TURNS] and receipt_get(u, r[KEPT])
  if h then
    local age = history_age(settings, h[R_FINISHED])
    local payload_at = history_over(r, settings, true) and now or h[R_FINISHED] + age
    if pause and payload_at > now then
      payload_at = math.max(payload_at, now + math.min(GC_PAUSE_MS, math.floor(age / 8)))
    end
    at = at and math.min(at, payload_at) or payload_at
  end
  return at and math.max(at, now)
end

-- Keeps one `gc` entry while there is something left to trim.
--!rare
local function history_arm(u, now, pause)
  local at = history_next(u, now, pause) or 0
  if at ~= u.r[GC_AT] then
    DUE['gc:' .. u.id] = at > 0 and at
    u.r[GC_AT] = at
    unit_touch(u)
  end
end

-- After the head has moved. The entry moves when a first payload waits, which may be due before any receipt is.
local function history_moved(u, now)
  local r = u.r
  local settings = type_load(unit_type(u))
  local kept = r[HEAD] - r[KEPT]
  local waits = kept > settings[MIN_TURNS]
  if r[GC_AT] > 0 and now - r[GC_AT] >= GC_LATE_MS then
    if history_trim(u, now, MOVED_LIMIT) < MOVED_LIMIT then
      history_arm(u, now)
    end
  elseif waits and history_over(r, settings, true) then
    history_trim_payloads(u, now, MOVED_LIMIT, true)
    if r[GC_AT] == 0 or history_over(r, settings, true) then
      history_arm(u, now)
    end
  elseif waits and (r[GC_AT] == 0 or u.passed or kept == settings[MIN_TURNS] + 1) then
    history_arm(u, now)
  end
end
