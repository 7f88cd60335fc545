--- put_type: stores the settings of a workflow type, or copies them from the type's home partition.
-- @keyspace meta type typeindex
-- @arg   now_ms       int    engine time in virtual-time namespaces
-- @arg   name         str    workflow type
-- @arg   settings     bytes  msgpack array, see lib/type.lua
-- @arg   expected     int    revision that must be stored; -1 for any
-- @arg   revision     int    0 to raise the stored one; above 0 a copy, stored only if it is newer
-- @arg   request_id   str    idempotency id; may be empty
-- @arg   digest       bytes  digest of the settings
-- @reply OK(revision int, settings bytes) | REVISION_CONFLICT(revision int) | BODY_CONFLICT
-- @oom   deny
-- @writes direct
-- @spec  R-TYPE-1, R-TYPE-2, R-TRIM-5
--!include type meta

-- How often `max_age` is remembered from before it was raised.
local KEPT_CAPS = 8
-- Answers of the newest requests, newest first: request id, digest, revision, settings.
local KEPT_ANSWERS = 8

-- What of the settings before goes on for turns that have finished: how long they may be kept, where that is less.
local function put_caps(before, after, now)
  local age = before[MAX_AGE_MS]
  local caps = {}
  for i = 1, before[CAPS] and #before[CAPS] or 0, 2 do
    local at, cap = before[CAPS][i], before[CAPS][i + 1]
    if cap < after and at + cap > now then
      caps[#caps + 1] = at
      caps[#caps + 1] = cap
    end
  end
  if age < after then
    caps[#caps + 1] = now
    caps[#caps + 1] = age
  end
  return { unpack(caps, math.max(1, #caps - 2 * KEPT_CAPS + 1)) }
end

-- The types with a queue timeout or a total timeout, between commas, now that this one has these settings.
local function put_timed(packed)
  local p = cmsgpack.unpack(packed)
  local names = {}
  for other in string.gmatch(META.timed, '[^,]+') do
    if other ~= name then
      names[#names + 1] = other
    end
  end
  if (p[QUEUE_TIMEOUT_MS] or 0) > 0 or (p[TOTAL_TIMEOUT_MS] or 0) > 0 then
    names[#names + 1] = name
  end
  return #names > 0 and ',' .. table.concat(names, ',') .. ',' or ''
end

local now = meta_load(now_ms)
local key = T .. 'type:' .. name
local stored = redis.call('HMGET', key, 'v', 'p', 'q')
local current = tonumber(stored[1]) or 0
local answers = stored[3] and cmsgpack.unpack(stored[3]) or {}
if revision == 0 then
  for i = 1, request_id ~= '' and #answers or 0 do
    local a = answers[i]
    if a[1] == request_id then
      local reply = a[2] == digest and { 'OK', a[3], a[4] } or { 'BODY_CONFLICT' }
      return { now, { reply }, {} }
    end
  end
  if expected >= 0 and expected ~= current then
    return { now, { { 'REVISION_CONFLICT', current } }, {} }
  end
elseif revision <= current then
  return { now, { { 'OK', current, stored[2] } }, {} }
end
local written = revision > 0 and revision or current + 1
local packed = settings
if revision == 0 then
  local p = cmsgpack.unpack(settings)
  p[2] = now
  local age = p[MAX_AGE_MS] or -1
  local caps = put_caps(type_load(name), age == -1 and DEFAULTS[MAX_AGE_MS] or age, now)
  if #caps > 0 then
    for i = #p + 1, LAST_SETTING do
      p[i] = -1
    end
    p[CAPS] = caps
  end
  packed = cmsgpack.pack(p)
  if request_id ~= '' then
    table.insert(answers, 1, { request_id, digest, written, packed })
    answers[KEPT_ANSWERS + 1] = nil
  end
end
local fields = { 'v', written, 'p', packed, 'q', cmsgpack.pack(answers) }
local timed = put_timed(packed)

if timed ~= META.timed then
  redis.call('HSET', T .. 'meta', 'timed', timed)
end
redis.call('ZADD', T .. 'typeindex', 0, name)
redis.call('HSET', key, unpack(fields))
return { now, { { 'OK', written, packed } }, {} }
